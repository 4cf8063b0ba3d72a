"""Transcendental functions whose results are quantized stay with the runtime.

Such a function saturates: many elements have the same value, which also determines the scale, and so lies exactly
between two quantized values (1 for Tanh, with scale 2 / 255). There the last bit, in which two implementations differ,
decides the rounding of all these elements. Other values differ in the last bit, too, but few of them lie on a tie.
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
    """Refusals of nodes that compute such functions, by position."""
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
            said = f"the result of {n.op} is quantized, and its last bit would decide the rounding of saturated values"
            found[i] = Decision("E-NUMERICS", (n.name,), said, TOLERANT)
        elif _passes(graph, n, kind):
            more = [v for v in n.reads if v not in seen and v not in graph.constants]
            seen.update(more)
            pending += more
    return found


def _rounded(node: Node, kind: Kind | None) -> tuple[str, ...]:
    """The inputs of a node that rounds to integers; empty for others."""
    if node.op.rpartition(".")[2] in _CODING:
        return node.reads[:1]
    rounds = kind is not None and any(_applies(d, _ROUNDS) for d in kind.definitions)
    return node.reads if rounds else ()


def _applies(d: Definition, names: tuple[str, ...]) -> bool:
    return any(isinstance(x, Apply) and x.fn in names for x in walk(d.value))


def _saturates(value: Scalar) -> bool:
    """Whether a value is the result of a transcendental function, possibly moved and scaled by constants."""
    while isinstance(value, Apply):
        if value.fn in _TRANSCENDENTAL:
            return True
        inner = [x for x in value.args if not isinstance(x, Const)]
        if len(inner) != 1:
            return False
        value = inner[0]
    return False


def _passes(graph: Graph, node: Node, kind: Kind) -> bool:
    """Whether a node only moves values, applies constants to them, or takes their minimum or maximum."""
    if kind.name == MOVEMENT:
        return True
    reduces = [x for d in kind.definitions for x in walk(d.value) if isinstance(x, Reduce)]
    if reduces:
        return all(x.combine in _EXTREMES for x in reduces)
    return kind.name == ELEMENTWISE and len([v for v in node.reads if v not in graph.constants]) == 1
