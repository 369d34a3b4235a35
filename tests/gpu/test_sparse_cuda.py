"""BigBird over 65,536 tokens in half precision: values, gradients, memory, and time against dense FlashAttention."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from device import free_bytes

from ortflash import core, sparse

torch: Any = pytest.importorskip("torch", reason="dense attention over so many tokens needs PyTorch")

LENGTH, HEADS, HEAD_SIZE, BLOCK = 65536, 16, 64, 128
MASK = sparse.bigbird(LENGTH, LENGTH, BLOCK, random_blocks=27)
SCALE = HEAD_SIZE**-0.5
Call = Callable[[], None]


class Problem:
    """The tensors of the call and of its gradients, and both as calls of the core's."""

    def __init__(self) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        shape = (1, HEADS, LENGTH, HEAD_SIZE)
        self.tensors = {
            name: torch.randn(shape, device="cuda", generator=generator).half()
            for name in ("query", "key", "value", "d_output")
        }
        self.mask = torch.from_numpy(MASK).cuda()
        self.output = torch.empty(shape, device="cuda", dtype=torch.float16)
        self.lse = torch.empty(shape[:3], device="cuda")
        self.gradients = {name: torch.empty_like(self.output) for name in ("d_query", "d_key", "d_value")}
        given = {name: self.tensors[name] for name in ("query", "key", "value")}
        given |= {"block_mask": self.mask, "output": self.output, "softmax_lse": self.lse}
        views = {name: core.TensorView.of_tensor(tensor) for name, tensor in given.items()}
        self.forward = core.make_params(views, block_size=BLOCK)
        given = {"d_output": self.tensors["d_output"], **self.gradients}
        views |= {name: core.TensorView.of_tensor(tensor) for name, tensor in given.items()}
        self.backward = core.make_grad_params(views, block_size=BLOCK)

    def calls(self) -> tuple[Call, Call, int]:
        """Forward, backward, and the bytes of the workspace that both share."""
        library = core.library()
        size = max(library.workspace_size(params, "cuda") for params in (self.forward, self.backward))
        workspace = torch.empty(max(1, size), device="cuda", dtype=torch.uint8)
        where = {"workspace": workspace.data_ptr(), "stream": torch.cuda.current_stream().cuda_stream}

        def forward(_kept: object = workspace) -> None:
            library.forward(self.forward, "cuda", **where)

        def backward(_kept: object = workspace) -> None:
            library.backward(self.backward, "cuda", **where)

        return forward, backward, size


@pytest.fixture(scope="module")
def problem() -> Iterator[Problem]:
    assert 1 / 17 < sparse.density(MASK) < 1 / 15
    yield Problem()
    torch.cuda.empty_cache()


def by_rows(problem: Problem, head: int, exact: bool) -> dict[str, Any]:
    """Output and gradients of one head in float64, 2,048 rows of scores at a time.

    Unless ``exact``, weights and the scores' gradients are rounded to fp16, as whoever multiplies them in fp16 must.
    """
    query, key, value, incoming = (problem.tensors[name][0, head].double() for name in problem.tensors)
    found = {name: torch.zeros_like(query) for name in ("output", "d_query", "d_key", "d_value")}
    step = 2048
    for first in range(0, LENGTH, step):
        rows = slice(first, first + step)
        blocks = problem.mask[first // BLOCK : (first + step) // BLOCK]
        seen = blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        weights = (query[rows] @ key.T * SCALE).masked_fill_(~seen, -torch.inf).softmax(-1)
        d_weights = incoming[rows] @ value.T
        d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))
        if not exact:
            weights, d_scores = weights.half().double(), d_scores.half().double()
        found["output"][rows] = weights @ value
        found["d_query"][rows] = d_scores @ key * SCALE
        found["d_key"] += d_scores.T @ query[rows] * SCALE
        found["d_value"] += weights.T @ incoming[rows]
    return found


def test_values_and_gradients(problem: Problem) -> None:
    """An error may be twice that of weights in fp16, plus a rounding."""
    for call in problem.calls()[:2]:
        call()
    ours = {"output": problem.output, **problem.gradients}
    for head in (0, HEADS - 1):
        exact, near = by_rows(problem, head, True), by_rows(problem, head, False)
        for name, expected in exact.items():
            allowed = 2 * (near[name].half() - expected).abs().max() + 2**-10 * expected.abs().max()
            assert (ours[name][0, head] - expected).abs().max() <= allowed, name


@pytest.mark.alone
def test_a_gibibyte_is_enough(problem: Problem) -> None:
    """Beyond inputs and outputs: the workspace, and whatever a call takes from the device by itself."""
    forward, backward, size = problem.calls()
    forward()
    backward()
    torch.cuda.synchronize()
    before = free_bytes()
    forward()
    backward()
    torch.cuda.synchronize()
    assert size + max(0, before - free_bytes()) <= 1 << 30


def median_s(run: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        time.sleep(0.02)
    return statistics.median(times)


@pytest.mark.alone
def test_ten_times_as_fast_as_dense_flash_attention(problem: Problem) -> None:
    operands = [problem.tensors[name].detach().requires_grad_() for name in ("query", "key", "value")]
    attention = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        output = attention(*operands)

        def dense_forward() -> None:
            attention(*operands)

        def dense_backward() -> None:
            torch.autograd.grad(output, operands, problem.tensors["d_output"], retain_graph=True)

        for ours, dense in zip(problem.calls(), (dense_forward, dense_backward), strict=False):
            ours()
            assert median_s(dense) >= 10 * median_s(ours)
