"""Where dimensions of several inputs meet, so that those of equal names are taken to be equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxfuse.ir.compose import indices_of
from onnxfuse.ir.graph import Node, TensorType
from onnxfuse.ir.index import Index, Loaded, atoms
from onnxfuse.ops.spec import Definition

Extents = tuple[Index, ...]


def meeting(
    node: Node,
    definitions: Sequence[Definition],
    types: Mapping[str, TensorType | None],
    known: Mapping[str, Extents],
) -> list[Extents]:
    """The extents that meet in an operator: both sides of each demand of its row.

    All extents of its inputs, and the integers known in them, where it has no row or reads one input at places that
    another contains.
    """
    found: list[Extents] = [(d.extent, d.other) for each in definitions for d in each.demands]
    if not definitions or _looks_up(definitions):
        shapes = [t.shape for i in node.reads if (t := types.get(i)) is not None]
        found.append(tuple(e for each in (*shapes, *(known.get(i, ()) for i in node.reads)) for e in each))
    return found


def _looks_up(definitions: Sequence[Definition]) -> bool:
    return any(isinstance(a, Loaded) for d in definitions for e in indices_of(d.value) for a in atoms(e))
