"""One attention call on a GPU: our core through its C interface, and its peers.

Peers are PyTorch's backends, flash-attn-4 (:mod:`.flash_attn_4`) and ONNX Runtime's nodes (:mod:`.ort_cuda`). Every
candidate but the last two is captured in a CUDA graph of its own, so that nobody's host code is measured: one call that
isn't timed, for a GPU that has idled needs tens of microseconds to begin, then an event, the timed calls and an event.
Errors are those of the first and the last head, against PyTorch's unfused attention in fp32 without TF32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from .. import core
from . import flash_attn_4, ort_cuda
from .grids import Shape
from .machine import clocks
from .race import Protocol, race
from .results import OURS, Figure, Row

_Maker = Callable[[Shape, dict[str, Any]], Callable[[], Any]]
_LAUNCHES = range(2, 21)
"""Timed calls in one graph: as many as fill about ``_TIMED_S``."""
_TIMED_S = 0.5e-3
_COPIED_BYTES = 1 << 30
_CACHE_BYTES = 512 << 20
"""Inputs that are much smaller than this are kept in several copies, so that a GPU's L2 doesn't hold them."""


def race_shape(shape: Shape, protocol: Protocol, implementation: str = "", peers: Sequence[str] = ()) -> Row:
    """Time ours (the preferred implementation, or the one that is named) and the peers that take the shape."""
    import torch

    copies = [draw_inputs(shape, seed) for seed in range(_copies(shape))]
    expected = _expected(shape, copies[0])
    figures: dict[str, Figure] = {}
    runs: dict[str, Callable[[], float]] = {}
    makers = {name: PEERS[name] for name in peers or PEERS}
    candidates: dict[str, _Maker] = {OURS: partial(_ours, implementation=implementation), **makers}
    for name, make in candidates.items():
        try:
            calls = [make(shape, tensors) for tensors in copies]
            output = calls[0]()
            torch.cuda.synchronize()
            figures[name] = Figure(math.nan, error=_error(shape, output, expected))
            launches = launches_for(shape, shape.flops)
            runs[name] = ort_cuda.queued(calls[0], launches) if name in ORT_PEERS else captured(calls, launches)
        except Exception as error:  # peers raise what they like, and none of them ends the run
            figures[name] = Figure(math.nan, note=first_line(error))
    for name, time_ms in race(runs, protocol).items():
        note = _kernel_name(shape, copies[0], implementation) if name == OURS else ""
        figures[name] = Figure(time_ms, shape.flops / time_ms / 1e9, figures[name].error, note=note)
    sizes = {**vars(shape), "clocks": clocks()}
    if shape.is_short:
        sizes |= {"kv_bytes": shape.kv_bytes, "copy_bytes_per_s": copy_speed(protocol)}
    return Row(shape.label, figures, sizes)


def copy_speed(protocol: Protocol) -> float:
    """Bytes that a copy within the GPU's memory reads and writes in a second."""
    import torch

    source, target = (torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    time_ms = race({"copy": captured([lambda: target.copy_(source)], 4)}, protocol)["copy"]
    return 2 * _COPIED_BYTES / time_ms * 1e3


def first_line(error: Exception) -> str:
    """What an exception says, short enough for a table."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _copies(shape: Shape) -> int:
    """How many sets of inputs to rotate over: more than one only where they'd fit in L2 and are read once (decode)."""
    return max(2, min(16, _CACHE_BYTES // shape.kv_bytes)) if shape.is_short else 1


def launches_for(shape: Shape, flops: float) -> int:
    """Timed calls in a graph, from the time that the call's products or its bytes need at least."""
    seconds = max(flops / 500e12, shape.kv_bytes / 4e12, 4e-6)
    return max(_LAUNCHES.start, min(_LAUNCHES.stop - 1, round(_TIMED_S / seconds)))


def draw_inputs(shape: Shape, seed: int) -> dict[str, Any]:
    """(B,S,N,D) tensors seen as (B,N,S,D): what projections write. One set serves all copies of a big call."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    dtype = getattr(torch, shape.dtype)

    def draw(*sizes: int) -> Any:
        return torch.randn(sizes, generator=generator, device="cuda", dtype=torch.float32).to(dtype)

    tensors = {
        "query": draw(shape.batch, shape.q_len, shape.num_heads, shape.head_size).transpose(1, 2),
        "key": draw(shape.batch, shape.keys, shape.kv_heads, shape.head_size).transpose(1, 2),
        "value": draw(shape.batch, shape.keys, shape.kv_heads, shape.v_size).transpose(1, 2),
    }
    if shape.bias:
        tensors["attn_bias"] = draw(*shape.axes(shape.bias))
    if shape.mask:
        sizes = shape.axes(shape.mask)
        tensors["attn_mask"] = torch.rand(sizes, generator=generator, device="cuda") < 0.8
    if shape.key_lengths:
        tensors["key_lengths"] = torch.tensor(shape.key_lengths, dtype=torch.int32, device="cuda")
    return tensors


def _expected(shape: Shape, tensors: dict[str, Any]) -> dict[int, Any]:
    """fp32 outputs (S,E) of batch 0's first and batch -1's last head."""
    found = {}
    for index in (0, -1):
        kv_index = index
        q, k, v = (
            tensors[name][index, i].float() for name, i in (("query", index), ("key", kv_index), ("value", kv_index))
        )
        bias, mask = terms_of_head(shape, tensors, index)
        found[index] = exact_output(shape, q, k, v, bias, mask)
    return found


def terms_of_head(shape: Shape, tensors: dict[str, Any], index: int) -> tuple[Any, Any]:
    """fp32 bias (S,T) and bool mask (S,T), or None, of one head of one batch element: the same index of both."""
    full = shape.axes("BNST")
    bias = tensors["attn_bias"].expand(full)[index, index].float() if shape.bias else None
    mask = tensors["attn_mask"].expand(full)[index, index] if shape.mask else None
    if shape.key_lengths:
        mask = mask_of_lengths(shape, tensors)[index, 0].expand(shape.q_len, shape.keys)
    return bias, mask


def mask_of_lengths(shape: Shape, tensors: dict[str, Any]) -> Any:
    """(B,1,1,T), True where a key takes part."""
    import torch

    return torch.arange(shape.keys, device="cuda") < tensors["key_lengths"][:, None, None, None]


def exact_output(shape: Shape, query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None) -> Any:
    """fp32 output (S,E) of one head from fp32 (S,D), (T,D), (T,E), bias (S,T) and bool mask (S,T); differentiable."""
    import torch

    allowed, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    scores = query @ key.T / math.sqrt(shape.head_size)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if shape.is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
    output = torch.softmax(scores, -1).nan_to_num(0.0) @ value
    torch.backends.cuda.matmul.allow_tf32 = allowed
    return output


def _error(shape: Shape, output: Any, expected: dict[int, Any]) -> float:
    return max(float((output[index, index].float() - values).abs().max()) for index, values in expected.items())


def captured(calls: list[Callable[[], Any]], launches: int) -> Callable[[], float]:
    """A candidate that replays ``launches`` calls, taking turns over ``calls``, and returns ms a call."""
    import torch

    turns = itertools.cycle(calls)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        next(turns)()
        start.record()
        for _ in range(launches):
            next(turns)()
        end.record()

    def timed(_kept: object = calls) -> float:  # the graph writes to the memory that the calls hold
        graph.replay()
        torch.cuda.synchronize()  # the end event counts as reached until the graph comes to it
        return float(start.elapsed_time(end)) / launches

    return timed


# ---------------------------------------------------------------------------------------------------- candidates
def _ours(shape: Shape, tensors: dict[str, Any], implementation: str = "") -> Callable[[], Any]:
    import torch

    output = torch.empty(
        (shape.batch, shape.q_len, shape.num_heads, shape.v_size), dtype=tensors["query"].dtype, device="cuda"
    ).transpose(1, 2)
    library = core.library()
    params = _params(shape, {**tensors, "output": output})
    library.supports(params, "cuda", implementation)
    size = library.workspace_size(params, "cuda", implementation=implementation)
    workspace = torch.empty(max(1, size), dtype=torch.uint8, device="cuda")

    def call() -> Any:
        stream = torch.cuda.current_stream().cuda_stream
        library.forward(params, "cuda", workspace=workspace.data_ptr(), stream=stream, implementation=implementation)
        return output

    return call


def tensor_views(tensors: dict[str, Any]) -> dict[str, core.TensorView]:
    """PyTorch's tensors as the core sees them; the caller keeps them alive."""
    return {name: core.TensorView.of_tensor(tensor) for name, tensor in tensors.items()}


def _params(shape: Shape, tensors: dict[str, Any]) -> core.Params:
    return core.make_params(tensor_views(tensors), is_causal=int(shape.is_causal), precise=shape.precise)


def _kernel_name(shape: Shape, tensors: dict[str, Any], implementation: str) -> str:
    import torch

    output = torch.empty_like(tensors["query"][..., :1].expand(*tensors["query"].shape[:-1], shape.v_size))
    return core.library().describe(_params(shape, {**tensors, "output": output}), "cuda", implementation)


def _sdpa(backend: str) -> Callable[[Shape, dict[str, Any]], Callable[[], Any]]:
    def make(shape: Shape, tensors: dict[str, Any]) -> Callable[[], Any]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        full = shape.axes("BNST")
        given = tensors.get("attn_bias", tensors.get("attn_mask"))
        if shape.key_lengths:
            given = mask_of_lengths(shape, tensors)
        mask = None if given is None else given.expand(full)
        chosen = getattr(SDPBackend, backend)

        def call() -> Any:
            with sdpa_kernel(chosen), torch.no_grad():
                return torch.nn.functional.scaled_dot_product_attention(
                    tensors["query"],
                    tensors["key"],
                    tensors["value"],
                    attn_mask=mask,
                    is_causal=shape.is_causal,
                    enable_gqa=shape.kv_heads != shape.num_heads,
                )

        with _no_warnings():
            call()  # says by an exception that it doesn't take the shape
        return call

    return make


@contextmanager
def _no_warnings() -> Iterator[None]:
    """PyTorch warns once for each reason why a backend can't run; the exception says enough."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


ORT_PEERS: dict[str, _Maker] = {
    "MultiHeadAttention": ort_cuda.multi_head_attention,
    "Attention, opset 23": ort_cuda.attention,
}
"""ONNX Runtime's."""
PEERS: dict[str, _Maker] = {
    "cuDNN": _sdpa("CUDNN_ATTENTION"),
    "FlashAttention-2": _sdpa("FLASH_ATTENTION"),
    "memory-efficient": _sdpa("EFFICIENT_ATTENTION"),
    "flash-attn-4": flash_attn_4.forward,
    **ORT_PEERS,
}
"""Every peer of a forward call, by the name that tables show."""
