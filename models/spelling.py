"""What a hand-written spelling of attention is, and the pieces of graph text that many share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from graph_text import QKV, Y, draw_inputs, parse
from numpy.typing import NDArray
from onnx import ModelProto


@dataclass(frozen=True)
class Spelling:
    """One graph, the inputs to run it on, and how many of its sites can be fused."""

    name: str
    model: ModelProto
    inputs: dict[str, NDArray[np.generic]]
    fusable: int
    runs: bool
    """Whether ONNX Runtime's CPU provider runs the graph as it is."""


SPELLINGS: dict[str, Spelling] = {}


def add(
    name: str,
    body: str,
    *,
    inputs: str = QKV,
    outputs: str = Y,
    constants: str = "float scale = {0.25}",
    functions: str = "",
    opset: int = 17,
    domains: tuple[str, ...] = (),
    fusable: int = 1,
    runs: bool = True,
    **given: NDArray[np.generic],
) -> None:
    """Register a spelling; see :func:`graph_text.parse` for the text's parts."""
    model = parse(
        body, inputs=inputs, outputs=outputs, constants=constants, functions=functions, opset=opset, domains=domains
    )
    SPELLINGS[name] = Spelling(name, model, draw_inputs(model, **given), fusable, runs)


SCORES = """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    """
END = "p = Softmax<axis=-1>(s)  y = MatMul(p, v)"

SCALE = "float scale = {0.25}"
RANGES = "int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3}, int64[1] last = {1}"
SINKS = (
    SCALE
    + ", float[1,4,1,1] sink = {0.5,-1.0,2.0,0.0}"
    + ", int64[1] one = {1}, int64[1] zero = {0}, int64[1] minus = {-1}, int64[1] last = {3}"
)


def masked(name: str, lines: str, *, mask: str = "", constants: str = "", opset: int = 17) -> None:
    """A spelling whose ``lines`` turn the scaled score ``s`` into the masked score ``m``."""
    add(
        name,
        SCORES + lines + "\np = Softmax<axis=-1>(m)  y = MatMul(p, v)",
        inputs=f"{QKV}, {mask}" if mask else QKV,
        constants="float scale = {0.25}" + (f", {constants}" if constants else ""),
        opset=opset,
    )
