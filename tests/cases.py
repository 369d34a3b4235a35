"""Named attention problems that every implementation is tested with: the CPU core, the ONNX Runtime op, CUDA, TensorRT.

Six lists: REGULAR (what models do), IRREGULAR (sizes that hurt), CORNER (each with the reason why it is here),
DROPOUT, PLAIN (for kernels that take nothing else) and PERFORMANCE (for benchmarks; not run by tests). D4 to D12 name
small inputs that come from real bug reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

LOWEST = {"float32": -3.4028234663852886e38, "float16": -65504.0, "bfloat16": -3.3895313892515355e38}
"""What ``torch.finfo(dtype).min`` gives; exporters mask with it."""


@dataclass(frozen=True)
class AttentionCase:
    """Sizes, type, attributes and optional inputs of one call; :meth:`make_inputs` draws its data.

    Axes of optional inputs are written as a string over B, N, S, T (R and C for block_mask's rows and columns) and 1,
    right-aligned like any broadcast: ``"B1ST"``, ``"ST"``, ``"T"``, ``"1"``.
    """

    name: str
    batch: int = 1
    num_heads: int = 2
    kv_num_heads: int | None = None  # None = num_heads
    q_len: int = 64
    kv_len: int | None = None  # None = q_len
    head_size: int = 64
    v_head_size: int | None = None  # None = head_size
    dtype: str = "float32"
    packed: bool = False  # 3-D inputs, heads side by side
    is_causal: int = 0
    causal_alignment: str = "top_left"
    window_left: int = -1
    window_right: int = -1
    scale: float = 0.0
    softcap: float = 0.0
    mask_fill: float = -math.inf
    bias: str | None = None  # axes
    bias_kind: str = "normal"  # normal | ten_thousand | lowest | lowest_prefix | infinite
    bias_dtype: str | None = None  # None = dtype
    mask: str | None = None  # axes
    mask_kind: str = "random"  # random | padding | rows (every third row all False) | nothing (all False)
    key_lengths: tuple[int, ...] | None = None  # one a batch, or one
    blocks: str | None = None  # axes of block_mask over B, N, R, C
    block_size: int = 128
    sinks: str | None = None  # "N" or "1"
    dropout_p: float = 0.0
    query_gain: float = 2.0  # peaked attention finds more mistakes than a nearly uniform one
    data: str = "normal"  # normal | beyond_fp16 (D6) | equal (all scores and values the same)
    reason: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each axis letter; B, N, M, S, T, D, E, R, C and 1."""
        kv_len = self.q_len if self.kv_len is None else self.kv_len
        return {
            "B": self.batch,
            "N": self.num_heads,
            "M": self.num_heads if self.kv_num_heads is None else self.kv_num_heads,
            "S": self.q_len,
            "T": kv_len,
            "D": self.head_size,
            "E": self.head_size if self.v_head_size is None else self.v_head_size,
            "R": -(-self.q_len // self.block_size),
            "C": -(-kv_len // self.block_size),
            "1": 1,
        }

    def shape(self, axes: str) -> tuple[int, ...]:
        """``"B1ST"`` -> its sizes."""
        return tuple(self.sizes[axis] for axis in axes)

    def attributes(self) -> dict[str, Any]:
        """The operator's attributes, except return_lse, by their names in the schema."""
        return {
            "num_heads": self.num_heads,
            "kv_num_heads": self.sizes["M"],
            "scale": self.scale,
            "is_causal": self.is_causal,
            "causal_alignment": self.causal_alignment,
            "window_left": self.window_left,
            "window_right": self.window_right,
            "softcap": self.softcap,
            "mask_fill": self.mask_fill,
            "block_size": self.block_size,
            "dropout_p": self.dropout_p,
        }

    def make_inputs(self, seed: int = 0) -> dict[str, Any]:
        """The inputs that this case has, by their names in the schema; the same for the same seed."""
        rng = np.random.default_rng(seed)
        inputs: dict[str, Any] = dict(zip(("query", "key", "value"), self._make_operands(rng), strict=True))
        if self.bias is not None:
            inputs["attn_bias"] = self._make_bias(rng)
        if self.mask is not None:
            inputs["attn_mask"] = self._make_mask(rng)
        if self.key_lengths is not None:
            inputs["key_lengths"] = np.array(self.key_lengths, np.int32)
        if self.blocks is not None:
            inputs["block_mask"] = rng.random(self.shape(self.blocks)) < 0.6
        if self.sinks is not None:
            inputs["sinks"] = rng.standard_normal(self.shape(self.sinks)).astype(np.float32)
        if self.dropout_p:
            inputs["dropout_seed"] = rng.integers(-(2**63), 2**63 - 1, 2, np.int64)
        return inputs

    def _make_operands(self, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        query = rng.standard_normal(self.shape("BNSD")) * self.query_gain
        key = rng.standard_normal(self.shape("BMTD"))
        value = rng.standard_normal(self.shape("BMTE"))
        if self.data == "beyond_fp16":
            query[:] = 12
            key[:, :, 0::2], key[:, :, 1::2] = 12, 11
            value[:] = np.arange(value.shape[2])[:, None]
        elif self.data == "equal":
            query[:], key[:], value[:] = 1, 1, 1
        dtype = DTYPES[self.dtype]
        if self.packed:
            query, key, value = (
                array.transpose(0, 2, 1, 3).reshape(array.shape[0], array.shape[2], -1) for array in (query, key, value)
            )
        query, key, value = (array.astype(dtype, order="C") for array in (query, key, value))
        return query, key, value

    def _make_bias(self, rng: np.random.Generator) -> Array:
        assert self.bias is not None
        shape = self.shape(self.bias)
        dtype = DTYPES[self.bias_dtype or self.dtype]
        lowest = LOWEST[dtype.name]
        masked = rng.random(shape) < 0.3
        bias = 2 * rng.standard_normal(shape)
        if self.bias_kind == "ten_thousand":
            bias = np.where(masked, -10000.0, 0.0)
        elif self.bias_kind == "lowest":  # and every third row nothing else
            bias = np.where(masked | (np.arange(shape[-2] if len(shape) > 1 else 1) % 3 == 1)[:, None], lowest, 0.0)
            bias = bias.reshape(shape)
        elif self.bias_kind == "lowest_prefix":
            bias = np.where(np.arange(shape[-1]) < 128, lowest, bias)
        elif self.bias_kind == "infinite":
            bias = np.where(masked, -np.inf, bias)
            bias[..., :1, :] = -np.inf
        return bias.astype(dtype)

    def _make_mask(self, rng: np.random.Generator) -> Array:
        assert self.mask is not None
        shape = self.shape(self.mask)
        if self.mask_kind == "nothing":
            return np.zeros(shape, bool)
        if self.mask_kind == "padding":
            ends = rng.integers(1, shape[-1] + 1, shape[:-1])
            return np.asarray(np.arange(shape[-1]) < ends[..., None])
        mask = rng.random(shape) < 0.7
        if self.mask_kind == "rows":
            mask[..., 1::3, :] = False
        return mask


# -------------------------------------------------------------------------------------------------------- REGULAR
def _regular() -> Iterator[AttentionCase]:
    for dtype in DTYPES:
        base = AttentionCase(f"bert-{dtype}", batch=2, num_heads=3, q_len=128, dtype=dtype, packed=True)
        yield base
        yield replace(base, name=f"bert-padding-bias-{dtype}", bias="B11T", bias_kind="ten_thousand")
        yield replace(base, name=f"bert-padding-mask-{dtype}", mask="B11T", mask_kind="padding")
        yield replace(base, name=f"gpt-causal-{dtype}", packed=False, is_causal=1)
        yield replace(base, name=f"t5-{dtype}", bias="1NST", mask="B11T", scale=1.0, query_gain=0.25)
        yield replace(base, name=f"whisper-cross-{dtype}", q_len=37, kv_len=300)
        yield AttentionCase(
            f"llama-grouped-{dtype}", num_heads=8, kv_num_heads=2, q_len=96, head_size=128, is_causal=1, dtype=dtype
        )
        yield AttentionCase(
            f"decode-{dtype}",
            batch=2,
            num_heads=8,
            kv_num_heads=2,
            q_len=1,
            kv_len=301,
            is_causal=1,
            causal_alignment="bottom_right",
            key_lengths=(301, 77),
            dtype=dtype,
        )
        yield AttentionCase(
            f"gemma-softcap-window-{dtype}",
            num_heads=4,
            kv_num_heads=1,
            q_len=200,
            is_causal=1,
            window_left=63,
            softcap=5.0,
            dtype=dtype,
        )
        yield AttentionCase(
            f"gpt-oss-sinks-{dtype}", num_heads=4, q_len=150, is_causal=1, window_left=31, sinks="N", dtype=dtype
        )
    yield AttentionCase("half-with-fp32-bias", dtype="float16", q_len=65, bias="BNST", bias_dtype="float32")
    yield AttentionCase("bf16-with-fp32-bias", dtype="bfloat16", q_len=65, bias="11ST", bias_dtype="float32")
    yield AttentionCase("block-sparse", q_len=300, kv_len=520, blocks="BNRC", block_size=64)
    yield AttentionCase("block-sparse-causal", q_len=300, blocks="1NRC", block_size=32, is_causal=1, batch=2)


# ------------------------------------------------------------------------------------------------------ IRREGULAR
def _irregular() -> Iterator[AttentionCase]:
    dtypes = tuple(DTYPES)
    turn = 0
    # D5: each head size with three of the lengths, types taking turns.
    for head_size in (1, 8, 24, 37, 40, 59, 64, 72, 80, 96, 128, 160, 256, 512):
        for q_len in (1, 33, 129):
            yield AttentionCase(
                f"d5-head{head_size}-len{q_len}-{dtypes[turn % 3]}",
                q_len=q_len,
                head_size=head_size,
                dtype=dtypes[turn % 3],
                is_causal=turn % 2,
                num_heads=1 + turn % 3,
            )
            turn += 1
        turn += 1  # so that a length does not always meet the same type
    for dtype in dtypes:
        yield AttentionCase(f"d5-len1533-{dtype}", q_len=1533, num_heads=1, dtype=dtype)
    yield AttentionCase("d5-head64-value128", head_size=64, v_head_size=128, q_len=77)
    yield AttentionCase("d5-head256-value512", head_size=256, v_head_size=512, q_len=33, num_heads=1, dtype="float16")
    yield AttentionCase("d5-head59-value3", head_size=59, v_head_size=3, q_len=50, num_heads=1)

    # D4: every broadcast of the bias and of its bool twin, with a kv_len that no alignment likes.
    d4 = AttentionCase("d4", batch=3, num_heads=4, q_len=5, kv_len=13, head_size=32, scale=0.5, query_gain=1.0)
    for axes in ("B1ST", "111T", "ST", "1NST", "B11T", "BNST", "T", "BNS1", "1", "S1"):
        for dtype in ("float32", "float16"):
            yield replace(d4, name=f"d4-bias-{axes}-{dtype}", bias=axes, dtype=dtype)
        yield replace(d4, name=f"d4-mask-{axes}", mask=axes)
    yield replace(d4, name="d4-both", bias="1NST", mask="B11T")
    yield replace(d4, name="d4-both-full", bias="BNST", mask="BNST", q_len=67, kv_len=131)

    # Few queries and many keys: an implementation may cut the keys and put the parts together again.
    split = AttentionCase("decode", batch=2, num_heads=4, kv_num_heads=2, q_len=1, kv_len=2100, head_size=40)
    yield replace(split, name="decode-long")
    yield replace(split, name="decode-long-lengths-sinks", key_lengths=(2100, 300), sinks="N", dtype="float16")
    yield replace(split, name="decode-long-three", q_len=3, is_causal=1, causal_alignment="bottom_right")
    yield replace(split, name="decode-long-sixteen", q_len=16, window_left=700, causal_alignment="bottom_right")
    yield replace(split, name="decode-long-one-head", batch=1, num_heads=1, kv_num_heads=1, kv_len=5000, bias="111T")
    yield replace(split, name="decode-long-nothing", mask="B11T", mask_kind="nothing", v_head_size=33)

    # Lengths around tile edges, the same and different on both sides.
    for q_len, kv_len in (
        (1, 1),
        (1, 64),
        (64, 1),
        (2, 3),
        (15, 16),
        (16, 17),
        (17, 15),
        (31, 257),
        (48, 47),
        (63, 65),
    ):
        yield AttentionCase(f"len{q_len}x{kv_len}", q_len=q_len, kv_len=kv_len)
    for q_len, kv_len in ((65, 63), (97, 193), (127, 129), (130, 128), (191, 101), (257, 31)):
        for alignment in ("top_left", "bottom_right"):
            yield AttentionCase(
                f"len{q_len}x{kv_len}-{alignment}",
                q_len=q_len,
                kv_len=kv_len,
                is_causal=1,
                causal_alignment=alignment,
            )
    window = AttentionCase("window", q_len=101, kv_len=149)
    yield replace(window, name="window-both", window_left=7, window_right=3)
    yield replace(window, name="window-zero", window_left=0, window_right=0)
    yield replace(window, name="window-left-bottom-right", window_left=20, causal_alignment="bottom_right", is_causal=1)
    yield replace(window, name="window-right-with-causal", window_right=5, is_causal=1)
    yield replace(window, name="window-right-bottom-right", window_right=2, causal_alignment="bottom_right")
    yield replace(window, name="window-wide", window_left=1 << 40, window_right=(1 << 63) - 1)
    for block_size in (16, 32, 64, 128, 256):
        yield AttentionCase(
            f"blocks{block_size}", q_len=273, kv_len=385, head_size=16, blocks="BNRC", block_size=block_size, batch=2
        )
    yield AttentionCase("blocks-broadcast-rows", q_len=100, kv_len=200, blocks="1C", block_size=16)
    yield AttentionCase("blocks-broadcast-columns", q_len=100, kv_len=200, blocks="B1R1", block_size=16)
    yield AttentionCase("many-small", batch=70, num_heads=3, q_len=25, head_size=32, reason="D13 in small")
    yield AttentionCase(
        "grouped-packed", num_heads=6, kv_num_heads=3, q_len=70, head_size=20, packed=True, dtype="float16"
    )
    yield AttentionCase("packed-odd", num_heads=3, q_len=33, kv_len=65, head_size=5, v_head_size=7, packed=True)


# --------------------------------------------------------------------------------------------------------- CORNER
def _corner() -> Iterator[AttentionCase]:
    yield AttentionCase(
        "d6-scores-beyond-fp16",
        num_heads=1,
        q_len=6,
        head_size=512,
        dtype="float16",
        scale=1.0,
        is_causal=1,
        data="beyond_fp16",
        reason="scores of 73728: fp16 ends at 65504",
    )
    yield AttentionCase(
        "equal-scores-65536",
        num_heads=1,
        q_len=1,
        kv_len=65536,
        head_size=8,
        data="equal",
        dtype="float16",
        reason="a row sum of 65536 does not fit fp16",
    )
    for dtype in DTYPES:
        yield AttentionCase(
            f"d12-long-masked-prefix-{dtype}",
            q_len=441,
            num_heads=1,
            dtype=dtype,
            bias="11ST",
            bias_kind="lowest_prefix",
            reason="the running maximum starts at the lowest value for whole tiles",
        )
        yield AttentionCase(
            f"lowest-bias-{dtype}",
            q_len=70,
            dtype=dtype,
            bias="BNST",
            bias_kind="lowest",
            reason="rows of nothing but the lowest value are a uniform average, not 0 and not NaN",
        )
        yield AttentionCase(
            f"infinite-bias-{dtype}",
            q_len=70,
            kv_len=200,
            dtype=dtype,
            bias="BNST",
            bias_kind="infinite",
            reason="-inf - -inf is NaN; a row of -inf is 0",
        )
    yield AttentionCase(
        "per-key-infinite", q_len=40, kv_len=200, bias="B11T", bias_kind="infinite", reason="no row sees anything"
    )
    rows = AttentionCase("rows", batch=2, q_len=70, kv_len=150, mask="BNST", mask_kind="rows")
    yield replace(rows, name="masked-rows", reason="D2: rows that see nothing give 0 and LSE -inf")
    yield replace(rows, name="masked-rows-sinks", sinks="N", reason="with a sink, LSE is the sink")
    yield replace(rows, name="masked-rows-fill", mask_fill=-10000.0, reason="a finite fill is an ordinary score")
    yield replace(
        rows,
        name="masked-rows-lowest-fill",
        mask_fill=LOWEST["float32"],
        reason="a row of -3.4e38 is a uniform average",
    )
    yield replace(
        rows,
        name="masked-rows-lowest-fill-causal",
        mask_fill=LOWEST["float32"],
        is_causal=1,
        reason="causal excludes absolutely; what is left of a filled row is averaged",
    )
    yield replace(rows, name="positive-fill", mask_fill=3.0, reason="a False may be worth more than a True")
    yield replace(rows, name="nothing-at-all", mask_kind="nothing", reason="every row is empty")
    yield replace(rows, name="nothing-per-key", mask="111T", mask_kind="nothing", reason="every tile is skipped")
    yield replace(rows, name="mask-and-bias-lowest", bias="BNST", bias_kind="lowest", reason="D11's planes in one op")
    lengths = AttentionCase("lengths", batch=4, q_len=33, kv_len=129, key_lengths=(0, 1, 129, 64))
    yield replace(lengths, name="key-lengths", reason="a length of 0 leaves nothing")
    yield replace(lengths, name="key-lengths-wild", key_lengths=(-5, 2**31 - 1, 130, 128), reason="clamped to [0, T]")
    yield replace(lengths, name="key-lengths-one", key_lengths=(50,), reason="one length for all batches")
    yield replace(
        lengths,
        name="key-lengths-bottom-right",
        is_causal=1,
        causal_alignment="bottom_right",
        reason="the diagonal ends at each batch's own length, above row 0 where that is short",
    )
    yield replace(
        lengths,
        name="key-lengths-window-bottom-right",
        window_left=10,
        window_right=4,
        causal_alignment="bottom_right",
        sinks="1",
    )
    yield AttentionCase(
        "more-queries-than-keys-bottom-right",
        q_len=150,
        kv_len=40,
        is_causal=1,
        causal_alignment="bottom_right",
        reason="the first 110 rows see nothing",
    )
    yield AttentionCase("no-keys", q_len=5, kv_len=0, sinks="N", reason="kv_len 0: output 0, LSE the sink")
    yield AttentionCase("no-queries", q_len=0, kv_len=5, reason="an empty output")
    yield AttentionCase("no-batch", batch=0, q_len=3, reason="an empty output")
    yield AttentionCase("huge-scores", q_len=50, query_gain=300.0, reason="weights are 0 or 1; exp of -1000 underflows")
    yield AttentionCase("softcap-huge-scores", q_len=50, query_gain=300.0, softcap=30.0, reason="tanh saturates")
    yield AttentionCase(
        "softcap-all", q_len=70, kv_len=90, softcap=8.0, bias="1NST", mask="B11T", reason="cap comes before bias"
    )
    yield AttentionCase("negative-scale", q_len=20, scale=-0.3, reason="nothing forbids it")
    yield AttentionCase("tiny-values", q_len=20, scale=1e-30, reason="scores of 0: a plain average")
    yield AttentionCase(
        "everything",
        batch=2,
        num_heads=4,
        kv_num_heads=2,
        q_len=77,
        kv_len=203,
        head_size=40,
        v_head_size=24,
        dtype="float16",
        packed=True,
        is_causal=1,
        causal_alignment="bottom_right",
        window_left=90,
        window_right=40,
        softcap=20.0,
        mask_fill=-5.0,
        bias="1NST",
        bias_dtype="float32",
        mask="B1ST",
        key_lengths=(203, 120),
        blocks="BNRC",
        block_size=32,
        sinks="N",
        reason="all features at once",
    )


# -------------------------------------------------------------------------------------------------------- DROPOUT
def _dropout() -> Iterator[AttentionCase]:
    for dtype in DTYPES:
        yield AttentionCase(f"dropout-{dtype}", batch=2, num_heads=3, q_len=130, kv_len=203, dtype=dtype, dropout_p=0.1)
    base = AttentionCase("dropout", num_heads=4, kv_num_heads=2, q_len=70, kv_len=90, dropout_p=0.35)
    yield replace(base, name="dropout-window", window_left=13, window_right=6, reason="tiles begin anywhere")
    yield replace(base, name="dropout-causal-mask", is_causal=1, mask="B11T", sinks="N", packed=True)
    yield replace(base, name="dropout-blocks", blocks="BNRC", block_size=16)
    yield replace(base, name="dropout-few", q_len=3, kv_len=333, reason="products for few queries, several heads")
    yield replace(base, name="dropout-decode", q_len=1, kv_len=2100, reason="the keys are cut into ranges")
    yield replace(base, name="dropout-nearly-all", dropout_p=0.999)
    yield replace(base, name="dropout-all", dropout_p=0.999999, reason="a rate that rounds to 1 drops everything")


# ---------------------------------------------------------------------------------------------------------- PLAIN
def _plain() -> Iterator[AttentionCase]:
    yield AttentionCase("square", batch=2, q_len=300, is_causal=1)
    yield AttentionCase("more-queries", q_len=400, kv_len=130, is_causal=1, causal_alignment="bottom_right")
    yield AttentionCase("more-keys", q_len=70, kv_len=650, is_causal=1, causal_alignment="bottom_right")
    yield AttentionCase("one-key", q_len=130, kv_len=1)
    yield AttentionCase("window", q_len=513, kv_len=390, window_left=70, window_right=33)
    yield AttentionCase("grouped", num_heads=6, kv_num_heads=2, q_len=260, kv_len=385, packed=True)
    yield AttentionCase("sinks", q_len=200, sinks="N", window_left=31, is_causal=1)


# ---------------------------------------------------------------------------------------------------- PERFORMANCE
def _performance() -> Iterator[AttentionCase]:
    for q_len in (128, 512, 1024, 2048, 4096, 8192):
        yield AttentionCase(f"bert-base-{q_len}", num_heads=12, q_len=q_len, packed=True, query_gain=1.0)
    for kv_len in (512, 4096):
        yield AttentionCase(f"decode-{kv_len}", num_heads=32, kv_num_heads=8, q_len=1, kv_len=kv_len, head_size=128)


REGULAR = tuple(_regular())
IRREGULAR = tuple(_irregular())
CORNER = tuple(_corner())
DROPOUT = tuple(_dropout())
"""With dropout, which not every implementation has."""
PLAIN = tuple(_plain())
"""What kernels for plain attention take, to be tried with their types and head sizes; most steps of their loops."""
PERFORMANCE = tuple(_performance())
CASES = REGULAR + IRREGULAR + CORNER
"""What every implementation is tested with."""
