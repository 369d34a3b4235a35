"""The model-local function ``ortflash::FlashAttention``: the operator, spelled in standard ONNX ops.

A rewritten file carries it beside the nodes that call it, so that runtimes without the fused op still run the file::

    q, k, v  -> (B,N,S,D), (B,M,D,T), (B,M,T,E) in fp32      one 5-D Reshape and one Transpose each, for both layouts
    s        = softcap(scale * q @ k)                         query heads of one key head lie side by side as rows
    s        = where(attn_mask, s + attn_bias, mask_fill)
    s        = where(lower <= j <= upper and block, s, -inf)  causal, window and key_lengths make lower and upper
    m        = max(max_j s, sink), or 0 where that is -inf
    l        = sum_j exp(s - m) + exp(sink - m)
    output   = (exp(s - m) @ v) / (l or 1)                    a row in which nothing takes part gives 0
    lse      = m + log(l)                                     and -inf

A file has one body for all its calls. What differs between calls is read from attributes and shapes at run time; what
no call of the file uses is left out (:class:`BodyTraits`). Limits: at opset 13 an empty sequence isn't possible
(Reshape has no ``allowzero``), and at 13 and 14 all calls have one element type (there is no CastLike).

A file with dropout gets no function: standard ops can't draw its mask, and a body that ignored ``dropout_p`` would
silently be another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import onnx
from onnx import FunctionProto, NodeProto, TensorProto

from .errors import InvalidModelError
from .op_schema import node_attributes, schema

MIN_OPSET = 13
"""The oldest opset whose operators are enough for the body."""

_UNBOUNDED = 2**40
"""A key position past every other one; far from the ends of int64, so that sums with it don't wrap."""


@dataclass(frozen=True)
class BodyTraits:
    """What the calls of one file, taken together, need of the body."""

    opset: int
    """Of the standard domain, as the model imports it."""
    input_count: int
    """How many of the schema's inputs each call passes."""
    return_lse: bool
    elem_type: int
    """``TensorProto.DataType`` of query and output; read only at opsets 13 and 14."""
    softcap: bool
    causal: bool
    window_left: bool
    window_right: bool
    alignment: Literal["top_left", "bottom_right", "mixed"]
    """Of those calls that have a diagonal (causal or window)."""

    @property
    def diagonal(self) -> bool:
        """Whether any call's rows see only keys near a diagonal."""
        return self.causal or self.window_left or self.window_right

    @property
    def every_row_sees_a_key(self) -> bool:
        """Whether a plain Softmax is enough: nothing can mask a whole row, and nobody asks for the sums."""
        required = schema().required_inputs
        aligned = self.alignment == "top_left" and not (self.window_left or self.window_right)
        return self.input_count == required and not self.return_lse and (not self.diagonal or aligned)


def is_possible(calls: Sequence[NodeProto]) -> bool:
    """Whether standard ops can spell what these FlashAttention nodes do; not so with dropout."""
    return all(node_attributes(node).get("dropout_p", 0.0) == 0.0 for node in calls)


def traits_of(calls: Sequence[NodeProto], opset: int, elem_type: int) -> BodyTraits:
    """The traits of a file whose FlashAttention nodes are ``calls``; they must agree in inputs and outputs."""
    counts = {len(node.input) for node in calls}
    lse = {len(node.output) for node in calls}
    if len(counts) != 1 or len(lse) != 1:
        raise InvalidModelError(
            f"The file's FlashAttention nodes pass {sorted(counts)} inputs and {sorted(lse)} outputs: all must agree."
        )
    attributes = [schema().defaults() | node_attributes(node) for node in calls]
    diagonal = [a for a in attributes if a["is_causal"] or a["window_left"] >= 0 or a["window_right"] >= 0]
    alignments = {str(a["causal_alignment"]) for a in diagonal}
    alignment: Literal["top_left", "bottom_right", "mixed"] = "top_left"
    if len(alignments) > 1:
        alignment = "mixed"
    elif alignments == {"bottom_right"}:
        alignment = "bottom_right"
    return BodyTraits(
        opset=opset,
        input_count=counts.pop(),
        return_lse=lse.pop() == 2,
        elem_type=elem_type,
        softcap=any(a["softcap"] > 0 for a in attributes),
        causal=any(a["is_causal"] for a in attributes),
        window_left=any(a["window_left"] >= 0 for a in attributes),
        window_right=any(a["window_right"] >= 0 for a in attributes),
        alignment=alignment,
    )


def build_function(traits: BodyTraits) -> FunctionProto:
    """The function for a file with these traits; InvalidModelError for an opset below :data:`MIN_OPSET`."""
    if traits.opset < MIN_OPSET:
        raise InvalidModelError(
            f"The model imports opset {traits.opset}, but the fused op's function body needs {MIN_OPSET} or more: "
            f"convert the model with onnx.version_converter first."
        )
    spec = schema()
    return FunctionProto(
        name=spec.name,
        domain=spec.domain,
        input=[one.name for one in spec.inputs[: traits.input_count]],
        output=[one.name for one in spec.outputs if not one.optional or traits.return_lse],
        attribute=[one.name for one in spec.attributes],
        doc_string=f"{spec.doc} Used where no fused {spec.name} is loaded.",
        opset_import=[onnx.helper.make_opsetid("", traits.opset)],
        node=_Body(traits).nodes(),
    )


class _Body:
    """Builds the nodes; each method is one line of the module's equations."""

    def __init__(self, traits: BodyTraits) -> None:
        self._traits = traits
        self._nodes: list[NodeProto] = []
        self._constants: dict[tuple[str, bytes], str] = {}
        spec = schema()
        self._inputs = {one.name for one in spec.inputs[: traits.input_count]}
        self._names = dict.fromkeys(self._inputs, 1)

    def nodes(self) -> list[NodeProto]:
        """All nodes, in topological order."""
        self._read_layout()
        query, key, value = self._operands()
        scores = self._scores(query, key)
        scores = self._bias_and_mask(scores)
        for index, keep in enumerate(self._exclusions()):
            scores = self._op("Where", keep, scores, self._float(-np.inf), to=f"seen_scores{index or ''}")
        if self._traits.every_row_sees_a_key:
            output = self._times_value(self._op("Softmax", scores, axis=-1, to="probabilities"), value)
        else:
            output = self._guarded_softmax(scores, value)
        self._write_output(output)
        return self._nodes

    # ------------------------------------------------------------------------------------------------ the equations

    def _read_layout(self) -> None:
        """Sizes, each an int64 tensor of shape (1,), from shapes and head counts. ``is4``: 1 where inputs are 4-D."""
        one = self._ints(1)
        q_shape, k_shape, v_shape = (self._op("Shape", x, to=f"{x}_shape") for x in ("query", "key", "value"))
        rank = self._op("Shape", q_shape, to="rank")
        self._is4 = self._op("Sub", rank, self._ints(3), to="is_4d")
        self._is3 = self._op("Sub", one, self._is4, to="is_3d")
        self._q_shape = q_shape
        self._batch = self._size_at(q_shape, 0, "batch")
        self._q_len = self._size_at(q_shape, -2, "q_len")
        self._kv_len = self._size_at(k_shape, -2, "kv_len")
        self._heads, head_size = self._heads_and_size(q_shape, "num_heads", "head_size")
        self._kv_heads, v_head_size = self._heads_and_size(v_shape, "kv_num_heads", "v_head_size")
        self._head_size, self._v_head_size = head_size, v_head_size

    def _heads_and_size(self, shape: str, attribute: str, size: str) -> tuple[str, str]:
        """(B,N,S,D): N and D stand in the shape; (B,S,N*D): N is an attribute, D = last / N."""
        given = self._op("Reshape", self._attribute(attribute), self._ints(1), to=f"{attribute}_given")
        heads = self._by_layout(self._size_at(shape, 1, f"{attribute}_4d"), given, to=attribute + "_")
        divisor = self._by_layout(self._ints(1), given, to=f"{size}_divisor")
        return heads, self._op("Div", self._size_at(shape, -1, f"{size}_all"), divisor, to=size)

    def _operands(self) -> tuple[str, str, str]:
        """The query (B,N,S,D) scaled, key (B,M,D,T), value (B,M,T,E), all fp32."""
        query = self._heads_first("query", self._heads, self._q_len, self._head_size, transposed=False)
        key = self._heads_first("key", self._kv_heads, self._kv_len, self._head_size, transposed=True)
        value = self._heads_first("value", self._kv_heads, self._kv_len, self._v_head_size, transposed=False)
        given = self._attribute("scale")
        size = self._op("Cast", self._head_size, to_type=TensorProto.FLOAT, to="head_size_float")
        usual = self._op("Reciprocal", self._op("Sqrt", size, to="head_size_root"), to="usual_scale")
        is_default = self._op("Equal", given, self._float(0.0), to="scale_is_default")
        scale = self._op("Where", is_default, usual, given, to="scale_")
        return self._op("Mul", query, scale, to="scaled_query"), key, value

    def _heads_first(self, operand: str, heads: str, length: str, size: str, *, transposed: bool) -> str:
        """An operand of either layout as fp32 (B,N,S,D), or (B,N,D,S) where ``transposed``.

        4-D (B,N,S,D) becomes (B,N,S,1,D), 3-D (B,S,N*D) becomes (B,1,S,N,D); then one Transpose does for both.
        """
        one = self._ints(1)
        outer = self._by_layout(heads, one, to=f"{operand}_outer")
        inner = self._by_layout(one, heads, to=f"{operand}_inner")
        split = self._op("Concat", self._batch, outer, length, inner, size, axis=0, to=f"{operand}_split_shape")
        last = [size, length] if transposed else [length, size]
        whole = self._op("Concat", self._batch, heads, *last, axis=0, to=f"{operand}_heads_shape")
        perm = [0, 1, 3, 4, 2] if transposed else [0, 1, 3, 2, 4]
        moved = self._op("Transpose", self._reshape(operand, split, f"{operand}_split"), perm=perm, to=f"{operand}_t")
        return self._op("Cast", self._reshape(moved, whole, f"{operand}_heads"), to_type=1, to=f"{operand}_float")

    def _scores(self, query: str, key: str) -> str:
        """softcap(query @ key), (B,N,S,T). The G = N / M query heads of one key head are G*S rows of one product."""
        rows = self._op("Div", self._op("Mul", self._heads, self._q_len, to="all_rows"), self._kv_heads, to="rows")
        self._rows = rows
        grouped = self._op("Concat", self._batch, self._kv_heads, rows, self._head_size, axis=0, to="q_rows_shape")
        product = self._op("MatMul", self._reshape(query, grouped, "query_rows"), key, to="score_rows")
        shape = self._op("Concat", self._batch, self._heads, self._q_len, self._kv_len, axis=0, to="scores_shape")
        scores = self._reshape(product, shape, "scores")
        if not self._traits.softcap:
            return scores
        cap, zero = self._attribute("softcap"), self._float(0.0)
        off = self._op("Equal", cap, zero, to="softcap_off")
        safe = self._op("Where", off, self._float(1.0), cap, to="softcap_or_1")
        bent = self._op("Tanh", self._op("Div", scores, safe, to="scores_by_cap"), to="bent_scores")
        return self._op("Where", off, scores, self._op("Mul", bent, safe, to="all_capped"), to="capped_scores")

    def _bias_and_mask(self, scores: str) -> str:
        """where(attn_mask, scores + attn_bias, mask_fill)."""
        if "attn_bias" in self._inputs:
            bias = self._op("Cast", "attn_bias", to_type=TensorProto.FLOAT, to="bias_float")
            scores = self._op("Add", scores, bias, to="biased_scores")
        if "attn_mask" in self._inputs:
            scores = self._op("Where", "attn_mask", scores, self._attribute("mask_fill"), to="masked_scores")
        return scores

    def _exclusions(self) -> list[str]:
        """Bool tensors, broadcastable to (B,N,S,T), that are False where a key takes no part whatever its score."""
        keep: list[str] = []
        lengths = "key_lengths" in self._inputs
        if lengths or self._traits.diagonal:
            keys = self._range(self._kv_len, "keys")
            lower, upper = self._bounds(lengths)
            if upper:
                keep.append(self._op("LessOrEqual", keys, upper, to="not_after"))
            if lower:
                keep.append(self._op("GreaterOrEqual", keys, lower, to="not_before"))
        if "block_mask" in self._inputs:
            keep.append(self._blocks())
        return keep

    def _bounds(self, lengths: bool) -> tuple[str | None, str | None]:
        """First and last key that each row sees, int64, broadcastable to (B,1,S,1); None where there is no bound."""
        end = self._kv_len
        if lengths:
            wide = self._op("Cast", "key_lengths", to_type=TensorProto.INT64, to="lengths")
            not_past = self._op("Min", wide, self._kv_len, to="lengths_not_past_end")
            clamped = self._op("Max", not_past, self._ints(0), to="lengths_clamped")
            end = self._op("Reshape", clamped, self._ints(-1, 1, 1, 1), to="ends")
        upper = self._op("Sub", end, self._ints(1), to="last_key") if lengths else None
        if not self._traits.diagonal:
            return None, upper
        column = self._op("Unsqueeze", self._range(self._q_len, "rows"), self._ints(1), to="row_index")
        diagonal = self._op("Add", column, self._offset(end), to="diagonal")
        lower = None
        if self._traits.causal:
            on = self._op("Equal", self._attribute("is_causal"), self._ints(1), to="causal_on")
            bound = self._op("Where", on, diagonal, self._ints(_UNBOUNDED), to="causal_bound")
            upper = self._op("Min", upper, bound, to="upper_causal") if upper else bound
        if self._traits.window_right:
            bound = self._window_bound("window_right", "Add", diagonal, _UNBOUNDED)
            upper = self._op("Min", upper, bound, to="upper_window") if upper else bound
        if self._traits.window_left:
            lower = self._window_bound("window_left", "Sub", diagonal, -_UNBOUNDED)
        return lower, upper

    def _window_bound(self, attribute: str, op: str, diagonal: str, unbounded: int) -> str:
        """The diagonal +- attribute, or ``unbounded`` where the attribute is -1."""
        reach = self._op("Min", self._attribute(attribute), self._ints(_UNBOUNDED), to=f"{attribute}_reach")
        off = self._op("Less", reach, self._ints(0), to=f"{attribute}_off")
        bound = self._op(op, diagonal, reach, to=f"{attribute}_at")
        return self._op("Where", off, self._ints(unbounded), bound, to=f"{attribute}_bound")

    def _offset(self, end: str) -> str:
        """Of the diagonal: 0 for ``top_left``, end - S for ``bottom_right``."""
        if self._traits.alignment == "top_left":
            return self._ints(0)
        shifted = self._op("Sub", end, self._q_len, to="bottom_right_offset")
        if self._traits.alignment == "bottom_right":
            return shifted
        # Strings can't be compared before opset 19: drop "bottom_right" from a list of two and count what is left.
        given = self._op("Reshape", self._attribute("causal_alignment"), self._ints(1), to="alignment")
        both = self._op("Concat", given, self._constant(_string_tensor("-")), axis=0, to="alignment_list")
        left = self._op("StringNormalizer", both, is_case_sensitive=1, stopwords=["bottom_right"], to="alignment_left")
        is_top_left = self._op("Equal", self._op("Shape", left, to="left_count"), self._ints(2), to="is_top_left")
        return self._op("Where", is_top_left, self._ints(0), shifted, to="offset")

    def _blocks(self) -> str:
        """block_mask with every block's flag repeated over its rows and keys."""
        size = self._op("Reshape", self._attribute("block_size"), self._ints(1), to="block_size_")
        counts, indices = [], []
        for length, name in ((self._q_len, "row"), (self._kv_len, "key")):
            less_one = self._op("Sub", size, self._ints(1), to=f"{name}_padding")
            padded = self._op("Add", length, less_one, to=f"{name}_padded")
            counts.append(self._op("Div", padded, size, to=f"{name}_blocks"))
            indices.append(self._op("Div", self._range(length, f"{name}s"), size, to=f"{name}_block"))
        shape = self._op("Concat", self._ints(1, 1), *counts, axis=0, to="blocks_shape")
        blocks = self._op("Expand", "block_mask", shape, to="all_blocks")
        return self._op(
            "Gather", self._op("Gather", blocks, indices[0], axis=2, to="row_flags"), indices[1], axis=3, to="in_block"
        )

    def _guarded_softmax(self, scores: str, value: str) -> str:
        """Softmax with the sink, times value; rows in which nothing takes part give 0. Writes softmax_lse."""
        zero = self._float(0.0)
        if self._traits.opset >= 18:
            top = self._op("ReduceMax", scores, self._ints(-1), keepdims=1, to="row_max_seen")
        else:
            top = self._op("ReduceMax", scores, axes=[-1], keepdims=1, to="row_max_seen")
        sinks = None
        if "sinks" in self._inputs:
            sinks = self._op("Reshape", "sinks", self._ints(1, -1, 1, 1), to="sink_column")
            top = self._op("Max", top, sinks, to="row_max_sink")
        is_empty = self._op("Equal", top, self._float(-np.inf), to="row_is_empty")
        top = self._op("Where", is_empty, zero, top, to="row_max")
        weights = self._op("Exp", self._op("Sub", scores, top, to="shifted_scores"), to="weights")
        total = self._op("ReduceSum", weights, self._ints(-1), keepdims=1, to="row_sum_seen")
        if sinks:
            share = self._op("Exp", self._op("Sub", sinks, top, to="shifted_sink"), to="sink_weight")
            total = self._op("Add", total, share, to="row_sum")
        if self._traits.return_lse:
            lse = self._op("Add", top, self._op("Log", total, to="log_sum"), to="lse_column")
            self._op("Squeeze", lse, self._ints(-1), to="softmax_lse")
        divisor = self._op("Where", is_empty, self._float(1.0), total, to="row_divisor")
        return self._op("Div", self._times_value(weights, value), divisor, to="normalised")

    def _times_value(self, weights: str, value: str) -> str:
        """The weights (B,N,S,T) @ value (B,M,T,E) -> (B,N,S,E), query heads grouped as in the scores."""
        rows = self._op("Concat", self._batch, self._kv_heads, self._rows, self._kv_len, axis=0, to="w_rows_shape")
        product = self._op("MatMul", self._reshape(weights, rows, "weight_rows"), value, to="output_rows")
        whole = self._op("Concat", self._batch, self._heads, self._q_len, self._v_head_size, axis=0, to="o_heads_shape")
        return self._reshape(product, whole, "output_heads")

    def _write_output(self, heads_first: str) -> None:
        """(B,N,S,E) fp32 to the layout and type of query."""
        one = self._ints(1)
        outer = self._by_layout(self._heads, one, to="o_outer")
        inner = self._by_layout(one, self._heads, to="o_inner")
        split = self._op("Concat", self._batch, outer, inner, self._q_len, self._v_head_size, axis=0, to="o_split_5d")
        moved = self._op("Transpose", self._reshape(heads_first, split, "o_split"), perm=[0, 1, 3, 2, 4], to="o_t")
        width = self._op("Mul", inner, self._v_head_size, to="o_width")
        leading = self._op("Slice", self._q_shape, self._ints(0), self._ints(-1), to="o_leading")
        shape = self._op("Concat", leading, width, axis=0, to="output_shape")
        result = self._reshape(moved, shape, "output_float")
        if self._traits.opset >= 15:
            self._op("CastLike", result, "query", to="output")
        else:
            self._op("Cast", result, to_type=self._traits.elem_type, to="output")

    # ---------------------------------------------------------------------------------------------- building blocks

    def _op(self, op_type: str, *inputs: str, to: str, to_type: int | None = None, **attributes: Any) -> str:
        """Add a node; return its output, named ``to`` (numbered where that is taken). ``to_type`` is Cast's ``to``."""
        if to_type is not None:
            attributes["to"] = to_type
        output = self._unique(to)
        self._nodes.append(onnx.helper.make_node(op_type, list(inputs), [output], name=output, **attributes))
        return output

    def _reshape(self, tensor: str, shape: str, to: str) -> str:
        allow_zero = {"allowzero": 1} if self._traits.opset >= 14 else {}
        return self._op("Reshape", tensor, shape, to=to, **allow_zero)

    def _range(self, length: str, to: str) -> str:
        """0 ... length - 1, int64; ``length`` has shape (1,)."""
        count = self._op("Squeeze", length, to=f"{to}_count")
        start, step = (self._constant(np.array(x, np.int64)) for x in (0, 1))
        return self._op("Range", start, count, step, to=f"{to}_range")

    def _by_layout(self, in_4d: str, in_3d: str, *, to: str) -> str:
        """``in_4d`` where inputs are 4-D, else ``in_3d``; arithmetic, because both sides exist in either case."""
        left = self._op("Mul", self._is4, in_4d, to=f"{to}_if_4d")
        return self._op("Add", left, self._op("Mul", self._is3, in_3d, to=f"{to}_if_3d"), to=to)

    def _size_at(self, shape: str, index: int, to: str) -> str:
        return self._op("Gather", shape, self._ints(index), axis=0, to=to)

    def _attribute(self, name: str) -> str:
        """The call's attribute as a scalar."""
        spec = schema().attribute(name)
        cached = self._constants.get(("attribute", name.encode()))
        if cached:
            return cached
        node = onnx.helper.make_node("Constant", [], [self._unique(f"attribute_{name}")], name=f"attribute_{name}")
        node.attribute.append(
            onnx.AttributeProto(name=f"value_{spec.type}", ref_attr_name=name, type=cast(Any, spec.proto_type))
        )
        self._nodes.append(node)
        self._constants["attribute", name.encode()] = node.output[0]
        return str(node.output[0])

    def _ints(self, *values: int) -> str:
        """int64, shape (len(values),)."""
        return self._constant(np.array(values, np.int64))

    def _float(self, value: float) -> str:
        """fp32 scalar."""
        return self._constant(np.array(value, np.float32))

    def _constant(self, value: npt.NDArray[Any] | TensorProto) -> str:
        tensor = value if isinstance(value, TensorProto) else onnx.numpy_helper.from_array(value)
        key = ("tensor", tensor.SerializeToString(deterministic=True))
        if key not in self._constants:
            name = self._unique("constant")
            self._nodes.append(onnx.helper.make_node("Constant", [], [name], name=name, value=tensor))
            self._constants[key] = name
        return self._constants[key]

    def _unique(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = 1
            return name
        self._names[name] += 1
        return self._unique(f"{name}_{self._names[name]}")


def _string_tensor(text: str) -> TensorProto:
    return TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=[text.encode()])
