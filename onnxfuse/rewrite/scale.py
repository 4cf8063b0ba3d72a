"""A scalar factor folded into constants above it, through contractions, sums, products and data movement.

The scale of attention, `(q @ k) * s` or `q * s`, is folded into the weights of q, and costs nothing.
"""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.affine import scaled_weight
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.folding import load_of
from onnxfuse.rewrite.mutable_graph import SMALL, Miss, MutableGraph
from onnxfuse.rewrite.steps import StructuralRule

_DEEPEST = 24

Path = dict[str, tuple[int, ...]]  # per value on the way, the inputs of its producer that are scaled


def scale_into_weights(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A Mul or Div by a constant scalar is folded into constants that the value is computed from."""
    node = work.nodes[at]
    x, factor = _factor(work, node)
    path: Path = {}
    if not _reaches(work, x, path, _DEEPEST):
        raise Miss(f"no weights or constants above {x} can be scaled instead")
    draft = Draft(work, at)
    return draft.replace(node.outputs[0], _scaled(draft, x, factor, path))


def _factor(work: MutableGraph, node: Node) -> tuple[str, float]:
    x, c = node.inputs
    if node.op == "Mul" and x in work.constants:
        x, c = c, x
    value = work.number(c)
    if value is None or x in work.constants or not work.type(x).dtype.floating:
        raise Miss(f"{c} is not a uniform constant, or {x} is no floating-point variable")
    factor = value if node.op == "Mul" or value == 0 else 1.0 / value
    if not np.isfinite(factor) or not 1e-18 < abs(factor) < 1e18:
        raise Miss(f"the factor {value:g} is too large or too small to be folded")
    return x, factor


def _reaches(work: MutableGraph, v: str, path: Path, depth: int) -> bool:
    """Whether a factor of v can be folded into constants; `path` then has the inputs to scale."""
    if v in work.constants:
        taker = work.constants[v]
        return taker.dtype.floating and (taker.size <= SMALL or work.single_use(v))
    node = work.node(v)
    if node is None or depth == 0 or not work.single_use(v) or not node.standard:
        return False
    for takers in _takers(work, node):
        if all(_reaches(work, node.inputs[i], path, depth - 1) for i in takers):
            path[v] = takers
            return _fits(work, node, takers)
    return False


def _takers(work: MutableGraph, node: Node) -> tuple[tuple[int, ...], ...]:
    """Sets of inputs such that scaling all of a set scales the output, preferred first."""
    if node.op == "Div" or _moves_first(work, node):
        return ((0,),)
    if node.op in ("MatMul", "Mul"):
        return ((1,), (0,)) if node.inputs[1] in work.constants else ((0,), (1,))
    if node.op in ("Add", "Sub"):
        return ((0, 1),)
    if node.op in ("Conv", "Gemm"):
        return ((1, 2),) if len(node.inputs) > 2 and node.inputs[2] else ((1,),)
    return ()


def _moves_first(work: MutableGraph, node: Node) -> bool:
    """Whether a node only moves elements of its first input, without padding."""
    at = work.maker[node.outputs[0]]
    loads = [load_of(d) for d in work.definitions(at)] if work.moves(at) else []
    return len(loads) == 1 and loads[0] is not None and loads[0].source == node.inputs[0]


def _fits(work: MutableGraph, node: Node, takers: tuple[int, ...]) -> bool:
    if node.op not in ("Conv", "Gemm"):
        return True
    return all(node.inputs[i] in work.constants for i in takers)


def _scaled(draft: Draft, v: str, factor: float, path: Path) -> str:
    if v in draft.work.constants:
        return scaled_weight(draft, v, np.asarray(factor))
    node = draft.work.nodes[draft.work.maker[v]]
    inputs = list(node.inputs)
    for i in path[v]:
        inputs[i] = _scaled(draft, inputs[i], factor, path)
    return draft.node(node.op, inputs, node.attrs)


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "scale-into-weights",
        "f(w)*c => f(w*c)",
        "reassociates",
        scale_into_weights,
        frozenset({"Mul", "Div"}),
        ("scalar(c)", "constant(w)", "f consists of contractions, sums, products and movement", "only c reads f(w)"),
    ),
)
