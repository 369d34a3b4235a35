"""A BERT-type encoder of any depth, in seconds: weights of zeros in a sparse file beside the model, or inside it.

As a command: ``python tests/encoder.py 24 model.onnx`` (add ``--inline`` for weights in the model's own file).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

HIDDEN, HEADS, INNER = 1024, 16, 4096
"""Sizes of BERT large."""


class _Writer:
    """Collects nodes and weights under unique names."""

    def __init__(self, location: str | None) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.bytes = 0
        self._location = location

    def op(self, op_type: str, *inputs: str, to: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, [*inputs], [to], name=f"{to}/{op_type}", **attributes))
        return to

    def constant(self, name: str, value: object) -> str:
        self.initializers.append(numpy_helper.from_array(np.array(value), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """fp32 zeros."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        size = 4 * math.prod(shape)
        if self._location is None:
            tensor.raw_data = bytes(size)
        else:
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", self._location), ("offset", self.bytes), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
        self.bytes += size
        self.initializers.append(tensor)
        return name

    def linear(self, x: str, prefix: str, rows: int, columns: int) -> str:
        product = self.op("MatMul", x, self.weight(f"{prefix}.weight", rows, columns), to=f"{prefix}.product")
        return self.op("Add", product, self.weight(f"{prefix}.bias", columns), to=prefix)


def write_encoder(path: Path, layers: int, *, inline: bool = False) -> int:
    """Write ``path`` and, unless ``inline``, ``path`` + ``.data``; how many bytes of weights there are."""
    data = path.with_name(path.name + ".data")
    writer = _Writer(None if inline else data.name)
    constants = {"one": np.float32(1), "lowest": np.float32(np.finfo(np.float32).min), "root": np.float32(8)}
    lists = {"axis_0": [0], "axis_1": [1], "axes_12": [1, 2], "heads": [HEADS], "size": [64], "hidden": [HIDDEN]}
    for name, value in {**constants, **lists}.items():
        writer.constant(name, value)
    mask, x = _mask(writer), "x"
    for layer in range(layers):
        x = _layer(writer, x, mask, f"layer.{layer}")
    graph = helper.make_graph(
        writer.nodes,
        "encoder",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", HIDDEN]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "sequence"]),
        ],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "sequence", HIDDEN])],
        writer.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    if not inline:
        with data.open("wb") as file:
            file.truncate(writer.bytes)
    return writer.bytes


def _mask(writer: _Writer) -> str:
    """(1 - mask) * lowest, (B,1,1,T)."""
    as_float = helper.make_node("Cast", ["attention_mask"], ["mask_float"], name="mask/Cast", to=TensorProto.FLOAT)
    writer.nodes.append(as_float)
    wide = writer.op("Unsqueeze", "mask_float", "axes_12", to="mask_4d")
    return writer.op("Mul", writer.op("Sub", "one", wide, to="padding"), "lowest", to="mask")


def _layer(writer: _Writer, x: str, mask: str, prefix: str) -> str:
    """Attention and feed-forward, as torch's tracing exporter spells them."""
    op = writer.op
    shape = op("Shape", x, to=f"{prefix}.shape")
    batch = op("Gather", shape, "axis_0", to=f"{prefix}.batch", axis=0)
    length = op("Gather", shape, "axis_1", to=f"{prefix}.length", axis=0)
    heads = {}
    for name in ("query", "key", "value"):
        projected = writer.linear(x, f"{prefix}.{name}", HIDDEN, HIDDEN)
        target = op("Concat", batch, length, "heads", "size", to=f"{prefix}.{name}.target", axis=0)
        split = op("Reshape", projected, target, to=f"{prefix}.{name}.split")
        perm = [0, 2, 3, 1] if name == "key" else [0, 2, 1, 3]
        heads[name] = op("Transpose", split, to=f"{prefix}.{name}.heads", perm=perm)
    scores = op("MatMul", heads["query"], heads["key"], to=f"{prefix}.product")
    scores = op("Add", op("Div", scores, "root", to=f"{prefix}.scores"), mask, to=f"{prefix}.masked")
    weights = op("Softmax", scores, to=f"{prefix}.weights", axis=-1)
    merged = op("MatMul", weights, heads["value"], to=f"{prefix}.context")
    merged = op("Transpose", merged, to=f"{prefix}.merged", perm=[0, 2, 1, 3])
    target = op("Concat", batch, length, "hidden", to=f"{prefix}.target", axis=0)
    attended = writer.linear(op("Reshape", merged, target, to=f"{prefix}.flat"), f"{prefix}.output", HIDDEN, HIDDEN)
    x = _normalised(writer, op("Add", attended, x, to=f"{prefix}.residual"), f"{prefix}.norm")
    inner = op("Relu", writer.linear(x, f"{prefix}.inner", HIDDEN, INNER), to=f"{prefix}.relu")
    outer = writer.linear(inner, f"{prefix}.outer", INNER, HIDDEN)
    return _normalised(writer, op("Add", outer, x, to=f"{prefix}.residual_2"), f"{prefix}.norm_2")


def _normalised(writer: _Writer, x: str, prefix: str) -> str:
    scale, bias = writer.weight(f"{prefix}.scale", HIDDEN), writer.weight(f"{prefix}.bias", HIDDEN)
    return writer.op("LayerNormalization", x, scale, bias, to=prefix)


if __name__ == "__main__":
    size = write_encoder(Path(sys.argv[2]), int(sys.argv[1]), inline="--inline" in sys.argv)
    print(f"{sys.argv[2]}: {sys.argv[1]} layers, {size / 1e9:.2f} GB of weights")
