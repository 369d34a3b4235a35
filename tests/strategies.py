"""Hypothesis strategies over the cases of cases.py: any mixture of features, at sizes around the tile edges."""

from __future__ import annotations

import math

from cases import DTYPES, AttentionCase
from hypothesis import strategies as st

LENGTHS = st.one_of(
    st.integers(1, 20), st.sampled_from([31, 32, 33, 47, 48, 63, 64, 65, 79, 96, 127, 128, 129, 160, 193])
)
HEAD_SIZES = st.one_of(st.integers(1, 24), st.sampled_from([31, 32, 33, 40, 64, 72, 80, 128]))
FILLS = st.sampled_from([-math.inf, -math.inf, -10000.0, -3.4028234663852886e38, 0.0])


@st.composite
def attention_cases(draw: st.DrawFn) -> AttentionCase:
    """One valid call. Shrinks towards one head, one key, one feature."""
    batch = draw(st.integers(1, 3))
    kv_num_heads = draw(st.integers(1, 3))
    optional = st.booleans()
    return AttentionCase(
        name="drawn",
        batch=batch,
        num_heads=kv_num_heads * draw(st.integers(1, 3)),
        kv_num_heads=kv_num_heads,
        q_len=draw(LENGTHS),
        kv_len=draw(LENGTHS),
        head_size=draw(HEAD_SIZES),
        v_head_size=draw(HEAD_SIZES),
        dtype=draw(st.sampled_from(list(DTYPES))),
        packed=draw(optional),
        is_causal=draw(st.integers(0, 1)),
        causal_alignment=draw(st.sampled_from(["top_left", "bottom_right"])),
        window_left=draw(st.one_of(st.just(-1), st.integers(0, 200))),
        window_right=draw(st.one_of(st.just(-1), st.integers(0, 200))),
        scale=draw(st.sampled_from([0.0, 0.1, 1.0])),
        softcap=draw(st.sampled_from([0.0, 0.0, 5.0, 30.0])),
        mask_fill=draw(FILLS),
        bias=draw(st.one_of(st.none(), _axes("BNST"))),
        bias_kind=draw(st.sampled_from(["normal", "ten_thousand", "lowest_prefix"])),
        bias_dtype=draw(st.sampled_from([None, "float32"])),
        mask=draw(st.one_of(st.none(), _axes("BNST"))),
        mask_kind=draw(st.sampled_from(["random", "padding", "nothing"])),
        key_lengths=draw(st.one_of(st.none(), _lengths(batch))),
        blocks=draw(st.one_of(st.none(), _axes("BNRC"))),
        block_size=draw(st.sampled_from([16, 32, 64, 128, 256])),
        sinks=draw(st.sampled_from([None, "N", "1"])),
    )


@st.composite
def _axes(draw: st.DrawFn, full: str) -> str:
    """A right-aligned broadcast of ``full``: some axes 1, some leading ones left away."""
    axes = "".join(draw(st.sampled_from([axis, "1"])) for axis in full)
    return axes[draw(st.integers(0, len(full) - 1)) :]


@st.composite
def _lengths(draw: st.DrawFn, batch: int) -> tuple[int, ...]:
    count = draw(st.sampled_from([1, batch]))
    return tuple(draw(st.integers(-3, 220)) for _ in range(count))
