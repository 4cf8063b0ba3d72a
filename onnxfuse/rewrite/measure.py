"""The termination measure of rewriting: cost, then the number of nodes, then the distance from the canonical form.

Cost adds scalar work, bytes moved and launches in one unit (about a picosecond per vector operation); symbols count as
`NOMINAL`. It is only used to order rewrites; the planner has its own cost model, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onnxfuse.ir.codes import sides_of
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.graph import Node, TensorType
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.scalar import Apply, Reduce, Scalar, children
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.traits import takes_a_part
from onnxfuse.rewrite.mutable_graph import Definitions, Miss

NOMINAL = 64
LAUNCH = 20_000
_PRODUCT = 2  # cost of a multiply-add of a contraction
VIEW_LAUNCH = 2_000  # cost of a node that only takes a part of a tensor, or reshapes it
UNFUSED = 1 << 40  # cost of a node that cannot become a kernel: no row or body, or an input of unknown shape


@dataclass(frozen=True, slots=True, order=True)
class Measure:
    """Cost, number of nodes, distance from the canonical form; compared in this order."""

    cost: int = 0
    nodes: int = 0
    distance: int = 0

    def __add__(self, other: Measure) -> Measure:
        return Measure(self.cost + other.cost, self.nodes + other.nodes, self.distance + other.distance)

    def __sub__(self, other: Measure) -> Measure:
        return Measure(self.cost - other.cost, self.nodes - other.nodes, self.distance - other.distance)


def cost(node: Node, definitions: Definitions, types: Callable[[str], TensorType | None], opset: int) -> int:
    """Cost of a node."""
    row = ROWS.find(node, opset)
    if row is None and not definitions:
        return UNFUSED
    if row is not None and takes_a_part(row):
        return VIEW_LAUNCH
    quiet = {node.inputs[i] for i in row.quiet_inputs if i < len(node.inputs)} if row else set()
    if row and any(types(v) is None for v in {*node.reads} - quiet):
        return UNFUSED
    moved = sum(_bytes(types(v)) for v in {*node.reads, *node.outputs} - quiet if v)
    return LAUNCH + moved + sum(elements(d.shape) * _work(d.value) for d in definitions)


def _bytes(type_: TensorType | None) -> int:
    return elements(type_.shape) * type_.dtype.bytes if type_ else 0


def elements(shape: Iterable[Index]) -> int:
    """Number of elements of a shape, with `NOMINAL` for symbols."""
    total = 1
    for e in shape:
        total *= max(0, int(evaluate(e, lambda a: NOMINAL if isinstance(a, Symbol) else 0)))
    return total


def _work(x: Scalar) -> int:
    inner = sum(_work(c) for c in children(x))
    if isinstance(x, Apply):
        return inner + int(FUNCTIONS[x.fn].cost)
    if isinstance(x, Reduce):
        if sides_of(x) is not None:  # zero points and scales are applied to the sums
            return elements(r.extent for r in x.ranges) * _PRODUCT
        return elements(r.extent for r in x.ranges) * (inner + len(x.body))
    return inner


__all__ = ["LAUNCH", "NOMINAL", "Measure", "Miss", "cost", "elements"]
