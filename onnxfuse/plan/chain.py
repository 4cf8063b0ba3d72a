"""Whether a contraction joins the kernel of the contraction before it, computed by blocks of rows.

This saves a barrier, a kernel call, the traffic of the intermediate result, and the wait for the first weights of each
task, which are prefetched. It costs that every core reads all weights of both, instead of its part, and that there are
only as many tasks as cores. By measurement it pays if weights come from memory, not if all fit into the shared cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.cost import OVERLAP, REUSABLE
from onnxfuse.ir.compose import loads, walk
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Load, Reduce
from onnxfuse.plan.kinds import WEIGHTS, Kind, Members
from onnxfuse.target import Cpu

FEWEST = 64  # rows that keep several cores busy
BLOCK = 1, 4  # the fraction of a core's L2 cache that the intermediate result may use


@dataclass(frozen=True, slots=True)
class ChainedProduct:
    """A contraction with weights: rows (m), depth (k), columns (n), and the value whose whole rows it reads."""

    rows: Index
    depth: Index
    columns: Index
    left: str | None  # None if it does not read whole rows
    plain: bool  # whether the weights are unmodified float32 constants

    @property
    def bytes(self) -> int:
        """Of the weights."""
        return 4 * ((self.depth * self.columns).constant or 0)


def product_of(graph: Graph, kind: Kind) -> ChainedProduct:
    """The sizes of a contraction with weights."""
    d = kind.definitions[0]
    reduce = next(n for n in walk(d.value) if isinstance(n, Reduce))
    found = contraction_of(d.axes, reduce)
    assert found is not None, "plan: a contraction with weights is a sum of products"
    c = found.weights_right(lambda x: all(n.source in graph.constants for n in loads(x)))
    left, right = c.left, c.right
    whole = isinstance(left, Load) and not left.guards and _whole(left.index, {*c.rows, *c.ranges})
    source = left.source if isinstance(left, Load) and whole else None
    sizes = [product([a.extent for a in part]) for part in (c.rows, c.ranges, c.columns)]
    plain = isinstance(right, Load) and right.dtype == F32 and right.source in graph.constants
    return ChainedProduct(sizes[0], sizes[1], sizes[2], source, plain)


def _whole(index: Sequence[Index], axes: set[Axis]) -> bool:
    """Whether an index consists of each axis longer than 1 exactly once, and of no others."""
    found = [e for e in index if e.constant is None]
    longer = {Index.of(a) for a in axes if a.extent.constant != 1}
    return len(found) == len(set(found)) and longer <= set(found) <= {Index.of(a) for a in axes}


def chain_refusal(
    graph: Graph, members: Members, op: str, kind: Kind, target: Cpu, single: bool
) -> tuple[str, str] | None:
    """Code and reason why a contraction does not join a group, given by the outputs and kinds of its members, or None.

    `single`: weights are stored as float32.
    """
    after = (
        "E-TYPE",
        f"{op} is another product with weights: it needs whole rows of a result that the kernel computes tile by tile",
    )
    if not all(k.name == WEIGHTS or not reduces(k) for _, k in members):
        return after
    before = [product_of(graph, k) for _, k in members if k.name == WEIGHTS]
    last, here = before[-1] if before else None, product_of(graph, kind)
    source = next((k for outputs, k in members if here.left in outputs), None)
    if last is None or source is None or (last.rows, last.columns) != (here.rows, here.depth):
        return after
    rows = here.rows.constant
    if rows is None or not single or not all(p.plain for p in (*before, here)):
        return (
            "E-COST",
            f"{op} is another product with weights: one kernel for both is considered for static sizes only",
        )
    held = sum(c.bytes for c in graph.constants.values())
    if held <= target.l3_bytes * REUSABLE:
        return (
            "E-COST",
            f"the model's {held >> 10} KB of weights stay in the shared cache: one kernel for both saves nothing",
        )
    if rows < FEWEST:
        return ("E-COST", f"one kernel for both is parallel over rows, and {rows} rows would leave cores idle")
    between = 4 * rows * (here.depth.constant or 0)
    room = target.cores * target.l2_bytes * BLOCK[0] // BLOCK[1]
    if between > room:
        again = "all weights would be read again for each block of rows"
        return ("E-COST", f"{again}: the input of {op} has {between >> 10} KB, {room >> 10} KB fit")
    won = target.barrier_us + target.dispatch_us
    won += OVERLAP * 2 * between / (target.cores * target.l3_gbps * 1e3)
    weights = here.bytes + (last.bytes if len(before) == 1 else 0)
    lost = OVERLAP * weights * (1 - 1 / target.cores) / (target.l3_gbps * 1e3)
    if lost > won:
        why = f"every core would read {weights >> 10} KB of weights, which costs {lost:.0f} us and saves {won:.0f} us"
        return ("E-COST", why)
    return None


def reduces(kind: Kind) -> bool:
    """Whether a node combines elements."""
    return any(isinstance(n, Reduce) for d in kind.definitions for n in walk(d.value))
