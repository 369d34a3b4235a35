"""Random spellings of attention, from the rules' own grammar, and near misses made of them by one mutation.

A spelling is a graph with inputs to run it on. Sizes are small and awkward: 1, primes, rows unlike keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[np.generic]
Pick = Callable[[int], int]
"""``pick(n)`` draws a number below n."""

LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Spelling:
    """A graph being written."""

    pick: Pick
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    feed: dict[str, Array] = field(default_factory=dict)
    symbols: dict[str, list[int | str]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    count: int = 0

    def chance(self, one_in: int) -> bool:
        return self.pick(one_in) == 0

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))  # type: ignore[arg-type]
        return names[0]

    def constant(self, values: object, dtype: type = np.float32) -> str:
        name = self.name()
        self.constants[name] = np.array(values, dtype=dtype)
        return name

    def input(self, name: str, values: Array, symbols: Sequence[int | str]) -> str:
        self.feed[name] = values
        self.symbols[name] = list(symbols)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def model(self, opset: int = 17) -> ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), self.symbols[name])
            for name, values in self.feed.items()
        ]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs]
        initializers = [numpy_helper.from_array(values, name) for name, values in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@dataclass(frozen=True)
class Sizes:
    """Of one attention."""

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    width: int
    value_width: int


def spell(pick: Pick) -> Spelling:
    """One attention."""
    out = Spelling(pick)
    kv_heads = (1, 2, 3)[pick(3)]
    heads = kv_heads * (1, 1, 2)[pick(3)]
    sizes = Sizes((1, 2, 3)[pick(3)], heads, kv_heads, (1, 3, 5)[pick(3)], (1, 4, 5, 7)[pick(4)], 8, (8, 8, 4)[pick(3)])
    if pick(2):
        sizes = Sizes(sizes.batch, heads, kv_heads, sizes.rows, sizes.rows, sizes.width, sizes.value_width)
    # A symbol that is 1 at run time would broadcast: the fused op then refuses the shapes with a message.
    symbolic = out.chance(2) and 1 not in (sizes.batch, sizes.rows, sizes.keys)
    query = _operand(out, "q", sizes.batch, heads, sizes.rows, sizes.width, symbolic, "S")
    key = _operand(out, "k", sizes.batch, kv_heads, sizes.keys, sizes.width, symbolic, "T")
    value = _operand(out, "v", sizes.batch, kv_heads, sizes.keys, sizes.value_width, symbolic, "T")
    key, value = (_repeated(out, name, sizes, symbolic) for name in (key, value))
    query = _scaled(out, query, sizes.width) if out.chance(2) else query
    scores = _product(out, query, key, sizes, symbolic)
    scores = _terms(out, scores, sizes, symbolic)
    weights = _guarded(out, _softmax(out, scores))
    result = out.op("MatMul", weights, value)
    out.outputs.append(_merged(out, result, sizes))
    return out


def _values(out: Spelling, *shape: int) -> Array:
    rng = np.random.default_rng(out.pick(1000))
    return (1.5 * rng.standard_normal(shape)).astype(np.float32)


def _operand(
    out: Spelling, name: str, batch: int, heads: int, rows: int, width: int, symbolic: bool, letter: str
) -> str:
    """A (B,N,S,D) tensor, from one of several layouts."""
    length: int | str = letter if symbolic else rows
    first: int | str = "B" if symbolic else batch
    way = out.pick(4)
    if way == 0:
        return out.input(name, _values(out, batch, heads, rows, width), [first, heads, length, width])
    if way == 1:
        flat = out.input(name, _values(out, batch, rows, heads * width), [first, length, heads * width])
        split = out.op("Reshape", flat, out.ints(0, (0, -1)[out.pick(2)], heads, width))
        return out.op("Transpose", split, perm=[0, 2, 1, 3])
    if way == 2:
        first_rows = out.input(name, _values(out, rows, batch, heads * width), [length, first, heads * width])
        split = out.op("Reshape", first_rows, out.ints(0, 0, heads, width))
        return out.op("Transpose", split, perm=[1, 2, 0, 3])
    packed = out.input(name, _values(out, batch, rows, 2, heads, width), [first, length, 2, heads, width])
    one = out.op("Gather", packed, out.constant(out.pick(2), np.int64), axis=2)
    return out.op("Transpose", one, perm=[0, 2, 1, 3])


def _repeated(out: Spelling, tensor: str, sizes: Sizes, symbolic: bool) -> str:
    """Key or value heads repeated to as many as the query's, in one order or the other, or not at all."""
    times = sizes.heads // sizes.kv_heads
    if times == 1:
        return tensor
    way = out.pick(4)
    if way == 0:
        return out.op("Tile", tensor, out.ints(1, times, 1, 1))
    if way == 1:
        indices = [head // times for head in range(sizes.heads)]
        return out.op("Gather", tensor, out.constant(indices, np.int64), axis=1)
    place = 2 if way == 2 else 1
    five = out.op("Unsqueeze", tensor, out.ints(place))
    joined = out.op("Concat", *[five] * times, axis=place)
    size = out.op("Shape", tensor)
    ends = [out.op("Gather", size, out.ints(axis), axis=0) for axis in (0, 2, 3)]
    shape = out.op("Concat", ends[0], out.ints(sizes.heads), *ends[1:], axis=0)
    return out.op("Reshape", joined, shape)


def _scaled(out: Spelling, tensor: str, width: int) -> str:
    way = out.pick(4)
    factor = (0.25, 0.5, 1.0, width**-0.5)[out.pick(4)]
    if way == 0:
        return out.op("Mul", tensor, out.constant(factor))
    if way == 1:
        return out.op("Div", tensor, out.constant([1 / factor]))
    if way == 2:
        return out.op("Mul", out.constant(factor), tensor)
    last = out.op("Gather", out.op("Shape", tensor), out.constant(-1, np.int64), axis=0)
    root = out.op("Sqrt", out.op("Cast", last, to=1))
    return out.op("Div", tensor, root)


def _product(out: Spelling, query: str, key: str, sizes: Sizes, symbolic: bool) -> str:
    way = out.pick(5)
    if way == 0:
        return out.op("Einsum", query, key, equation="bnsd,bntd->bnst")
    if way == 1 and not symbolic:
        flat = (sizes.batch * sizes.heads, -1, sizes.width)
        q3, k3 = (out.op("Reshape", name, out.ints(*flat)) for name in (query, key))
        raw = out.op("MatMul", q3, out.op("Transpose", k3, perm=[0, 2, 1]))
        return out.op("Reshape", raw, out.ints(sizes.batch, sizes.heads, sizes.rows, sizes.keys))
    if way == 2:
        turned = out.op("MatMul", key, out.op("Transpose", query, perm=[0, 1, 3, 2]))
        return out.op("Transpose", turned, perm=[0, 1, 3, 2])
    turned = out.op("Transpose", key, perm=[0, 1, 3, 2])
    return out.op("MatMul", query, _scaled(out, turned, sizes.width) if way == 3 and out.chance(2) else turned)


def _shape(out: Spelling, sizes: Sizes, symbolic: bool) -> tuple[list[int], list[int | str]]:
    """A shape that broadcasts to the scores, and the names of its dimensions."""
    full = [sizes.batch, sizes.heads, sizes.rows, sizes.keys]
    names: list[int | str] = ["B", sizes.heads, "S", "T"] if symbolic else list(full)
    kept = [out.pick(3) > 0 for _ in full]
    first = out.pick(3)
    shape = [size if keep else 1 for size, keep in zip(full, kept, strict=True)]
    symbols = [name if keep else 1 for name, keep in zip(names, kept, strict=True)]
    return shape[first:], symbols[first:]


def _terms(out: Spelling, scores: str, sizes: Sizes, symbolic: bool) -> str:
    if out.chance(4):
        cap = out.constant((3.0, 10.0)[out.pick(2)])
        scores = out.op("Mul", out.op("Tanh", out.op("Div", scores, cap)), cap)
    for number in range(out.pick(4)):
        way = out.pick(8)
        shape, symbols = _shape(out, sizes, symbolic)
        if way == 0:
            bias = out.input(f"bias{number}", _values(out, *shape), symbols)
            scores = out.op("Add", *((scores, bias) if out.pick(2) else (bias, scores)))
        elif way == 1:
            scores = out.op("Add", scores, out.constant(_values(out, *shape)))
        elif way in (2, 3):
            keep = _keep(out, f"keep{number}", shape, symbols, sizes)
            fill = out.constant((-np.inf, LOWEST, -500.0, -5.0)[out.pick(4)])
            zero = out.constant(0.0)
            branches = (zero, fill)
            if out.chance(3):
                keep, branches = out.op("Not", keep), (fill, zero)
            scores = out.op("Add", scores, out.op("Where", keep, *branches))
        elif way == 4:
            keep = _keep(out, f"keep{number}", shape, symbols, sizes)
            scores = out.op("Where", keep, scores, out.constant((-np.inf, LOWEST, -500.0, -5.0)[out.pick(4)]))
        elif way == 5:
            flags = (np.random.default_rng(out.pick(1000)).random(shape) < 0.7).astype(np.int64)
            mask = out.op("Cast", out.input(f"flags{number}", flags, symbols), to=1)
            low = out.constant((LOWEST, -500.0)[out.pick(2)])
            dropped = out.op("Mul", out.op("Sub", out.constant(1.0), mask), low)
            if number == 0 and out.chance(3):
                scores = out.op("Mul", scores, mask)
            scores = out.op("Add", scores, dropped)
        elif way == 6:
            scores = out.op("Mul", scores, out.constant((0.5, 2.0, 1.0)[out.pick(3)]))
        else:
            top = out.op("ReduceMax", scores, axes=[-1], keepdims=1)
            scores = out.op("Sub", scores, top)
    return scores


def _keep(out: Spelling, name: str, shape: Sequence[int], symbols: Sequence[int | str], sizes: Sizes) -> str:
    """A bool mask: an input, a constant, or computed from positions."""
    way = out.pick(4)
    rng = np.random.default_rng(out.pick(1000))
    if way == 0:
        return out.input(name, rng.random(shape) < 0.7, symbols)
    if way == 1:
        return out.constant(rng.random(shape) < 0.7, np.bool_)
    rows = out.op("Unsqueeze", out.constant(np.arange(sizes.rows), np.int64), out.ints(1))
    keys = out.constant(np.arange(sizes.keys), np.int64)
    shift = out.constant((0, 1, sizes.keys - sizes.rows)[out.pick(3)], np.int64)
    causal = out.op(("LessOrEqual", "Less", "GreaterOrEqual")[out.pick(3)], keys, out.op("Add", rows, shift))
    if way == 2:
        return causal
    near = out.op("Greater", keys, out.op("Sub", rows, out.constant(out.pick(4), np.int64)))
    return out.op(("And", "Or")[out.pick(2)], causal, near)


def _softmax(out: Spelling, scores: str) -> str:
    way = out.pick(6)
    if way == 0:
        return out.op("Exp", out.op("LogSoftmax", scores, axis=-1))
    if way == 1:
        power = out.op("Exp", out.op("Sub", scores, out.op("ReduceMax", scores, axes=[-1], keepdims=1)))
        return out.op("Div", power, out.op("ReduceSum", power, out.ints(-1), keepdims=1))
    if way == 2:
        wide = out.op("Cast", scores, to=1)
        return out.op("Cast", out.op("Softmax", wide, axis=3), to=1)
    return out.op("Softmax", scores, axis=-1)


def _guarded(out: Spelling, weights: str) -> str:
    way = out.pick(5)
    if way == 0:
        return out.op("Where", out.op("IsNaN", weights), out.constant(0.0), weights)
    if way == 1:
        return out.op("Dropout", weights)
    if way == 2:
        return out.op("Mul", weights, out.constant(0.5))
    return weights


def _merged(out: Spelling, result: str, sizes: Sizes) -> str:
    way = out.pick(4)
    if way == 0:
        return result
    turned = out.op("Transpose", result, perm=[0, 2, 1, 3])
    if way == 1:
        return turned
    if way == 2:
        return out.op("Reshape", turned, out.ints(0, 0, sizes.heads * sizes.value_width))
    return out.op("Reshape", turned, out.ints(-1, sizes.heads * sizes.value_width))


# ----------------------------------------------------------------------------------------------------- near misses


def mutate(out: Spelling, pick: Pick) -> None:
    """One change that may turn attention into something else. What comes out need not be a valid graph."""
    node = out.nodes[pick(len(out.nodes))]
    way = pick(9)
    if way == 0 and node.op_type == "Transpose":
        perm = list(node.attribute[0].ints)
        first, second = pick(len(perm)), pick(len(perm))
        perm[first], perm[second] = perm[second], perm[first]
        del node.attribute[0].ints[:]
        node.attribute[0].ints.extend(perm)
    elif way == 1 and any(attribute.name == "axis" for attribute in node.attribute):
        next(attribute for attribute in node.attribute if attribute.name == "axis").i = pick(4) - 2
    elif way == 2:
        out.outputs.append(node.output[0])
    elif way == 3 and len(node.input) > 1:
        first, second = node.input[0], node.input[1]
        node.input[0], node.input[1] = second, first
    elif way == 4 and out.constants:
        name = list(out.constants)[pick(len(out.constants))]
        values = out.constants[name]
        changed = np.array(values).ravel()
        place = pick(changed.size)
        changed[place] = not changed[place] if values.dtype == np.bool_ else changed[place] + 1
        out.constants[name] = changed.reshape(values.shape)
    elif way == 5:
        swaps = {"Add": "Mul", "Mul": "Add", "Sub": "Add", "LessOrEqual": "Less", "And": "Or", "Greater": "Less"}
        node.op_type = swaps.get(node.op_type, node.op_type)
    elif way == 6:
        _insert(out, node, "Mul", _vector(out, pick))
    elif way == 7:
        _insert(out, node, ("Relu", "Sigmoid", "Tanh", "Neg", "Identity")[pick(5)])
    else:
        other = out.nodes[pick(len(out.nodes))]
        node.input[0] = other.output[0]


def _vector(out: Spelling, pick: Pick) -> str:
    return out.constant(np.linspace(0.5, 1.5, (1, 4, 5, 7, 8)[pick(5)]))


def _insert(out: Spelling, node: NodeProto, kind: str, *more: str) -> None:
    """A node behind ``node``, in front of everybody who reads it."""
    result = node.output[0]
    fresh = out.name()
    for reader in out.nodes:
        for index, name in enumerate(reader.input):
            if name == result:
                reader.input[index] = fresh
    out.nodes.insert(out.nodes.index(node) + 1, helper.make_node(kind, [result, *more], [fresh]))
    out.outputs = [fresh if name == result else name for name in out.outputs]
