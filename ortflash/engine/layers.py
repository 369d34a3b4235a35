"""What an engine is made of, read from what TensorRT writes into its log when it has built one.

The log is read, and not the engine, because an engine can only be opened where there is a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ONNX_LAYER = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
_LINES = {
    "Layers:": re.compile(r"Name: (?P<name>.*?), LayerType: (?P<kind>.*?),"),  # TensorRT 10 and newer, TensorRT-RTX
    "Engine Layer Information:": re.compile(r"Layer\((?P<kind>.*?)\): (?P<name>.*?), Tactic: "),  # TensorRT 8.6
}
"""First line of the message -> its other lines."""


@dataclass(frozen=True)
class Layer:
    """One line of the log's list of layers."""

    name: str
    kind: str
    """TensorRT's word: ``custom_layer``, ``PluginV3``, ``kgen``, ``gemm``, ..."""
    nodes: tuple[str, ...]
    """Nodes of the ONNX model that it comes from, where TensorRT says so."""


def read_layers(messages: Iterable[str]) -> list[Layer]:
    """The layers, from all messages of a build with detailed verbosity; none where no message lists them."""
    layers = []
    for message in messages:
        first, _, rest = message.partition("\n")
        pattern = _LINES.get(first.strip())
        for match in map(pattern.match, rest.splitlines()) if pattern else ():
            if match:
                layers.append(Layer(match["name"], match["kind"], tuple(_ONNX_LAYER.findall(match.string))))
    return layers


def plugin_nodes(layers: Sequence[Layer], names: Iterable[str]) -> list[str]:
    """Those of the nodes ``names`` that are a plugin layer; one that is two layers is there twice."""
    wanted = set(names)
    return [_own_node(layer, wanted) for layer in layers if _is_plugin(layer) and _own_node(layer, wanted)]


def remaining_nodes(layers: Sequence[Layer], names: Iterable[str]) -> list[str]:
    """Those of the nodes ``names`` that are part of any layer."""
    present = {node for layer in layers for node in layer.nodes} | {layer.name for layer in layers}
    return [name for name in names if name in present]


def _is_plugin(layer: Layer) -> bool:
    return layer.kind in ("custom_layer", "PluginV3", "PluginV2") or layer.kind.startswith("plugin")


def _own_node(layer: Layer, wanted: set[str]) -> str:
    return next((node for node in (*layer.nodes, layer.name) if node in wanted), "")
