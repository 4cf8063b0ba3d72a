"""The planner's kind of a node, from its definitions: contraction, window, reduction, recurrent layer, and others."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.ir.codes import sides_of
from onnxfuse.ir.compose import cost, loads, walk
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.index import ZERO, Index, axes_of
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Const, Load, Reduce, Scalar
from onnxfuse.ops.spec import Definition, Images, OperatorTable, defined
from onnxfuse.ops.traits import keeps_order

WEIGHTS = "weights"  # a contraction with a constant side
BATCHED = "batched"  # a contraction of two activations
WINDOW = "window"  # a reduction over windows that keeps its channels: pooling, depthwise convolution
REDUCTION = "reduction"
ELEMENTWISE = "elementwise"
DECODING = "decoding"  # dequantization, elementwise: is fused into the readers of its result
MOVEMENT = "movement"
RECURRENT = "recurrent"  # a recurrent layer
HEAVY = (WEIGHTS, BATCHED, WINDOW, RECURRENT)


@dataclass(frozen=True, slots=True)
class Kind:
    """A node's kind and definitions.

    For movement, `keeps_order`: row-major order is kept, and `joins`: several tensors are concatenated. `images` says
    what an operator on images does; it prefers channels last. `products` counts its contractions of two activations (an
    attention operator has 2).
    """

    name: str
    definitions: tuple[Definition, ...]
    keeps_order: bool = False
    images: Images = ""
    products: int = 0
    joins: bool = False

    @property
    def spatial(self) -> bool:
        """Whether it is an operator on images."""
        return self.images != ""


Members = Sequence[tuple[Sequence[str], Kind]]  # of a group: the outputs and the kind of each node


def of_whole_images(kind: Kind) -> bool:
    """Whether a window is all of the image, so that it reduces as a mean over axes does."""
    own = {a for d in kind.definitions for a in d.axes[2:]}
    reads = [x for d in kind.definitions for x in loads(d.value)]
    return kind.name == WINDOW and not any(own & axes_of(e) for x in reads for e in x.index)


def kind_of(graph: Graph, node: Node, rows: OperatorTable, weights: Container[str] = ()) -> Kind | Decision:
    """The kind of a node, or why it has no kernel. `weights` are values computed from constants only."""
    found = defined(rows, graph, node)
    if isinstance(found, Decision):
        return found
    refused = _types_refused(graph, node)
    if refused is not None:
        return refused
    row = rows.find(node, graph.opset)
    images: Images = row.images if row is not None else ""
    if any(d.recurrent for d in found):
        return Kind(RECURRENT, found)
    reduces = [(d, n) for d in found for n in walk(d.value) if isinstance(n, Reduce)]
    if not reduces:
        moves = len(found) == len([o for o in node.outputs if o]) and all(_moves(d) for d in found)
        if moves:
            keeps = row is not None and keeps_order(row)
            return Kind(MOVEMENT, found, keeps, joins=len(set(node.reads)) > 1 and any(map(_joins, found)))
        return Kind(DECODING if decodes(graph, node, rows) else ELEMENTWISE, found)
    sides = [_contraction(d, n, graph.constants, weights) for d, n in reduces]
    if sides[0] is not None and (len(sides) == 1 or set(sides) == {WEIGHTS}):
        return Kind(sides[0], found, images=images, products=int(sides[0] == BATCHED))
    if sides.count(BATCHED) > 1:
        return Kind(BATCHED, found, products=sides.count(BATCHED))
    windowed = images and len(found) == 1
    return Kind(WINDOW if windowed else REDUCTION, found, images=images)


def _types_refused(graph: Graph, node: Node) -> Decision | None:
    for v in (*node.inputs, *node.outputs):
        if v and graph.types.get(v) is None:
            return Decision("E-SHAPE-UNKNOWN", (node.name,), f"the type of {v} is not known", "give --input-shape")
    return None


def _moves(d: Definition) -> bool:
    return all(isinstance(n, Load) for n in walk(d.value)) or _joins(d)


def _joins(d: Definition) -> bool:
    """Whether a definition concatenates tensors along an axis, without a gap up to its end."""
    piece: Scalar | None = d.value
    guards = piece.guards if isinstance(piece, Load) else ()
    axis = next((a for a in d.axes if len(guards) == 1 and guards[0].index == Index.of(a)), None)
    start = ZERO
    while axis is not None and isinstance(piece, Load) and len(piece.guards) == 1:
        if piece.guards[0].index != Index.of(axis) - start:
            return False
        start, piece = start + piece.guards[0].extent, piece.otherwise
    return axis is not None and isinstance(piece, Const) and start == axis.extent


def decodes(graph: Graph, node: Node, rows: OperatorTable) -> bool:
    """Whether a node dequantizes."""
    row = rows.find(node, graph.opset)
    out = graph.types.get(node.outputs[0])
    return row is not None and row.codes and out is not None and out.dtype.floating


def decoded_weights(graph: Graph, rows: OperatorTable) -> frozenset[str]:
    """Values that are dequantized constants, possibly moved afterwards."""
    found: set[str] = set()
    for n in graph.nodes:
        if not n.inputs or (n.inputs[0] not in found and n.inputs[0] not in graph.constants):
            continue
        if decodes(graph, n, rows):
            found.add(n.outputs[0])
        elif n.inputs[0] in found and len(n.outputs) == 1:
            kind = kind_of(graph, n, rows)
            if isinstance(kind, Kind) and kind.name == MOVEMENT:
                found.add(n.outputs[0])
    return frozenset(found)


def convolves_variables(graph: Graph, node: Node, rows: OperatorTable, weights: Container[str] = ()) -> bool:
    """Whether a node is a convolution of two variable values; `weights` are values computed from constants only."""
    row = rows.find(node, graph.opset)
    found = defined(rows, graph, node) if row is not None and row.images == "convolution" else ()
    sums = [n for d in found for n in walk(d.value) if isinstance(n, Reduce)] if not isinstance(found, Decision) else []
    read = {load.source for n in sums for part in n.body for load in loads(part)}
    return bool(read) and not any(v in graph.constants or v in weights for v in read)


def _contraction(d: Definition, reduce: Reduce, *weights: Container[str]) -> str | None:
    """WEIGHTS or BATCHED if the reduction is a contraction with columns of its own, else None."""
    found = contraction_of(d.axes, reduce)
    if found is None or (reduce.dtype != F32 and sides_of(reduce) is None):
        return None

    def constant(x: Scalar) -> bool:
        read = {n.source for n in loads(x)}
        return bool(read) and all(any(v in w for w in weights) for v in read)

    c = found.weights_right(constant)
    if constant(c.left):
        return None
    if constant(c.right):
        return WEIGHTS if _wide(tuple(a.extent for a in c.columns)) and not c.batch else None
    return BATCHED if c.columns or c.swapped.columns else None


def _wide(extents: tuple[Index, ...]) -> bool:
    n = product(extents).constant
    return n is None or n >= 8


def weight(kind: Kind) -> float:
    """Vector operations per element, summed over the definitions: the cost of recomputing."""
    return sum(cost(d.value) for d in kind.definitions)


def sizes(graph: Graph, values: tuple[str, ...]) -> Mapping[str, Index]:
    """Number of elements of values whose types are known."""
    found: dict[str, Index] = {}
    for v in values:
        t = graph.types.get(v)
        if t is not None:
            found[v] = product(t.shape)
    return found
