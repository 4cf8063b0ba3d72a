"""Groups with fewer operators than `--min-group` asks for: which of them become kernels nevertheless."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import I8
from onnxfuse.ir.graph import Constant, Decision, Graph, Node
from onnxfuse.ir.group import Group
from onnxfuse.ir.indexing import looked_up
from onnxfuse.ir.layout import PLAIN, Layout
from onnxfuse.plan.kinds import RECURRENT, WEIGHTS, WINDOW, Kind
from onnxfuse.plan.unlocks import ALONE

USUAL_GROUP = 2  # the default of `--min-group`
ATTENTION = 2  # products of two values: scores, and what they weigh
LARGE = 1 << 20  # bytes of weights: from here on a kernel takes 0.66 to 1.01 times the runtime's time, at 256 KB 1.05


def stays(
    group: Group, graph: Graph, kinds: Mapping[str, Kind], layouts: Mapping[str, Layout], least: int, spared: int
) -> bool:
    """Whether a group has at least `least` operators; fewer suffice if it reads or makes values in a changed layout.

    `spared` operators, which are not needed since kernels compute shapes themselves, count as operators of the group. A
    product whose weights exceed a core's cache is a kernel alone, unless `least` is above the default, and so is a
    lookup in them, a product or convolution of signed codes, and an operator that is many in one.
    """
    if len(group.nodes) + spared >= least or any(v in layouts for v in (*group.inputs, *group.outputs)):
        return True
    if least <= USUAL_GROUP and any(_many_in_one(kinds[n.name]) for n in group.nodes):
        return True
    if least <= USUAL_GROUP and _multiplies_signed(group, graph, kinds):
        return True
    if least > USUAL_GROUP or _weights(group, graph) < LARGE:
        return False
    return _is_product(group, kinds) or any(looks_up_weights(n, graph, kinds) for n in group.nodes)


def _many_in_one(kind: Kind) -> bool:
    """Whether an operator is many in one: a recurrent layer, or attention."""
    return kind.name == RECURRENT or kind.products >= ATTENTION


def looks_up_weights(node: Node, graph: Graph, kinds: Mapping[str, Kind]) -> bool:
    """Whether a node looks up rows of a large table that a product multiplies too.

    As a kernel it reads them where the product has them packed (`emit/tables.py`); the runtime needs another copy.
    """
    loaded = [x for d in kinds[node.name].definitions for x in loads(d.value) if any(map(looked_up, x.index))]
    held = [graph.constants[x.source] for x in loaded if x.source in graph.constants]
    tables = {c.stored(PLAIN)[0] for c in held if c.bytes >= LARGE}
    return bool(tables) and any(_multiplies(n, graph, kinds, tables) for n in graph.nodes)


def _multiplies(node: Node, graph: Graph, kinds: Mapping[str, Kind], tables: Container[Constant]) -> bool:
    """Whether a node is a product with weights that are one of these tables, or a transposed copy."""
    kind = kinds.get(node.name)
    if kind is None or kind.name != WEIGHTS or kind.spatial:
        return False
    return any(v in graph.constants and graph.constants[v].stored(PLAIN)[0] in tables for v in node.inputs)


def pools_beside(group: Group, others: Iterable[Group], graph: Graph, kinds: Mapping[str, Kind], least: int) -> bool:
    """Whether a group is a pool that reads what one of the others makes, or makes what one of them reads.

    As a node it would put its image into blocks of channels and back. Predicted times decide
    (`pipeline/slower_groups.py`).
    """
    if least > USUAL_GROUP or not is_pool(group, graph, kinds):
        return False
    return any({*g.outputs} & {*group.inputs} or {*g.inputs} & {*group.outputs} for g in others)


def is_pool(group: Group, graph: Graph, kinds: Mapping[str, Kind | Decision]) -> bool:
    """Whether a group has pools only: reductions over windows, without weights."""

    def pools(n: Node) -> bool:
        kind = kinds[n.name]
        return isinstance(kind, Kind) and kind.name == WINDOW and graph.constants.keys().isdisjoint(n.reads)

    return all(map(pools, group.nodes))


def spared(group: Group, whole: Graph, graph: Graph) -> int:
    """How many nodes of the whole graph were removed from `graph` but would be needed if the group were not fused."""
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
    """Whether a group is a product whose weights are too small for a kernel alone."""
    small = _weights(group, graph) < LARGE and not _multiplies_signed(group, graph, kinds)
    return small and _is_product(group, kinds)


def _multiplies_signed(group: Group, graph: Graph, kinds: Mapping[str, Kind]) -> bool:
    """Whether a group multiplies signed codes by weights, which takes the runtime several times as long as unsigned."""
    left = [graph.types.get(n.inputs[0]) for n in group.nodes if kinds[n.name].name == WEIGHTS]
    return any(t is not None and t.dtype == I8 for t in left)


def _is_product(group: Group, kinds: Mapping[str, Kind]) -> bool:
    """Whether a group has a matrix product with weights."""
    found = [kinds[n.name] for n in group.nodes]
    return any(k.name == WEIGHTS and not k.spatial for k in found)


def _weights(group: Group, graph: Graph) -> int:
    """Bytes of the constants that a group reads."""
    return sum(graph.constants[v].bytes for v in group.inputs if v in graph.constants)


def left_alone(group: Group, graph: Graph) -> Decision:
    """The refusal of a product that is not worth a kernel alone."""
    names, size = tuple(n.name for n in group.nodes), _weights(group, graph) >> 10
    said = (
        f"{group.nodes[0].op} alone with {size} KB of weights is not faster as a kernel; from {LARGE >> 10} KB on it is"
    )
    return Decision("E-COST", names, said, ALONE)
