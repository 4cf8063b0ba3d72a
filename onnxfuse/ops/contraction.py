"""Rows of contractions: products of two operands summed over shared axes. Which axes are rows or columns is derived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, least
from onnxfuse.ir.scalar import Scalar, apply, cast, const
from onnxfuse.ops.elementwise import aligned, broadcast
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import Element, Stages, total
from onnxfuse.ops.window import Window, groups_of, guarded_load, windows

Windowed = Callable[[tuple[Index, ...], tuple[Window, ...]], Scalar]  # an element, 0 in the padding of the windows
Channelled = Callable[[Scalar, Index], Scalar]
Finished = Callable[[Scalar, tuple[Axis, ...]], Scalar]


@dataclass(frozen=True, slots=True)
class Operand:
    """A batch of matrices (or one vector): its shape and its elements."""

    shape: tuple[Index, ...]
    at: Element


def matmul(view: View) -> tuple[Definition, ...]:
    """MatMul with broadcast batch axes; the unit axis added to a one-dimensional operand is dropped from the result."""
    a, b = (Operand(view.shape(i), partial(view.load, i)) for i in (0, 1))
    return multiplied(view, a, b)


def multiplied(
    view: View, left: Operand, right: Operand, finish: Finished = lambda x, axes: x, dtype: DType | None = None
) -> tuple[Definition, ...]:
    """The product of two operands with the semantics of NumPy's matmul; `finish` maps each sum to the result's element.

    The result has the type of the first input where no other `dtype` is given.
    """
    a, b = left.shape, right.shape
    if not a or not b:
        raise view.refuse("E-INVALID", "an operand is a scalar")
    length = b[-2] if len(b) > 1 else b[0]
    view.demand(a[-1], "equals", length)
    batch = broadcast(view, [a[:-2], b[:-2]])
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    axes = view.axes((*batch, *rows, *columns))
    k = Axis(f"{view.out()}:k", length if a[-1].constant is None else a[-1])
    outer = axes[: len(batch)]
    m = tuple(Index.of(x) for x in axes[len(batch) : len(batch) + len(rows)])
    n = tuple(Index.of(x) for x in axes[len(batch) + len(rows) :])
    x = left.at((*aligned(view, a[:-2], outer), *m, Index.of(k)))
    y = right.at((*aligned(view, b[:-2], outer), Index.of(k), *n))
    value = finish(total("sum", (k,), _product(x, y)), axes)
    return (Definition(view.out(), axes, cast(value, dtype or view.dtype(0))),)


def _product(left: Scalar, right: Scalar) -> Scalar:
    dtype = left.dtype.accumulator
    return apply("mul", cast(left, dtype), cast(right, dtype))


def gemm(view: View) -> tuple[Definition, ...]:
    """Gemm: alpha * A' B' + beta * C."""
    alpha, beta = view.attr("alpha", 1.0), view.attr("beta", 1.0)

    def finish(value: Scalar, axes: tuple[Axis, ...]) -> Scalar:
        if alpha != 1.0:
            value = apply("mul", value, const(alpha, value.dtype))
        if not view.has(2):
            return value
        c = cast(view.load(2, aligned(view, view.shape(2), axes)), value.dtype)
        return apply("add", value, c if beta == 1.0 else apply("mul", c, const(beta, value.dtype)))

    return with_transposes(view, 1, partial(view.load, 0), partial(view.load, 1), finish)


def with_transposes(
    view: View, weights: int, left: Element, right: Element, finish: Finished, dtype: DType | None = None
) -> tuple[Definition, ...]:
    """The product of the first input and the input `weights`, matrices with transA and transB.

    `finish` maps a sum and the result's axes to the result's element, in the type of the first input or `dtype`.
    """
    a, b = view.shape(0), view.shape(weights)
    view.lengths("the shape of the first side", a, 2)
    view.lengths("the shape of the second side", b, 2)
    ta, tb = view.attr("transA", 0), view.attr("transB", 0)
    m, k_extent = (a[1], a[0]) if ta else (a[0], a[1])
    view.demand(k_extent, "equals", b[1] if tb else b[0])
    axes = view.axes((m, b[0] if tb else b[1]))
    i, j = map(Index.of, axes)
    k = Axis(f"{view.out()}:k", k_extent)
    one = left((Index.of(k), i) if ta else (i, Index.of(k)))
    two = right((j, Index.of(k)) if tb else (Index.of(k), j))
    value = finish(total("sum", (k,), _product(one, two)), axes)
    return (Definition(view.out(), axes, cast(value, dtype or view.dtype(0))),)


def conv(view: View) -> tuple[Definition, ...]:
    """Conv of any rank, with groups, strides, dilations and padding."""

    def finish(value: Scalar, channel: Index) -> Scalar:
        return apply("add", value, cast(view.load(2, (channel,)), value.dtype)) if view.has(2) else value

    fill = const(0, view.dtype(0))
    if view.has(2):
        one_each(view, 2, view.ranked(1, 1)[0])
    return convolved(view, 1, lambda at, spots: guarded_load(view, 0, at, spots, fill), partial(view.load, 1), finish)


def one_each(view: View, i: int, channels: Index) -> None:
    """State that input i has one element for each channel. Raises Refused where it has not."""
    (have,) = view.ranked(i, 1, 1)
    if None not in (have.constant, channels.constant) and have != channels:
        raise view.refuse("E-INVALID", f"{view.node.inputs[i]} has {have} elements, not {channels}")
    view.demand(have, "equals", channels)


def convolved(
    view: View, weights: int, left: Windowed, right: Element, finish: Channelled, dtype: DType | None = None
) -> tuple[Definition, ...]:
    """A convolution of elements `left` of the first input with `right` of the input `weights`.

    `finish` maps a sum and its channel to the result's element, in the type of the first input or `dtype`.
    """
    x = view.ranked(0, 3)
    w = view.ranked(weights, len(x), len(x))
    kernel = tuple(e.constant or 0 for e in w[2:])
    if not all(kernel):
        raise view.unsized("the kernel's shape is not static", w[2:])
    spots = windows(view, kernel)
    groups = Index.of(groups_of(view, w[0]))
    view.demand(x[1], "equals", w[1] * groups)
    view.nonempty(w[:1])
    axes = view.axes((x[0], w[0], *(s.extent for s in spots)))
    channel = Axis(f"{view.out()}:c", w[1])
    taps = tuple(Axis(f"{view.out()}:k{i}", Index.of(k)) for i, k in enumerate(kernel))
    at = tuple(s.index(Index.of(a), Index.of(t)) for s, a, t in zip(spots, axes[2:], taps, strict=True))
    oc = Index.of(axes[1])
    ic = Index.of(channel) if w[1] != ONE else ZERO
    if groups != ONE:
        ic = floor_div(oc, floor_div(w[0], groups)) * w[1] + ic
    one = left((Index.of(axes[0]), ic, *at), spots)
    two = right((oc, Index.of(channel) if w[1] != ONE else ZERO, *map(Index.of, taps)))
    ranges = tuple(r for r in (*taps, channel) if r.extent != ONE)
    value = finish(total("sum", ranges, _product(one, two)), oc)
    if any(t.extent == ONE for t in taps):
        value = substitute_axes(value, {t: ZERO for t in taps if t.extent == ONE})
    return (Definition(view.out(), axes, cast(value, dtype or view.dtype(0))),)


Named = dict[str, Index]
Labelled = Callable[[Named], Scalar]


def einsum(view: View) -> tuple[Definition, ...]:
    """Einsum: operands are contracted from left to right; a label is summed as soon as no later operand has it."""
    terms, result = _equation(view)
    extents = _extents(view, terms)
    if any(label not in extents for label in result):
        raise view.refuse("E-INVALID", f"{view.attr('equation', '')} has an output label that no operand has")
    stages = Stages(view)
    value, have = _operand(view, 0, terms[0], extents), tuple(dict.fromkeys(terms[0]))
    for k, labels in enumerate(terms[1:], 1):
        value = _both(value, _operand(view, k, labels, extents))
        have = tuple(dict.fromkeys((*have, *labels)))
        later = {label for after in terms[k + 1 :] for label in after} | set(result)
        if k + 1 < len(terms) and not later.issuperset(have):
            value, have = _joined(stages, f"%{k}", value, have, later, extents)
    over = tuple(label for label in have if label not in result)
    body = _summed(f"{view.out()}:", value, over, extents)
    stages.output(tuple(extents[label] for label in result), lambda at: body(dict(zip(result, at, strict=True))))
    return tuple(stages.made)


def _equation(view: View) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The labels of each operand and of the result; axes that "..." stands for are numbered from the last one."""
    left, arrow, right = view.attr("equation", "").replace(" ", "").partition("->")
    texts = left.split(",")
    ranks = [len(view.shape(i)) for i in range(len(view.node.inputs))]
    view.lengths("the equation", texts, len(ranks))
    dots = [rank - len(text.replace("...", "")) for text, rank in zip(texts, ranks, strict=True)]
    if any(n < 0 or (n and "..." not in text) for n, text in zip(dots, texts, strict=True)):
        raise view.refuse("E-INVALID", f"{left} does not fit operands of ranks {ranks}")
    if not arrow:
        plain = left.replace(",", "").replace("...", "")
        right = "..." * ("..." in left) + "".join(sorted(c for c in set(plain) if plain.count(c) == 1))
    return [_labels(t, n) for t, n in zip(texts, dots, strict=True)], _labels(right, max(dots))


def _labels(text: str, dots: int) -> tuple[str, ...]:
    before, found, after = text.partition("...")
    return (*before, *(f"{k}" for k in reversed(range(dots if found else 0))), *after)


def _extents(view: View, terms: list[tuple[str, ...]]) -> dict[str, Index]:
    """The extent of each label; an axis of one element is repeated."""
    found: dict[str, Index] = {}
    for i, labels in enumerate(terms):
        for label, e in zip(labels, view.shape(i), strict=True):
            (found[label],) = broadcast(view, [(found.get(label, ONE),), (e,)])
    return found


def _operand(view: View, i: int, labels: tuple[str, ...], extents: dict[str, Index]) -> Labelled:
    dtype = view.dtype(0).accumulator
    shape = view.shape(i)
    for label, e in zip(labels, shape, strict=True):
        view.demand(e, "equals or is 1", extents[label])

    def place(e: Index, label: str, at: Named) -> Index:
        if e == extents[label]:
            return at[label]
        return ZERO if e == ONE else least(at[label], e - 1)

    def value(at: Named) -> Scalar:
        index = tuple(place(e, label, at) for label, e in zip(labels, shape, strict=True))
        return cast(view.load(i, index), dtype)

    return value


def _both(one: Labelled, two: Labelled) -> Labelled:
    return lambda at: apply("mul", one(at), two(at))


def _summed(prefix: str, value: Labelled, over: tuple[str, ...], extents: dict[str, Index]) -> Labelled:
    """A value summed over some labels."""
    ranges = {label: Axis(f"{prefix}{label}", extents[label]) for label in over}
    return lambda at: total("sum", tuple(ranges.values()), value(at | {k: Index.of(r) for k, r in ranges.items()}))


def _joined(
    stages: Stages, tag: str, value: Labelled, have: tuple[str, ...], later: set[str], extents: dict[str, Index]
) -> tuple[Labelled, tuple[str, ...]]:
    """An intermediate value: summed over the labels that nothing later needs; and its remaining labels."""
    kept = tuple(label for label in have if label in later)
    over = tuple(label for label in have if label not in later)
    body = _summed(f"{stages.view.out()}{tag}:", value, over, extents)
    read = stages.value(tag, tuple(extents[k] for k in kept), lambda at: body(dict(zip(kept, at, strict=True))))
    return lambda at: read(tuple(at[k] for k in kept)), kept


ROWS: tuple[Row, ...] = (
    Row("Einsum", einsum),
    Row("MatMul", matmul),
    Row("Gemm", gemm),
    Row("Conv", conv, images="convolution"),
)
