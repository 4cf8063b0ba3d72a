"""Removal of masks that are always true, and of Expands before operators that broadcast.

`And(true, m)` and `Expand(m)` broadcast m to a larger shape. Where the readers broadcast m themselves, they read m
instead; elementwise operators in between are rebuilt for the smaller shape, down to those whose result has the same
shape as before.
"""

from __future__ import annotations

from heapq import heappop, heappush

from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.operators import functions
from onnxfuse.rewrite.proofs.positions import always_true
from onnxfuse.rewrite.steps import StructuralRule

_FURTHEST = 256  # most nodes that are rebuilt


def and_true(work: MutableGraph, at: int, trust: bool) -> Draft:
    """And with an operand that is true everywhere is replaced by the other one."""
    node = work.nodes[at]
    for known, other in (node.inputs, node.inputs[::-1]):
        if always_true(work, known):
            return _smaller(Draft(work, at), node.outputs[0], other)
    raise Miss(f"no operand of {node.name or node.op} is proven to be true everywhere")


def expand_before_broadcast(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Expand is replaced by its input, which readers broadcast."""
    node = work.nodes[at]
    return _smaller(Draft(work, at), node.outputs[0], node.inputs[0])


def _smaller(draft: Draft, old: str, new: str) -> Draft:
    """Let readers of `old` read `new`, which broadcasts to it, and rebuild nodes whose shape changes. Raises Miss."""
    work = draft.work
    values = {old: new}
    queue = [(work.place[draft.root], draft.root)]
    seen: set[int] = set()
    while queue:
        at = heappop(queue)[1]
        if at in seen:
            continue
        seen.add(at)
        result = work.nodes[at].outputs[0]
        value = new if at == draft.root else _again(draft, work.nodes[at], values)
        if draft.type(value) == work.type(result):
            draft.replace(result, value)
            continue
        if result in work.pinned or len(seen) > _FURTHEST:
            raise Miss(f"the shape of {result} must not change, or too many nodes would be rebuilt")
        values[result] = value
        for reader in work.users.get(result, ()):
            heappush(queue, (work.place[reader], reader))
    return draft


def _again(draft: Draft, node: Node, values: dict[str, str]) -> str:
    if not node.standard or node.op not in {*functions(), "Where", "Cast"}:
        raise NoMatch(f"{node.op} is not elementwise")
    return draft.node(node.op, [values.get(i, i) for i in node.inputs], node.attrs)


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule("and-true", "And(true, m) => m", "exact", and_true, frozenset({"And"}), ("true is proven",)),
    StructuralRule(
        "expand-before-broadcast",
        "f(Expand(m), x) => f(m, x)",
        "exact",
        expand_before_broadcast,
        frozenset({"Expand"}),
        ("x is not broadcast",),
    ),
)
