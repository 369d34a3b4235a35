"""Small graphs as ONNX text, and what the matcher makes of them.

``site(body)`` parses a graph that reads q (B,4,S,16), k and v (B,4,T,16) and writes y, and returns its one site.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto

from ortflash.graph_tools.edits import SiteEdit
from ortflash.graph_tools.find import Analysis
from ortflash.graph_tools.normal_form import AttentionForm, Refusal, Site
from ortflash.graph_tools.rewrite import apply_edits
from ortflash.library import import_onnxruntime

Q, K, V = "float[B,4,S,16] q", "float[B,4,T,16] k", "float[B,4,T,16] v"
QKV = f"{Q}, {K}, {V}"
Y = "float[B,4,S,16] y"
SCORES = "kt = Transpose<perm=[0,1,3,2]>(k)  raw = MatMul(q, kt)  s = Mul(raw, scale)\n"
"""The plain scores ``s``, with the constant ``scale``."""
SCALE = "float scale = {0.25}"
SIZES = {"B": 2, "S": 5, "T": 7, "L": 3}

Arrays = dict[str, npt.NDArray[np.generic]]


def model(
    body: str,
    *,
    inputs: str = QKV,
    outputs: str = Y,
    constants: str = SCALE,
    functions: str = "",
    opset: int = 17,
    domains: tuple[str, ...] = (),
) -> ModelProto:
    """A model of one graph in the syntax of ``onnx.parser``."""
    imports = ", ".join([f'"" : {opset}', *(f'"{domain}" : 1' for domain in domains)])
    head = f"<ir_version: 10, opset_import: [{imports}]>"
    parsed: ModelProto = onnx.parser.parse_model(
        f"{head}\ng ({inputs}) => ({outputs})\n<{constants}>\n{{\n{body}\n}}\n{functions}"
    )
    return parsed


def only_site(graph: ModelProto) -> Site:
    """The one site of a model."""
    [site] = Analysis(graph).sites
    return site


def form_of(graph: ModelProto) -> AttentionForm:
    """The form of the one site of a model, which has to be fusable."""
    site = only_site(graph)
    assert site.form is not None, site.refusal
    return site.form


def refusal_of(graph: ModelProto) -> Refusal:
    """Why the one site of a model stays; it has to."""
    site = only_site(graph)
    assert site.refusal is not None, site.form
    return site.refusal


def edit_of(graph: ModelProto) -> SiteEdit:
    """The edit of the one site of a model, which has to be fusable."""
    analysis = Analysis(graph)
    [site] = analysis.sites
    edit = analysis.edit(site)
    assert isinstance(edit, SiteEdit), edit
    return edit


def fused(graph: ModelProto) -> ModelProto:
    """A copy with every fusable site fused."""
    analysis = Analysis(graph)
    edits = [edit for site in analysis.sites if isinstance(edit := analysis.edit(site), SiteEdit)]
    assert edits, [site.refusal for site in analysis.sites]
    rewritten = ModelProto()
    rewritten.CopyFrom(graph)
    apply_edits(rewritten, edits)
    return rewritten


def draw(graph: ModelProto, **given: npt.NDArray[np.generic]) -> Arrays:
    """Inputs that make attention peaked; masks keep the first key of each row."""
    rng = np.random.default_rng(0)
    drawn: Arrays = {}
    for value in graph.graph.input:
        kind = value.type.tensor_type
        shape = [SIZES[dim.dim_param] if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if value.name in given:
            drawn[value.name] = given[value.name]
        elif dtype.kind in "biu":
            keep = np.asarray(rng.random(shape) < 0.6)
            if keep.ndim:
                keep[..., :1] = True
            drawn[value.name] = keep.astype(dtype)
        else:
            drawn[value.name] = (1.5 * rng.standard_normal(shape)).astype(dtype)
    return drawn


def run(graph: ModelProto, feed: Mapping[str, npt.NDArray[np.generic]]) -> list[npt.NDArray[np.generic]]:
    """The outputs in ONNX Runtime, without its optimisations and without our library: the function's body runs."""
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[npt.NDArray[np.generic]] = session.run(None, dict(feed))
    return outputs


def assert_same_numbers(graph: ModelProto, tolerance: float = 2e-5, **given: npt.NDArray[np.generic]) -> ModelProto:
    """Fuse every site, run both models, compare; returns the fused one. A row that was NaN has to be 0."""
    rewritten = fused(graph)
    feed = draw(graph, **given)
    for before, after in zip(run(graph, feed), run(rewritten, feed), strict=True):
        assert before.shape == after.shape
        expected = np.nan_to_num(before.astype(np.float64), nan=0.0)
        error = np.abs(after.astype(np.float64) - expected).max(initial=0.0)
        assert error <= tolerance * max(1.0, float(np.abs(expected).max(initial=0.0))), error
    return rewritten
