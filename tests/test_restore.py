"""Restoring: fused nodes become standard ops again, and the numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from blocks import Block, feed_for, model_of
from onnx import ModelProto, TensorProto
from test_rewrite import in_branches, in_function_with_constant_scale, in_loop

import ortflash
from ortflash import api
from ortflash.errors import InvalidModelError, OrtflashError
from ortflash.graph_tools.rewrite import flash_calls
from ortflash.graph_tools.scopes import all_scopes
from ortflash.runner import run_model

BLOCKS = (Block("a_", bias=True), Block("b_", mask=True), Block("c_", softcap=3.0))


def fused(opset: int = 17, elem_type: int = TensorProto.FLOAT) -> ModelProto:
    return ortflash.rewrite(model_of(*BLOCKS, opset=opset, elem_type=elem_type), verify=False).model


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_all(opset: int, elem_type: int) -> None:
    original = model_of(*BLOCKS, opset=opset, elem_type=elem_type)
    restored, count = api.restore(fused(opset, elem_type))
    assert count == 3
    onnx.checker.check_model(restored, full_check=True)
    assert not restored.functions
    assert [entry.domain for entry in restored.opset_import] == [""]
    names = [name for node in restored.graph.node for name in (*node.output,)]
    assert len(names) == len(set(names))
    feed = feed_for(original)
    expected, actual = run_model(original, feed), run_model(restored, feed)
    for name, array in expected.items():
        tolerance = 1e-5 if elem_type == TensorProto.FLOAT else 1e-2
        np.testing.assert_allclose(actual[name].astype(float), array.astype(float), rtol=0, atol=tolerance)


def test_some_of_them_so_that_a_user_can_bisect(tmp_path: Path) -> None:
    model = fused()
    before = model.SerializeToString(deterministic=True)
    name = flash_calls(model)[1].name
    restored, count = api.restore(model, tmp_path / "out.onnx", only=[name])
    assert count == 1
    assert [call.name for call in flash_calls(restored)] == [c.name for c in flash_calls(model) if c.name != name]
    assert len(restored.functions) == 1
    assert onnx.load(tmp_path / "out.onnx") == restored
    assert model.SerializeToString(deterministic=True) == before
    others, count = api.restore(model, skip=[name])
    assert count == 2
    assert [call.name for call in flash_calls(others)] == [name]


def test_inside_bodies_and_functions() -> None:
    for make in (in_branches, in_loop, in_function_with_constant_scale):
        model = ortflash.rewrite(make(), verify=False).model
        restored, count = api.restore(model)
        assert count == (2 if make is in_branches else 1)
        assert not flash_calls(restored)
        assert all(
            entry.domain != "ortflash"
            for scope in all_scopes(restored)
            if scope.is_function
            for entry in scope.container.opset_import
        )
        onnx.checker.check_model(restored)


def test_a_pattern_that_fits_no_node() -> None:
    with pytest.raises(OrtflashError, match="No FlashAttention node is called 'nobody'"):
        api.restore(fused(), only=["nobody"])


def test_a_file_that_lost_its_function() -> None:
    model = fused()
    del model.functions[:]
    with pytest.raises(InvalidModelError, match="not their function"):
        api.restore(model)
