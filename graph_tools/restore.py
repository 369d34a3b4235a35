"""Swap fused nodes back for the standard ops of the function that the file carries, so that a user can bisect."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from onnx import FunctionProto, ModelProto, NodeProto

from .errors import GraphToolsError, InvalidModelError
from .names import Names
from .op_schema import schema
from .prune import Pruner
from .rewrite import flash_calls
from .scopes import all_names, descendants, root_scopes


def restore_calls(model: ModelProto, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> int:
    """Inline the function's body in place of FlashAttention nodes; how many nodes it were.

    ``only`` and ``skip`` are patterns of node names. When no call is left, function, import and constants go too.
    """
    function = _function_of(model)
    calls = [node.name for node in flash_calls(model)]
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in calls):
            raise GraphToolsError(f"No FlashAttention node is called {pattern!r}; there are {', '.join(calls)}.")
    names = Names(all_names(model))
    count = 0
    for root in root_scopes(model):
        pruner = Pruner(root)
        for scope in descendants(root):
            for node in scope.container.node:
                if schema().matches(node) and _chosen(node.name, only, skip):
                    pruner.replace(scope, node.output[0], inline(node, _required(function), names))
                    count += 1
        pruner.commit()
    if count and not flash_calls(model):
        _forget_operator(model)
    return count


def inline(call: NodeProto, function: FunctionProto, names: Names) -> list[NodeProto]:
    """The function's nodes for one call, under fresh names and with attributes filled in."""
    attributes = {attribute.name: attribute for attribute in call.attribute}
    renamed = dict(zip(function.input, call.input, strict=False)) | dict(
        zip(function.output, call.output, strict=False)
    )
    prefix = call.name or call.output[0]
    nodes = []
    for inner in function.node:
        node = NodeProto()
        node.CopyFrom(inner)
        node.name = names.fresh(f"{prefix}/{inner.name}")
        for name in inner.output:
            if name not in renamed:
                renamed[name] = names.fresh(f"{prefix}/{name}")
        node.input[:] = [renamed.get(name, name) for name in inner.input]
        node.output[:] = [renamed[name] for name in inner.output]
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                name = attribute.name
                attribute.CopyFrom(attributes[attribute.ref_attr_name])
                attribute.name = name
        nodes.append(node)
    return nodes


def _forget_operator(model: ModelProto) -> None:
    """Drop the function and the import that no node uses any more."""
    spec = schema()
    for index in reversed(range(len(model.functions))):
        if (model.functions[index].domain, model.functions[index].name) == (spec.domain, spec.name):
            del model.functions[index]
    for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
        for index in reversed(range(len(imports))):
            if imports[index].domain == spec.domain:
                del imports[index]


def _function_of(model: ModelProto) -> FunctionProto | None:
    spec = schema()
    return next((f for f in model.functions if (f.domain, f.name) == (spec.domain, spec.name)), None)


def _required(function: FunctionProto | None) -> FunctionProto:
    if function is None:
        raise InvalidModelError(
            "The file has FlashAttention nodes but not their function, so they can't be swapped back; restore from the "
            "original model."
        )
    return function


def _chosen(name: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    if only and not any(fnmatchcase(name, pattern) for pattern in only):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in skip)
