"""Which kernels are attention's: a profile of ONNX Runtime's, and launches on a clock of another epoch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ortflash.bench import attention_time, kernel_cpu
from ortflash.bench.attention_time import RUNS, GpuTime, Launch, Node
from ortflash.bench.grids import Shape
from ortflash.bench.model import attention_ms
from ortflash.bench.results import OURS
from ortflash.session import register

EPOCH_US = 1.7e15


def launches_within(nodes: list[Node], takes_us: float) -> list[Launch]:
    """Two in each node, on another clock, which is 1234 us off when the ends are laid together."""
    inside = [node.start_us + part * (node.end_us - node.start_us) for node in nodes for part in (0.3, 0.8)]
    return [Launch(at + EPOCH_US, takes_us) for at in inside]


def uneven_nodes() -> list[Node]:
    rng = np.random.default_rng(0)
    starts = np.cumsum(rng.uniform(10, 60, 40))
    kinds = ["MatMul", "Attention", "Add", "Transpose"]
    return [Node(kinds[i % 4], float(start), float(start) + 8.0) for i, start in enumerate(starts)]


def test_launches_are_found_in_their_nodes_whatever_the_clocks() -> None:
    nodes = uneven_nodes()
    launches = launches_within(nodes, 2.0)
    assert attention_time.owners_of(launches, nodes) == [index for index in range(40) for _ in (0, 1)]
    later = [*launches, Launch(launches[-1].at_us + 900, 5.0)]  # a copy of the outputs, after the last node
    assert attention_time.owners_of(later, nodes) == [*(index for index in range(40) for _ in (0, 1)), None]


def test_attention_s_share_of_a_run() -> None:
    nodes = uneven_nodes()
    found = attention_time.gpu_time(launches_within(nodes, 3.0), nodes)
    assert found.all_ms == pytest.approx(0.24 / RUNS)
    assert found.attention_ms == pytest.approx(0.06 / RUNS)
    unfused = [Node("MatMul", node.start_us, node.end_us) for node in nodes]
    assert attention_time.gpu_time(launches_within(unfused, 3.0), unfused).attention_ms is None


def test_launches_that_fit_nowhere_are_no_measurement() -> None:
    nodes = uneven_nodes()
    stray = [Launch(7.0 * index, 1.0) for index in range(400)]
    assert attention_time.owners_of(stray, nodes) is None
    assert attention_time.owners_of([], nodes) is None


def test_nodes_of_a_profile_come_by_run(tmp_path: Path) -> None:
    shape = Shape(1, 2, 16, 8, "float32")
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    register(options)
    model = kernel_cpu.candidate_model(OURS, shape).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {name: np.zeros((1, 16, 16), np.float32) for name in ("query", "key", "value")}
    for _ in range(3):
        session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    runs = attention_time.nodes_by_run(events)
    assert [[node.operator for node in nodes] for nodes in runs] == [["FlashAttention"]] * 3
    assert all(node.start_us <= node.end_us for nodes in runs for node in nodes)


def test_attention_without_a_node_of_its_own_is_what_rewriting_saves() -> None:
    times = {"original": GpuTime(10.0, None), OURS: GpuTime(4.0, 1.0), "opset 23": GpuTime(6.0, 2.5)}
    assert attention_ms("original", times) == 7.0
    assert (attention_ms(OURS, times), attention_ms("opset 23", times)) == (1.0, 2.5)
    assert attention_ms("ONNX Runtime's optimizer", times) is None
