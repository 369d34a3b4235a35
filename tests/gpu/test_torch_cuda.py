"""ortflash.torch on CUDA: fp16 values and gradients, held against PyTorch's own in fp32 and in fp16."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ortflash import sparse

torch: Any = pytest.importorskip("torch", reason="ortflash.torch needs PyTorch")
flash_attention = pytest.importorskip("ortflash.torch").flash_attention

BLOCK = 64


def unfused(query: Any, key: Any, value: Any, bias: Any) -> Any:
    """softmax(query key^T / sqrt(D) + bias) value in the operands' own type; grouped heads repeated."""
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, 1) for tensor in (key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias
    return scores.softmax(-1) @ value


def draw(*shape: int) -> Any:
    return torch.randn(shape, device="cuda").half()


@pytest.mark.parametrize(
    ("q_len", "kv_len", "heads", "kv_heads", "size", "causal", "biased", "blocks"),
    [
        (300, 300, 4, 4, 64, False, False, False),
        (333, 333, 8, 2, 128, True, False, False),
        (77, 203, 4, 4, 40, False, True, False),
        (512, 512, 4, 4, 64, False, False, True),
    ],
    ids=["plain", "causal grouped", "bias", "blocks"],
)
def test_values_and_gradients_are_pytorch_s(
    q_len: int, kv_len: int, heads: int, kv_heads: int, size: int, causal: bool, biased: bool, blocks: bool
) -> None:
    """On a stream of its own; an error may be twice that of the unfused graph in fp16, plus a rounding."""
    torch.manual_seed(0)
    with torch.cuda.stream(torch.cuda.Stream()):
        operands = [draw(2, q_len, heads, size).transpose(1, 2), *(draw(2, kv_heads, kv_len, size) for _ in range(2))]
        if biased:
            operands.append(draw(1, heads, q_len, kv_len))
        masked = torch.zeros((q_len, kv_len), device="cuda")
        mask = None
        if causal:
            masked = torch.full_like(masked, -math.inf).triu(1)
        if blocks:
            pattern = sparse.bigbird(q_len, kv_len, BLOCK, random_blocks=1)
            mask = torch.from_numpy(pattern).cuda()
            elements = torch.from_numpy(sparse.to_elements(pattern, q_len, kv_len, BLOCK)).cuda()
            masked = masked.masked_fill(~elements, -math.inf)

        def values(dtype: Any, fused: bool) -> list[Any]:
            """Output and gradients."""
            leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in operands]
            query, key, value, *rest = leaves
            if fused:
                output = flash_attention(query, key, value, *rest, block_mask=mask, block_size=BLOCK, is_causal=causal)
            else:
                output = unfused(query, key, value, (rest[0] if rest else 0) + masked.to(dtype))
            generator = torch.Generator("cuda").manual_seed(1)
            incoming = torch.randn(output.shape, device="cuda", generator=generator).half().to(dtype)
            return [output, *torch.autograd.grad(output, leaves, incoming)]

        exact, own, ours = values(torch.float64, False), values(torch.float16, False), values(torch.float16, True)
        for actual, other, expected in zip(ours, own, exact, strict=True):
            allowed = 2 * (other.double() - expected).abs().max() + 2**-10 * expected.abs().max()
            assert (actual.double() - expected).abs().max() <= allowed
