"""Layers of a model, derived from names: of nodes if these are paths, else of the weights that nodes read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from onnxfuse.runtime import feed_limits

_PARTS = re.compile(r"[/.]")


def layer_of(name: str) -> str:
    """The layer in a path of names: up to its first number, else its first parts; "" for a name that is no path.

    >>> layer_of("encoder.layer.3.attention.self.key.weight"), layer_of("/model/conv1/Conv"), layer_of("node_add_3")
    ('encoder.layer.3', 'model.conv1', '')
    """
    parts = [part for part in _PARTS.split(name) if part]
    if len(parts) < 2 or "::" in name:
        return ""
    number = next((at for at, part in enumerate(parts[:-1]) if part[-1].isdigit()), None)
    return ".".join(parts[: number + 1] if number is not None else parts[: max(1, min(2, len(parts) - 1))])


def layers_of(path: str | Path) -> dict[str, str]:
    """The layer of each node of a model's main graph, by node name; a node without one gets that of the node before.

    Empty if names do not distinguish layers.
    """
    graph = feed_limits.skeleton(Path(path)).graph
    weights = {tensor.name for tensor in graph.initializer}
    for node in graph.node:  # weights that are made of others when the model is loaded
        weights |= set(node.output) if weights.issuperset(node.input) else set()
    nodes = ((n.name or n.output[0], [value for value in n.input if value in weights]) for n in graph.node)
    found = named_layers(nodes)
    return found if len(set(found.values()) - {""}) > 1 else {}


def named_layers(nodes: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """The layer of each node, by name; nodes are given with the weights that they read.

    >>> named_layers([("a", ["block.0.w"]), ("b", []), ("/block.1/c", [])])
    {'a': 'block.0', 'b': 'block.0', '/block.1/c': 'block.1'}
    """
    found: dict[str, str] = {}
    layer = ""
    for name, weights in nodes:
        own = layer_of(name) if name.startswith("/") else ""
        layer = own or next((from_weight for value in weights if (from_weight := layer_of(value))), "") or layer
        found[name] = layer
    return found


class TimedNode(Protocol):
    """A node with its time and the original nodes that it replaces."""

    @property
    def name(self) -> str:
        """Its own name."""

    @property
    def origin(self) -> tuple[str, ...]:
        """Names of original nodes."""

    @property
    def time_ms(self) -> float:
        """Its time."""


def times_by_layer(ops: Iterable[TimedNode], layers: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds of each layer, "" for unknown. A node that replaces nodes of several layers is divided evenly."""
    found: dict[str, float] = {}
    for op in ops:
        of: Sequence[str] = [layers[name] for name in (*op.origin, op.name) if name in layers] or [""]
        for layer in of:
            found[layer] = found.get(layer, 0.0) + op.time_ms / len(of)
    return found
