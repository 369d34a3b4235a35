"""Whole models: every site fused and right, with the library and without it; what isn't attention stays.

The shipped models, the hand-written spellings and the traps always; the corpus's models of the architectures that the
README names where the corpus lies beside the checkout (`make corpus` runs all of it).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from corpus import check_model, find_corpus, read_table, run_without_library
from onnx import ModelProto
from spellings import SPELLINGS, Spelling
from traps import TRAPS, Trap

from ortflash import rewrite
from ortflash.api import inspect
from ortflash.criterion import compare
from ortflash.graph_tools.rewrite import flash_calls
from ortflash.runner import run_model
from ortflash.verify import run_in_float64

SHIPPED = {"bert4096-dy-sdpa-op18": 3, "sdunet-ts-eager-op17": 8, "sdunet-dy-sdpa-op18": 8}
"""Models in ``models/`` and how many sites each has."""

MODELS = Path(__file__).parents[1] / "models"

NAMED = re.compile(
    r"(bert|roberta|distilbert|vit|timmvit|clipvision|cliptext|cliptextsd|gpt2|gpt2kv|opt|t5enc|whisperenc|whisperdec"
    r"|llama|llamakv)(46)?-.*"
)
"""The corpus's models of the architectures that the README promises; the UNet is shipped."""


def named_models() -> list[Mapping[str, Any]]:
    """Rows of the corpus's table, none where there is no corpus."""
    folder = find_corpus()
    return [row for row in read_table(folder) if NAMED.fullmatch(row["model"])] if folder else []


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_model_fuses_whole_and_agrees(name: str) -> None:
    outcome = check_model(MODELS, {"model": name, "fusable": SHIPPED[name]})

    assert outcome.faults == ()
    assert outcome.fused == SHIPPED[name]


@pytest.mark.corpus
@pytest.mark.parametrize("row", named_models(), ids=lambda row: row["model"])
def test_named_model_fuses_whole_and_agrees(row: Mapping[str, Any]) -> None:
    folder = find_corpus()
    assert folder is not None

    outcome = check_model(folder, row)

    assert outcome.faults == ()
    assert outcome.fused == row["fusable"]


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_spelling_fuses_and_agrees(spelling: Spelling) -> None:
    result = rewrite(spelling.model, inputs=spelling.inputs, verify=spelling.runs)

    assert [site.reason for site in result.report.sites if site.decision != "fused"] == []
    assert result.fused == spelling.fusable
    assert result.exit_code == 0
    if spelling.runs:
        original = run_model(spelling.model, spelling.inputs)
        truth = run_in_float64(spelling.model, spelling.inputs)
        for values in (run_model(result.model, spelling.inputs), run_without_library(result.model, spelling.inputs)):
            for name, ours in values.items():
                assert compare(ours, original[name], truth[name]).problem == ""


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_trap_is_refused_with_its_reason(trap: Trap) -> None:
    report = inspect(trap.model)

    reasons = [site.reason for site in report.sites if site.decision == "refused"]
    assert report.count("fusable") == trap.fused
    assert bool(reasons) == bool(trap.says)
    assert all(re.search(trap.says, reason) for reason in reasons), reasons


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_trap_computes_what_it_computed(trap: Trap) -> None:
    result = rewrite(trap.model, inputs=trap.inputs)

    assert len(flash_calls(result.model)) == trap.fused
    if not trap.fused:
        assert result.model == trap.model
        return
    before, after = run_model(trap.model, trap.inputs), run_model(result.model, trap.inputs)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "empty"),
    [
        ("five_dims", "S"),
        ("five_dims", "B"),
        ("mask_where", "B"),
        ("mask_int_equal", "B"),
        ("bert4096-dy-sdpa-op18", "B"),
    ],
)
def test_sizes_of_zero_give_what_the_original_gives(name: str, empty: str) -> None:
    """A Reshape reads 0 as "as before", and -1 not at all where another size is 0."""
    model = onnx.load(MODELS / f"{name}.onnx") if name in SHIPPED else SPELLINGS[name].model
    feed = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or (0 if dim.dim_param[0].upper() == empty else 5) for dim in tensor.shape.dim]
        feed[value.name] = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))

    expected, ours = run_model(model, feed), run_model(rewrite(model, verify=False).model, feed)

    assert {key: array.shape for key, array in ours.items()} == {key: array.shape for key, array in expected.items()}
    assert all(array.size == 0 for array in ours.values())


def test_rewriting_twice_changes_nothing() -> None:
    model: ModelProto = SPELLINGS["mask_where"].model

    once = rewrite(model, verify=False).model
    twice = rewrite(once, verify=False)

    assert twice.fused == 0
    assert twice.model == once


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="torch and transformers are not installed (make nightly)")
@pytest.mark.parametrize("exporter", ["ts", "dy"])
@pytest.mark.parametrize(
    ("family", "attention"),
    [("bert", "eager"), ("gpt2", "sdpa"), ("llama", "sdpa"), ("t5", "eager"), ("bart", "sdpa"), ("syn_gqa5d", "")],
)
def test_fresh_export_fuses_whole_and_agrees(family: str, attention: str, exporter: str, tmp_path: Path) -> None:
    options = ["--exporter", exporter, "--opset", "18", "--out", str(tmp_path)]
    options += ["--attention", attention] if attention else []
    subprocess.run([sys.executable, MODELS / "export_zoo.py", "export", family, *options], check=True)
    written = next(tmp_path.glob("*.onnx")).stem
    sites = 6 if family in ("t5", "bart") else 2

    outcome = check_model(tmp_path, {"model": written, "fusable": sites})

    assert outcome.faults == ()
    assert outcome.fused == sites
