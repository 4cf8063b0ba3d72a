"""What the runtime multiplies as integers: contractions of dequantized tensors, and what codes and decodes for them.

ONNX Runtime turns DQ -> Conv, MatMul or Gemm -> Q into one integer kernel, and moves weights that are only dequantized
to float32 once, at load. A kernel of ours in the middle of such a pattern would cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from onnxfuse.ir.compose import loads, sources, walk
from onnxfuse.ir.graph import Decision, Graph, Node, TensorType
from onnxfuse.ir.scalar import Apply, Const, Load, Reduce
from onnxfuse.ops.spec import Definition, Table
from onnxfuse.plan.kinds import MOVEMENT, Kind

Kinds = Mapping[int, Kind]


def integer_nodes(graph: Graph, kinds: Kinds, rows: Table) -> dict[int, Decision]:
    """Nodes of such patterns by position, each with the reason why it stays with the runtime."""
    found: dict[int, Decision] = {}
    at = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
    readers = graph.consumers()
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    decoded = _decoded(graph, kinds, rows, at)
    for i, kind in kinds.items():
        factors = [f for d in kind.definitions for f in _factors(d)]
        chains = [[decoded[v] for v in sorted(side) if v in decoded] for side in factors]
        whole = bool(chains) and all(chains)
        if not whole and not any(_constant(graph, c[-1]) for side in chains for c in side):
            continue
        members = {i, *(m for v in graph.nodes[i].inputs if v in decoded for m in decoded[v])}
        if whole:
            members |= _coded(graph, kinds, rows, readers, place, i)
        for m in members:
            name = graph.nodes[m].name
            reason = f"{graph.nodes[m].op} is part of a product that the runtime computes with integers"
            found.setdefault(m, Decision("E-COST", (name,), reason))
    return found


def _is_codes(graph: Graph, node: Node, rows: Table) -> bool:
    row = rows.find(node, graph.opset)
    return row is not None and row.codes


def _decodes(graph: Graph, node: Node, rows: Table) -> bool:
    out = graph.types.get(node.outputs[0])
    return out is not None and out.dtype.floating and _is_codes(graph, node, rows)


def _decoded(graph: Graph, kinds: Kinds, rows: Table, at: Mapping[str, int]) -> dict[str, list[int]]:
    """Values that are dequantized, and perhaps moved afterwards: the nodes that made them, the decoding one last."""
    found: dict[str, list[int]] = {}
    for i, kind in sorted(kinds.items()):
        n = graph.nodes[i]
        if _decodes(graph, n, rows):
            found[n.outputs[0]] = [i]
        elif kind.name == MOVEMENT and len(n.outputs) == 1 and n.inputs[0] in found:
            found[n.outputs[0]] = [i, *found[n.inputs[0]]]
    return found


def _constant(graph: Graph, i: int) -> bool:
    return graph.nodes[i].inputs[0] in graph.constants


def _factors(d: Definition) -> Iterator[set[str]]:
    """What the two factors of a sum of products read, where they read different tensors."""
    for x in walk(d.value):
        if isinstance(x, Reduce) and x.combine == "sum" and isinstance(x.body[0], Apply) and x.body[0].fn == "mul":
            left, right = ({n.source for n in loads(a)} for a in x.body[0].args)
            if left and right and not left & right:
                yield from (left, right)


def _coded(
    graph: Graph,
    kinds: Kinds,
    rows: Table,
    readers: Mapping[str, list[Node]],
    place: Mapping[str, int],
    i: int,
) -> set[int]:
    """What quantizes the only result of a node, and a clamp on the way there."""
    found: set[int] = set()
    while True:
        value = graph.nodes[i].outputs[0]
        users = [place[n.name] for n in readers.get(value, [])]
        if value in graph.outputs or len(users) != 1 or users[0] not in kinds:
            return set()
        i = users[0]
        found.add(i)
        if _is_codes(graph, graph.nodes[i], rows):
            return found
        if not _clamps(kinds[i]):
            return set()


def _clamps(kind: Kind) -> bool:
    """Whether a node only limits one value by constants."""
    terms = [x for d in kind.definitions for x in walk(d.value)]
    plain = all(isinstance(x, (Load, Const)) or (isinstance(x, Apply) and x.fn in ("min", "max")) for x in terms)
    return plain and len(set().union(*(sources(d.value) for d in kind.definitions))) == 1


def with_own_decoders(graph: Graph, staying: Mapping[int, Decision], rows: Table) -> Graph:
    """The graph with a copy of each decoding node that such a pattern shares with other readers, for those others.

    The runtime makes the same copies when it looks for its patterns.
    """
    names = {graph.nodes[i].name for i in staying}
    readers = graph.consumers()
    types: dict[str, TensorType | None] = dict(graph.types)
    nodes: list[Node] = []
    renamed: dict[str, str] = {}
    for n in graph.nodes:
        if n.name not in names:
            n = replace(n, inputs=tuple(renamed.get(v, v) for v in n.inputs))
        nodes.append(n)
        if n.name in names and _decodes(graph, n, rows) and _shared(graph, n, readers, names):
            value = n.outputs[0]
            renamed[value] = _fresh(f"{value}/copy", types)
            types[renamed[value]] = types[value]
            nodes.append(replace(n, name=f"{n.name}/copy", outputs=(renamed[value],)))
    return graph.with_nodes(nodes, types=types) if renamed else graph


def _shared(graph: Graph, n: Node, readers: Mapping[str, list[Node]], names: set[str]) -> bool:
    """Whether some readers of a node that stays do not stay themselves, while nobody holds on to its value."""
    value = n.outputs[0]
    users = readers.get(value, [])
    free = [u for u in users if u.name not in names]
    held = value in graph.outputs or any(value in u.captures for u in users)
    return bool(free) and len(free) < len(users) and not held


def _fresh(name: str, taken: Mapping[str, object]) -> str:
    at, wanted = 1, name
    while name in taken:
        at += 1
        name = f"{wanted}{at}"
    return name
