"""Random calls of the 16-bit kernels against float64 on the GPU, as many as fit into some seconds.

    python3 tests/gpu/fuzz.py [--seconds 60] [--seed 0] [--implementation NAME ...]

Sizes reach over several tiles and lie around their edges; features, layouts and strides mix freely. Each call must
leave the guard elements around its output alone, repeat bit for bit, and be as near to float64 as PyTorch's unfused
operators in the same type are, twice over. Needs PyTorch and a built library (run.sh shows how).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ortflash import core

LENGTHS = (1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 191, 192, 193, 255, 257, 320, 384, 385, 511, 700, 1025)
HEAD_SIZES = (8, 16, 40, 64, 64, 64, 72, 80, 96, 104, 128, 128, 128, 160, 192, 200, 256, 320, 512)
GUARD = 64
"""Elements around the output that must stay as they are."""


@dataclass
class Call:
    """One drawn call: tensors seen as (B,heads,rows,size), and attributes."""

    tensors: dict[str, Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    return_lse: bool = True

    @property
    def sentence(self) -> str:
        """What it was, for a report."""
        shapes = {name: (*tensor.shape, *tensor.stride()) for name, tensor in self.tensors.items()}
        lse = "lse" if self.return_lse else "no lse"
        return f"{self.tensors['query'].dtype} {shapes} {self.attributes} {lse}"


def draw(rng: random.Random) -> Call:
    """A valid call on the current GPU."""
    dtype = rng.choice([torch.float16, torch.bfloat16])
    batch, kv_heads, group = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 4])
    heads, q_len, kv_len = kv_heads * group, rng.choice(LENGTHS), rng.choice(LENGTHS)
    size = rng.choice(HEAD_SIZES)
    v_size = size if rng.random() < 0.8 else rng.choice(HEAD_SIZES)

    def operand(count: int, rows: int, columns: int) -> Any:
        gap = rng.choice([0, 0, 8, 24])
        if rng.random() < 0.5:
            return normal(batch, rows, count, columns + gap).to(dtype)[..., :columns].transpose(1, 2)
        return normal(batch, count, rows, columns + gap).to(dtype)[..., :columns]

    def axes(*full: int) -> tuple[int, ...]:
        return tuple(size if rng.random() < 0.6 else 1 for size in full)

    tensors = {
        "query": operand(heads, q_len, size) * rng.choice([1.0, 1.0, 4.0]),
        "key": operand(kv_heads, kv_len, size),
        "value": operand(kv_heads, kv_len, v_size),
    }
    attributes: dict[str, Any] = {}
    if rng.random() < 0.4:
        attributes["is_causal"] = 1
    if rng.random() < 0.5:
        attributes["causal_alignment"] = "bottom_right"
    for name in ("window_left", "window_right"):
        if rng.random() < 0.2:
            attributes[name] = rng.choice([0, 5, 64, 200])
    if rng.random() < 0.15:
        attributes["softcap"] = rng.choice([2.0, 30.0])
    if rng.random() < 0.1:
        attributes["scale"] = rng.choice([0.5, -0.1])
    if rng.random() < 0.35:
        bias = normal(*axes(batch, heads, q_len, kv_len))
        bias[torch.rand_like(bias) < 0.1] = rng.choice([-math.inf, -10000.0, 0.0])
        tensors["attn_bias"] = bias if rng.random() < 0.2 else bias.to(dtype)
    if rng.random() < 0.35:
        shape = axes(batch, heads, q_len, kv_len)
        if rng.random() < 0.5:
            tensors["attn_mask"] = torch.rand(shape, device="cuda") < rng.choice([0.2, 0.9])
        else:  # padding, whole blocks of it
            ends = torch.randint(0, kv_len + 1, (*shape[:3], 1), device="cuda")
            tensors["attn_mask"] = torch.arange(shape[3], device="cuda") < ends
        attributes["mask_fill"] = rng.choice([-math.inf, -math.inf, -10000.0, torch.finfo(torch.float32).min])
    if rng.random() < 0.25:
        lengths = [rng.randint(0, kv_len + 3) for _ in range(rng.choice([1, batch]))]
        tensors["key_lengths"] = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    if rng.random() < 0.1:
        block = attributes["block_size"] = rng.choice([16, 32, 64, 128, 256])
        shape = axes(batch, heads, -(-q_len // block), -(-kv_len // block))
        tensors["block_mask"] = torch.rand(shape, device="cuda") < 0.6
    if rng.random() < 0.2:
        tensors["sinks"] = normal(rng.choice([1, heads]))
    return Call(tensors, attributes, return_lse=rng.random() < 0.5)


def normal(*shape: int) -> Any:
    """Fp32 normal numbers."""
    return torch.randn(shape, device="cuda", dtype=torch.float32)


def scores_of(call: Call, dtype: Any) -> Any:
    """(B,N,S,T) scores in `dtype`, -inf where a key takes no part."""
    t, a = call.tensors, call.attributes
    q, k = t["query"].to(dtype), t["key"].to(dtype)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q @ k.transpose(-1, -2) * (a.get("scale", 0.0) or 1 / math.sqrt(q.shape[-1]))
    if cap := a.get("softcap", 0.0):
        s = cap * torch.tanh(s / cap)
    if "attn_bias" in t:
        s = s + t["attn_bias"].to(dtype)
    if "attn_mask" in t:
        s = torch.where(t["attn_mask"], s, torch.full_like(s, a["mask_fill"]))
    batch, _, q_len, kv_len = s.shape
    row = torch.arange(q_len, device="cuda").view(1, 1, -1, 1)
    key = torch.arange(kv_len, device="cuda").view(1, 1, 1, -1)
    keys = torch.full((batch, 1, 1, 1), kv_len, device="cuda")
    if "key_lengths" in t:
        keys = t["key_lengths"].clamp(0, kv_len).expand(batch).view(-1, 1, 1, 1)
    diagonal = row + (keys - q_len if a.get("causal_alignment") == "bottom_right" else 0)
    seen = key < keys
    if a.get("is_causal"):
        seen = seen & (key <= diagonal)
    if (left := a.get("window_left", -1)) >= 0:
        seen = seen & (key >= diagonal - left)
    if (right := a.get("window_right", -1)) >= 0:
        seen = seen & (key <= diagonal + right)
    if "block_mask" in t:
        block = a["block_size"]
        rows, columns = -(-q_len // block), -(-kv_len // block)
        blocks = t["block_mask"].expand(*t["block_mask"].shape[:2], rows, columns)
        seen = seen & blocks.repeat_interleave(block, 2).repeat_interleave(block, 3)[:, :, :q_len, :kv_len]
    return torch.where(seen, s, torch.full_like(s, -math.inf))


def unfused(call: Call, dtype: Any) -> tuple[Any, Any]:
    """Output and log-sum-exp with scores in `dtype`; weights in the inputs' own type unless that is float64."""
    t = call.tensors
    s = scores_of(call, dtype)
    sink = torch.full_like(s[..., :1], -math.inf)
    if "sinks" in t:
        sink = t["sinks"].to(dtype).expand(s.shape[1]).view(1, -1, 1, 1)
    top = torch.maximum(s.amax(-1, keepdim=True), sink)
    shift = torch.where(top == -math.inf, torch.zeros_like(top), top)
    weights = torch.exp(s - shift)
    total = weights.sum(-1, keepdim=True) + torch.exp(sink - shift)
    v = t["value"].repeat_interleave(s.shape[1] // t["value"].shape[1], 1)
    if dtype != torch.float64:
        weights = weights.to(v.dtype).to(dtype)
    output = torch.where(total > 0, weights @ v.to(dtype) / total, torch.zeros((), device="cuda", dtype=dtype))
    return output, (shift + torch.log(total)).squeeze(-1)


def run(call: Call, implementation: str) -> tuple[Any, Any | None] | None:
    """Output and log-sum-exp of our kernels, or nothing where they don't take the call."""
    t = call.tensors
    batch, heads, q_len, _ = t["query"].shape
    shape = (batch, heads, q_len, t["value"].shape[3])
    memory = torch.full((math.prod(shape) + 2 * GUARD,), math.nan, device="cuda", dtype=t["query"].dtype)
    output = memory[GUARD:-GUARD].view(batch, q_len, heads, shape[3]).transpose(1, 2)
    given = {**t, "output": output}
    if call.return_lse:
        given["softmax_lse"] = torch.full(shape[:3], math.nan, device="cuda")
    views = {name: core.TensorView.of_tensor(tensor) for name, tensor in given.items()}
    params = core.make_params(views, **call.attributes)
    library = core.library()
    try:
        library.supports(params, "cuda", implementation)
        size = library.workspace_size(params, "cuda", implementation=implementation)
        workspace = torch.full((max(size, 1),), 255, device="cuda", dtype=torch.uint8)
        stream = torch.cuda.current_stream().cuda_stream
        library.forward(
            params, "cuda", workspace=workspace.data_ptr() if size else 0, stream=stream, implementation=implementation
        )
    except core.CoreUnsupportedError:
        return None
    torch.cuda.synchronize()
    guards = torch.cat([memory[:GUARD], memory[-GUARD:]])
    assert guards.isnan().all(), f"something was written around the output of {call.sentence}"
    return output, given.get("softmax_lse")


def complaints(call: Call, implementation: str) -> list[str] | None:
    """What is wrong with our result, or nothing where the implementation doesn't take the call."""
    results = run(call, implementation)
    if results is None:
        return None
    again = run(call, implementation)
    assert again is not None
    exact, near = unfused(call, torch.float64), unfused(call, torch.float32)
    half = torch.finfo(call.tensors["query"].dtype).eps
    near = (near[0].to(call.tensors["query"].dtype), near[1])
    largest = max(1.0, float(call.tensors["value"].abs().max()))
    finite = torch.where(exact[1].isfinite(), exact[1], torch.zeros_like(exact[1]))
    floors = (half * largest, 2e-5 * max(1.0, float(finite.abs().max())))
    found = []
    for name, ours, repeated, want, other, floor in zip(
        ("output", "softmax_lse"), results, again, exact, near, floors, strict=True
    ):
        if ours is None:
            continue
        bits = torch.int16 if ours.element_size() == 2 else torch.int32
        if not torch.equal(ours.contiguous().view(bits), repeated.contiguous().view(bits)):
            found.append(f"{name} differs from run to run")
        allowed = 2 * float((other.double() - want).nan_to_num(0.0, 0.0, 0.0).abs().max()) + floor
        off = torch.where(want == ours.double(), torch.zeros_like(want), (ours.double() - want).abs())
        worst = float(off.max()) if not off.isnan().any() else math.nan
        if not worst <= allowed:
            found.append(f"{name} is off by {worst:.3g}, {allowed:.3g} allowed")
    return found


def search(seconds: float, seed: int, implementations: Sequence[str]) -> int:
    """Draw calls from `seed` on until the time is over; print what is wrong and return how many calls that concerns."""
    counts = dict.fromkeys(implementations, 0)
    failures, first, end = 0, seed, time.monotonic() + seconds
    while time.monotonic() < end and failures < 20:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        call = draw(rng)
        for name in implementations:
            found = complaints(call, name)
            counts[name] += found is not None
            if found:
                failures += 1
                print(f"seed {seed} {name or 'default'}: {'; '.join(found)}: {call.sentence}", flush=True)
        seed += 1
    print(f"{failures} failures in {counts} calls, seeds {first} to {seed - 1}")
    return failures


def main() -> int:
    """Run for some seconds and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--implementation", nargs="*", default=[""], help="as core.library().implementations() names")
    arguments = parser.parse_args()
    return int(search(arguments.seconds, arguments.seed, arguments.implementation) > 0)


if __name__ == "__main__":
    sys.exit(main())
