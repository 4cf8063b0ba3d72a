"""Products with the same input merged into one: weights side by side, the result sliced (QKV), or weights added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.graph import Attribute, Constant, Node
from onnxfuse.ir.index import ZERO
from onnxfuse.ops import elementwise
from onnxfuse.ops.window import Window, windows
from onnxfuse.rewrite.affine import affine_of, along, bias_of, unshared, weight_of
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Array, Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.steps import StructuralRule

_ELEMENTWISE = frozenset(row.op for row in elementwise.ROWS)
_DEEPEST = 8  # elementwise nodes behind a product that are searched for a use together with another product


@dataclass(frozen=True, slots=True)
class Branch:
    """One product: its weight, its result (after the bias), its bias or "", and its number of columns."""

    weight: str
    out: str
    bias: str
    columns: int
    dtype: str


def merged_products(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Several MatMuls (with or without a constant bias) or Gemms with the same input become one."""
    node = work.nodes[at]
    branches: list[Branch] = []
    for other in sorted(work.users.get(node.inputs[0], ()), key=lambda k: work.place[k]):
        try:
            if _alike(work.nodes[other], node):
                branches.append(_branch(work, work.nodes[other]))
        except Miss:
            continue
    mine = _branch(work, node)
    depth = work.constants[mine.weight].shape[_depth_axis(node)]
    same = [b for b in branches if b.dtype == mine.dtype and work.constants[b.weight].shape[_depth_axis(node)] == depth]
    same = _apart(work, same)
    if len(same) < 2 or same[0] != mine:
        raise NoMatch(f"{node.inputs[0]} has no later product with constant weights of equal depth and type")
    return _merged(Draft(work, at), node, same)


def _apart(work: MutableGraph, branches: list[Branch]) -> list[Branch]:
    """Branches without those whose results meet in elementwise operators, such as a gate and the value it multiplies.

    Unmerged, one of the two is combined with the other in the epilogue of its product. Merged, both would have to be
    stored and read again.
    """
    behind = [_behind(work, b.out) for b in branches]
    meets = [any(i != k and behind[i] & behind[k] for k in range(len(branches))) for i in range(len(branches))]
    return [b for b, met in zip(branches, meets, strict=True) if not met]


def _behind(work: MutableGraph, value: str) -> set[int]:
    """The elementwise nodes that a value reaches through elementwise nodes only."""
    found: set[int] = set()
    values = {value}
    for _ in range(_DEEPEST):
        users = {k for v in values for k in work.users.get(v, ())} - found
        users = {k for k in users if work.nodes[k].key in _ELEMENTWISE}
        found |= users
        values = {o for k in users for o in work.nodes[k].outputs}
    return found


def _alike(a: Node, b: Node) -> bool:
    return a.op == b.op and a.domain == b.domain and a.attrs == b.attrs and a.inputs[0] == b.inputs[0]


def _depth_axis(node: Node) -> int:
    return 1 if node.attrs.get("transB", 0) else 0


def _branch(work: MutableGraph, node: Node) -> Branch:
    weight = work.constants.get(node.inputs[1])
    if weight is None or len(weight.shape) != 2 or not weight.dtype.floating or not work.single_use(node.inputs[1]):
        raise Miss(f"the weight {node.inputs[1]} is not a constant matrix with one reader")
    columns = weight.shape[1 - _depth_axis(node)]
    if node.op == "Gemm":
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if bias and not _is_vector(work, bias, columns):
            raise Miss(f"the bias {bias} is not a constant vector")
        return Branch(node.inputs[1], node.outputs[0], bias, columns, weight.dtype.name)
    out, bias = node.outputs[0], ""
    if work.single_use(out):
        add = work.nodes[next(iter(work.users[out]))]
        other = add.inputs[1 - add.inputs.index(out)] if add.key == "Add" else ""
        if _is_vector(work, other, columns) and work.types.get(add.outputs[0]) == work.types.get(out):
            out, bias = add.outputs[0], other
    return Branch(node.inputs[1], out, bias, columns, weight.dtype.name)


def _is_vector(work: MutableGraph, bias: str, columns: int) -> bool:
    """Whether a value is a constant that varies along columns only."""
    found = work.constants.get(bias)
    return found is not None and (found.size == 1 or (found.size == columns and found.shape[-1] == columns))


def _merged(draft: Draft, node: Node, branches: list[Branch]) -> Draft:
    work = draft.work
    axis = 1 - _depth_axis(node)
    weights = [work.constants[b.weight] for b in branches]
    depth, columns = weights[0].shape[1 - axis], sum(b.columns for b in branches)
    shape = (depth, columns) if axis else (columns, depth)
    names = [b.weight for b in branches]
    w = draft.lazily(weights[0].dtype, shape, joined(weights, axis), "joined", *names)
    inputs, attrs = [node.inputs[0], w], dict(node.attrs)
    bias = _joined_bias(draft, branches)
    if node.op == "Gemm":
        y = draft.node("Gemm", inputs + ([bias] if bias else []), attrs)
    else:
        y = draft.node("MatMul", inputs, attrs)
        y = draft.node("Add", (y, bias)) if bias else y
    last, first = len(draft.type(y).shape) - 1, 0
    for b in branches:
        draft.replace(b.out, _columns(draft, y, last, first, first + b.columns))
        first += b.columns
    return draft


def joined(weights: Sequence[Constant], axis: int) -> Callable[[], Array]:
    """A load of the concatenated weights."""
    return lambda: np.concatenate([w.load() for w in weights], axis)


def _joined_bias(draft: Draft, branches: list[Branch]) -> str:
    if not any(b.bias for b in branches):
        return ""
    work = draft.work
    dtype = work.constants[branches[0].weight].dtype
    parts = [np.broadcast_to(work.array(b.bias).reshape(-1) if b.bias else 0, (b.columns,)) for b in branches]
    return draft.array(np.concatenate(parts), dtype, "joined", *(b.bias or b.weight for b in branches))


def _columns(draft: Draft, y: str, axis: int, start: int, end: int) -> str:
    """One branch's columns of the product. Slices rather than a Split, since each can be fused into its readers."""
    if draft.work.opset >= 10:
        return draft.node("Slice", (y, *(draft.ints((value,)) for value in (start, end, axis))))
    attrs: dict[str, Attribute] = {"starts": (start,), "ends": (end,), "axes": (axis,)}
    return draft.node("Slice", (y,), attrs)


# Convolutions of one image, added together ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Added:
    """What a convolution is added to: `part` to the elements `at` of its weight, `bias` to each output channel.

    Part and bias are in double precision. `sources` name what they are made of.
    """

    at: tuple[slice | Array | int, ...]
    part: Callable[[], Array]
    bias: Array
    sources: tuple[str, ...]


def added_convolutions(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A Conv plus another one of the same image within its window, or plus an affine map of the image, is one Conv.

    As in networks whose branches were trained apart to be added up (RepVGG, Ding et al. 2021, section 3.3).
    """
    first, second = work.nodes[at].inputs
    try:
        return _added(work, at, first, second)
    except Miss:
        return _added(work, at, second, first)


def _added(work: MutableGraph, at: int, convolved: str, other: str) -> Draft:
    conv = work.made_by(convolved, "Conv")
    image, weight, type_ = conv.inputs[0], weight_of(work, conv), work.type(convolved)
    work.definitions(work.maker[convolved])  # raises Miss for attributes and extents that do not fit
    if convolved == other or not work.single_use(convolved) or work.type(other) != type_ or weight.dtype.bits < 32:
        raise Miss("the convolution has other readers, another shape than what is added to it, or narrow weights")
    unshared(work, conv.inputs[1])
    draft = Draft(work, at)
    made = work.node(other)
    find = _convolved if made is not None and made.op == "Conv" and other != image else _mapped
    added = find(draft, conv, other)

    def load() -> Array:
        total = weight.load().astype(np.float64)
        total[added.at] += added.part()
        return total.astype(weight.dtype.numpy)

    w = draft.lazily(weight.dtype, weight.shape, load, "added", conv.inputs[1], *added.sources)
    bias = bias_of(draft, conv, 2, weight.shape[0]) + added.bias
    b = draft.array(bias, weight.dtype, "bias", conv.inputs[1], *conv.inputs[2:], *added.sources)
    return draft.replace(work.nodes[at].outputs[0], draft.node("Conv", (image, w, b), conv.attrs))


def _convolved(draft: Draft, conv: Node, value: str) -> Added:
    """Another convolution of the same image, whose taps are among those of the first. Raises Miss."""
    work = draft.work
    other = work.made_by(value, "Conv")
    weight = weight_of(work, other)
    work.definitions(work.maker[value])
    unshared(work, other.inputs[1])
    outer, inner = _windows(work, conv), _windows(work, other)
    mine, its = work.constants[conv.inputs[1]].shape, weight.shape
    groups = [work.view(node).attr("group", 1) for node in (conv, other)]
    if other.inputs[0] != conv.inputs[0] or not work.single_use(value):
        raise Miss("the convolutions differ in their image, or one has other readers")
    if groups[0] != groups[1]:
        raise Miss("the convolutions differ in their groups")
    if mine[:2] != its[:2] or work.constants[conv.inputs[1]].dtype != weight.dtype:
        raise Miss("the convolutions differ in their channels or types")
    places = [_place(*pair) for pair in zip(outer, inner, strict=True)]
    bias = bias_of(draft, other, 2, its[0])
    return Added((slice(None), slice(None), *places), weight.load, bias, (*other.inputs[1:], str(places)))


def _place(outer: Window, inner: Window) -> slice:
    """Which taps of one window those of another are, along an axis. Raises Miss."""
    gap = (outer.low - inner.low).constant
    if gap is None or outer.stride != inner.stride or (inner.size > 1 and outer.dilation != inner.dilation):
        raise Miss("the windows of the convolutions move by other steps")
    begin, rest = divmod(gap, outer.dilation)
    if rest or begin < 0 or begin + inner.size > outer.size:
        raise Miss("not all taps of one convolution are taps of the other")
    return slice(begin, begin + inner.size)


def _windows(work: MutableGraph, conv: Node) -> tuple[Window, ...]:
    return windows(work.view(conv), work.constants[conv.inputs[1]].shape[2:])


def _mapped(draft: Draft, conv: Node, value: str) -> Added:
    """The image itself or an affine map of it, channel by channel, as one tap. Raises Miss."""
    work, image = draft.work, conv.inputs[0]
    channels, depth, *sizes = work.constants[conv.inputs[1]].shape
    scale, shift = np.ones(channels), np.zeros(channels)
    sources: tuple[str, ...] = (image,)
    if value != image:
        made = work.node(value)
        if made is None or not work.single_use(value):
            raise NoMatch("what is added to the convolution is no affine map of its image")
        a = affine_of(work, made)
        rank = len(sizes) + 2
        if a.x != image:
            raise Miss("what is added to the convolution is of another value than its image")
        scale, shift = along(a.scale, rank, 1, channels), along(a.shift, rank, 1, channels)
        sources = (*a.sources, scale.tobytes().hex())
    one = Window(ZERO, ZERO, 1, 1, ZERO, ZERO, 1)
    taps = [_place(window, one).start for window in _windows(work, conv)]
    every = np.arange(channels)
    return Added((every, every % depth, *taps), lambda: scale, shift, (*sources, str(taps)))


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "merged-products",
        "x@w1 + b1, x@w2 + b2, ... => slices of x@[w1 w2 ...] + [b1 b2 ...]",
        "exact",
        merged_products,
        frozenset({"MatMul", "Gemm"}),
        (
            "constant(w)",
            "constant(b)",
            "one reader of each w",
            "equal depth and element type",
            "the results are not combined elementwise",
        ),
    ),
    StructuralRule(
        "added-convolutions",
        "Conv(x, v, a) + Conv(x, w, b) => Conv(x, v + w, a + b); x*s + t is a Conv with one tap",
        "reassociates",
        added_convolutions,
        frozenset({"Add"}),
        (
            "constant(v)",
            "constant(w)",
            "equal strides and groups",
            "the taps of one are among those of the other",
            "s and t vary by channel",
            "one reader of each",
        ),
    ),
)
