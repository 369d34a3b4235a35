"""The operator's schema, as ``flash_attention.toml`` tells it: specs, nodes, checks and the README's table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from .errors import InvalidModelError

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no TOML reader of its own; goes when 3.10 does
    import tomli as tomllib

AttributeValue = int | float | str

_ELEM_TYPES: Mapping[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "bool": TensorProto.BOOL,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}
_PROTO_TYPES: Mapping[str, int] = {
    "int": onnx.AttributeProto.INT,
    "float": onnx.AttributeProto.FLOAT,
    "string": onnx.AttributeProto.STRING,
}


@dataclass(frozen=True)
class InputSpec:
    """One input: ``types`` holds ``onnx.TensorProto.DataType`` names, or ``"query"`` for the type of `query`."""

    name: str
    shapes: tuple[str, ...]
    types: tuple[str, ...]
    doc: str
    optional: bool
    neutral: float | bool | int | None
    """The element of the constant that stands for "not given"; None where the input is required."""


@dataclass(frozen=True)
class OutputSpec:
    """One output; ``present_when`` names the attribute that is 1 where an optional output is there."""

    name: str
    shapes: tuple[str, ...]
    types: tuple[str, ...]
    doc: str
    optional: bool
    present_when: str | None


@dataclass(frozen=True)
class AttributeSpec:
    """One attribute; ``minimum`` and ``maximum`` are inclusive, an empty ``choices`` allows every value."""

    name: str
    type: Literal["int", "float", "string"]
    default: AttributeValue
    minimum: float | None
    maximum: float | None
    choices: tuple[AttributeValue, ...]
    doc: str

    @property
    def proto_type(self) -> int:
        """``onnx.AttributeProto.AttributeType``."""
        return _PROTO_TYPES[self.type]

    def problem(self, value: object) -> str | None:
        """What is wrong with ``value``, as the end of a sentence; None where it is fine."""
        expected = {"int": int, "float": (int, float), "string": str}[self.type]
        if isinstance(value, bool) or not isinstance(value, expected):  # type: ignore[arg-type]
            return f"must be of type {self.type}, not {type(value).__name__}"
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(map(str, self.choices))}, not {value}"
        if isinstance(value, (int, float)):
            if self.minimum is not None and value < self.minimum:
                return f"must be at least {self.minimum:g}, not {value}"
            if self.maximum is not None and value > self.maximum:
                return f"must be at most {self.maximum:g}, not {value}"
            if value != value:
                return "must be a number, not NaN"
        return None


@dataclass(frozen=True)
class OpSchema:
    """The whole operator."""

    name: str
    domain: str
    version: int
    doc: str
    max_head_size: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    attributes: tuple[AttributeSpec, ...]
    query_types: tuple[str, ...]

    @property
    def required_inputs(self) -> int:
        """How many inputs every call has."""
        return sum(not spec.optional for spec in self.inputs)

    def input(self, name: str) -> InputSpec:
        """The input called ``name``."""
        return next(spec for spec in self.inputs if spec.name == name)

    def attribute(self, name: str) -> AttributeSpec:
        """The attribute called ``name``."""
        return next(spec for spec in self.attributes if spec.name == name)

    def defaults(self) -> dict[str, AttributeValue]:
        """Every attribute with its default."""
        return {spec.name: spec.default for spec in self.attributes}

    def matches(self, node: NodeProto) -> bool:
        """Whether ``node`` calls this operator."""
        return node.op_type == self.name and node.domain == self.domain


@cache
def schema() -> OpSchema:
    """The schema, read once from ``flash_attention.toml``."""
    toml = _read_toml()
    op = toml["op"]
    return OpSchema(
        name=op["name"],
        domain=op["domain"],
        version=op["version"],
        doc=op["doc"],
        max_head_size=toml["limits"]["max_head_size"],
        inputs=tuple(_input_spec(entry) for entry in toml["inputs"]),
        outputs=tuple(_output_spec(entry) for entry in toml["outputs"]),
        attributes=tuple(_attribute_spec(entry) for entry in toml["attributes"]),
        query_types=tuple(toml["limits"]["query_types"]),
    )


@cache
def gradient_schema() -> OpSchema:
    """The schema of the gradient's operator, likewise."""
    forward, own = schema(), _read_toml()["gradient"]
    required = [one for one in forward.inputs if not one.optional]
    optional = [one for one in forward.inputs if one.optional]
    return replace(
        forward,
        name=own["name"],
        doc=own["doc"],
        inputs=(*required, *(_input_spec(entry) for entry in own["inputs"]), *optional),
        outputs=tuple(_output_spec(entry) for entry in own["outputs"]),
        attributes=(
            *(one for one in forward.attributes if one.name != "return_lse"),
            *(_attribute_spec(entry) for entry in own["attributes"]),
        ),
    )


def make_node(
    inputs: Mapping[str, str],
    output: str,
    *,
    name: str,
    input_count: int,
    attributes: Mapping[str, AttributeValue] | None = None,
    softmax_lse: str = "",
) -> NodeProto:
    """A node of the operator with every attribute spelled out.

    ``inputs`` maps schema input names to tensor names and must name the first ``input_count`` inputs, all of them: a
    file's calls pass the same inputs, without gaps.
    """
    spec = schema()
    names = [one.name for one in spec.inputs[:input_count]]
    missing = [one for one in names if not inputs.get(one)]
    unknown = sorted(set(inputs) - set(names))
    if missing or unknown:
        raise ValueError(f"FlashAttention node {name!r}: missing inputs {missing}, inputs that it can't have {unknown}")
    values = spec.defaults() | dict(attributes or {})
    values["return_lse"] = int(bool(softmax_lse))
    node = onnx.helper.make_node(
        spec.name,
        [inputs[one] for one in names],
        [output, softmax_lse] if softmax_lse else [output],
        name=name,
        domain=spec.domain,
    )
    for key, value in values.items():
        node.attribute.append(onnx.helper.make_attribute(key, _coerce(key, value)))
    check_node(node)
    return node


def check_node(node: NodeProto) -> None:
    """Raises InvalidModelError where ``node`` breaks the schema: attributes, number of inputs and outputs, gaps."""
    spec = schema()
    where = f"FlashAttention node {node.name!r}"
    known = {one.name: one for one in spec.attributes}
    for name, value in node_attributes(node).items():
        if name not in known:
            raise InvalidModelError(f"{where}: there is no attribute {name!r}; known are {', '.join(known)}.")
        problem = known[name].problem(value)
        if problem:
            raise InvalidModelError(f"{where}: attribute {name!r} {problem}.")
    if not spec.required_inputs <= len(node.input) <= len(spec.inputs):
        raise InvalidModelError(
            f"{where}: takes {spec.required_inputs} to {len(spec.inputs)} inputs, not {len(node.input)}."
        )
    for one, tensor in zip(spec.inputs, node.input, strict=False):
        if not tensor:
            raise InvalidModelError(f"{where}: input {one.name!r} is empty; pass its neutral constant instead.")
    expected = 2 if node_attributes(node).get("return_lse") == 1 else 1
    if len(node.output) != expected:
        raise InvalidModelError(f"{where}: has {len(node.output)} outputs, but return_lse asks for {expected}.")


def node_attributes(node: NodeProto) -> dict[str, Any]:
    """The node's attributes as Python values, strings decoded."""
    values: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        values[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return values


def neutral_constant(input_name: str, tensor_name: str, query_elem_type: int) -> TensorProto:
    """The one-element tensor that stands for an optional input that a call doesn't have.

    Shape (1,) and the input's first type; ``query_elem_type`` is used where that is the type of `query`.
    """
    spec = schema().input(input_name)
    if spec.neutral is None:
        raise ValueError(f"input {input_name!r} is required and has no neutral constant")
    elem_type = query_elem_type if spec.types[0] == "query" else _ELEM_TYPES[spec.types[0]]
    value = np.array([spec.neutral]).astype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return onnx.numpy_helper.from_array(value, tensor_name)


def elem_type_name(elem_type: int) -> str:
    """``float16`` for ``TensorProto.FLOAT16``, and so on; the number where the schema has no such type."""
    return next((name for name, value in _ELEM_TYPES.items() if value == elem_type), str(elem_type))


def markdown_table(spec: OpSchema) -> str:
    """An operator's inputs, outputs and attributes as the README shows them."""
    lines = ["| input | shape | type | neutral | |", "|---|---|---|---|---|"]
    for one in spec.inputs:
        neutral = "" if one.neutral is None else f"one element {one.neutral}"
        lines.append(f"| `{one.name}` | {_shapes(one.shapes)} | {_types(one.types)} | {neutral} | {one.doc} |")
    lines += ["", "| output | shape | type | |", "|---|---|---|---|"]
    for out in spec.outputs:
        when = f"; only where `{out.present_when}` is 1" if out.present_when else ""
        lines.append(f"| `{out.name}` | {_shapes(out.shapes)} | {_types(out.types)} | {out.doc}{when} |")
    lines += ["", "| attribute | type | default | allowed | |", "|---|---|---|---|---|"]
    for attribute in spec.attributes:
        lines.append(
            f"| `{attribute.name}` | {attribute.type} | {attribute.default} | {_allowed(attribute)} | {attribute.doc} |"
        )
    return "\n".join(lines) + "\n"


def _read_toml() -> dict[str, Any]:
    with _toml_path().open("rb") as file:
        return tomllib.load(file)


def _toml_path() -> Path:
    """The toml beside this module or the package (installed), or in the checkout that this module lies in."""
    here = Path(__file__).resolve().parent
    candidates = (
        here / "flash_attention.toml",
        here.parent / "flash_attention.toml",
        here.parent / "plugin_src" / "flash_attention.toml",
    )
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(f"flash_attention.toml is missing from {here.parent}; reinstall ortflash")


def _input_spec(entry: Mapping[str, Any]) -> InputSpec:
    neutral = entry.get("neutral")
    return InputSpec(
        name=entry["name"],
        shapes=tuple(entry["shapes"]),
        types=tuple(entry["types"]),
        doc=entry["doc"],
        optional=entry.get("optional", False),
        neutral=float(neutral) if isinstance(neutral, str) else neutral,
    )


def _output_spec(entry: Mapping[str, Any]) -> OutputSpec:
    return OutputSpec(
        name=entry["name"],
        shapes=tuple(entry["shapes"]),
        types=tuple(entry["types"]),
        doc=entry["doc"],
        optional=entry.get("optional", False),
        present_when=entry.get("present_when"),
    )


def _attribute_spec(entry: Mapping[str, Any]) -> AttributeSpec:
    kind = cast(Literal["int", "float", "string"], entry["type"])
    default = entry["default"]
    return AttributeSpec(
        name=entry["name"],
        type=kind,
        default=float(default) if kind == "float" else default,
        minimum=entry.get("minimum"),
        maximum=entry.get("maximum"),
        choices=tuple(entry.get("choices", ())),
        doc=entry["doc"],
    )


def _coerce(name: str, value: AttributeValue) -> AttributeValue:
    """A Python int given for a float attribute becomes a float, so that the ONNX attribute has the right type."""
    known = {one.name: one.type for one in schema().attributes}
    if known.get(name) == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _shapes(shapes: Sequence[str]) -> str:
    return " or ".join(shapes)


def _types(types: Sequence[str]) -> str:
    return ", ".join("as `query`" if one == "query" else one for one in types)


def _allowed(attribute: AttributeSpec) -> str:
    if attribute.choices:
        return ", ".join(map(str, attribute.choices))
    if attribute.minimum is not None:
        return f">= {attribute.minimum:g}"
    return "any"
