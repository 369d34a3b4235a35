"""Lower a site to the standard ``Attention`` op of ONNX (opset 23 and up) instead of ``ortflash::FlashAttention``.

    FlashCall -> Attention(query, key, value[, attn_mask])

The standard op has one mask input, masks with -inf, and knows no window, sinks, key lengths or block mask; a site that
needs more is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from .edits import FlashCall, SiteEdit
from .errors import InvalidModelError
from .normal_form import Refusal
from .scopes import default_opset

MIN_OPSET = 23
"""The first opset with Attention."""

_RULE = "standard_attention"


def check_opset(model: ModelProto) -> None:
    """Raise InvalidModelError where the model's opset has no Attention."""
    opset = default_opset(model.opset_import)
    if opset < MIN_OPSET:
        raise InvalidModelError(
            f"The standard Attention op needs opset {MIN_OPSET} and the model imports {opset}: convert it with "
            f"onnx.version_converter.convert_version(model, {MIN_OPSET}), or use --target ort."
        )


def refusal_for(edit: SiteEdit) -> Refusal | None:
    """Why the standard op can't compute this site; None where it can."""
    attributes, inputs = edit.call.attributes, edit.call.inputs
    missing = [name for name in ("key_lengths", "block_mask", "sinks", "dropout_seed") if name in inputs]
    if attributes.get("window_left", -1) != -1 or attributes.get("window_right", -1) != -1:
        missing.append("window")
    if attributes.get("is_causal") and attributes.get("causal_alignment") == "bottom_right":
        missing.append("causal mask aligned to the last key")
    if "attn_bias" in inputs and "attn_mask" in inputs:
        missing.append("bias and mask at once")
    if "attn_mask" in inputs and attributes.get("mask_fill", -np.inf) != -np.inf:
        missing.append("finite mask fill")
    if not missing:
        return None
    return Refusal(
        _RULE, edit.call.name, f"the standard Attention op has no {', no '.join(missing)}", "Use --target ort."
    )


def build_call(edit: SiteEdit) -> Sequence[NodeProto]:
    """The nodes that compute the site with the standard op."""
    call = edit.call
    attributes: dict[str, Any] = {}
    for ours, theirs in (("num_heads", "q_num_heads"), ("kv_num_heads", "kv_num_heads")):
        if call.attributes.get(ours) and _is_3d(edit):
            attributes[theirs] = int(call.attributes[ours])
    for name in ("scale", "softcap"):
        if call.attributes.get(name):
            attributes[name] = float(call.attributes[name])
    if call.attributes.get("is_causal"):
        attributes["is_causal"] = 1
    inputs = [call.inputs[name] for name in ("query", "key", "value")]
    nodes: list[NodeProto] = []
    mask = call.inputs.get("attn_mask") or call.inputs.get("attn_bias")
    if mask:
        inputs.append(_full_mask(call, mask, nodes))
    nodes.append(onnx.helper.make_node("Attention", inputs, [call.output], name=call.name, **attributes))
    return nodes


def _full_mask(call: FlashCall, mask: str, nodes: list[NodeProto]) -> str:
    """The mask with its last two axes expanded to (S,T): ONNX Runtime 1.32 takes no (B,1,1,T)."""

    def op(op_type: str, inputs: list[str], label: str, **attributes: Any) -> str:
        name = f"{call.name}/{label}"
        nodes.append(onnx.helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def constant(values: list[int], label: str) -> str:
        return op("Constant", [], label, value=onnx.numpy_helper.from_array(np.array(values, np.int64)))

    row = constant([-2], "length_axis")
    lengths = [
        op("Gather", [op("Shape", [call.inputs[name]], f"{name}_shape"), row], f"{name}_length", axis=0)
        for name in ("query", "key")
    ]
    ones = constant([1, 1], "ones")
    shape = op("Concat", [ones, *lengths], "mask_shape", axis=0)
    if call.inputs.get("attn_bias"):
        mask = op("Cast", [mask], "mask_cast", to=call.elem_type)
    return op("Expand", [mask, shape], "full_mask")


def _is_3d(edit: SiteEdit) -> bool:
    """Whether the call's operands are 3-D, and heads so have to be given."""
    return bool(edit.call.attributes.get("num_heads"))
