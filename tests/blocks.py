"""Small attention models built by hand, each with the edit that fuses it: what the rewriter is tested with.

``q, k, v`` are (B,N,S,D). Options give the score's terms, in the order of the operator's equation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ortflash.graph_tools.edits import FlashCall, SiteEdit
from ortflash.graph_tools.normal_form import AttentionForm, Operand, ScoreTerm, Site, TensorRef

HEADS, HEAD_SIZE = 2, 8


@dataclass(frozen=True)
class Block:
    """One attention site. ``prefix`` makes its names unique in a model that holds several."""

    prefix: str = ""
    scale: float = 0.35
    softcap: float = 0.0
    bias: bool = False
    mask: bool = False
    extra: Sequence[NodeProto] = field(default=())

    def name(self, base: str) -> str:
        return f"{self.prefix}{base}"

    def inputs(self) -> list[str]:
        return ["query", "key", "value", *(["bias"] if self.bias else []), *(["mask"] if self.mask else [])]

    def constants(self, elem_type: int) -> list[TensorProto]:
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        values = {"scale": self.scale, "cap": self.softcap, "fill": -np.inf}
        return [numpy_helper.from_array(np.array(v, dtype), self.name(k)) for k, v in values.items()]

    def nodes(self) -> list[NodeProto]:
        """The unfused attention; tensor ``output`` is its result."""
        made: list[NodeProto] = []

        def op(op_type: str, *inputs: str, to: str, **attributes: Any) -> str:
            made.append(
                helper.make_node(op_type, [*inputs], [self.name(to)], name=self.name(f"{to}_node"), **attributes)
            )
            return self.name(to)

        keys = op("Transpose", self.name("key"), perm=[0, 1, 3, 2], to="key_t")
        scores = op("MatMul", self.name("query"), keys, to="raw_scores")
        scores = op("Mul", scores, self.name("scale"), to="scores")
        if self.softcap:
            bent = op("Tanh", op("Div", scores, self.name("cap"), to="by_cap"), to="bent")
            scores = op("Mul", bent, self.name("cap"), to="capped")
        if self.bias:
            scores = op("Add", scores, self.name("bias"), to="biased")
        if self.mask:
            scores = op("Where", self.name("mask"), scores, self.name("fill"), to="masked")
        weights = op("Softmax", scores, axis=-1, to="weights")
        op("MatMul", weights, self.name("value"), to="output")
        return made

    def edit(self, elem_type: int = TensorProto.FLOAT, *, graph: str = "", **attributes: float) -> SiteEdit:
        """The right edit; ``attributes`` replace what the fused call says, so that it can be made wrong."""
        inputs = {name: self.name(name) for name in ("query", "key", "value")}
        terms, border = [], dict(inputs)
        if self.bias:
            inputs["attn_bias"] = self.name("bias")
            terms.append(ScoreTerm("bias", TensorRef(self.name("bias"), elem_type, None)))
        if self.mask:
            inputs["attn_mask"] = self.name("mask")
            terms.append(ScoreTerm("mask", TensorRef(self.name("mask"), TensorProto.BOOL, None), fill=-np.inf))
        border.update({f"term{index}": term.tensor.name for index, term in enumerate(terms)})
        values: dict[str, float] = {"scale": self.scale, "softcap": self.softcap} | attributes
        shape = ("batch", HEADS, "sequence", HEAD_SIZE)

        def operand(name: str) -> Operand:
            return Operand(TensorRef(self.name(name), elem_type, shape), "b n s d", HEADS, HEAD_SIZE)

        form = AttentionForm(
            query=operand("query"),
            key=operand("key"),
            value=operand("value"),
            scale=self.scale,
            softcap=self.softcap,
            terms=tuple(terms),
            op_axes={axis: axis.lower() for axis in "BNSTDE"} | {"M": "n"},
            sizes={"b": "batch", "n": HEADS, "s": "sequence", "t": "sequence", "d": HEAD_SIZE, "e": HEAD_SIZE},
            output=TensorRef(self.name("output"), elem_type, shape),
            elem_type=elem_type,
        )
        site = Site(self.name("weights_node"), graph, self.name("weights"), form, None)
        call = FlashCall(self.name("fused"), inputs, values, self.name("output"), elem_type)
        return SiteEdit(site, call, (), (), (), self.name("output"), border)


def model_of(*blocks: Block, opset: int = 17, elem_type: int = TensorProto.FLOAT, ir_version: int = 8) -> ModelProto:
    """A model with one site a block; graph inputs and outputs carry the blocks' names."""
    shape: list[str | int | None] = ["batch", HEADS, "sequence", HEAD_SIZE]
    scores: list[str | int | None] = ["batch", HEADS, "sequence", "sequence"]
    inputs, outputs, nodes, constants = [], [], [], []
    for block in blocks:
        for name in block.inputs():
            kind = TensorProto.BOOL if name == "mask" else elem_type
            dims = scores if name in ("mask", "bias") else shape
            inputs.append(helper.make_tensor_value_info(block.name(name), kind, dims))
        outputs.append(helper.make_tensor_value_info(block.name("output"), elem_type, shape))
        nodes += block.nodes()
        constants += block.constants(elem_type)
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(nodes, "g", inputs, outputs, [c for c in constants if c.name in used])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    onnx.checker.check_model(model)
    return model


def feed_for(model: ModelProto, *, batch: int = 2, length: int = 7, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs for a model of :func:`model_of`; every row of a mask has a True."""
    rng = np.random.default_rng(seed)
    sizes = {"batch": batch, "sequence": length}
    feed = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in tensor.shape.dim]
        if tensor.elem_type == TensorProto.BOOL:
            feed[value.name] = (rng.random(shape) < 0.6) | np.eye(shape[-2], shape[-1], dtype=bool)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feed[value.name] = (2 * rng.standard_normal(shape)).astype(dtype)
    return feed
