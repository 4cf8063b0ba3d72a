"""Execution slots of expressions, which do not depend on the machine."""

from __future__ import annotations

from functools import lru_cache

from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import Div, Index, Loaded, Mod, atoms
from onnxfuse.ir.scalar import Apply, FromIndex, Load, Scalar, by_identity, children


@by_identity
def work_of(x: Scalar) -> tuple[float, tuple[Load | FromIndex, ...]]:
    """Slots of the functions and indices of an expression, and what it reads or has guards for, each part once."""
    ops = 0.0
    reads: list[Load | FromIndex] = []
    seen: set[int] = set()
    waiting: list[Scalar] = [x]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        waiting.extend(children(node))
        if isinstance(node, Apply):
            ops += _cost(node) * max(1, node.dtype.bytes // 4)
        elif isinstance(node, FromIndex):
            ops += 1 + index_work(node.index)
            reads.append(node)
        elif isinstance(node, Load) and node.index:
            reads.append(node)
    return ops, tuple(reads)


def _cost(x: Apply) -> float:
    """Slots of a function; a product that is added costs nothing of its own."""
    adds = x.fn in ("add", "sub") and any(isinstance(a, Apply) and a.fn == "mul" for a in x.args)
    return 0.0 if adds else FUNCTIONS[x.fn].cost


@lru_cache(1 << 14)
def index_work(e: Index) -> float:
    """Slots of computing an index."""
    return 1.0 + 4.0 * sum(isinstance(a, (Div, Mod)) for a in atoms(e))


@lru_cache(1 << 14)
def loaded_in(e: Index) -> tuple[Loaded, ...]:
    """The integers that an index is made of and that are loaded."""
    return tuple(a for a in atoms(e) if isinstance(a, Loaded))
