"""Analysis of nodes, derived from their definitions: mapping types, contractions, flops and memory traffic.

The five mapping types and their table of combinations are DNNFusion's (PLDI 2021, tables 2 and 3). There each operator
has a type by its name; here each *edge* has one, derived from its index map, so that a MatMul with transposed weights,
an Add with a broadcast bias and a Slice with a negative step are distinguished. Facts are computed from a graph and
never stored in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from onnxfuse.ir.affine import split_axes
from onnxfuse.ir.compose import free_axes, indices_of, inline, loads, sources, walk
from onnxfuse.ir.contraction import Contraction, contraction_of
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.group import Group
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Loaded, atoms, axes_of, nonnegative
from onnxfuse.ir.indexing import coefficient, flatten, looked_up, product, substitute
from onnxfuse.ir.scalar import Apply, Load, Reduce, Scalar, uncast
from onnxfuse.ops.spec import Definition, OperatorTable, defined

Shape = tuple[Index, ...]


class MapType(IntEnum):
    """How output elements and input elements correspond; the order is that of complexity."""

    ONE_TO_ONE = 0  # affine in each axis (stride and offset), possibly guarded
    REORGANIZE = 1  # the row-major order is kept, the shape changes
    SHUFFLE = 2  # any other injective map
    ONE_TO_MANY = 3  # one element is read by several output elements
    MANY_TO_MANY = 4  # an output element reads several elements

    @property
    def label(self) -> str:
        """The published name."""
        return "-".join(w if w == "to" else w.capitalize() for w in self.name.lower().split("_"))


_O, _R, _S, _B, _M = MapType
_SECOND = (_O, _B, _M, _R, _S)
_FIRST: dict[MapType, tuple[tuple[MapType, str], ...]] = {
    _O: ((_O, "G"), (_B, "G"), (_M, "G"), (_R, "G"), (_S, "G")),
    _B: ((_B, "G"), (_B, "Y"), (_M, "X"), (_B, "Y"), (_B, "Y")),
    _M: ((_M, "G"), (_M, "Y"), (_M, "X"), (_M, "Y"), (_M, "Y")),
    _R: ((_R, "G"), (_B, "Y"), (_M, "Y"), (_R, "G"), (_R, "G")),
    _S: ((_S, "G"), (_B, "Y"), (_M, "Y"), (_R, "G"), (_S, "G")),
}


def combine(first: MapType, second: MapType) -> tuple[MapType, str]:
    """The type of two fused operators, and DNNFusion's verdict: G fuse, Y legal but measure, X do not fuse."""
    return _FIRST[first][_SECOND.index(second)]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node that has definitions. `edges` has one type per input, None where no element of it is read.

    `kind` is recurrence, contraction, reduction, elementwise or movement. `flops` counts scalar functions (casts are
    free) and the steps of reductions.
    """

    definitions: tuple[Definition, ...]
    edges: tuple[MapType | None, ...]
    type: MapType
    kind: str
    flops: Index
    contraction: Contraction | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of the nodes that have definitions, and why the others have none, by the nodes' names."""

    node: Mapping[str, NodeFacts]
    refusals: Mapping[str, Decision]


def facts(graph: Graph, rows: OperatorTable) -> Facts:
    """The facts of all nodes of a graph, whose names must differ."""
    known: dict[str, NodeFacts] = {}
    refusals: dict[str, Decision] = {}
    for node in graph.nodes:
        assert node.name not in known and node.name not in refusals, f"classify: two nodes are named {node.name}"
        found = defined(rows, graph, node)
        if isinstance(found, Decision):
            refusals[node.name] = found
        else:
            known[node.name] = node_facts(graph, node, found)
    return Facts(known, refusals)


def node_facts(graph: Graph, node: Node, definitions: tuple[Definition, ...]) -> NodeFacts:
    """The facts of a node with these definitions."""
    maps = read_maps(definitions)
    types = _types(definitions, maps, _shapes(graph, maps))
    edges = tuple(types.get(i) for i in node.inputs)
    live = [t for i, t in zip(node.inputs, edges, strict=True) if t is not None and i not in graph.constants]
    found = [c for d in definitions if (c := contraction_in(d)) is not None]
    return NodeFacts(
        definitions,
        edges,
        max(live or [t for t in edges if t is not None], default=MapType.ONE_TO_ONE),
        _kind(definitions, bool(found)),
        sum((product(d.shape) * operations(d.value) for d in definitions), ZERO),
        found[0] if found else None,
    )


def group_facts(known: Facts, group: Group) -> tuple[MapType, Index]:
    """The fused type of a group by the table of combinations, and its flops."""
    parts = [known.node[n.name] for n in group.nodes]
    fused = parts[0].type
    for part in parts[1:]:
        fused, _ = combine(fused, part.type)
    return fused, sum((p.flops for p in parts), ZERO)


# Edges ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadMap:
    """The index map of one load: a result of shape `made` reads the element `index` of a source.

    `axes` are the result's of extent above 1. `moved`: the result is a copy of the element.
    """

    made: Shape
    axes: tuple[Axis, ...]
    index: Shape
    moved: bool


def read_maps(definitions: Sequence[Definition]) -> dict[str, list[ReadMap]]:
    """The index maps of all loads of each external source; values between the definitions are inlined.

    Values that serve as indices count as results, since their operands are read too.
    """
    made: dict[str, tuple[tuple[Axis, ...], Scalar]] = {}
    inner: set[str] = set()
    for d in definitions:
        value = inline(d.value, made)
        inner |= {n.source for n in loads(d.value)} & made.keys()
        made[d.name] = (d.axes, value)
    out: dict[str, list[ReadMap]] = {}
    for d in definitions:
        if d.name not in inner:
            for source, read in _reads(*made[d.name]):
                if source not in made:
                    out.setdefault(source, []).append(read)
    return out


def _reads(axes: tuple[Axis, ...], value: Scalar) -> Iterator[tuple[str, ReadMap]]:
    moved = all(isinstance(n, Load) for n in walk(value))
    units = {a: ZERO for a in axes if a.extent == ONE}
    units |= {r: ZERO for n in walk(value) if isinstance(n, Reduce) for r in n.ranges if r.extent == ONE}
    wide = tuple(a for a in axes if a.extent != ONE)
    made = tuple(a.extent for a in axes)
    for load in loads(value):
        yield load.source, ReadMap(made, wide, _without(load.index, units), moved)
    for e in dict.fromkeys(indices_of(value)):
        for atom in atoms(e):
            if isinstance(atom, Loaded):
                yield atom.source, ReadMap(made, wide, _without(atom.at, units), False)


def _without(index: Shape, units: Mapping[Axis, Index]) -> Shape:
    return tuple(substitute(i, units) for i in index)


def edge_types(definitions: Sequence[Definition], shapes: Mapping[str, Shape]) -> dict[str, MapType]:
    """The mapping type of every source that the definitions read; `shapes` are those of the sources."""
    return _types(definitions, read_maps(definitions), shapes)


def _types(
    definitions: Sequence[Definition], maps: Mapping[str, list[ReadMap]], shapes: Mapping[str, Shape]
) -> dict[str, MapType]:
    found = {source: max(map_type(m, shapes[source]) for m in read) for source, read in maps.items()}
    return found | dict.fromkeys(found.keys() & _before_recurrences(definitions), MapType.MANY_TO_MANY)


def _before_recurrences(definitions: Sequence[Definition]) -> set[str]:
    """What recurrences read, directly or indirectly: a state depends on all elements at the steps before it."""
    found: set[str] = set()
    for d in reversed(definitions):
        if d.recurrent or d.name in found:
            found |= sources(d.value)
    return found


def map_type(read: ReadMap, have: Shape) -> MapType:
    """The mapping type of one load from a source of shape `have`."""
    if ZERO in read.made:
        return MapType.REORGANIZE if read.moved and ZERO in have and read.made != have else MapType.ONE_TO_ONE
    mentioned = _mentioned(read)
    if mentioned - set(read.axes):
        return MapType.MANY_TO_MANY
    if _gathers(read) or set(read.axes) - mentioned:
        return MapType.ONE_TO_MANY
    straight = _axis_by_axis(read)
    if straight and (not read.moved or read.made == have):
        return MapType.ONE_TO_ONE
    if _keeps_order(read, have):
        return MapType.REORGANIZE
    if straight:
        return MapType.ONE_TO_ONE
    return MapType.SHUFFLE if injective(read.index, read.axes) else MapType.ONE_TO_MANY


def _keeps_order(read: ReadMap, have: Shape) -> bool:
    shape = tuple(a.extent for a in read.axes)
    return product(shape) == product(have) and flatten(read.index, have) == flatten(_at(read.axes), shape)


def order_kept(definitions: Sequence[Definition], shapes: Mapping[str, Shape]) -> bool:
    """Whether every result has exactly the elements of its source, in the same row-major order."""
    return all(m.moved and _keeps_order(m, shapes[v]) for v, read in read_maps(definitions).items() for m in read)


def _mentioned(read: ReadMap) -> frozenset[Axis]:
    return frozenset().union(*map(axes_of, read.index))


def _gathers(read: ReadMap) -> bool:
    return any(map(looked_up, read.index))


def _at(axes: tuple[Axis, ...]) -> Shape:
    return tuple(map(Index.of, axes))


def _axis_by_axis(read: ReadMap) -> bool:
    """Whether the axes run forward along different axes of the source, in the same order."""
    seen: list[Axis] = []
    for e in read.index:
        own = [a for a in read.axes if a in axes_of(e)]
        stride = coefficient(e, own[0]) if len(own) == 1 else None
        if len(own) > 1 or (own and (stride is None or not nonnegative(stride - 1))):
            return False
        seen += own
    return seen == list(read.axes)


def injective(index: Shape, axes: tuple[Axis, ...]) -> bool:
    """Whether an index map is proven injective: each mixed-radix digit of the axes is determined by some coordinate."""
    parts, values = split_axes(axes, index)
    index = tuple(substitute(i, values) for i in index)
    unknown = {a for a in parts if a.extent != ONE}
    for _ in range(len(index)):
        for e in index:
            mine = {a: coefficient(e, a) for a in unknown if a in axes_of(e)}
            if mine and _decodable(mine):
                unknown -= mine.keys()
    return not unknown


def _decodable(strides: Mapping[Axis, Index | None]) -> bool:
    """Whether sum(stride * axis) determines the axes: each stride exceeds the largest sum of all smaller terms."""
    span = ZERO
    found = [(s if nonnegative(s) else -s, a) for a, s in strides.items() if s is not None]
    found.sort(key=lambda f: (max((len(m) for m, _ in f[0].terms), default=0), abs(f[0].constant or 0), repr(f[0])))
    for stride, axis in found:
        if not nonnegative(stride - span - 1):
            return False
        span = span + stride * (axis.extent - 1)
    return len(found) == len(strides)


# Nodes ----------------------------------------------------------------------------------------------------------------


def contraction_in(d: Definition) -> Contraction | None:
    """The contraction in a definition: a sum of products of two elements that both depend on all summed axes."""
    for x in walk(d.value):
        if not isinstance(x, Reduce):
            continue
        found = contraction_of(d.axes, replace(x, body=(uncast(x.body[0]),)))
        if found is not None:
            found = replace(found, left=uncast(found.left), right=uncast(found.right))
            if isinstance(found.left, Load) and isinstance(found.right, Load) and found.left != found.right:
                return found if _sums_all(found) else None
    return None


def _sums_all(c: Contraction) -> bool:
    """Whether both factors depend on every summed axis, and every other axis longer than 1 appears in some factor."""
    a, b = free_axes(c.left), free_axes(c.right)
    return {*c.ranges} <= a & b and {x for x in c.axes if x.extent != ONE} <= a | b


def _kind(definitions: Sequence[Definition], contracts: bool) -> str:
    nodes = [n for d in definitions for n in walk(d.value)]
    if any(d.recurrent for d in definitions):
        return "recurrence"
    if contracts:
        return "contraction"
    if any(isinstance(n, Reduce) for n in nodes):
        return "reduction"
    computes = any(isinstance(n, Apply) and any(True for _ in loads(n)) for n in nodes)
    return "elementwise" if computes else "movement"


def operations(value: Scalar) -> Index:
    """Scalar functions per element, each distinct subexpression once, bodies of reductions times their ranges."""
    seen: set[Scalar] = set()

    def count(x: Scalar) -> Index:
        if x in seen:
            return ZERO
        seen.add(x)
        if isinstance(x, Reduce):
            return product([r.extent for r in x.ranges]) * (sum(map(count, x.body), ZERO) + len(x.body))
        if isinstance(x, Apply):
            return sum(map(count, x.args), ZERO) + (0 if x.fn == "cast" else 1)
        return ZERO

    return count(value)


def _shapes(graph: Graph, sources: Iterable[str]) -> dict[str, Shape]:
    found = {}
    for source in sources:
        known = graph.types[source]
        assert known is not None, f"classify: a definition reads {source}, whose type is not known"
        found[source] = known.shape
    return found
