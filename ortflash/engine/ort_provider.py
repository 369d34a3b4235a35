"""A rewritten model for ONNX Runtime's TensorRT provider, which looks for plugins in a domain of its own.

The provider registers every plugin of TensorRT's registry as an operator of the domain ``trt.plugins``, whatever the
plugin's namespace, and hands a node of that domain to TensorRT's parser. Its option ``trt_extra_plugin_lib_paths``
names libraries to load before; ours is ``libortflash_trt_register.so``.
"""

from __future__ import annotations

from onnx import ModelProto

from ..graph_tools.op_schema import schema
from ..graph_tools.rewrite import flash_calls

DOMAIN = "trt.plugins"


def move_to_provider_domain(model: ModelProto) -> None:
    """Put the FlashAttention nodes of ``model``, and the function that they call, into ``trt.plugins``, in place.

    The attributes stay: ``plugin_namespace`` still tells TensorRT's parser where the plugin is. Where the provider
    takes no such node, ONNX Runtime inlines the function.
    """
    spec = schema()
    for node in flash_calls(model):
        node.domain = DOMAIN
    for function in model.functions:
        if (function.domain, function.name) == (spec.domain, spec.name):
            function.domain = DOMAIN
    for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
        taken = any(entry.domain == DOMAIN for entry in imports)
        for index in reversed(range(len(imports))):
            if imports[index].domain == spec.domain and taken:
                del imports[index]
            elif imports[index].domain == spec.domain:
                imports[index].domain = DOMAIN
