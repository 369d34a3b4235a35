"""Named lists of attention calls to race; sizes only, no framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TOKENS = 16384
"""Tokens of a call of the main grid: batch * q_len. With hidden size 2,048, the usual shape of published figures."""
HIDDEN = 2048


@dataclass(frozen=True)
class Shape:
    """One attention call. ``bias`` and ``mask`` give axes, such as ``"1NST"``, or are empty."""

    batch: int
    num_heads: int
    q_len: int
    head_size: int
    dtype: str = "float16"
    is_causal: bool = False
    kv_num_heads: int = 0
    kv_len: int = 0
    v_head_size: int = 0
    bias: str = ""
    mask: str = ""
    key_lengths: tuple[int, ...] = ()
    """Keys that take part, a number a batch element; the other keys are padding."""
    precise: bool = False

    @property
    def kv_heads(self) -> int:
        """Key/value heads."""
        return self.kv_num_heads or self.num_heads

    @property
    def keys(self) -> int:
        """Key length."""
        return self.kv_len or self.q_len

    @property
    def v_size(self) -> int:
        """Head size of the values."""
        return self.v_head_size or self.head_size

    @property
    def flops(self) -> float:
        """Operations of both products; half where causal, and those of padding don't count."""
        keys = sum(self.key_lengths) or self.batch * self.keys
        products = 2.0 * self.num_heads * self.q_len * keys * (self.head_size + self.v_size)
        return products / 2 if self.is_causal else products

    @property
    def is_short(self) -> bool:
        """Whether the queries are so few that reading keys and values is all the work."""
        return self.q_len <= 16

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values."""
        width = 4 if self.dtype == "float32" else 2
        return width * self.batch * self.kv_heads * self.keys * (self.head_size + self.v_size)

    @property
    def label(self) -> str:
        """One line that names the call."""
        parts = [f"head {self.head_size}" + (f"/{self.v_size}" if self.v_size != self.head_size else "")]
        parts.append("causal" if self.is_causal else "full")
        parts.append(f"S {self.q_len}" + (f" T {self.keys}" if self.keys != self.q_len else ""))
        parts.append(f"B {self.batch}")
        if self.kv_heads != self.num_heads:
            parts.append(f"heads {self.num_heads}/{self.kv_heads}")
        if self.bias:
            parts.append(f"bias ({','.join(self.bias)})")
        if self.mask:
            parts.append(f"mask ({','.join(self.mask)})")
        if self.key_lengths:
            parts.append(f"key lengths {', '.join(map(str, self.key_lengths))}")
        parts.append(self.dtype + (" precise" if self.precise else ""))
        return ", ".join(parts)

    def axes(self, letters: str) -> tuple[int, ...]:
        """``"1NST"`` -> its sizes."""
        sizes = {"B": self.batch, "N": self.num_heads, "S": self.q_len, "T": self.keys, "1": 1}
        return tuple(sizes[letter] for letter in letters)


def _main(heads: tuple[int, ...], lengths: tuple[int, ...], dtype: str) -> Iterator[Shape]:
    for size in heads:
        for causal in (False, True):
            for length in lengths:
                yield Shape(max(1, TOKENS // length), HIDDEN // size, length, size, dtype, causal)


def _terms() -> Iterator[Shape]:
    for size in (64, 128):
        yield Shape(4, HIDDEN // size, 4096, size)
        for bias in ("11ST", "1NST", "BNST"):
            yield Shape(4, HIDDEN // size, 4096, size, bias=bias)
        for mask in ("11ST", "B1ST", "B11T"):
            yield Shape(4, HIDDEN // size, 4096, size, mask=mask)
        yield Shape(4, HIDDEN // size, 4096, size, key_lengths=(4096, 3000, 2000, 1000))
        yield Shape(4, HIDDEN // size, 4096, size, dtype="float32", bias="1NST")


def _windows() -> Iterator[Shape]:
    """Swin's windows of 7x7 and 8x8 for 32 images, a stage each, with its table of positions; and others like them."""
    for windows, heads in ((2048, 6), (512, 12), (128, 24), (32, 48)):
        yield Shape(windows, heads, 49, 32, bias="1NST")
    yield Shape(2048, 6, 49, 32)
    yield Shape(2048, 6, 49, 32, bias="BNST")
    yield Shape(2048, 6, 49, 32, "bfloat16", bias="1NST")
    yield Shape(2048, 6, 64, 32, bias="1NST")
    yield Shape(46080 // 16, 16, 25, 64)
    yield Shape(1024, 16, 64, 64)
    yield Shape(256, 16, 32, 64, mask="B11T")


def _decode() -> Iterator[Shape]:
    for batch, keys in ((1, 8192), (1, 65536), (1, 131072), (8, 8192), (8, 65536), (32, 8192), (64, 8192)):
        yield Shape(batch, 32, 1, 128, kv_num_heads=8, kv_len=keys)


def _odd() -> Iterator[Shape]:
    for length, size in ((197, 64), (1000, 64), (1023, 128), (4097, 128), (2048, 40), (2048, 72), (2048, 80),
                         (2048, 96), (2048, 160), (2048, 192)):  # fmt: skip
        yield Shape(max(1, TOKENS // length), max(1, HIDDEN // size), length, size)
    yield Shape(46080 // 16, 16, 25, 64)
    yield Shape(1, 1, 16384, 512)


GRIDS: dict[str, tuple[Shape, ...]] = {
    "cpu": tuple(Shape(1, 12, length, 64, "float32") for length in (128, 512, 1024, 2048, 4096)),
    "cpu-half": tuple(Shape(1, 12, 1024, 64, dtype) for dtype in ("float16", "bfloat16")),
    "ampere": tuple(_main((64, 128), (1024, 2048, 4096, 8192), "float16")),
    "ampere-bf16": tuple(_main((64, 128), (1024, 2048, 4096, 8192), "bfloat16")),
    "terms": tuple(_terms()),
    "fp32": tuple(
        Shape(4, HIDDEN // size, 4096, size, "float32", precise=precise)
        for size in (64, 128)
        for precise in (False, True)
    ),
    "hopper": tuple(_main((64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384), "float16")),
    "hopper-bf16": tuple(_main((64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384), "bfloat16")),
    "windows": tuple(_windows()),
    "decode": tuple(_decode()),
    "odd": tuple(_odd()),
    "backward": tuple(_main((64, 128), (1024, 2048, 4096, 8192, 16384), "float16")),
    "backward-bf16": tuple(_main((64, 128), (1024, 2048, 4096, 8192, 16384), "bfloat16")),
    "backward-terms": tuple(shape for shape in _terms() if shape.dtype == "float16"),
    "short": tuple(Shape(batch, 16, length, 64) for batch in (1, 8) for length in (128, 256, 512)),
}
"""Grid name -> calls. ``cpu*`` are for the CPU, the others for a GPU; of ``backward*`` the gradients are timed."""
