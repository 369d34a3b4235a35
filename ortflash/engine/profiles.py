"""``--shapes input_ids:1x1:4x128:8x512`` as sizes for every input of a model: an optimization profile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto

from ..errors import OrtflashError
from ..inputs import InputSpec, input_specs

Shape = tuple[int, ...]

_SIZES = r"\d+(?:[x,]\d+)*"


@dataclass(frozen=True)
class Range:
    """The least, the typical and the largest shape of one input."""

    min: Shape
    opt: Shape
    max: Shape

    def __str__(self) -> str:
        """As the command line takes it."""
        return ":".join("x".join(map(str, shape)) for shape in (self.min, self.opt, self.max))


def parse_range(text: str) -> tuple[str, Range]:
    """``input_ids:1x1:4x128:8x512``, or ``input_ids:4x128`` for one shape; OrtflashError where it reads otherwise."""
    match = re.fullmatch(rf"(.+?):({_SIZES})(?::({_SIZES}):({_SIZES}))?", text)
    if match is None or re.search(r":\d+[x,][\dx,]*$", match[1]):  # a name may end in :0, but not in a shape
        raise OrtflashError(
            f"Shapes are given as input:min:opt:max, such as input_ids:1x1:4x128:8x512, not as {text!r}."
        )
    name, *sizes = match.groups()
    shapes = [tuple(int(size) for size in re.split("[x,]", one)) for one in sizes if one]
    least, typical, most = shapes * 3 if len(shapes) == 1 else shapes
    ordered = len(least) == len(typical) == len(most) and all(
        low <= mid <= high for low, mid, high in zip(least, typical, most, strict=True)
    )
    if not ordered:
        raise OrtflashError(f"In {text!r}, min, opt and max must have equally many sizes, in ascending order.")
    return name, Range(least, typical, most)


def make_profile(model: ModelProto, given: Mapping[str, Range]) -> dict[str, Range]:
    """A range for every input that has an open dimension.

    Open dimensions of the same name have the same sizes, so that often one input is enough; one called ``past + new``
    is the sum of the two.

    Raises:
        OrtflashError: a range that doesn't fit its input, or an open dimension that no range tells.
    """
    specs = {spec.name: spec for spec in input_specs(model)}
    unknown = [name for name in given if name not in specs]
    if unknown:
        raise OrtflashError(f"There is no input {unknown[0]!r}; the model has {', '.join(map(repr, specs))}.")
    symbols: dict[str, Shape] = {}
    for name, range_ in given.items():
        _bind(specs[name], range_, symbols)
    profile = {}
    for spec in specs.values():
        if any(isinstance(dim, str) for dim in spec.dims):
            columns = [_sizes(dim, symbols) for dim in spec.dims]
            missing = [dim for dim, sizes in zip(spec.dims, columns, strict=True) if sizes is None]
            if missing:
                raise OrtflashError(
                    f"Input {spec.name!r} has shape ({', '.join(map(str, spec.dims))}), and nothing says how long "
                    f"{missing[0]!r} is: give --shapes {spec.name}:min:opt:max."
                )
            least, typical, most = zip(*(sizes for sizes in columns if sizes), strict=True)
            profile[spec.name] = Range(least, typical, most)
    return profile


def _bind(spec: InputSpec, range_: Range, symbols: dict[str, Shape]) -> None:
    """Sizes of the open dimensions of one input; OrtflashError where they clash with the model or with each other."""
    triples: Sequence[Shape] = list(zip(range_.min, range_.opt, range_.max, strict=True))
    wrong = [
        dim for dim, sizes in zip(spec.dims, triples, strict=False) if isinstance(dim, int) and set(sizes) != {dim}
    ]
    if len(triples) != len(spec.dims) or wrong:
        raise OrtflashError(
            f"Input {spec.name!r} can't have shapes {range_}: the model wants ({', '.join(map(str, spec.dims))})."
        )
    for dim, sizes in zip(spec.dims, triples, strict=True):
        if isinstance(dim, str) and symbols.setdefault(dim, sizes) != sizes:
            raise OrtflashError(f"The given shapes make the dimension {dim!r} both {symbols[dim]} and {sizes}.")


def _sizes(dim: int | str, symbols: Mapping[str, Shape]) -> Shape | None:
    """Min, opt and max of one dimension; None where nothing tells them."""
    if isinstance(dim, int):
        return (dim,) * 3
    if dim in symbols:
        return symbols[dim]
    parts = dim.split(" + ")
    if len(parts) == 1:
        return None
    found = [(int(part),) * 3 if part.isdigit() else symbols.get(part) for part in parts]
    known = [sizes for sizes in found if sizes is not None]
    return tuple(sum(column) for column in zip(*known, strict=True)) if len(known) == len(parts) else None
