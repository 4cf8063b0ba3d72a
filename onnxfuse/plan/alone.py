"""Groups of fewer operators than asked for: which of them are kernels all the same."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Group
from onnxfuse.ir.layout import Layout
from onnxfuse.plan.kinds import WEIGHTS, Kind

USUAL_GROUP = 2  # operators of the smallest group that is asked for by default
LARGE = 1 << 20  # bytes of weights: by that and more 0.66 to 1.01 times as long as in the runtime, by 256 KB 1.05


def stays(
    group: Group, graph: Graph, kinds: Mapping[str, Kind], layouts: Mapping[str, Layout], least: int, spared: int
) -> bool:
    """Whether a group has as many operators as asked; fewer do in the middle of an area whose layout they share.

    Operators that are `spared`, since kernels work out shapes themselves, count among those of the group. A product
    with weights that no core's cache holds is worth a kernel alone, where single operators are not forbidden.
    """
    if len(group.nodes) + spared >= least or any(v in layouts for v in (*group.inputs, *group.outputs)):
        return True
    return least <= USUAL_GROUP and _is_product(group, kinds) and _weights(group, graph) >= LARGE


def spared(group: Group, whole: Graph, graph: Graph) -> int:
    """Nodes of the whole graph that a graph has no more, but would need if a group's nodes stayed with the runtime."""
    makers, there = whole.producers(), {n.outputs for n in graph.nodes}
    found: set[tuple[str, ...]] = set()
    pending = [v for n in group.nodes for v in n.reads]
    while pending:
        maker = makers.get(pending.pop())
        if maker is not None and maker.outputs not in there and maker.outputs not in found:
            found.add(maker.outputs)
            pending.extend(maker.reads)
    return len(found)


def is_small_product(group: Group, graph: Graph, kinds: Mapping[str, Kind]) -> bool:
    """Whether a group is a product whose weights are too few for a kernel alone."""
    return _is_product(group, kinds) and _weights(group, graph) < LARGE


def _is_product(group: Group, kinds: Mapping[str, Kind]) -> bool:
    """Whether a group multiplies rows by weights."""
    found = [kinds[n.name] for n in group.nodes]
    return any(k.name == WEIGHTS and not k.spatial for k in found)


def _weights(group: Group, graph: Graph) -> int:
    """Bytes of the constants that a group reads."""
    return sum(graph.constants[v].bytes for v in group.inputs if v in graph.constants)


def left_alone(group: Group, graph: Graph) -> Decision:
    """Why a product is left alone."""
    names, size = tuple(n.name for n in group.nodes), _weights(group, graph) >> 10
    said = (
        f"{group.nodes[0].op} alone with {size} KB of weights is not faster as a kernel; from {LARGE >> 10} KB on it is"
    )
    return Decision("E-COST", names, said, "--min-group 1 makes a kernel of it")
