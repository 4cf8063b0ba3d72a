"""Linear maps in the order in which they cost least: products of channels trade places with maps of positions.

A pointwise convolution maps channels and leaves positions alone; Resize and AveragePool map positions, each channel by
the same numbers. So the one may go before the other, whichever leaves fewer products; a pointwise convolution of a
Concat is the sum of those of its operands, each where it costs least; and a linear map of channels behind another is one
whose matrix is the product of theirs. Matrices are multiplied in double precision when they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Constant, Node
from onnxfuse.ir.index import Index
from onnxfuse.ir.indexing import product
from onnxfuse.rewrite.affine import along
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.movement import reshaped
from onnxfuse.rewrite.steps import Step
from onnxfuse.rewrite.work import Array, Miss, Work

CHANNELS = 1  # the axis of a convolution
VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def matrix_of(work: Work, name: str) -> Constant:
    """The constant float32 weight of a linear map. Raises Miss."""
    found = work.constants.get(name)
    if found is None or found.dtype != F32 or len(found.shape) < 2:
        raise Miss(f"{name} is not a constant matrix of float32")
    return found


def pointwise(work: Work, conv: Node) -> Constant:
    """The weight of a convolution that maps the channels of each position by itself. Raises Miss."""
    weight, view, rank = matrix_of(work, conv.inputs[1]), work.view(conv), len(work.type(conv.inputs[0]).shape)
    ones, zeros = (1,) * (rank - 2), (0,) * (2 * rank - 4)
    stays = view.attr("strides", ones) == ones and view.attr("pads", zeros) == zeros and view.attr("group", 1) == 1
    if weight.shape[2:] != ones or not stays:
        raise Miss(f"{conv.op} does not map each position by itself")
    return weight


def _bias(conv: Node) -> tuple[str, ...]:
    return tuple(i for i in conv.inputs[2:3] if i)


# Positions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """An operand of a Concat along channels: its value, its channels in the whole, and what resizes it, if anything."""

    value: str
    begin: int
    end: int
    resize: Node | None


def before_resize(work: Work, at: int, trust: bool) -> Draft:
    """A pointwise convolution of what is resized, or of a Concat in which something is, goes before the Resize."""
    conv = work.nodes[at]
    weight = pointwise(work, conv)
    parts = _parts(work, conv.inputs[0])
    if all(p.resize is None for p in parts):
        raise Miss(f"{conv.inputs[0]} is not resized")
    draft = Draft(work, at)
    terms = []
    plain = [p for p in parts if p.resize is None]
    if plain:
        x = plain[0].value
        if len(plain) > 1:
            x = draft.node("Concat", [p.value for p in plain], {"axis": CHANNELS})
        terms.append(draft.node("Conv", (x, _columns(draft, conv, weight, plain), *_bias(conv)), conv.attrs))
    for p in parts:
        if p.resize is not None:
            y = draft.node("Conv", (p.resize.inputs[0], _columns(draft, conv, weight, [p])), conv.attrs)
            terms.append(draft.node("Resize", (y, *_targets(draft, p.resize, weight.shape[0])), p.resize.attrs))
    total = terms[0]
    for term in terms[1:]:
        total = draft.node("Add", (total, term))
    if not plain and _bias(conv):
        bias = work.array(conv.inputs[2]).reshape(-1, *weight.shape[2:])
        total = draft.node("Add", (total, draft.array(bias, F32, "bias", conv.inputs[2])))
    return draft.replace(conv.outputs[0], total)


def _parts(work: Work, value: str) -> list[Part]:
    """The operands of a Concat along channels, or the value itself, with what resizes each."""
    whole = work.node(value)
    values: Sequence[str] = (value,)
    if whole is not None and whole.op == "Concat" and work.single_use(value):
        if work.view(whole).attr("axis", CHANNELS) % len(work.type(value).shape) != CHANNELS:
            raise Miss("the Concat is along another axis than the channels")
        values = whole.inputs
    parts: list[Part] = []
    begin = 0
    for v in values:
        channels = work.type(v).shape[CHANNELS].constant
        if channels is None:
            raise Miss("the number of channels is a symbol")
        parts.append(Part(v, begin, begin + channels, _resize(work, v)))
        begin += channels
    return parts


def _resize(work: Work, value: str) -> Node | None:
    """The Resize that makes a value, where it maps positions alone and nobody else reads them."""
    node = work.node(value)
    if node is None or node.op != "Resize" or not work.single_use(value):
        return None
    same = work.type(node.inputs[0]).shape[: CHANNELS + 1] == work.type(value).shape[: CHANNELS + 1]
    scales = node.inputs[2] if work.opset >= 11 and len(node.inputs) > 2 else node.inputs[-1]
    if work.opset < 11 or (len(node.inputs) > 2 and node.inputs[2]):
        numbers = work.array(scales)
        same &= "axes" not in node.attrs and bool((numbers[: CHANNELS + 1] == 1).all())
    crops = work.view(node).attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return node if same and not crops else None


def _targets(draft: Draft, resize: Node, channels: int) -> tuple[str, ...]:
    """The other inputs of a Resize of so many channels."""
    inputs = resize.inputs[1:]
    if len(inputs) < 3 or not inputs[2] or "axes" in resize.attrs:
        return inputs
    sizes = list(draft.work.known.get(inputs[2], ()))
    if len(sizes) > CHANNELS and sizes[CHANNELS] == Index.of(channels):
        return inputs
    numbers = [e.constant for e in sizes]
    if len(numbers) <= CHANNELS or None in numbers:
        raise Miss("the sizes are known only when the model runs")
    return (*inputs[:2], draft.ints([channels if i == CHANNELS else n or 0 for i, n in enumerate(numbers)]))


def _columns(draft: Draft, conv: Node, weight: Constant, parts: Sequence[Part]) -> str:
    """The weight for the channels of some parts."""
    spans = [(p.begin, p.end) for p in parts]
    if spans == [(0, weight.shape[1])]:
        return conv.inputs[1]
    shape = (weight.shape[0], sum(end - begin for begin, end in spans), *weight.shape[2:])
    tag = "columns" + "".join(f".{begin}.{end}" for begin, end in spans)

    def load() -> Array:
        whole = weight.load()
        return np.concatenate([whole[:, begin:end] for begin, end in spans], 1)

    return draft.lazily(weight.dtype, shape, load, tag, conv.inputs[1])


def pool_first(work: Work, at: int, trust: bool) -> Draft:
    """An average of what a pointwise convolution makes is the convolution of the averages."""
    pool = work.nodes[at]
    conv = work.made_by(pool.inputs[0], "Conv")
    pointwise(work, conv)
    if not work.single_use(pool.inputs[0]):
        raise Miss(f"{pool.inputs[0]} is also used elsewhere")
    view = work.view(pool)
    ragged = any(view.attr("pads", (0,))) or view.attr("ceil_mode", 0) or view.attr("auto_pad", "NOTSET") != "NOTSET"
    if ragged and _bias(conv):
        raise Miss("windows at the rim may not hold the whole bias")
    draft = Draft(work, at)
    mean = draft.node(pool.op, (conv.inputs[0],), pool.attrs)
    return draft.replace(pool.outputs[0], draft.node("Conv", (mean, *conv.inputs[1:]), conv.attrs))


# Channels -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """A linear map of channels: its node, the constant added to what it makes, and the nodes that move that, in order."""

    node: Node
    weight: Constant
    bias: str
    moves: tuple[Node, ...]


def of_linear(work: Work, at: int, trust: bool) -> Draft:
    """A linear map of the channels that another one makes is one linear map."""
    node = work.nodes[at]
    if node.op == "Conv":
        weight, axis = pointwise(work, node), CHANNELS
        rows, channels = weight.shape[:2]
    else:
        weight, axis = matrix_of(work, node.inputs[1]), len(work.type(node.inputs[0]).shape) - 1
        channels, rows = weight.shape[-2:]
        if len(weight.shape) != 2:
            raise Miss("there is a matrix for each element of a batch")
    head = _head(work, node.inputs[0], axis, channels)

    def matrix() -> Array:
        """In double precision, (channels of the head, rows)."""
        held = weight.load().astype(np.float64)
        return held.reshape(rows, channels).T if node.op == "Conv" else held

    draft = Draft(work, at)
    y = _composed(draft, head, node, matrix, rows)
    shift = np.zeros(rows)
    if head.bias:
        shift = _vector(work, head.bias, head.node, channels) @ matrix()
    if node.op == "Conv" and _bias(node):
        shift = shift + work.array(node.inputs[2])
    if shift.any():
        rank = len(draft.type(y).shape)
        placed = shift.reshape(-1, *(1,) * (rank - 2)) if head.node.op == "Conv" else shift
        y = draft.node("Add", (y, draft.array(placed, F32, "bias", head.node.inputs[1], node.inputs[1])))
    for move in head.moves:
        y = _moved(draft, move, y, channels, rows)
    return draft.replace(node.outputs[0], y)


def _head(work: Work, value: str, axis: int, channels: int) -> Head:
    """The linear map that makes the channels which a value has at an axis. Raises Miss."""
    moves: list[Node] = []
    node = work.node(value)
    while node is not None and (node.op == "Transpose" or node.op in VIEWS):
        _alone(work, node)
        axis = _axis_before(work, node, axis)
        moves.insert(0, node)
        node = work.node(node.inputs[0])
    bias = ""
    if node is not None and node.op == "Add":
        _alone(work, node)
        bias = next((i for i in node.inputs if i in work.constants), "")
        node = work.node(next(i for i in node.inputs if i != bias)) if bias else None
    if node is None or node.op not in ("MatMul", "Conv") or node.domain not in ("", "ai.onnx"):
        raise Miss(f"{value} is not made by a linear map of channels")
    _alone(work, node)
    weight, rank = matrix_of(work, node.inputs[1]), len(work.type(node.outputs[0]).shape)
    if node.op == "Conv":
        if work.view(node).attr("group", 1) != 1 or (bias and _bias(node)):
            raise Miss("the convolution is grouped, or has two biases")
        bias = bias or next(iter(_bias(node)), "")
    here = CHANNELS if node.op == "Conv" else rank - 1
    if axis != here or (node.op == "MatMul" and len(weight.shape) != 2):
        raise Miss("channels are mixed with positions in between")
    return Head(node, weight, bias, tuple(moves))


def _alone(work: Work, node: Node) -> None:
    if not work.single_use(node.outputs[0]):
        raise Miss(f"{node.outputs[0]} is also used elsewhere")


def _axis_before(work: Work, move: Node, axis: int) -> int:
    """Where a move finds what it leaves as a whole axis."""
    if move.op == "Transpose":
        rank = len(work.type(move.inputs[0]).shape)
        return int(work.view(move).attr("perm", tuple(reversed(range(rank))))[axis])
    have, want = work.type(move.inputs[0]).shape, work.type(move.outputs[0]).shape
    for k, e in enumerate(have):
        if e == want[axis] and product(list(have[:k])) == product(list(want[:axis])):
            return k
    raise Miss("channels are mixed with positions in between")


def _moved(draft: Draft, move: Node, y: str, channels: int, rows: int) -> str:
    """A move of the same positions with another number of channels."""
    if move.op == "Transpose" or channels == rows:
        return draft.node(move.op, (y, *move.inputs[1:]), move.attrs)
    have, want = draft.work.type(move.inputs[0]).shape, draft.work.type(move.outputs[0]).shape
    mine = next(k for k, (a, b) in enumerate(zip(have, draft.type(y).shape, strict=True)) if a != b)
    at = next(
        k for k in range(len(want)) if want[k] == have[mine] and product(list(want[:k])) == product(list(have[:mine]))
    )
    return reshaped(draft, y, tuple(Index.of(rows) if k == at else e for k, e in enumerate(want)))


def _vector(work: Work, bias: str, head: Node, channels: int) -> Array:
    """A constant that is added to what a linear map makes, as a vector over its channels."""
    rank = len(work.type(head.outputs[0]).shape)
    array = work.array(bias).astype(np.float64)
    if bias in head.inputs:
        return array
    return along(array, rank, CHANNELS if head.op == "Conv" else rank - 1, channels)


def _composed(draft: Draft, head: Head, node: Node, matrix: Callable[[], Array], rows: int) -> str:
    """The head with the matrix of what follows it multiplied to its weight."""
    weight = head.weight
    if head.node.op == "Conv":
        shape = (rows, *weight.shape[1:])

        def load() -> Array:
            return np.einsum("m...,mo->o...", weight.load(), matrix()).astype(F32.numpy)

    else:
        shape = (weight.shape[0], rows)

        def load() -> Array:
            return np.asarray(weight.load() @ matrix()).astype(F32.numpy)

    w = draft.lazily(F32, shape, load, "composed", head.node.inputs[1], node.inputs[1])
    return draft.node(head.node.op, (head.node.inputs[0], w), head.node.attrs)


STEPS: tuple[Step, ...] = (
    Step(
        "conv-before-resize",
        "Conv(Concat(Resize(x), ..., y), w) => Resize(Conv(x, w1)) + ... + Conv(y, wn)",
        "reassociates",
        before_resize,
        frozenset({"Conv"}),
        ("constant(w)", "the Conv is pointwise", "channels are not resized", "fewer products"),
    ),
    Step(
        "pool-before-conv",
        "AveragePool(Conv(x, w, b)) => Conv(AveragePool(x), w, b)",
        "reassociates",
        pool_first,
        frozenset({"AveragePool", "GlobalAveragePool"}),
        ("constant(w)", "the Conv is pointwise", "no padding where there is b", "fewer products"),
    ),
    Step(
        "linear-of-linear",
        "linear(move(linear(x, w1, b1)), w2, b2) => move(linear(x, w1@w2, b1@w2 + b2))",
        "reassociates",
        of_linear,
        frozenset({"Conv", "MatMul"}),
        ("constant(w1)", "constant(w2)", "the second maps channels alone", "fewer products"),
    ),
)
