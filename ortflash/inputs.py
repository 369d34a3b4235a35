"""Inputs for a model that nobody gave inputs for: token ids, padded masks, positions, images, caches.

Dimensions that the model leaves open get small sizes that hurt: a batch whose rows are full, padded on the right and
padded on the left, and lengths that are prime. Longer ones show what small ones can't: a window, a length or a block
that no short sequence reaches.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto

from .errors import InvalidModelError, OrtflashError

Feed = dict[str, npt.NDArray[np.generic]]

_BATCH = 3
_MAX_CHANNELS = 16
_LENGTHS = ((13, 11, 17, 19, 23), (13,), (64,))
"""Sizes to try for open lengths: all different; all the same, for models whose lengths depend on each other; round."""
_IMAGE_SIZES = (64, 64, 224)
ATTEMPTS = len(_LENGTHS)
"""How many ways there are to choose open sizes."""

_LONG_LENGTHS = (
    ((271, 277, 281, 283, 293), (271,), (320,)),
    ((113, 127, 109, 107, 103), (113,), (128,)),
    ((61, 59, 53, 47, 43), (61,), (64,)),
)
"""The same for the longer run; the later rows are for models that have positions for fewer."""
LONGEST = max(_LONG_LENGTHS[0][0])
"""What the longer run goes to unless a window asks for more."""
LONG_BATCH = 2
"""Rows of the longer run: one full, one padded."""


@dataclass(frozen=True)
class InputSpec:
    """A graph input that a caller has to give."""

    name: str
    elem_type: int
    dims: tuple[int | str, ...]
    """A known size, or the name of an open one; nameless ones are called after the input and their axis."""


def input_specs(model: ModelProto) -> list[InputSpec]:
    """The model's inputs, initializers with a default left out; InvalidModelError where one has no tensor type."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    return [_spec(value) for value in model.graph.input if value.name not in defaults]


def load_feed(model: ModelProto, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Feed:
    """Check given arrays against the model's inputs; integer and float types are converted to the model's."""
    feed: Feed = {}
    for spec in input_specs(model):
        if spec.name not in arrays:
            raise OrtflashError(
                f"The inputs lack {spec.name!r}; they hold {', '.join(map(repr, arrays)) or 'nothing'}."
            )
        array = np.asarray(arrays[spec.name])
        fixed = [isinstance(dim, str) or dim == size for dim, size in zip(spec.dims, array.shape, strict=False)]
        if array.ndim != len(spec.dims) or not all(fixed):
            raise OrtflashError(f"Input {spec.name!r} has shape {array.shape}, and the model wants {_text(spec.dims)}.")
        feed[spec.name] = array.astype(_dtype(spec), copy=False)
    return feed


def generate_feeds(
    model: ModelProto, *, shapes: Mapping[str, Sequence[int]] | None = None, attempt: int = 0, seed: int = 0
) -> list[Feed]:
    """One feed, or two where the batch is too small to hold full, right-padded and left-padded rows at once.

    ``attempt`` (below :data:`ATTEMPTS`) chooses other sizes for open dimensions, for models that don't run with these.
    """
    specs = input_specs(model)
    sizes = _bind(specs, shapes or {}, _Choice(_LENGTHS[attempt], _IMAGE_SIZES[attempt], _BATCH))
    batch = next((_size(spec.dims[0], sizes) for spec in specs if _is_mask(spec) and spec.dims), 0)
    variants = [0] if batch in (0, *range(3, 1 + max(batch, 3))) else [1, 2]
    vocabularies = _vocabularies(model.graph)
    return [_feed(specs, sizes, vocabularies, seed, variant) for variant in variants]


def longer_feeds(
    model: ModelProto,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    attempt: int = 0,
    past: int = 0,
    seed: int = 0,
) -> list[tuple[int, Feed]]:
    """Feeds of longer sequences to try in turn, for a model that runs on :func:`generate_feeds` of this ``attempt``.

    Each with its shortest length. ``past`` is a length to go beyond. There are none where no length is open.
    """
    specs = input_specs(model)
    vocabularies = _vocabularies(model.graph)
    short = _bind(specs, shapes or {}, _Choice(_LENGTHS[attempt], _IMAGE_SIZES[attempt], LONG_BATCH))
    feeds = []
    for add in dict.fromkeys((past, 0)):
        for lengths in _LONG_LENGTHS:
            choice = _Choice(tuple(add + length for length in lengths[attempt]), _IMAGE_SIZES[attempt], LONG_BATCH)
            sizes = _bind(specs, shapes or {}, choice)
            if sizes != short:
                feeds.append((min(choice.lengths), _feed(specs, sizes, vocabularies, seed, 0)))
    return feeds


def feed_of_length(model: ModelProto, batch: int, length: int) -> Feed:
    """A feed whose first open dimensions are ``batch`` and whose others are ``length``."""
    shapes = {}
    for spec in input_specs(model):
        sizes = iter((batch, *[length] * len(spec.dims)))
        shapes[spec.name] = tuple(dim if isinstance(dim, int) else next(sizes) for dim in spec.dims)
    return generate_feeds(model, shapes=shapes)[0]


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``input_ids:2x77`` as name and sizes; OrtflashError where it reads otherwise."""
    name, _, sizes = text.rpartition(":")
    if not name or not re.fullmatch(r"0*[1-9]\d*([x,]0*[1-9]\d*)*", sizes):
        raise OrtflashError(f"A shape is given as input:2x77, with sizes of 1 and more, not as {text!r}.")
    return name, tuple(int(size) for size in re.split("[x,]", sizes))


def _spec(value: ValueInfoProto) -> InputSpec:
    if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.HasField("shape"):
        raise InvalidModelError(f"Input {value.name!r} is not a tensor of known rank; give inputs with --inputs.")
    dims: list[int | str] = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(dim.dim_param or f"{value.name}[{axis}]")
    return InputSpec(value.name, value.type.tensor_type.elem_type, tuple(dims))


@dataclass(frozen=True)
class _Choice:
    """What open dimensions get."""

    lengths: tuple[int, ...]
    """In turn."""
    image_size: int
    batch: int


def _feed(
    specs: Sequence[InputSpec], sizes: Mapping[str, int], vocabularies: Mapping[str, int], seed: int, variant: int
) -> Feed:
    rng = np.random.default_rng(seed)
    return {spec.name: _values(spec, sizes, vocabularies, rng, variant) for spec in specs}


def _bind(specs: Sequence[InputSpec], shapes: Mapping[str, Sequence[int]], choice: _Choice) -> dict[str, int]:
    """A size for every open dimension: given ones first, then by what the name says."""
    sizes: dict[str, int] = {}
    by_name = {spec.name: spec for spec in specs}
    for name, shape in shapes.items():
        if name not in by_name:
            raise OrtflashError(f"There is no input {name!r}; the model has {', '.join(map(repr, by_name))}.")
        dims = by_name[name].dims
        clash = [d for d, size in zip(dims, shape, strict=False) if isinstance(d, int) and d != size]
        if len(dims) != len(shape) or clash:
            raise OrtflashError(f"Input {name!r} can't have shape {tuple(shape)}: the model wants {_text(dims)}.")
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                raise OrtflashError(f"The given shapes make the dimension {dim!r} both {sizes[dim]} and {size}.")
    fixed = set(sizes)
    lengths = itertools.cycle(choice.lengths)
    for spec in specs:
        for axis, dim in enumerate(spec.dims):
            if isinstance(dim, str) and dim not in sizes and not _is_sum(dim):
                sizes[dim] = _guess(spec, axis, lengths, choice)
    return sizes | _cache_sizes(specs, sizes, fixed)


def _cache_sizes(specs: Sequence[InputSpec], sizes: Mapping[str, int], fixed: Collection[str]) -> dict[str, int]:
    """A decoder's cache: past keys and values of one length, and a padding mask over past and new tokens together.

    Exporters name these lengths apart (``past``, ``s15``, ``s95``, ``total``), though the model runs only if they fit.
    """
    tokens = next((spec.dims[1] for spec in specs if spec.name == "input_ids" and len(spec.dims) == 2), None)
    past = [spec.dims[2] for spec in specs if _is_past(spec)]
    if tokens is None or not past:
        return {}
    length = next((_size(dim, sizes) for dim in past if isinstance(dim, int) or dim in fixed), _size(past[0], sizes))
    totals = [spec.dims[1] for spec in specs if _is_mask(spec) and len(spec.dims) == 2 and spec.dims[1] != tokens]
    tied = dict.fromkeys(past, length) | {dim: length + _size(tokens, sizes) for dim in totals}
    return {dim: size for dim, size in tied.items() if isinstance(dim, str) and dim in sizes and dim not in fixed}


def _is_past(spec: InputSpec) -> bool:
    name = spec.name.lower()
    return len(spec.dims) == 4 and "past" in name and not re.search("cross|encoder", name)


def _guess(spec: InputSpec, axis: int, lengths: Iterator[int], choice: _Choice) -> int:
    name = str(spec.dims[axis]).lower()
    if "batch" in name or (axis == 0 and len(spec.dims) > 1 and not re.search("seq|len|time|frame|token", name)):
        return choice.batch
    if "channel" in name:
        return 3
    channels = spec.dims[1] if len(spec.dims) == 4 else None
    is_image = _is_float(spec) and isinstance(channels, int) and channels <= _MAX_CHANNELS
    if re.search("height|width", name) or (is_image and all(isinstance(dim, str) for dim in spec.dims[2:])):
        return choice.image_size
    return next(lengths)


def _is_sum(dim: str) -> bool:
    return bool(re.fullmatch(r"\w+( \+ \w+)+", dim))


def _size(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Size of a dimension; ``past + sequence`` is the sum of its parts."""
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    return sum(int(part) if part.isdigit() else sizes.get(part, _LENGTHS[0][0]) for part in dim.split(" + "))


def _values(
    spec: InputSpec, sizes: Mapping[str, int], vocabularies: Mapping[str, int], rng: np.random.Generator, variant: int
) -> npt.NDArray[np.generic]:
    shape = tuple(_size(dim, sizes) for dim in spec.dims)
    dtype = _dtype(spec)
    if _is_mask(spec):
        return _padding_mask(shape, variant).astype(dtype)
    if dtype == np.dtype(bool):
        return np.zeros(shape, dtype)
    if _is_float(spec):
        return rng.standard_normal(shape).astype(dtype)
    if "position" in spec.name.lower() and shape:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
    return rng.integers(0, max(1, vocabularies.get(spec.name, 2)), shape).astype(dtype)


def _padding_mask(shape: tuple[int, ...], variant: int) -> npt.NDArray[np.int64]:
    """(B, ..., T) of 0 and 1: rows of the batch are full, padded on the right, padded on the left, in turn."""
    mask = np.ones(shape, np.int64)
    if not shape:
        return mask
    padding = shape[-1] // 3
    for row in range(shape[0] if len(shape) > 1 else 0):
        kind = (row + variant) % 3
        if padding and kind == 1:
            mask[row, ..., -padding:] = 0
        elif padding and kind == 2:
            mask[row, ..., :padding] = 0
    return mask


def _vocabularies(graph: GraphProto) -> dict[str, int]:
    """Integer input -> rows of the table that it looks up, by way of Cast and shape changes."""
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    sources = {value.name: value.name for value in graph.input}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] in sources and node.input[0] in rows:
            name = sources[node.input[1]]
            found[name] = min(rows[node.input[0]], found.get(name, rows[node.input[0]]))
        elif node.op_type in ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity") and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
    return found


def _is_mask(spec: InputSpec) -> bool:
    return "mask" in spec.name.lower()


def _is_float(spec: InputSpec) -> bool:
    return bool(np.issubdtype(_dtype(spec), np.floating)) or _dtype(spec).name == "bfloat16"


def _dtype(spec: InputSpec) -> np.dtype[np.generic]:
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(spec.elem_type))
    except KeyError:
        raise InvalidModelError(f"Input {spec.name!r} has an element type that ONNX doesn't know.") from None


def _text(dims: Sequence[int | str]) -> str:
    return "(" + ", ".join(map(str, dims)) + ")"
