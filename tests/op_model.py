"""Models of one FlashAttention node, and how to run them with any element type; for tests of ONNX Runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from cases import Array

import ortflash
from ortflash.graph_tools import op_schema

ELEM_TYPES = {
    np.dtype(np.float32): onnx.TensorProto.FLOAT,
    np.dtype(np.float16): onnx.TensorProto.FLOAT16,
    np.dtype(ml_dtypes.bfloat16): onnx.TensorProto.BFLOAT16,
    np.dtype(np.bool_): onnx.TensorProto.BOOL,
    np.dtype(np.int32): onnx.TensorProto.INT32,
    np.dtype(np.int64): onnx.TensorProto.INT64,
}
Shape = Sequence[int | str | None] | None


def make_model(
    elem_types: Mapping[str, int],
    attributes: Mapping[str, Any] | None = None,
    *,
    shapes: Mapping[str, Shape] | None = None,
    return_lse: bool = False,
    node_name: str = "attn",
) -> onnx.ModelProto:
    """A model whose inputs are those of its one node; inputs that are left out before others are neutral constants.

    Args:
        elem_types: schema input name -> ``TensorProto.DataType``.
        attributes: those that differ from the defaults; not checked.
        shapes: schema input name -> what the model says of its shape; None = nothing.
        return_lse: with the second output.
        node_name: for messages.
    """
    spec = op_schema.schema()
    count = 1 + max(index for index, one in enumerate(spec.inputs) if one.name in elem_types)
    names = [one.name for one in spec.inputs[:count]]
    neutral = [op_schema.neutral_constant(n, n, elem_types["query"]) for n in names if n not in elem_types]
    values = {**spec.defaults(), **(attributes or {}), "return_lse": int(return_lse)}
    outputs = ["output", "softmax_lse"] if return_lse else ["output"]
    node = onnx.helper.make_node(spec.name, names, outputs, name=node_name, domain=spec.domain)
    for key, value in values.items():
        known = next((one.type for one in spec.attributes if one.name == key), None)
        is_number = known == "float" and isinstance(value, int) and key not in (attributes or {})
        node.attribute.append(onnx.helper.make_attribute(key, float(value) if is_number else value))
    graph = onnx.helper.make_graph(
        [node],
        "op",
        [
            onnx.helper.make_tensor_value_info(name, elem_type, (shapes or {}).get(name))
            for name, elem_type in elem_types.items()
        ],
        [
            onnx.helper.make_tensor_value_info(name, elem_type, None)
            for name, elem_type in zip(outputs, (elem_types["query"], onnx.TensorProto.FLOAT), strict=False)
        ],
        neutral,
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(spec.domain, spec.version)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make_gradient_model(
    inputs: Mapping[str, Array], outputs: Sequence[str], attributes: Mapping[str, Any], *, with_shapes: bool = False
) -> onnx.ModelProto:
    """A model of one FlashAttentionGrad node; optional inputs that are left out before others are neutral constants."""
    spec = op_schema.gradient_schema()
    order = [one.name for one in spec.inputs]
    names = order[: 1 + max(order.index(name) for name in inputs)]
    elem_type = ELEM_TYPES[inputs["query"].dtype]
    neutral = [op_schema.neutral_constant(name, name, elem_type) for name in names if name not in inputs]
    node = onnx.helper.make_node(spec.name, names, outputs, "grad", domain=spec.domain, **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "gradient",
        [
            onnx.helper.make_tensor_value_info(
                name, ELEM_TYPES[array.dtype], list(array.shape) if with_shapes else None
            )
            for name, array in inputs.items()
        ],
        [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT if name == "d_sinks" else elem_type, None)
            for name in outputs
            if name
        ],
        neutral,
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ortflash", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make_session(model: onnx.ModelProto, options: Any = None) -> Any:
    """A plain onnxruntime session on the CPU with the operator registered."""
    if options is None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
    options.log_severity_level = 4  # what these tests provoke is told by the exception
    ortflash.register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: Any, inputs: Mapping[str, Array]) -> list[Array]:
    """All outputs; bfloat16 goes in and comes out as ml_dtypes has it."""
    feeds = {name: _to_ort_value(array) for name, array in inputs.items()}
    names = [output.name for output in session.get_outputs()]
    return [_to_array(value) for value in session.run_with_ort_values(names, feeds)]


def run_once(inputs: Mapping[str, Array], attributes: Mapping[str, Any], *, return_lse: bool = True) -> list[Array]:
    """Outputs of a new session for these inputs."""
    elem_types = {name: ELEM_TYPES[array.dtype] for name, array in inputs.items()}
    return run(make_session(make_model(elem_types, attributes, return_lse=return_lse)), inputs)


def _to_ort_value(array: Array) -> Any:
    contiguous = np.ascontiguousarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            contiguous.view(np.uint16), onnx.TensorProto.BFLOAT16
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(contiguous)


def _to_array(value: Any) -> Array:
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    count = int(np.prod(shape))
    raw = ctypes.string_at(value.data_ptr(), 2 * count)  # onnxruntime has no NumPy type for it
    return np.frombuffer(raw, ml_dtypes.bfloat16).reshape(shape)
