"""What ``ortflash bench io`` runs under ncu.

``python -m ortflash.bench.io_target BATCH HEADS LENGTH HEAD_SIZE NAME...`` runs each candidate's forward and backward
twice and lets ncu see the second time, each behind a kernel that only waits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from .results import OURS


def unfused(query: Any, key: Any, value: Any) -> Any:
    """softmax(query key^T / sqrt(D)) value, as a graph without fusion computes it."""
    import torch

    return torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), -1) @ value


def _ours(query: Any, key: Any, value: Any) -> Any:
    from ..torch import flash_attention

    return flash_attention(query, key, value)


def _backend(name: str) -> Callable[..., Any]:
    def attend(query: Any, key: Any, value: Any) -> Any:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, name)):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    return attend


CANDIDATES: dict[str, Callable[..., Any]] = {
    OURS: _ours,
    "cuDNN": _backend("CUDNN_ATTENTION"),
    "FlashAttention-2": _backend("FLASH_ATTENTION"),
    "unfused": unfused,
}


def main(arguments: list[str]) -> None:
    """Run the candidates that are named."""
    import torch

    shape = batch, heads, length, head_size = tuple(int(text) for text in arguments[:4])
    runtime: Any = torch.cuda.cudart()
    for name in arguments[4:]:
        # (B,S,N,D) seen as (B,N,S,D), as a model's projections leave them.
        query, key, value, incoming = (
            torch.randn((batch, length, heads, head_size), device="cuda", dtype=torch.float16).transpose(1, 2)
            for _ in range(len(shape))
        )
        operands = [tensor.requires_grad_() for tensor in (query, key, value)]
        for profiled in (False, True):
            if profiled:
                torch.cuda.synchronize()
                runtime.cudaProfilerStart()
                torch.cuda._sleep(1)
            output = CANDIDATES[name](*operands)
            if profiled:
                torch.cuda._sleep(1)
            torch.autograd.grad(output, operands, incoming)
            if profiled:
                torch.cuda.synchronize()
                runtime.cudaProfilerStop()


if __name__ == "__main__":
    main(sys.argv[1:])
