"""Masks that are true everywhere are dropped, and operands that an operator broadcasts anyway are not expanded.

`And(true, m)` is m broadcast to a larger shape, and so is `Expand(m)`. Nothing needs the larger shape where the readers
broadcast m anyway: so m takes the place, and the elementwise operators on the way are made again for its shape, up to
those whose result has the same shape as before.
"""

from __future__ import annotations

from heapq import heappop, heappush

from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.operators import functions
from onnxfuse.rewrite.proofs.positions import always_true
from onnxfuse.rewrite.steps import Step
from onnxfuse.rewrite.work import Miss, Work

_FURTHEST = 256  # nodes that are made again


def true_operand(work: Work, at: int, trust: bool) -> Draft:
    """And with an operand that holds everywhere gives way to the other one."""
    node = work.nodes[at]
    for known, other in (node.inputs, node.inputs[::-1]):
        if always_true(work, known):
            return _smaller(Draft(work, at), node.outputs[0], other)
    raise Miss(f"no operand of {node.name or node.op} is known to hold everywhere")


def expanded(work: Work, at: int, trust: bool) -> Draft:
    """Expand gives way to what it expands."""
    node = work.nodes[at]
    return _smaller(Draft(work, at), node.outputs[0], node.inputs[0])


def _smaller(draft: Draft, old: str, new: str) -> Draft:
    """Let the readers of `old` read `new`, of which it is a broadcast, and make again what has another shape then."""
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
            raise Miss(f"{result} must keep its shape")
        values[result] = value
        for reader in work.users.get(result, ()):
            heappush(queue, (work.place[reader], reader))
    return draft


def _again(draft: Draft, node: Node, values: dict[str, str]) -> str:
    if not node.standard or node.op not in {*functions(), "Where", "Cast"}:
        raise Miss(f"{node.op} is not elementwise")
    return draft.node(node.op, [values.get(i, i) for i in node.inputs], node.attrs)


STEPS: tuple[Step, ...] = (
    Step("true-operand", "And(true, m) => m", "exact", true_operand, frozenset({"And"}), ("true holds everywhere",)),
    Step("expanded", "f(Expand(m), x) => f(m, x)", "exact", expanded, frozenset({"Expand"}), ("x has the shape",)),
)
