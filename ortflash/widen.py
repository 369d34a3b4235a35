"""The same model in a wider float type: every tensor, constant and cast of a narrower one is converted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from .graph_tools.external_data import values_of
from .graph_tools.scopes import subgraphs

_NARROWER = {
    TensorProto.FLOAT: (TensorProto.FLOAT16, TensorProto.BFLOAT16),
    TensorProto.DOUBLE: (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT),
}


def in_float64(model: ModelProto) -> ModelProto:
    """The model in float64."""
    return _widened(model, TensorProto.DOUBLE, None)


def in_float32(model: ModelProto, folder: Path | None) -> ModelProto:
    """The model with fp16 and bf16 as fp32. ``folder`` is where its external data lies, which is read."""
    return _widened(model, TensorProto.FLOAT, folder)


def _widened(model: ModelProto, elem_type: TensorProto.DataType, folder: Path | None) -> ModelProto:
    wide = ModelProto()
    wide.CopyFrom(model)
    widener = _Widener(elem_type, folder)
    widener.graph(wide.graph)
    for function in wide.functions:
        for node in function.node:
            widener.node(node)
    return wide


@dataclass(frozen=True)
class _Widener:
    """Changes protos in place."""

    elem_type: TensorProto.DataType
    folder: Path | None

    def graph(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            self.tensor(tensor)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if self._is_narrower(value.type.tensor_type.elem_type):
                value.type.tensor_type.elem_type = self.elem_type
        for node in graph.node:
            self.node(node)

    def node(self, node: NodeProto) -> None:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and self._is_narrower(attribute.i):
                attribute.i = self.elem_type
            elif attribute.type == AttributeProto.TENSOR:
                self.tensor(attribute.t)
            elif node.op_type == "Constant" and attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
                self._constant(attribute)
        if node.op_type == "ConstantOfShape" and not node.attribute and self._is_narrower(TensorProto.FLOAT):
            zero = onnx.helper.make_tensor("value", self.elem_type, [1], [0.0])
            node.attribute.append(onnx.helper.make_attribute("value", zero))
        for _, graph in subgraphs(node):
            self.graph(graph)

    def tensor(self, tensor: TensorProto) -> None:
        if self._is_narrower(tensor.data_type):
            values = values_of(tensor, self.folder)
            wide = values.astype(onnx.helper.tensor_dtype_to_np_dtype(self.elem_type))
            tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))

    def _constant(self, attribute: AttributeProto) -> None:
        """``value_float`` and ``value_floats``, which are fp32, become ``value``, a tensor of the type."""
        if attribute.ref_attr_name or not self._is_narrower(TensorProto.FLOAT):
            return
        value = attribute.f if attribute.type == AttributeProto.FLOAT else list(attribute.floats)
        wide = np.array(value, onnx.helper.tensor_dtype_to_np_dtype(self.elem_type))
        attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(wide)))

    def _is_narrower(self, elem_type: int) -> bool:
        return elem_type in _NARROWER[self.elem_type]
