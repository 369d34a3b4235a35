"""The function body alone, no library registered: ONNX Runtime inlines it, and the numbers hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cases import CORNER, IRREGULAR, REGULAR, Array, AttentionCase
from compare import check, expect
from hypothesis import given
from onnx import ModelProto, NodeProto, TensorProto, helper
from op_model import ELEM_TYPES, run
from strategies import attention_cases

from ortflash.graph_tools import op_schema
from ortflash.graph_tools.errors import InvalidModelError
from ortflash.graph_tools.function_body import BodyTraits, build_function, traits_of

_LARGEST = 2_000_000
"""Scores of a case that is run here: the body stores them, and the point is its arithmetic."""


def _model(
    calls: list[tuple[dict[str, str], dict[str, Any]]], values: dict[str, Array], *, opset: int, lse: bool
) -> ModelProto:
    """A model of several FlashAttention nodes, given as (inputs, attributes), with their function."""
    spec = op_schema.schema()
    nodes: list[NodeProto] = []
    for index, (inputs, attributes) in enumerate(calls):
        count = 1 + max(i for i, one in enumerate(spec.inputs) if one.name in inputs)
        nodes.append(
            op_schema.make_node(
                inputs,
                f"output_{index}",
                name=f"call_{index}",
                input_count=count,
                attributes=attributes,
                softmax_lse=f"lse_{index}" if lse else "",
            )
        )
    elem_type = ELEM_TYPES[values["query"].dtype]
    rank = values["query"].ndim
    outputs = []
    for index in range(len(calls)):
        outputs.append(helper.make_tensor_value_info(f"output_{index}", elem_type, [f"o{a}" for a in range(rank)]))
        if lse:
            outputs.append(helper.make_tensor_value_info(f"lse_{index}", TensorProto.FLOAT, ["b", "n", "s"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(k, ELEM_TYPES[v.dtype], [f"{k}{a}" for a in range(v.ndim)])
            for k, v in values.items()
        ],
        outputs,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(spec.domain, spec.version)]
    function = build_function(traits_of(nodes, opset, elem_type))
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[function])


def _all_inputs(case: AttentionCase) -> dict[str, Array]:
    """The case's inputs, gaps filled by neutral constants."""
    given_inputs = {name: array for name, array in case.make_inputs().items() if array is not None}
    order = [one.name for one in op_schema.schema().inputs]
    count = 1 + max(order.index(name) for name in given_inputs)
    elem_type = ELEM_TYPES[given_inputs["query"].dtype]
    neutral = {
        name: onnx.numpy_helper.to_array(op_schema.neutral_constant(name, name, elem_type)) for name in order[3:count]
    }
    return {name: given_inputs.get(name, neutral.get(name)) for name in order[:count]}  # type: ignore[misc]


def _session(model: ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _run(case: AttentionCase, opset: int = 18) -> None:
    values = _all_inputs(case)
    model = _model([({name: name for name in values}, case.attributes())], values, opset=opset, lse=True)
    onnx.checker.check_model(model, full_check=True)
    output, lse = run(_session(model), values)
    expected, expected_lse = expect(case)
    check(output, expected)
    check(lse, expected_lse)


def _fits(case: AttentionCase) -> bool:
    sizes = case.sizes
    return sizes["B"] * sizes["N"] * sizes["S"] * sizes["T"] <= _LARGEST


@pytest.mark.parametrize("case", [*filter(_fits, (*REGULAR, *IRREGULAR, *CORNER))], ids=lambda case: case.name)
def test_case(case: AttentionCase) -> None:
    _run(case)


@given(attention_cases())
def test_drawn_case(case: AttentionCase) -> None:
    _run(case)


EVERYTHING = AttentionCase(
    name="everything",
    batch=2,
    num_heads=6,
    kv_num_heads=2,
    q_len=19,
    kv_len=37,
    head_size=8,
    v_head_size=12,
    packed=True,
    is_causal=1,
    causal_alignment="bottom_right",
    window_left=20,
    window_right=0,
    scale=0.3,
    softcap=4.0,
    bias="1NST",
    mask="B11T",
    mask_kind="padding",
    key_lengths=(30, 37),
    blocks="11RC",
    block_size=16,
    sinks="N",
)


@pytest.mark.parametrize("opset", range(13, 26))
def test_every_opset(opset: int) -> None:
    try:
        _run(EVERYTHING, opset)
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
        pytest.skip(f"this ONNX Runtime doesn't know opset {opset}: {error}")


@pytest.mark.parametrize("opset", [13, 18, 22])
def test_calls_of_one_file_differ_in_alignment_layout_and_flags(opset: int) -> None:
    """One body serves a causal call of each alignment, 3-D and 4-D, with and without window, cap and scale."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 4, 5, 8)), rng.standard_normal((2, 4, 9, 8))
    four = {"query": q, "key": k, "value": k[..., :6]}
    three = {f"{n}_3d": a.transpose(0, 2, 1, 3).reshape(2, a.shape[2], -1) for n, a in four.items()}
    values = {name: array.astype(np.float32) for name, array in {**four, **three}.items()}
    heads = {"num_heads": 4, "kv_num_heads": 4}
    attributes: list[dict[str, Any]] = [
        {"is_causal": 1},
        {"is_causal": 1, "causal_alignment": "bottom_right", "softcap": 2.0, **heads},
        {"causal_alignment": "bottom_right", "scale": 0.7, **heads},
        {"window_left": 2, "causal_alignment": "bottom_right"},
    ]
    names = [{n: f"{n}_3d" if a.get("num_heads") else n for n in four} for a in attributes]
    model = _model(list(zip(names, attributes, strict=True)), values, opset=opset, lse=False)
    outputs = run(_session(model), values)
    from ortflash import reference

    for output, inputs, given_attributes in zip(outputs, names, attributes, strict=True):
        exact = reference.attention(**{n: values[v] for n, v in inputs.items()}, **given_attributes)[0]
        np.testing.assert_allclose(output, exact, rtol=0, atol=2e-6)


def test_no_call_has_a_gap_and_no_function_an_overload() -> None:
    values = _all_inputs(EVERYTHING)
    model = _model([({name: name for name in values}, EVERYTHING.attributes())], values, opset=18, lse=False)
    (function,) = model.functions
    assert not function.overload
    assert all(name for node in (*function.node, *model.graph.node) for name in (*node.input, *node.output))


def test_a_body_without_masks_is_a_plain_softmax() -> None:
    """What other runtimes recognise as attention stays recognisable."""
    case = AttentionCase(name="plain", q_len=5, head_size=8)
    values = _all_inputs(case)
    model = _model([({name: name for name in values}, {"is_causal": 1})], values, opset=18, lse=False)
    ops = [node.op_type for node in model.functions[0].node]
    assert ops.count("Softmax") == 1
    assert "Exp" not in ops


def test_opset_12_is_refused_with_the_way_out() -> None:
    traits = BodyTraits(12, 3, False, TensorProto.FLOAT, False, False, False, False, "top_left")
    with pytest.raises(InvalidModelError, match="version_converter"):
        build_function(traits)


def test_calls_that_disagree_are_refused() -> None:
    names = {"query": "q", "key": "k", "value": "v"}
    calls = [
        op_schema.make_node(names, "a", name="a", input_count=3),
        op_schema.make_node({**names, "attn_bias": "b"}, "c", name="c", input_count=4),
    ]
    with pytest.raises(InvalidModelError, match="all must agree"):
        traits_of(calls, 18, TensorProto.FLOAT)
