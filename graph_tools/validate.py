"""Is this a model at all? What a broken file says about itself is found here, before anybody builds on it.

Only what no runtime could run is refused. Weights are never copied: types and shapes are checked on a skeleton.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto

from .errors import InvalidModelError
from .scopes import Scope, all_scopes, descendants, root_scopes, subgraphs

_SMALL = 1024
"""An initializer of up to so many elements may be a shape that inference needs; its values go into the skeleton."""


def check_model(model: ModelProto, name: str) -> None:
    """Raise InvalidModelError, one sentence that begins with ``name``, where the model is broken.

    Checked: imported opsets; each node against its operator's schema; that every name that is read is written, once;
    sizes of inputs and initializers; types, as far as ONNX infers them.
    """
    try:
        _check_opsets(model)
        imports = [*model.opset_import, *_unnamed_imports(model)]
        for scope in all_scopes(model):
            _check_scope(model, scope, imports)
        _check_types(model, imports)
    except _BrokenError as error:
        raise InvalidModelError(f"{name}: {error}.") from None


class _BrokenError(Exception):
    """What is wrong, without the file's name and the full stop."""


def _check_opsets(model: ModelProto) -> None:
    newest = onnx.defs.onnx_opset_version()
    standard = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not standard:
        raise _BrokenError("it imports no version of the standard operators")
    if not 1 <= standard[0] <= newest:
        raise _BrokenError(f"it imports opset {standard[0]}, and onnx {onnx.__version__} knows 1 to {newest}")


def _check_scope(model: ModelProto, scope: Scope, imports: Iterable[OperatorSetIdProto]) -> None:
    container, root = scope.container, scope.root.container
    context = _context(model, root.opset_import if isinstance(root, FunctionProto) else imports)
    known = _names_around(scope)
    for node in container.node:
        for name in filter(None, node.output):
            if name in known:
                raise _BrokenError(f"tensor {name!r} is written twice, the second time by node {_label(node)!r}")
            known.add(name)
    for node in container.node:
        missing = [name for name in node.input if name and name not in known]
        if missing:
            raise _BrokenError(f"node {_label(node)!r} reads {missing[0]!r}, which nothing produces")
        if not any(subgraphs(node)):  # their nodes are checked as a scope of their own
            _check_node(node, context)
    lost = [name for name in scope.outputs if name not in known]
    if lost:
        raise _BrokenError(f"the output {lost[0]!r} is produced by nothing")
    if isinstance(container, GraphProto):
        for value in (*container.input, *container.output, *container.value_info):
            _check_sizes(value)
        for tensor in container.initializer:
            _check_tensor(tensor)


def _names_around(scope: Scope) -> set[str]:
    """Every name that the scope's nodes may read without writing it: inputs, initializers, and what lies around."""
    names = set(scope.inputs)
    if isinstance(scope.container, GraphProto):
        names.update(tensor.name for tensor in scope.container.initializer)
        names.update(tensor.values.name for tensor in scope.container.sparse_initializer)
    if scope.parent is not None:
        names |= _names_around(scope.parent)
        names.update(name for node in scope.parent.container.node for name in node.output)
    return names


def _check_node(node: NodeProto, context: onnx.checker.C.CheckerContext) -> None:
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise _BrokenError(f"node {_label(node)!r} is not a valid {node.op_type}: {_first_line(error)}") from None


def _check_sizes(value: ValueInfoProto) -> None:
    for dim in value.type.tensor_type.shape.dim:
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value < 0:
            raise _BrokenError(f"tensor {value.name!r} has the size {dim.dim_value}")


def _check_tensor(tensor: TensorProto) -> None:
    if any(size < 0 for size in tensor.dims):
        raise _BrokenError(f"initializer {tensor.name!r} has the shape {tuple(tensor.dims)}")
    if tensor.HasField("raw_data") and tensor.data_location != TensorProto.EXTERNAL:
        bits = _BITS.get(tensor.data_type)
        expected = None if bits is None else math.ceil(math.prod(tensor.dims) * bits / 8)
        if expected is not None and expected != len(tensor.raw_data):
            raise _BrokenError(
                f"initializer {tensor.name!r} of shape {tuple(tensor.dims)} needs {expected} bytes and has "
                f"{len(tensor.raw_data)}"
            )


def _check_types(model: ModelProto, imports: Iterable[OperatorSetIdProto]) -> None:
    """Types and ranks, as far as ONNX can infer them, on a copy without weights."""
    try:
        onnx.shape_inference.infer_shapes(_skeleton(model, imports), check_type=True)
    except onnx.shape_inference.InferenceError as error:
        raise _BrokenError(f"its types or shapes contradict each other: {_first_line(error)}") from None


def _unnamed_imports(model: ModelProto) -> list[OperatorSetIdProto]:
    """Domains of nodes that the model doesn't import: version 1.

    ONNX Runtime's optimizer leaves com.microsoft out, and ONNX Runtime runs that; in a function it doesn't.
    """
    named = {"", "ai.onnx", *(entry.domain for entry in model.opset_import)}
    found = {node.domain for scope in descendants(root_scopes(model)[0]) for node in scope.container.node}
    return [OperatorSetIdProto(domain=domain, version=1) for domain in sorted(found - named)]


def _skeleton(model: ModelProto, imports: Iterable[OperatorSetIdProto]) -> ModelProto:
    graph = GraphProto(name=model.graph.name, node=model.graph.node, input=model.graph.input, output=model.graph.output)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL or math.prod(tensor.dims) > _SMALL:
            graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        else:
            graph.initializer.add().CopyFrom(tensor)
    return ModelProto(ir_version=model.ir_version, opset_import=imports, functions=model.functions, graph=graph)


def _context(model: ModelProto, imports: Iterable[OperatorSetIdProto]) -> onnx.checker.C.CheckerContext:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {entry.domain: entry.version for entry in imports}
    return context


def _label(node: NodeProto) -> str:
    return node.name or next(filter(None, node.output), node.op_type)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:300] if lines else type(error).__name__


_BITS: Mapping[int, int] = {
    TensorProto.FLOAT: 32,
    TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16,
    TensorProto.DOUBLE: 64,
    TensorProto.INT64: 64,
    TensorProto.INT32: 32,
    TensorProto.INT16: 16,
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
    TensorProto.UINT16: 16,
    TensorProto.UINT32: 32,
    TensorProto.UINT64: 64,
    TensorProto.BOOL: 8,
}
