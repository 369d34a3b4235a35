"""One call of each kernel and feature, for compute-sanitizer; test_sanitizer.py runs it under each tool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FEATURES: tuple[dict[str, Any], ...] = (
    {},
    {"is_causal": 1, "causal_alignment": "bottom_right", "key_lengths": (90, 33)},
    {"window_left": 20, "window_right": 7, "softcap": 5.0, "bias": "1NST", "bias_dtype": "float32"},
    {"bias": "BNST", "mask": "B11T", "sinks": "N"},
    {"mask": "BNST", "mask_fill": -1e4, "blocks": "BNRC", "block_size": 16},
)


def cases() -> Iterator[Any]:
    """Every head-size bucket, type and feature, with tails at every edge."""
    from cases import AttentionCase

    for dtype in ("float16", "bfloat16", "float32"):
        for head_size in (59, 64, 96, 128, 256, 512):
            for index, features in enumerate(FEATURES):
                q_len, kv_len = ((97, 131), (33, 90), (97, 132))[index % 3]  # 132: rows of a bias by fours
                sizes = {"batch": 2, "num_heads": 2, "kv_num_heads": 1, "q_len": q_len, "kv_len": kv_len}
                yield AttentionCase(
                    f"{dtype}-{head_size}-{index}", head_size=head_size, dtype=dtype, **sizes, **features
                )
        yield AttentionCase(f"split-{dtype}", num_heads=4, kv_num_heads=2, q_len=1, kv_len=1500, dtype=dtype)
        yield AttentionCase(f"no-keys-{dtype}", q_len=5, kv_len=0, dtype=dtype, sinks="N")


def cases_by_name() -> Iterator[tuple[Any, str]]:
    """What the dispatcher doesn't take by itself yet."""
    from cases import AttentionCase

    for dtype in ("float16", "bfloat16"):
        decode = AttentionCase("decode", batch=3, num_heads=4, kv_num_heads=2, q_len=1, kv_len=1500, dtype=dtype)
        yield decode, "decode-fused"
        window = AttentionCase("window", batch=150, q_len=49, head_size=40, dtype=dtype, bias="1NST", mask="B11T")
        yield window, "windows"


def main() -> None:
    """Run them all."""
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    import pycuda.driver as cuda
    from device import run

    cuda.init()
    context = cuda.Device(0).retain_primary_context()
    context.push()
    count = 0
    for case in cases():
        run(case)
        if case.dtype == "float32":
            run(case, precise=True)
        count += 1
    for case, implementation in cases_by_name():
        run(case, implementation=implementation)
        count += 1
    context.pop()
    print("ran", count, "cases")


if __name__ == "__main__":
    main()
