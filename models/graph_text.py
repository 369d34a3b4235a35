"""Small attention graphs as ONNX text: the common frame of :mod:`spellings` and :mod:`traps`.

A graph reads ``q`` (B,4,S,16), ``k`` and ``v`` (B,4,T,16) unless it says otherwise, and writes ``y``.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

Q, K, V = "float[B,4,S,16] q", "float[B,4,T,16] k", "float[B,4,T,16] v"
QKV = f"{Q}, {K}, {V}"
GROUPED = "float[B,4,S,16] q, float[B,2,T,16] k, float[B,2,T,16] v"
Y = "float[B,4,S,16] y"
SIZES = {"B": 2, "S": 7, "T": 9, "L": 6}
"""What :func:`draw_inputs` puts for a symbolic dimension."""


def parse(
    body: str,
    *,
    inputs: str = QKV,
    outputs: str = Y,
    constants: str = "",
    functions: str = "",
    opset: int = 17,
    domains: tuple[str, ...] = (),
) -> ModelProto:
    """A checked model of ``body``, in the syntax of ``onnx.parser``; one graph that reads ``inputs``."""
    imports = ", ".join([f'"" : {opset}', *(f'"{domain}" : 1' for domain in domains)])
    head = f"<ir_version: 10, opset_import: [{imports}]>"
    text = f"{head}\nattention ({inputs}) => ({outputs})\n<{constants}>\n{{\n{body}\n}}\n{functions}"
    model: ModelProto = onnx.parser.parse_model(text)
    if "com.microsoft" not in domains:
        onnx.checker.check_model(model)
    return model


def draw_inputs(model: ModelProto, **given: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    """Inputs for ``model``: normal floats large enough for peaked attention, and masks whose first key is kept."""
    rng = np.random.default_rng(0)
    drawn: dict[str, NDArray[np.generic]] = dict(given)
    for value in model.graph.input:
        if value.name in given:
            continue
        tensor = value.type.tensor_type
        shape = [SIZES[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        if tensor.elem_type == TensorProto.BOOL:
            array = rng.random(shape) > 0.4
            array[..., 0] = True
            drawn[value.name] = array
        elif tensor.elem_type in (TensorProto.INT32, TensorProto.INT64):
            keep = (rng.random(shape) > 0.4).astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            keep[..., 0] = 1
            drawn[value.name] = keep
        else:
            drawn[value.name] = (1.5 * rng.standard_normal(shape)).astype(
                helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            )
    return drawn
