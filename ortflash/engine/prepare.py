"""A rewritten model as TensorRT's ONNX parser should see it, made in memory from the file that runs everywhere.

What changes, and why:

- The model-local function is left out. Which of plugin and function a parser prefers depends on its version (the plugin
  in TensorRT-RTX 1.7, the function in TensorRT 10.1), and where there is no function, a plugin that isn't found is an
  error instead of a slow engine.
- Each node says which of its inputs are neutral constants, because TensorRT shows a plugin no constants.
- Integers past 32 bits become the largest that fits: TensorRT-RTX 1.7 cuts them off (a window of 2^40 became 0). What
  has such a size means "unbounded".
- For TensorRT 8, which hands bool tensors to no plugin, masks are cast to int32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from ..graph_tools.names import Names
from ..graph_tools.op_schema import schema
from ..graph_tools.scopes import Scope, all_names, all_scopes

NEUTRAL_INPUTS = "neutral_inputs"
"""The plugins' own attribute: bit i says that input i is a neutral constant. ``kNeutralInputs`` in state.h."""

_INT32_MAX = 2**31 - 1


def prepare(model: ModelProto, *, int32_masks: bool = False) -> ModelProto:
    """A copy of ``model`` for the parser; the model itself stays as it is.

    Args:
        model: with FlashAttention nodes, or without any.
        int32_masks: for TensorRT 8.
    """
    prepared = ModelProto()
    prepared.CopyFrom(model)
    spec = schema()
    for index in reversed(range(len(prepared.functions))):
        if (prepared.functions[index].domain, prepared.functions[index].name) == (spec.domain, spec.name):
            del prepared.functions[index]
    names = Names(all_names(prepared) if int32_masks else set())
    for scope in all_scopes(prepared):
        constants = _constants(scope)
        calls = [node for node in scope.container.node if spec.matches(node)]
        for node in calls:
            for attribute in (one for one in node.attribute if one.type == onnx.AttributeProto.INT):
                attribute.i = max(-_INT32_MAX, min(attribute.i, _INT32_MAX))
            neutral = _neutral_inputs(node, constants)
            node.attribute.append(onnx.helper.make_attribute(NEUTRAL_INPUTS, neutral))
        if int32_masks:
            _cast_masks(scope, calls, constants, names)
    return prepared


def _constants(scope: Scope) -> dict[str, TensorProto]:
    """Tensors of this scope and those around it whose value lies in the model file itself."""
    found: dict[str, TensorProto] = {}
    around: Scope | None = scope
    while around is not None:
        if isinstance(around.container, GraphProto):
            for tensor in around.container.initializer:
                found.setdefault(tensor.name, tensor)
        for node in around.container.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                found.setdefault(node.output[0], node.attribute[0].t)
        around = around.parent
    return found


def _neutral_inputs(node: NodeProto, constants: Mapping[str, TensorProto]) -> int:
    """Bits of the inputs whose one element says that there is no such input."""
    bits = 0
    for index, (one, name) in enumerate(zip(schema().inputs, node.input, strict=False)):
        tensor = constants.get(name)
        if one.neutral is None or tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            continue
        if int(np.prod(tensor.dims)) == 1 and numpy_helper.to_array(tensor).reshape(()) == one.neutral:
            bits |= 1 << index
    return bits


def _cast_masks(scope: Scope, calls: list[NodeProto], constants: Mapping[str, TensorProto], names: Names) -> None:
    """Give these nodes int32 in the place of bool inputs: constants made anew, a Cast before each other tensor."""
    casts: dict[str, str] = {}
    for call in calls:
        for index, (one, name) in enumerate(zip(schema().inputs, call.input, strict=False)):
            if "bool" not in one.types:
                continue
            if name not in casts:
                casts[name] = names.fresh(f"{name}_int32")
                node = _as_int32(name, casts[name], constants.get(name))
                scope.container.node.insert(list(scope.container.node).index(call), node)
            call.input[index] = casts[name]


def _as_int32(name: str, new_name: str, constant: TensorProto | None) -> NodeProto:
    """A node that gives tensor ``name`` as int32. TensorRT 8 can't always cast a bool constant."""
    if constant is None or constant.data_location == TensorProto.EXTERNAL:
        return onnx.helper.make_node("Cast", [name], [new_name], name=new_name, to=TensorProto.INT32)
    value = numpy_helper.from_array(numpy_helper.to_array(constant).astype(np.int32), new_name)
    return onnx.helper.make_node("Constant", [], [new_name], name=new_name, value=value)
