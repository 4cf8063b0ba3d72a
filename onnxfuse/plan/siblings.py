"""Horizontal fusion: sibling nodes that read the same value as a group in the same way join it."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.graph import Graph, Node
from onnxfuse.plan.kinds import ELEMENTWISE, MOVEMENT, REDUCTION, Kind
from onnxfuse.plan.units import Units


def siblings(units: Units, kinds: Mapping[int, Kind], group: int) -> list[int]:
    """Nodes outside of a group that reduce the same value to the same shape, or are elementwise over all of it.

    For a group of movement only, nodes that move as many elements of the same value.

    The group must have no contraction, which reads its inputs tile by tile.
    """
    members = units.members[group]
    mine = {kinds[m].name for m in members}
    if mine - {REDUCTION, ELEMENTWISE, MOVEMENT} or any(kinds[m].spatial for m in members):
        return []
    same = next((name for name in (REDUCTION, ELEMENTWISE) if name in mine), MOVEMENT)
    doing = [units.nodes[m] for m in members if kinds[m].name == same]
    values = {v for n in doing for v in n.reads if v not in units.graph.constants}
    beside = sorted({i for v in values for i in units.readers.get(v, ()) if units.group[i] != group and i in kinds})
    return [
        i
        for i in beside
        if kinds[i].name == same and not kinds[i].spatial and any(_alike(units.graph, n, units.nodes[i]) for n in doing)
    ]


def _alike(graph: Graph, a: Node, b: Node) -> bool:
    """Whether two nodes compute values of equal shape from a common value of at least their rank."""
    made = [graph.types.get(n.outputs[0]) for n in (a, b)]
    if made[0] is None or made[1] is None or made[0].shape != made[1].shape:
        return False
    common = set(a.reads).intersection(b.reads) - graph.constants.keys()
    return any((t := graph.types.get(v)) is not None and len(t.shape) >= len(made[0].shape) for v in common)
