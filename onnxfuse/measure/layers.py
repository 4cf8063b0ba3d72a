"""Layers of a model, as its names tell them: of nodes where those have paths, else of the weights that they read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from onnxfuse.runtime import feed_limits

_PARTS = re.compile(r"[/.]")


def layer_of(name: str) -> str:
    """The layer that a path of names tells: up to its first number, else its first part; "" for a name without path.

    >>> layer_of("encoder.layer.3.attention.self.key.weight"), layer_of("/model/conv1/Conv"), layer_of("node_add_3")
    ('encoder.layer.3', 'model.conv1', '')
    """
    parts = [part for part in _PARTS.split(name) if part]
    if len(parts) < 2 or "::" in name:
        return ""
    number = next((at for at, part in enumerate(parts[:-1]) if part[-1].isdigit()), None)
    return ".".join(parts[: number + 1] if number is not None else parts[: max(1, min(2, len(parts) - 1))])


def layers_of(path: str | Path) -> dict[str, str]:
    """By name of each node of a model's main graph its layer; a node that nothing tells it of is of the one before.

    Empty where names tell nothing.
    """
    graph = feed_limits.skeleton(Path(path)).graph
    weights = {tensor.name for tensor in graph.initializer}
    nodes = ((n.name or n.output[0], [value for value in n.input if value in weights]) for n in graph.node)
    found = named_layers(nodes)
    return found if len(set(found.values()) - {""}) > 1 else {}


def named_layers(nodes: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """By name of each node, given with the weights that it reads, its layer.

    >>> named_layers([("a", ["block.0.w"]), ("b", []), ("/block.1/c", [])])
    {'a': 'block.0', 'b': 'block.0', '/block.1/c': 'block.1'}
    """
    found: dict[str, str] = {}
    layer = ""
    for name, weights in nodes:
        own = layer_of(name) if name.startswith("/") else ""
        layer = own or next((told for value in weights if (told := layer_of(value))), "") or layer
        found[name] = layer
    return found


class Timed(Protocol):
    """A node with its time, and the original nodes behind it."""

    @property
    def name(self) -> str:
        """Its own name."""

    @property
    def origin(self) -> tuple[str, ...]:
        """Names of original nodes."""

    @property
    def time_ms(self) -> float:
        """Its time."""


def times_by_layer(ops: Iterable[Timed], layers: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds of each layer, "" where none is known. What stands for nodes of several is shared."""
    found: dict[str, float] = {}
    for op in ops:
        of: Sequence[str] = [layers[name] for name in (*op.origin, op.name) if name in layers] or [""]
        for layer in of:
            found[layer] = found.get(layer, 0.0) + op.time_ms / len(of)
    return found
