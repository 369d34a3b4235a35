"""A rewritten model for ONNX Runtime's TensorRT provider, which looks for plugins in a domain of its own.

The provider registers every plugin of TensorRT's registry as an operator of the domain ``trt.plugins``, whatever the
plugin's namespace, and hands a node of that domain to TensorRT's parser. Its option ``trt_extra_plugin_lib_paths``
names libraries to load before; ours is ``libortflash_trt_register.so``.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, NodeProto

from ..graph_tools.op_schema import schema
from ..graph_tools.scopes import all_scopes

DOMAIN = "trt.plugins"


def move_to_provider_domain(model: ModelProto) -> None:
    """Put the FlashAttention nodes of ``model``, and the function that they call, into ``trt.plugins``, in place.

    The attributes stay: ``plugin_namespace`` still tells TensorRT's parser where the plugin is. Where the provider
    takes no such node, ONNX Runtime inlines the function.
    """
    _move(model, schema().domain, DOMAIN)


def moved_home(model: ModelProto) -> ModelProto:
    """The same model with such nodes in our own domain: a copy, or ``model`` itself where there are none."""
    if not any(_is_ours(node, DOMAIN) for node in _nodes(model)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    _move(copy, DOMAIN, schema().domain)
    return copy


def _move(model: ModelProto, source: str, target: str) -> None:
    for node in _nodes(model):
        if _is_ours(node, source):
            node.domain = target
    for function in model.functions:
        if (function.domain, function.name) == (source, schema().name):
            function.domain = target
    others = any(node.domain == source for node in _nodes(model))
    for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
        used = [entry for entry in imports if entry.domain == source]
        if used and all(entry.domain != target for entry in imports):
            imports.add(domain=target, version=schema().version)
        for entry in used if not others else ():
            imports.remove(entry)


def _is_ours(node: NodeProto, domain: str) -> bool:
    return node.domain == domain and node.op_type == schema().name


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    for scope in all_scopes(model):
        yield from scope.container.node
