"""Patterns that ONNX Runtime fuses itself, if they have the form in which exporters write them.

Algebraic rules do not change such patterns. Without the library, and for nodes that stay with the runtime, its fusion
is worth more than a multiplication saved; generated kernels compute the same either way.
"""

from __future__ import annotations

from onnxfuse.rewrite.mutable_graph import MutableGraph
from onnxfuse.rewrite.pattern import Expr, OpPattern, expression, walk
from onnxfuse.rewrite.steps import Binding, match_node

IDIOMS: tuple[tuple[str, Expr], ...] = (
    ("Gelu", expression("(x * (Erf(x / c) + 1)) * 0.5")),
    ("Gelu", expression("(x * 0.5) * (Erf(x / c) + 1)")),
    ("Gelu", expression("x * ((Erf(x / c) + 1) * 0.5)")),
    ("LayerNormalization", expression("(d / Sqrt(ReduceMean(d ** 2, **k) + e)) * g + b")),
)

_OPS = frozenset(c.op for _, e in IDIOMS for c in walk(e) if isinstance(c, OpPattern))
_TALLEST = 6  # nodes between a node of a pattern and its root


def idiom_of(work: MutableGraph, at: int) -> str:
    """The operator as which the runtime fuses a pattern that contains the node; "" for none."""
    level = [at]
    for _ in range(_TALLEST):
        for root in level:
            for name, e in IDIOMS:
                if any(at in b.nodes for b in match_node(work, e, root, Binding())):
                    return name
        users = [k for root in level for o in work.nodes[root].outputs for k in work.users.get(o, ())]
        level = [k for k in dict.fromkeys(users) if work.nodes[k].op in _OPS][:8]
    return ""


def may_belong(work: MutableGraph, at: int) -> bool:
    """Whether a node's operator occurs in one of the patterns."""
    return work.nodes[at].op in _OPS
