"""Quantized contractions that the runtime computes in integers, with the Q and DQ nodes around them.

ONNX Runtime fuses DQ -> Conv, MatMul or Gemm -> Q into one integer kernel, and dynamically quantized products with
their scaling into another; it dequantizes weights once, at load. It keeps images between integer products in a layout
of its own, and has integer kernels for most operators between them. Generated kernels inside such a pattern would cost
more than they save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from onnxfuse.ir.codes import sides_of
from onnxfuse.ir.compose import loads, sources, walk
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.graph import Decision, Graph, Node, TensorType
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Apply, Const, Load, Reduce
from onnxfuse.ops.spec import Definition, OperatorTable
from onnxfuse.plan.kinds import BATCHED, ELEMENTWISE, MOVEMENT, WEIGHTS, WINDOW, Kind, decodes
from onnxfuse.plan.unlocks import ALONE

Kinds = Mapping[int, Kind]
_WINDOW = 128  # the most elements of a window
_MOST_FOLLOWERS = 3  # nodes after an integer product that belong to it: Cast, Mul by the scales, Add of the bias


def integer_nodes(graph: Graph, kinds: Kinds, rows: OperatorTable) -> dict[int, Decision]:
    """Refusals of the nodes of such patterns, by position."""
    direct = {i for i, k in kinds.items() if _multiplies_codes(k) and not _in_tiles(k)}
    products = direct | _quantized_products(graph, kinds, rows) | _scaled_products(graph, kinds, direct)
    beside = _beside_convolutions(graph, kinds, products) - products
    reasons = dict.fromkeys(products, "is part of a quantized product that ONNX Runtime computes in integers")
    reasons |= dict.fromkeys(beside, "is between integer convolutions, for which ONNX Runtime uses a layout of its own")
    named = {i: graph.nodes[i] for i in sorted(reasons)}
    return {i: Decision("E-COST", (n.name,), f"{n.op} {reasons[i]}", ALONE) for i, n in named.items()}


def _beside_convolutions(graph: Graph, kinds: Kinds, products: set[int]) -> set[int]:
    """Nodes connected to integer convolutions by images, without another product in between.

    Generated kernels there make the runtime transpose before and after them; 0.64 times the speed was measured. What
    has one place, as the means of channels have, lies alike in all layouts.
    """
    at = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
    readers = graph.consumers()
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    seen = {i for i in products if kinds[i].spatial and _is_image(graph, graph.nodes[i].outputs[0])}
    pending = sorted(seen)
    while pending:
        i = pending.pop()
        if i not in products and kinds[i].name in (WEIGHTS, BATCHED):
            continue
        n = graph.nodes[i]
        images = [v for v in (*n.inputs, *n.outputs) if _is_image(graph, v)]
        touched = {at[v] for v in images if v in at} | {place[u.name] for v in images for u in readers.get(v, ())}
        pending.extend(sorted(touched & kinds.keys() - seen))
        seen |= touched & kinds.keys()
    return {i for i in seen if kinds[i].name not in (WEIGHTS, BATCHED)}


def _is_image(graph: Graph, value: str) -> bool:
    """Whether a value may have more than one place behind batch and channels."""
    t = graph.types.get(value)
    return t is not None and len(t.shape) > 2 and product(t.shape[2:]).constant != 1


def _quantized_products(graph: Graph, kinds: Kinds, rows: OperatorTable) -> set[int]:
    """Contractions of dequantized tensors or weights, with the nodes that dequantize inputs and quantize results."""
    found: set[int] = set()
    decoded = _decoded(graph, kinds, rows)
    readers = graph.consumers()
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    for i, kind in kinds.items() if decoded else ():
        factors = [f for d in kind.definitions for f in _factors(d)]
        chains = [[decoded[v] for v in sorted(side) if v in decoded] for side in factors]
        whole = bool(chains) and all(chains)
        if whole and ((kind.name == BATCHED and not kind.spatial) or _fits_kernels(graph, kind, chains)):
            continue
        if not whole and not any(_constant(graph, c[-1]) for side in chains for c in side):
            continue
        members = {i, *(m for v in graph.nodes[i].inputs if v in decoded for m in decoded[v])}
        found |= members | (_quantizing(graph, kinds, rows, readers, place, i) if whole else set())
    return found & kinds.keys()


def _scaled_products(graph: Graph, kinds: Kinds, direct: set[int]) -> set[int]:
    """Nodes that produce the 8-bit operands of the runtime's integer products, scale their results or add to them.

    Such a product is in `direct`, or recognized by its types: an unknown operator from 8-bit to 32-bit integers.
    """
    found: set[int] = set()
    at = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
    readers = graph.consumers()
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    for i, n in enumerate(graph.nodes):
        if (
            (i in kinds and i not in direct)
            or not n.inputs
            or _bits(graph, n.inputs[0]) != 8
            or _bits(graph, n.outputs[0]) != 32
        ):
            continue
        members = {at[v] for v in n.reads if v in at}
        value = n.outputs[0]
        for _ in range(_MOST_FOLLOWERS):
            users = [place[u.name] for u in readers.get(value, ())]
            if len(users) != 1 or users[0] not in kinds or kinds[users[0]].name != ELEMENTWISE:
                break
            members |= {users[0], *(at[v] for v in graph.nodes[users[0]].reads if _scales(graph, at, members, v))}
            value = graph.nodes[users[0]].outputs[0]
        found |= members & kinds.keys()
    return found


def _bits(graph: Graph, value: str) -> int:
    """The width of a value's integers; 0 for other types, and unknown ones."""
    type_ = graph.types.get(value)
    return type_.dtype.bits if type_ is not None and type_.dtype.kind in "iu" else 0


def _scales(graph: Graph, at: Mapping[str, int], members: set[int], value: str) -> bool:
    """Whether a value is computed from the result of a member of the pattern."""
    return value in at and any(at.get(v) in members for v in graph.nodes[at[value]].reads)


def _is_codes(graph: Graph, node: Node, rows: OperatorTable) -> bool:
    row = rows.find(node, graph.opset)
    return row is not None and row.codes


def _decoded(graph: Graph, kinds: Kinds, rows: OperatorTable) -> dict[str, list[int]]:
    """Dequantized values, possibly moved afterwards: the nodes that compute them, the dequantizing one last.

    Codes may be of types without kernels, as those of 4 bits: the runtime has products for these too.
    """
    found: dict[str, list[int]] = {}
    for i, n in enumerate(graph.nodes):
        if decodes(graph, n, rows):
            found[n.outputs[0]] = [i]
        elif i in kinds and kinds[i].name == MOVEMENT and len(n.outputs) == 1 and n.inputs[0] in found:
            found[n.outputs[0]] = [i, *found[n.inputs[0]]]
    return found


def _fits_kernels(graph: Graph, kind: Kind, chains: list[list[list[int]]]) -> bool:
    """Whether a product of dequantized tensors is of 8-bit values by constant ones, in register tiles or depthwise."""
    codes = [_bits(graph, graph.nodes[c[-1]].inputs[0]) for side in chains for c in side]
    return codes == [8, 8] and _in_tiles(kind)


def _multiplies_codes(kind: Kind) -> bool:
    """Whether a node itself reads quantized values and sums their products."""
    return any(sides_of(n) is not None for n in _reduces(kind))


def _in_tiles(kind: Kind) -> bool:
    """Whether a contraction has constant weights, or is depthwise with a small window."""
    terms = [product([r.extent for r in n.ranges]).constant for n in _reduces(kind)]
    return kind.name == WEIGHTS or (kind.name == WINDOW and all(t is not None and t <= _WINDOW for t in terms))


def _reduces(kind: Kind) -> Iterator[Reduce]:
    return (n for d in kind.definitions for n in walk(d.value) if isinstance(n, Reduce))


def _constant(graph: Graph, i: int) -> bool:
    return graph.nodes[i].inputs[0] in graph.constants


def _factors(d: Definition) -> Iterator[set[str]]:
    """The tensors read by each factor of a contraction, if the factors read different tensors."""
    for x in walk(d.value):
        found = contraction_of(d.axes, x) if isinstance(x, Reduce) else None
        if found is not None:
            left, right = ({n.source for n in loads(a)} for a in (found.left, found.right))
            if left and right and not left & right:
                yield from (left, right)


def _quantizing(
    graph: Graph,
    kinds: Kinds,
    rows: OperatorTable,
    readers: Mapping[str, list[Node]],
    place: Mapping[str, int],
    i: int,
) -> set[int]:
    """The node that quantizes the only result of a node, and clamps in between; empty if there is none."""
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
    """Whether a node only clamps one value to constants."""
    terms = [x for d in kind.definitions for x in walk(d.value)]
    plain = all(isinstance(x, (Load, Const)) or (isinstance(x, Apply) and x.fn in ("min", "max")) for x in terms)
    return plain and len(set().union(*(sources(d.value) for d in kind.definitions))) == 1


def with_own_decoders(graph: Graph, rows: OperatorTable) -> Graph:
    """The graph with a copy of each dequantizing node for each reader, so that quantized values pass between kernels.

    The runtime makes the same copies when it matches its patterns.
    """
    readers = graph.consumers()
    types: dict[str, TensorType | None] = dict(graph.types)
    nodes: list[Node] = []
    renamed: dict[tuple[str, str], str] = {}  # by the name of the reader and the value
    for n in graph.nodes:
        nodes.append(replace(n, inputs=tuple(renamed.get((n.name, v), v) for v in n.inputs)))
        if not decodes(graph, n, rows):
            continue
        value = n.outputs[0]
        users = readers.get(value, [])
        held = value in graph.outputs or any(value in u.captures for u in users)
        for u in users if held else users[1:]:
            if value not in u.captures and (u.name, value) not in renamed:
                made = renamed[u.name, value] = _fresh(f"{value}/copy", types)
                types[made] = types[value]
                nodes.append(replace(nodes[-1], name=f"{n.name}/{made}", outputs=(made,)))
    return graph.with_nodes(nodes, types=types) if renamed else graph


def _fresh(name: str, taken: Mapping[str, object]) -> str:
    at, wanted = 1, name
    while name in taken:
        at += 1
        name = f"{wanted}{at}"
    return name
