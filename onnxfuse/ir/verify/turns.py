"""Whether buffers that lie at the same place are used one after the other, with a barrier between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from onnxfuse.ir.kernel import Loop, Stmt, When, statements
from onnxfuse.ir.launch import Sync
from onnxfuse.ir.verify.order import touched


def in_turns(body: Sequence[Stmt], one: str, other: str) -> bool:
    """Whether all uses of one buffer come before a barrier of the block, and those of the other behind it.

    Another barrier is behind these, for loops around.
    """
    uses = [{one, other} & {name for x in statements((s,)) for name in touched(x)} for s in body]
    used = [n for n, names in enumerate(uses) if names]
    if len(used) == 1 and len(uses[used[0]]) == 2:
        inner = body[used[0]]
        return isinstance(inner, (Loop, When)) and in_turns(inner.body, one, other)
    if any(len(names) == 2 for names in uses) or not used:
        return not used
    barriers = [n for n, s in enumerate(body) if s == Sync("block") or s == Sync("block", units=True)]
    changes = [(a, b) for a, b in pairwise(used) if uses[a] != uses[b]]
    between = all(any(a < n < b for n in barriers) for a, b in changes)
    return len(changes) <= 1 and between and any(n > used[-1] for n in barriers)
