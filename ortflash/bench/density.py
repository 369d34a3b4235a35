"""How time falls with the density of a block mask, forward and backward, beside dense attention on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import core, sparse
from .kernel_cuda import captured, tensor_views
from .machine import clocks
from .race import Protocol, race
from .results import OURS, Figure, Row

DENSITIES = (1, 2, 4, 8, 16, 32, 64)
"""One block in so many."""
BLOCK = 128
PEERS = {"cuDNN, dense": "CUDNN_ATTENTION", "FlashAttention-2, dense": "FLASH_ATTENTION"}
"""Candidate -> PyTorch's backend."""
_LAUNCHES = 2

_Ours = tuple[Callable[[], None], str, int]
"""A call of the core's with a workspace of its own, the kernel's name, and the workspace's bytes."""


@dataclass(frozen=True)
class Problem:
    """One fp16 call of batch 1 and the mask that all its heads share."""

    length: int
    head_size: int
    mask: sparse.BlockMask
    label: str
    heads: int = 16

    @property
    def density(self) -> float:
        """Share of the blocks that take part."""
        return sparse.density(self.mask)


def random_blocks(length: int, one_in: int, seed: int = 0) -> sparse.BlockMask:
    """The same number of blocks in each row, at random places: ``1 / one_in`` of them, and one at least."""
    blocks = -(-length // BLOCK)
    ranks = np.random.default_rng(seed).random((blocks, blocks)).argsort(axis=1)
    mask: sparse.BlockMask = ranks < max(1, blocks // one_in)
    return mask


def problems(length: int, head_size: int) -> Iterator[Problem]:
    """The sweep, and BigBird at 1/16 of four times the length."""
    for one_in in DENSITIES:
        yield Problem(length, head_size, random_blocks(length, one_in), f"S {length}, 1/{one_in}")
    long = 4 * length
    blocks = -(-long // BLOCK)
    bigbird = sparse.bigbird(long, long, BLOCK, random_blocks=max(0, blocks // 16 - 5))
    yield Problem(long, head_size, bigbird, f"S {long}, BigBird 1/{round(1 / sparse.density(bigbird))}")


def race_problem(problem: Problem, protocol: Protocol) -> list[Row]:
    """A row for the forward and one for the backward: ours with the mask, and dense attention without it.

    ``peak_bytes`` of ours is the workspace, which is all that a call takes beyond inputs and outputs.
    """
    tensors = _tensors(problem)
    rows = []
    for what, ours in {"forward": _our_forward, "backward": _our_backward}.items():
        figures: dict[str, Figure] = {}
        runs: dict[str, Callable[[], float]] = {}
        note, workspace_bytes = "", None
        makers: dict[str, Callable[[], Callable[[], float]]] = {
            name: functools.partial(_peer, tensors, what, backend) for name, backend in PEERS.items()
        }
        try:
            call, note, workspace_bytes = ours(problem, tensors)
            makers[OURS] = functools.partial(captured, [call], _LAUNCHES)
        except core.CoreError as error:
            figures[OURS] = Figure(float("nan"), note=str(error).splitlines()[0][:200])
        for name, make in makers.items():
            try:
                runs[name] = make()
            except (RuntimeError, core.CoreError) as error:
                figures[name] = Figure(float("nan"), note=str(error).splitlines()[0][:200])
        for name, time_ms in race(runs, protocol).items():
            products = 2 if what == "forward" else 5
            flops = 2.0 * products * problem.heads * problem.length**2 * problem.head_size
            if name == OURS:
                tflops = flops * problem.density / time_ms / 1e9
                figures[name] = Figure(time_ms, tflops, peak_bytes=workspace_bytes, note=note)
            else:
                figures[name] = Figure(time_ms, flops / time_ms / 1e9)
        sizes = {"length": problem.length, "head_size": problem.head_size, "density": problem.density, "pass": what}
        rows.append(Row(f"{problem.label}, {what}", figures, {**sizes, "clocks": clocks()}))
    return rows


def _tensors(problem: Problem) -> dict[str, Any]:
    import torch

    shape = (1, problem.heads, problem.length, problem.head_size)
    names = ("query", "key", "value", "d_output")
    tensors = {name: torch.randn(shape, device="cuda", dtype=torch.float16) for name in names}
    tensors["block_mask"] = torch.from_numpy(problem.mask).cuda()
    return tensors


def _our_params(problem: Problem, tensors: dict[str, Any]) -> tuple[core.Params, dict[str, Any]]:
    import torch

    query = tensors["query"]
    given = {
        **{name: tensors[name] for name in ("query", "key", "value", "block_mask")},
        "output": torch.empty_like(query),
        "softmax_lse": torch.empty(query.shape[:3], device="cuda"),
    }
    return core.make_params(tensor_views(given), block_size=BLOCK), given


def _bound(params: core.Params | core.GradParams, kept: object) -> _Ours:
    """``kept`` holds the tensors' memory."""
    import torch

    library = core.library()
    library.supports(params, "cuda")
    workspace_bytes = library.workspace_size(params, "cuda")
    workspace = torch.empty(max(1, workspace_bytes), dtype=torch.uint8, device="cuda")
    run = library.backward if isinstance(params, core.GradParams) else library.forward

    def call(_kept: object = kept) -> None:
        run(params, "cuda", workspace=workspace.data_ptr(), stream=torch.cuda.current_stream().cuda_stream)  # type: ignore[arg-type]

    return call, library.describe(params, "cuda"), workspace_bytes


def _our_forward(problem: Problem, tensors: dict[str, Any]) -> _Ours:
    return _bound(*_our_params(problem, tensors))


def _our_backward(problem: Problem, tensors: dict[str, Any]) -> _Ours:
    import torch

    params, given = _our_params(problem, tensors)
    _bound(params, given)[0]()
    given["d_output"] = tensors["d_output"]
    given.update({f"d_{name}": torch.empty_like(tensors[name]) for name in ("query", "key", "value")})
    return _bound(core.make_grad_params(tensor_views(given), block_size=BLOCK), given)


def _peer(tensors: dict[str, Any], what: str, backend: str) -> Callable[[], float]:
    """A candidate that launches one dense call: it takes milliseconds, so that host code doesn't show."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    operands = [tensors[name].detach().requires_grad_(what == "backward") for name in ("query", "key", "value")]

    def forward() -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(*operands)

    output = forward()
    incoming = tensors["d_output"]
    run = forward
    if what == "backward":
        run = functools.partial(torch.autograd.grad, output, operands, incoming, retain_graph=True)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed() -> float:
        run()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    timed()
    return timed
