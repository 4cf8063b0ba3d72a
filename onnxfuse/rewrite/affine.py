"""Constant affine maps folded into the weights and the bias of the contraction before or after them.

`out = x*s + t` with constant s and t covers BatchNormalization, Mul, Div, Add, Sub and Neg. After a contraction it
scales output channels: W' = W*s, b' = b*s + t. Before one it scales input channels: W' = W*s, b' = b + W t, the latter
only where no padding is read. Scales and biases are computed in double precision; weights are scaled when they are
loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.compose import walk
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Constant, Node
from onnxfuse.ir.scalar import Load
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import SMALL, Array, Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.steps import StructuralRule

# (operator, whether the constant c is its first input) to scale and shift of the variable input.
_OF_A_CONSTANT: dict[tuple[str, bool], Callable[[Array], tuple[Array, Array]]] = {
    ("Add", True): lambda c: (np.ones(()), c),
    ("Add", False): lambda c: (np.ones(()), c),
    ("Sub", True): lambda c: (-np.ones(()), c),
    ("Sub", False): lambda c: (np.ones(()), -c),
    ("Mul", True): lambda c: (c, np.zeros(())),
    ("Mul", False): lambda c: (c, np.zeros(())),
    ("Div", False): lambda c: (1.0 / c, np.zeros(())),
}
AFFINE = frozenset({op for op, _ in _OF_A_CONSTANT} | {"Neg", "BatchNormalization"})


@dataclass(frozen=True, slots=True)
class Affine:
    """x*scale + shift; both broadcast to x from the right. `sources` are the constants it is made of."""

    x: str
    scale: Array
    shift: Array
    sources: tuple[str, ...]


def affine_of(work: MutableGraph, node: Node) -> Affine:
    """A node as an affine map of its only variable input. Raises Miss."""
    if node.op not in AFFINE or not node.standard:
        raise NoMatch(f"{node.op} is not an affine map")
    if not work.type(node.outputs[0]).dtype.floating:
        raise Miss(f"{node.outputs[0]} is not a floating-point tensor")
    if node.op == "Neg":
        return Affine(node.inputs[0], -np.ones(()), np.zeros(()), ())
    if node.op == "BatchNormalization":
        return _normalization(work, node)
    fixed = [i for i in node.inputs if i in work.constants]
    if len(fixed) != 1:
        raise Miss(f"{node.op} does not have exactly one constant operand")
    first = node.inputs[0] == fixed[0]
    x, c = node.inputs[1 if first else 0], work.array(fixed[0]).astype(np.float64)
    formula = _OF_A_CONSTANT.get((node.op, first))
    if formula is None:
        raise Miss("a constant divided by a variable is not an affine map")
    with np.errstate(all="ignore"):
        return _checked(Affine(x, *formula(c), (fixed[0],)))


def _normalization(work: MutableGraph, node: Node) -> Affine:
    work.definitions(work.maker[node.outputs[0]])  # raises Miss for statistics per element
    if any(node.outputs[1:]):
        raise Miss("statistics are those of the values themselves")
    rank = len(work.type(node.inputs[0]).shape)
    epsilon = work.view(node).attr("epsilon", 1e-5)
    gamma, beta, mean, variance = (work.array(i).astype(np.float64) for i in node.inputs[1:5])
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
        shift = beta - mean * scale
    channels = (-1, *(1,) * (rank - 2))
    return _checked(Affine(node.inputs[0], scale.reshape(channels), shift.reshape(channels), node.inputs[1:5]))


def _checked(a: Affine) -> Affine:
    if not np.isfinite(a.scale).all() or not np.isfinite(a.shift).all():
        raise Miss("the scale or shift has infinite or NaN elements")
    return a


def along(array: Array, rank: int, axis: int, extent: int) -> Array:
    """A constant that broadcasts to `rank` axes, as a vector over `axis`. Raises Miss where it varies along others."""
    full = array.reshape((1,) * (rank - array.ndim) + array.shape) if array.ndim <= rank else array
    if full.ndim != rank or any(n != 1 for i, n in enumerate(full.shape) if i != axis):
        raise Miss("the constant varies along another axis than that of the channels")
    return np.broadcast_to(full.reshape(-1), (extent,))


def weight_of(work: MutableGraph, node: Node) -> Constant:
    """The constant weight of a contraction (input 1)."""
    found = work.constants.get(node.inputs[1])
    if found is None or not found.dtype.floating or len(found.shape) < 2:
        raise Miss(f"the weight of {node.op} is not a constant matrix")
    return found


def unshared(work: MutableGraph, name: str) -> None:
    """Raise Miss for a large constant with other readers: a changed copy of it would take memory twice."""
    if work.constants[name].size > SMALL and not work.single_use(name):
        raise Miss(f"the constant {name} is large and has other readers")


def scaled_weight(draft: Draft, name: str, scale: Array) -> str:
    """The weight `name` times a scale that broadcasts to it; unchanged when the scale is 1. Raises Miss."""
    weight = draft.work.constants[name]
    if (scale == 1).all():
        return name
    unshared(draft.work, name)
    digest = np.ascontiguousarray(scale).tobytes().hex()
    load = scaled(weight, scale)
    if weight.dtype.bits < 32 and not np.isfinite(load()).all():
        raise Miss(f"the scaled weight {name} overflows {weight.dtype}")
    return draft.lazily(weight.dtype, weight.shape, load, "scaled", name, digest)


def scaled(weight: Constant, scale: Array) -> Callable[[], Array]:
    """A load of weight * scale, rounded once; products in double precision are never there as a whole."""

    def load() -> Array:
        out = np.empty(weight.shape, weight.dtype.numpy)
        with np.errstate(over="ignore"):
            np.multiply(weight.load(), scale, out=out, dtype=np.float64, casting="unsafe")
        return out

    return load


# After a contraction --------------------------------------------------------------------------------------------------


def affine_after(work: MutableGraph, at: int, trust: bool) -> Draft:
    """An affine map of a contraction's channels moves into its weight and bias."""
    a = affine_of(work, work.nodes[at])
    head = work.made_by(a.x, *_BEFORE, "Add", "Sub")
    if not work.single_use(a.x):
        raise Miss(f"{a.x} has other readers")
    draft = Draft(work, at)
    if head.op == "MatMul" and (a.scale == 1).all():
        raise Miss("a MatMul has no bias input: adding a constant to it stays an Add")
    build = {"Conv": _conv_after, "Gemm": _gemm_after}.get(head.op, _matmul_after)
    return draft.replace(work.nodes[at].outputs[0], build(draft, head, a))


def _vectors(work: MutableGraph, a: Affine, axis: int, channels: int) -> tuple[Array, Array]:
    rank = len(work.type(a.x).shape)
    return along(a.scale, rank, axis % rank, channels), along(a.shift, rank, axis % rank, channels)


def bias_of(draft: Draft, node: Node, at: int, channels: int) -> Array:
    """The constant bias of a node as a vector, 0 where there is none."""
    if len(node.inputs) <= at or not node.inputs[at]:
        return np.zeros(channels)
    return np.broadcast_to(draft.work.array(node.inputs[at]).astype(np.float64), (channels,))


def _conv_after(draft: Draft, conv: Node, a: Affine) -> str:
    weight = weight_of(draft.work, conv)
    channels = weight.shape[0]
    scale, shift = _vectors(draft.work, a, 1, channels)
    bias = bias_of(draft, conv, 2, channels) * scale + shift
    w = scaled_weight(draft, conv.inputs[1], scale.reshape(-1, *(1,) * (len(weight.shape) - 1)))
    return draft.node("Conv", (conv.inputs[0], w, _vector(draft, bias, weight.dtype, conv, a)), conv.attrs)


def _vector(draft: Draft, bias: Array, dtype: DType, node: Node, a: Affine) -> str:
    return draft.array(bias, dtype, "bias", node.inputs[1], *(a.sources or (a.x,)))


def _gemm_after(draft: Draft, gemm: Node, a: Affine) -> str:
    weight = weight_of(draft.work, gemm)
    by_row = bool(gemm.attrs.get("transB", 0))
    channels = weight.shape[0 if by_row else 1]
    scale, shift = _vectors(draft.work, a, 1, channels)
    bias = np.zeros(())
    if len(gemm.inputs) > 2 and gemm.inputs[2]:
        bias = draft.work.array(gemm.inputs[2]).astype(np.float64) * draft.work.view(gemm).attr("beta", 1.0)
    w = scaled_weight(draft, gemm.inputs[1], scale[:, None] if by_row else scale)
    c = _vector(draft, bias * scale + shift, weight.dtype, gemm, a)
    return draft.node("Gemm", (gemm.inputs[0], w, c), {**gemm.attrs, "beta": 1.0})


def _matmul_after(draft: Draft, head: Node, a: Affine) -> str:
    """(x @ w + b)*s + t = x @ (w*s) + (b*s + t), with or without b."""
    bias, product = np.zeros(()), a.x
    if head.op in ("Add", "Sub"):
        inner = affine_of(draft.work, head)
        if (inner.scale != 1).any():
            raise Miss("the product is subtracted from a constant")
        bias, product = inner.shift, inner.x
    matmul = draft.work.made_by(product, "MatMul")
    if not draft.work.single_use(product):
        raise Miss(f"{product} has other readers")
    weight = weight_of(draft.work, matmul)
    scale, shift = _vectors(draft.work, a, -1, weight.shape[-1])
    w = scaled_weight(draft, matmul.inputs[1], scale)
    y = draft.node("MatMul", (matmul.inputs[0], w))
    total = bias * scale + shift
    if not total.any():
        return y
    return draft.node("Add", (y, _vector(draft, total, weight.dtype, matmul, a)))


# Before a contraction -------------------------------------------------------------------------------------------------


def affine_before(work: MutableGraph, at: int, trust: bool) -> Draft:
    """An affine map of a contraction's input channels moves into its weight and bias."""
    node = work.nodes[at]
    above = work.node(node.inputs[0])
    if above is None or not work.single_use(node.inputs[0]):
        raise Miss(f"{node.inputs[0]} is a graph input, or has other readers")
    a, weight, draft = affine_of(work, above), weight_of(work, node), Draft(work, at)
    return draft.replace(node.outputs[0], _BEFORE[node.op](draft, node, a, weight))


def _conv_before(draft: Draft, conv: Node, a: Affine, weight: Constant) -> str:
    work, rank = draft.work, len(weight.shape)
    extent = work.type(conv.inputs[0]).shape[1].constant
    if extent is None:
        raise Miss("the number of channels is symbolic")
    scale, shift = along(a.scale, rank, 1, extent), along(a.shift, rank, 1, extent)
    groups = work.view(conv).attr("group", 1)
    # output channel o reads input channels of its group alone
    per_output = np.repeat(np.arange(groups), weight.shape[0] // groups)
    by_channel = (weight.shape[0], weight.shape[1], *(1,) * (rank - 2))
    bias = bias_of(draft, conv, 2, weight.shape[0])
    if shift.any():
        (meaning,) = work.definitions(work.maker[conv.outputs[0]])
        if any(isinstance(x, Load) and x.guards for x in walk(meaning.value)):
            raise Miss("the Conv is padded: a shift before it would not apply to the zeros of the padding")
        moved = shift.reshape(groups, -1)[per_output].reshape(by_channel)
        bias = bias + (weight.load() * moved).sum(tuple(range(1, rank)), dtype=np.float64)
    w = scaled_weight(draft, conv.inputs[1], scale.reshape(groups, -1)[per_output].reshape(by_channel))
    return draft.node("Conv", (a.x, w, _vector(draft, bias, weight.dtype, conv, a)), conv.attrs)


def _gemm_before(draft: Draft, gemm: Node, a: Affine, weight: Constant) -> str:
    by_row, axis = bool(gemm.attrs.get("transB", 0)), 0 if gemm.attrs.get("transA", 0) else 1
    depth = weight.shape[1 if by_row else 0]
    scale, shift = along(a.scale, 2, axis, depth), along(a.shift, 2, axis, depth)
    w = scaled_weight(draft, gemm.inputs[1], scale if by_row else scale[:, None])
    if not shift.any():
        return draft.node("Gemm", (a.x, w, *gemm.inputs[2:]), gemm.attrs)
    view = draft.work.view(gemm)
    alpha, beta = view.attr("alpha", 1.0), view.attr("beta", 1.0)
    matrix = weight.load().astype(np.float64)
    c = (matrix @ shift if by_row else shift @ matrix) * alpha
    if len(gemm.inputs) > 2 and gemm.inputs[2]:
        c = draft.work.array(gemm.inputs[2]).astype(np.float64) * beta + c
    return draft.node("Gemm", (a.x, w, _vector(draft, c, weight.dtype, gemm, a)), {**gemm.attrs, "beta": 1.0})


def _matmul_before(draft: Draft, matmul: Node, a: Affine, weight: Constant) -> str:
    rank, depth = len(draft.work.type(a.x).shape), weight.shape[-2]
    scale, shift = along(a.scale, rank, rank - 1, depth), along(a.shift, rank, rank - 1, depth)
    y = draft.node("MatMul", (a.x, scaled_weight(draft, matmul.inputs[1], scale[:, None])))
    if not shift.any():
        return y
    moved = shift @ weight.load().astype(np.float64)
    if moved.ndim > 1:
        moved = moved[..., None, :]
    return draft.node("Add", (y, _vector(draft, moved, weight.dtype, matmul, a)))


# The builders of contractions with an affine map of their input folded into weight and bias.
_BEFORE: dict[str, Callable[[Draft, Node, Affine, Constant], str]] = {
    "Conv": _conv_before,
    "Gemm": _gemm_before,
    "MatMul": _matmul_before,
}

STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "affine-after",
        "contraction(x, w, b)*s + t => contraction(x, w*s, b*s + t)",
        "reassociates",
        affine_after,
        AFFINE,
        ("constant(w)", "constant(b)", "constant(s)", "constant(t)", "s and t are scalars or vary by output channel"),
    ),
    StructuralRule(
        "affine-before",
        "contraction(x*s + t, w, b) => contraction(x, s*w, b + t@w)",
        "reassociates",
        affine_before,
        frozenset(_BEFORE),
        ("constant(w)", "constant(b)", "constant(s)", "constant(t)", "t is 0 before a padded Conv"),
    ),
)
