"""Linear maps reordered or composed so that they take fewer multiplications.

A pointwise (1x1) convolution acts on channels only; Resize and AveragePool act on spatial positions only, with weights
that sum to 1. So they commute, and the cheaper order is chosen. A pointwise convolution of a Concat is the sum of
convolutions of its operands, each of which is moved by itself. Two successive linear maps over channels are one map,
whose matrix is the product of both, computed in double precision when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Constant, Node
from onnxfuse.ir.index import Index
from onnxfuse.ops.resampling.resize import stretches
from onnxfuse.rewrite.affine import affine_after, along, unshared
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.folding import load_of, permutation
from onnxfuse.rewrite.measure import Measure, elements
from onnxfuse.rewrite.movement import reshaped, whole_axis
from onnxfuse.rewrite.mutable_graph import Array, Miss, MutableGraph
from onnxfuse.rewrite.steps import StructuralRule

CHANNELS = 1  # the axis of a convolution
_LINEAR = ("MatMul", "Conv")


def matrix_of(work: MutableGraph, node: Node) -> Constant:
    """The constant float32 weight of a linear map, not batched. Raises Miss."""
    found = work.constants.get(node.inputs[1])
    if found is None or found.dtype != F32 or len(found.shape) < 2 or (node.op == "MatMul" and len(found.shape) > 2):
        raise Miss(f"{node.inputs[1]} is not a constant float32 matrix (or is batched)")
    return found


def pointwise(work: MutableGraph, conv: Node) -> Constant:
    """The weight of a pointwise convolution (kernel 1x1, stride 1, no padding, one group). Raises Miss."""
    weight, view, rank = matrix_of(work, conv), work.view(conv), len(work.type(conv.inputs[0]).shape)
    ones, zeros = (1,) * (rank - 2), (0,) * (2 * rank - 4)
    stays = view.attr("strides", ones) == ones and view.attr("pads", zeros) == zeros and view.attr("group", 1) == 1
    if weight.shape[2:] != ones or not stays:
        raise Miss(f"{conv.op} is not pointwise (1x1, stride 1, no padding, one group)")
    return weight


def sole(work: MutableGraph, value: str, *ops: str) -> Node:
    """The producer of a value with a single reader, if it is one of these operators. Raises Miss."""
    if not work.single_use(value):
        raise Miss(f"{value} has other readers")
    return work.made_by(value, *ops)


def _bias(conv: Node) -> tuple[str, ...]:
    return tuple(i for i in conv.inputs[2:3] if i)


# Positions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConcatOperand:
    """An operand of a Concat along channels: value, range of channels in the result, and the Resize that makes it."""

    value: str
    begin: int
    end: int
    resize: Node | None


def conv_before_resize(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A pointwise convolution moves before the Resize of its input, or of operands of a Concat."""
    conv = work.nodes[at]
    weight, bias, draft = pointwise(work, conv), _bias(conv), Draft(work, at)
    parts = _parts(work, conv.inputs[0])
    plain = [p for p in parts if p.resize is None]
    if len(plain) == len(parts):
        raise Miss(f"{conv.inputs[0]} is not made by an upsampling Resize")
    if _takes_reader(work, conv):
        raise Miss("the affine map behind the Conv is folded into it first")
    terms: list[str] = []
    if plain:
        values = [p.value for p in plain]
        x = draft.node("Concat", values, {"axis": CHANNELS}) if len(plain) > 1 else values[0]
        terms.append(draft.node("Conv", (x, _columns(draft, conv, weight, plain), *bias), conv.attrs))
    for p in parts:
        if p.resize is not None:
            inputs = (p.resize.inputs[0], _columns(draft, conv, weight, [p]), *(() if terms else bias))
            y = draft.node("Conv", inputs, conv.attrs)
            terms.append(draft.node(p.resize.op, (y, *_targets(draft, p.resize, weight.shape[0])), p.resize.attrs))
    if len({draft.type(term).shape for term in terms}) > 1:
        raise Miss("the operands of the Concat have different spatial sizes, which Add would broadcast")
    total = terms[0]
    for term in terms[1:]:
        total = draft.node("Add", (total, term))
    return draft.replace(conv.outputs[0], total)


def _takes_reader(work: MutableGraph, conv: Node) -> bool:
    """Whether an affine map follows that can be folded into the convolution, but not into a sum of convolutions."""
    readers = work.users.get(conv.outputs[0], {})
    try:
        return len(readers) == 1 and affine_after(work, next(iter(readers)), False).settled().gain() > Measure()
    except Miss:
        return False


def _parts(work: MutableGraph, value: str) -> list[ConcatOperand]:
    """The operands of a Concat along channels, or the value itself, with the Resize of each. Raises Miss."""
    whole = work.node(value)
    values: Sequence[str] = (value,)
    if whole is not None and whole.key == "Concat" and work.single_use(value):
        if work.view(whole).attr("axis", CHANNELS) % len(work.type(value).shape) != CHANNELS:
            raise Miss("the Concat is not along the channels")
        values = whole.inputs
    parts: list[ConcatOperand] = []
    begin = 0
    for v in values:
        channels = work.type(v).shape[CHANNELS].constant
        if channels is None or v in work.constants:
            raise Miss(f"{v} is a constant, or its number of channels is symbolic")
        parts.append(ConcatOperand(v, begin, begin + channels, _resize(work, v)))
        begin += channels
    return parts


def _resize(work: MutableGraph, value: str) -> Node | None:
    """The Resize that makes a value, if it upsamples spatial axes only and the value has one reader; or None."""
    node = work.node(value)
    if node is None or node.key not in ("Resize", "Upsample") or not work.single_use(value):
        return None
    try:
        work.definitions(work.maker[value])  # raises Miss for scales that are unknown
    except Miss:
        return None
    axes = stretches(work.view(node))
    crops = work.view(node).attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    known = all(s.scale is not None for s in axes)
    alone = known and all(s.idle for s in axes[: CHANNELS + 1]) and not crops and node.inputs[0] not in work.constants
    return node if alone and elements(s.extent for s in axes) > elements(s.have for s in axes) else None


def _targets(draft: Draft, resize: Node, channels: int) -> tuple[str, ...]:
    """Inputs 1.. of a Resize for a number of channels; computed sizes are replaced by equal scales."""
    work, inputs = draft.work, resize.inputs[1:]
    rank = len(work.type(resize.outputs[0]).shape)
    named = [a % rank for a in work.view(resize).attr("axes", range(rank))]
    sizes = work.known.get(inputs[2], ()) if len(inputs) > 2 else ()
    if not sizes:
        return inputs
    numbers = [channels if a == CHANNELS else e.constant for a, e in zip(named, sizes, strict=True)]
    whole = [n for n in numbers if n is not None]
    if len(whole) == len(numbers):
        return (*inputs[:2], draft.ints(whole))
    axes = stretches(work.view(resize))
    return inputs[0], draft.array(np.asarray([axes[a].ratio for a in named]), F32, "scales", resize.outputs[0])


def _columns(draft: Draft, conv: Node, weight: Constant, parts: Sequence[ConcatOperand]) -> str:
    """The name of the weight restricted to the input channels of some parts. Raises Miss."""
    spans = [(p.begin, p.end) for p in parts]
    if spans == [(0, weight.shape[1])]:
        return conv.inputs[1]
    unshared(draft.work, conv.inputs[1])
    shape = (weight.shape[0], sum(end - begin for begin, end in spans), *weight.shape[2:])
    tag = "columns" + "".join(f".{begin}.{end}" for begin, end in spans)

    def load() -> Array:
        whole = weight.load()
        return np.concatenate([whole[:, begin:end] for begin, end in spans], 1)

    return draft.lazily(weight.dtype, shape, load, tag, conv.inputs[1])


def pool_before_conv(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Average pooling of a pointwise convolution becomes a pointwise convolution of the pooled input."""
    pool = work.nodes[at]
    conv = sole(work, pool.inputs[0], "Conv")
    pointwise(work, conv)
    view = work.view(pool)
    padded = any(view.attr("pads", (0,))) or view.attr("ceil_mode", 0) or view.attr("auto_pad", "NOTSET") != "NOTSET"
    if _bias(conv) and padded and view.attr("count_include_pad", 0):
        raise Miss("the pooling averages over padding, where the bias is missing")
    draft = Draft(work, at)
    mean = draft.node(pool.op, (conv.inputs[0],), pool.attrs)
    return draft.replace(pool.outputs[0], draft.node("Conv", (mean, *conv.inputs[1:]), conv.attrs))


# Channels -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """A linear map over channels: its node, a constant added to its result, and the data movements behind it in order.

    Each movement has the axis of the channels in its output.
    """

    node: Node
    weight: Constant
    bias: str
    moves: tuple[tuple[Node, int], ...]

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return self.weight.shape[0 if self.node.op == "Conv" else -1]


def linear_of_linear(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Two successive linear maps over channels become one."""
    node = work.nodes[at]
    weight = pointwise(work, node) if node.op == "Conv" else matrix_of(work, node)
    head = _head(work, node.inputs[0], _axis(work, node, node.inputs[0]))
    rows = weight.shape[0 if node.op == "Conv" else 1]
    for name in (head.node.inputs[1], node.inputs[1]):
        unshared(work, name)

    def matrix() -> Array:
        """In double precision, (rows, channels of the head)."""
        held = weight.load().astype(np.float64)
        return held.reshape(held.shape[:2]) if node.op == "Conv" else held.T

    draft = Draft(work, at)
    y = _composed(draft, head, node, rows, matrix)
    for move, axis in head.moves:
        y = _moved(draft, move, axis, y, rows)
    return draft.replace(node.outputs[0], y)


def _axis(work: MutableGraph, node: Node, value: str) -> int:
    """The axis of the channels in an input or output of a linear map."""
    return CHANNELS if node.op == "Conv" else len(work.type(value).shape) - 1


def _head(work: MutableGraph, value: str, axis: int) -> Head:
    """The linear map whose output channels a value has at an axis. Raises Miss."""
    moves: list[tuple[Node, int]] = []
    while (before := _axis_before(work, value, axis)) is not None:
        node = work.nodes[work.maker[value]]
        moves.insert(0, (node, axis))
        value, axis = node.inputs[0], before
    node = sole(work, value, "Add", *_LINEAR)
    bias = ""
    if node.op == "Add":
        x, bias = sorted(node.inputs, key=lambda i: i in work.constants)
        if bias not in work.constants or work.type(x) != work.type(node.outputs[0]):
            raise Miss(f"{node.op} does not add a constant that broadcasts to the product")
        node = sole(work, x, *_LINEAR)
    weight = matrix_of(work, node)
    if node.inputs[0] in work.constants:
        raise Miss(f"{node.outputs[0]} is a constant")
    if node.op == "Conv" and work.view(node).attr("group", 1) != 1:
        raise Miss("the convolution is grouped")
    if axis != _axis(work, node, node.outputs[0]):
        raise Miss("the two linear maps contract different axes")
    return Head(node, weight, bias, tuple(moves))


def _axis_before(work: MutableGraph, value: str, axis: int) -> int | None:
    """The input axis that a data movement maps to `axis` of its output; None if the producer is no data movement.

    Raises Miss where the value has other readers, or the axis is merged or split by the movement.
    """
    at = work.maker.get(value)
    if at is None or not work.moves(at):
        return None
    move = sole(work, value, work.nodes[at].op)
    perm = _permutation(work, at)
    if perm is not None:
        return perm[axis]
    if not work.is_view(at):
        raise Miss(f"{move.op} is neither a transposition nor a reshape")
    return whole_axis(work.type(move.inputs[0]).shape, work.type(value).shape, axis)


def _permutation(work: MutableGraph, at: int) -> tuple[int, ...] | None:
    """The permutation of axes that a node applies; None if it is no transposition."""
    d = work.definitions(at)[-1]
    load = load_of(d)
    return None if load is None else permutation(load.index, work.type(load.source).shape, d)


def _moved(draft: Draft, move: Node, axis: int, y: str, rows: int) -> str:
    """The same movement of a value with another number of channels, `rows`, at `axis` of the output."""
    want = list(draft.work.type(move.outputs[0]).shape)
    perm = _permutation(draft.work, draft.work.maker[move.outputs[0]])
    if perm is not None:
        return draft.node("Transpose", (y,), {"perm": perm})
    if want[axis].constant == rows:
        return draft.node(move.op, (y, *move.inputs[1:]), move.attrs)
    want[axis] = Index.of(rows)
    return reshaped(draft, y, tuple(want))


def _composed(draft: Draft, head: Head, node: Node, rows: int, matrix: Callable[[], Array]) -> str:
    """The composition of two linear maps: product of the weights, and a bias made of both."""
    conv, weight = head.node.op == "Conv", head.weight
    shape = (rows, *weight.shape[1:]) if conv else (weight.shape[0], rows)

    def load() -> Array:
        with np.errstate(all="ignore"):
            whole = np.tensordot(matrix(), weight.load(), 1) if conv else weight.load() @ matrix().T
            return np.asarray(whole).astype(F32.numpy)

    sources = (head.node.inputs[1], node.inputs[1])
    inputs = [head.node.inputs[0], draft.lazily(F32, shape, load, "composed", *sources)]
    shift = _shift(draft.work, head, node, matrix)
    if not shift.any():
        return draft.node(head.node.op, inputs, head.node.attrs)
    bias = draft.array(np.broadcast_to(shift, (rows,)), F32, "bias", *sources)
    if conv:
        return draft.node("Conv", (*inputs, bias), head.node.attrs)
    return draft.node("Add", (draft.node("MatMul", inputs), bias))


def _shift(work: MutableGraph, head: Head, node: Node, matrix: Callable[[], Array]) -> Array:
    """The bias of the composed map, for the channels of the second. Raises Miss."""
    made = head.node.outputs[0]
    inner, outer = np.zeros(head.channels), np.zeros(())
    if head.bias:
        inner = inner + along(
            work.array(head.bias), len(work.type(made).shape), _axis(work, head.node, made), head.channels
        )
    for name in _bias(head.node):
        inner = inner + work.array(name)
    for name in _bias(node):
        outer = outer + work.array(name)
    with np.errstate(all="ignore"):
        shift = (matrix() @ inner if inner.any() else 0) + outer
    if not np.isfinite(shift.astype(F32.numpy)).all():
        raise Miss("the composed bias overflows")
    return shift


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "conv-before-resize",
        "Conv(Concat(Resize(x), ..., y), w) => Resize(Conv(x, w1)) + ... + Conv(y, wn)",
        "reassociates",
        conv_before_resize,
        frozenset({"Conv"}),
        ("constant(w)", "the Conv is pointwise", "the Resize upsamples spatial axes only", "fewer multiplications"),
    ),
    StructuralRule(
        "pool-before-conv",
        "AveragePool(Conv(x, w, b)) => Conv(AveragePool(x), w, b)",
        "reassociates",
        pool_before_conv,
        frozenset({"AveragePool", "GlobalAveragePool"}),
        ("constant(w)", "the Conv is pointwise", "no b, or no padding in the averages", "fewer multiplications"),
    ),
    StructuralRule(
        "linear-of-linear",
        "linear(move(linear(x, w1, b1)), w2, b2) => move(linear(x, w1@w2, b1@w2 + b2))",
        "reassociates",
        linear_of_linear,
        frozenset({"Conv", "MatMul"}),
        ("constant(w1)", "constant(w2)", "both contract the same axis", "fewer multiplications"),
    ),
)
