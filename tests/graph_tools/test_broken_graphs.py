"""Graphs that no exporter writes: the analysis says so in a sentence, or leaves them alone, and always ends."""

from __future__ import annotations

import numpy as np
import pytest
from grammar import spell
from graphs import SCORES, model
from onnx import ModelProto, NodeProto, helper
from test_grammar import Dice

from ortflash.graph_tools.errors import GraphToolsError
from ortflash.graph_tools.find import Analysis

KINDS = (
    "Softmax MatMul Reshape Transpose Add Where Slice Gather If Loop Scan Einsum Concat Split Attention Exp Expand Tile"
)
VALUES: tuple[object, ...] = (0, -1, 7, 3.5, "x", [1, 2], [1.0], [-5, 9, 100])


def damage(graph: ModelProto, dice: Dice) -> None:
    """One random change to a node, an attribute, a name, a type or a size."""
    nodes = graph.graph.node
    node = nodes[dice(len(nodes))]
    outputs = [name for other in nodes for name in other.output]
    way = dice(12)
    if way == 0 and node.input:
        del node.input[dice(len(node.input))]
    elif way == 1 and node.attribute:
        del node.attribute[dice(len(node.attribute))]
    elif way == 2 and node.attribute:
        attribute = node.attribute[dice(len(node.attribute))]
        attribute.CopyFrom(helper.make_attribute(attribute.name, VALUES[dice(len(VALUES))]))
    elif way == 3 and node.input:
        node.input[dice(len(node.input))] = [*outputs, "", "nobody"][dice(len(outputs) + 2)]
    elif way == 4:
        node.op_type = KINDS.split()[dice(len(KINDS.split()))]
    elif way == 5:
        del nodes[dice(len(nodes))]
    elif way == 6 and graph.graph.initializer:
        tensor = graph.graph.initializer[dice(len(graph.graph.initializer))]
        if tensor.dims and dice(2):
            tensor.dims[0] = (0, -1, 3, 2**40)[dice(4)]
        else:
            tensor.data_type = (0, 1, 7, 9, 16, 11, 8, 99)[dice(8)]
    elif way == 7:
        value = graph.graph.input[dice(len(graph.graph.input))]
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_value = (0, -3, 1, 5, 2**33)[dice(5)]
        else:
            value.ClearField("type")
    elif way == 8:
        node.domain = ("com.microsoft", "unheard.of", "ai.onnx")[dice(3)]
    elif way == 9:
        del graph.opset_import[:]
    elif way == 10:
        del node.output[:]
    else:
        node.input.append(outputs[dice(len(outputs))])


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_damage_never_raises_anything_else(first: int) -> None:
    for number in range(first, first + 100):
        dice = Dice(number)
        graph = spell(dice).model()
        for _ in range(1 + dice(3)):
            if graph.graph.node:
                damage(graph, dice)
        try:
            analysis = Analysis(graph)
        except GraphToolsError:
            continue
        for site in analysis.sites:
            analysis.edit(site)
            assert (site.form is None) is (site.refusal is not None)


def test_an_absurd_number_of_axes_is_no_endless_loop() -> None:
    inputs = "float[B,4,S,16] q, int64[9999999999] sizes"
    graph = model("r = Reshape(q, sizes) y = Identity(q)", inputs=inputs, constants="")
    assert Analysis(graph).sites == ()


def test_an_absurd_range_is_not_made() -> None:
    constants = "int64 a = {0}, int64 b = {1099511627776}, int64 c = {1}"
    graph = model("y = Range(a, b, c)", inputs="float[1] q", outputs="int64[N] y", constants=constants)
    assert Analysis(graph).sites == ()


def test_a_softmax_without_inputs_or_outputs_is_no_site() -> None:
    graph = model(f"{SCORES} p = Softmax(s) y = MatMul(p, v)")
    graph.graph.node.append(NodeProto(op_type="Softmax"))
    assert len(Analysis(graph).sites) == 1


def test_empty_constants_have_no_values() -> None:
    graph = model(f"{SCORES} p = Softmax(s) y = MatMul(p, v)")
    graph.graph.initializer.append(helper.make_tensor("nothing", 1, [1, 0, 64], np.zeros(0, np.float32)))
    graph.graph.node.append(helper.make_node("Neg", ["nothing"], ["more"]))
    assert len(Analysis(graph).sites) == 1
