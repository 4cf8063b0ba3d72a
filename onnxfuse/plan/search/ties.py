"""Transcendental functions whose values become integer codes: the runtime computes them.

Such a function saturates: many elements have one value, which decides the scale too, and with it that value lies in the
middle between two codes (1 of Tanh, by a scale of 2 / 255). There the last bit of it, in which two implementations
differ, moves the codes of all these elements. Values in front of it differ in their last bit as well, but not so many
of them lie on a tie.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.compose import walk
from onnxfuse.ir.functions import LIBM
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.scalar import Apply, Const, Reduce, Scalar
from onnxfuse.ops.spec import Definition
from onnxfuse.plan.kinds import ELEMENTWISE, MOVEMENT, Kind
from onnxfuse.plan.unlocks import TOLERANT

_TRANSCENDENTAL = frozenset(("exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", *LIBM))
_ROUNDS = ("snap", "round")
_EXTREMES = ("min", "max")
_CODING = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")  # their input 0


def coded_functions(graph: Graph, kinds: Mapping[int, Kind]) -> dict[int, Decision]:
    """Nodes by position that compute such functions, each with the reason why it stays with the runtime."""
    at = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
    pending = [v for i, n in enumerate(graph.nodes) for v in _rounded(n, kinds.get(i))]
    seen = set(pending)
    found: dict[int, Decision] = {}
    while pending:
        i = at.get(pending.pop(), -1)
        kind = kinds.get(i)
        if kind is None:
            continue
        n = graph.nodes[i]
        if any(_saturates(d.value) for d in kind.definitions):
            said = f"the values of {n.op} become integer codes, which its last bit would move"
            found[i] = Decision("E-NUMERICS", (n.name,), said, TOLERANT)
        elif _passes(graph, n, kind):
            more = [v for v in n.reads if v not in seen and v not in graph.constants]
            seen.update(more)
            pending += more
    return found


def _rounded(node: Node, kind: Kind | None) -> tuple[str, ...]:
    """What a node reads, where it rounds to integers."""
    if node.op.rpartition(".")[2] in _CODING:
        return node.reads[:1]
    rounds = kind is not None and any(_applies(d, _ROUNDS) for d in kind.definitions)
    return node.reads if rounds else ()


def _applies(d: Definition, names: tuple[str, ...]) -> bool:
    return any(isinstance(x, Apply) and x.fn in names for x in walk(d.value))


def _saturates(value: Scalar) -> bool:
    """Whether a value is a transcendental function of something, moved and scaled by constants at most."""
    while isinstance(value, Apply):
        if value.fn in _TRANSCENDENTAL:
            return True
        inner = [x for x in value.args if not isinstance(x, Const)]
        if len(inner) != 1:
            return False
        value = inner[0]
    return False


def _passes(graph: Graph, node: Node, kind: Kind) -> bool:
    """Whether a node only moves values, changes all of them by constants, or picks their extremes."""
    if kind.name == MOVEMENT:
        return True
    reduces = [x for d in kind.definitions for x in walk(d.value) if isinstance(x, Reduce)]
    if reduces:
        return all(x.combine in _EXTREMES for x in reduces)
    return kind.name == ELEMENTWISE and len([v for v in node.reads if v not in graph.constants]) == 1
