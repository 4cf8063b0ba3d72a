"""Convolutions that cuDNN's calls compute, recognized in definitions: sizes and steps along height and width.

Padding is the same on both sides of an axis there; another one is as good where no window reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.cost.library_products import uncast
from onnxfuse.ir.compose import outermost, substitute_axes
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.dtype import BF16, F16, F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.scalar import Const, Load, Reduce
from onnxfuse.ops.spec import Definition

TYPES = (F32, F16, BF16)
RANKS = (3, 4)  # of images of one or two axes
Shapes = Mapping[str, tuple[Index, ...]]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A definition that convolves: where it reads image and filters, its sum, and sizes along (height, width).

    An image of one axis has a height of 1.
    """

    image: Load
    weights: Load
    total: Reduce
    batch: Index
    channels: int
    size: tuple[int, int]
    filters: int
    window: tuple[int, int]
    made: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]
    groups: int


def without_unit_axes(d: Definition) -> Definition:
    """A definition whose axes of one element, but that of channels, are 0 wherever it reads."""
    unit = {a: ZERO for at, a in enumerate(d.axes) if a.extent == ONE and at != 1}
    return replace(d, value=substitute_axes(d.value, unit)) if unit else d


def convolution_of(d: Definition, shapes: Shapes) -> Convolution | None:
    """A definition `without_unit_axes` as a convolution of cuDNN's; None where it is none, or sizes are not known."""
    total = outermost(d.value)
    found = contraction_of(d.axes, total) if total is not None else None
    if total is None or found is None or total.dtype != F32 or len(d.axes) not in RANKS:
        return None
    for one, other in ((found.left, found.right), (found.right, found.left)):
        x, w = uncast(one), uncast(other)
        if isinstance(x, Load) and isinstance(w, Load) and x.source in shapes and w.source in shapes:
            made = _sized(d, total, x, w, shapes)
            if made is not None:
                return made
    return None


def _sized(d: Definition, total: Reduce, x: Load, w: Load, shapes: Shapes) -> Convolution | None:
    image, filters = shapes[x.source], shapes[w.source]
    rank = len(d.axes)
    if {len(image), len(filters), len(x.index), len(w.index)} != {rank} or w.guards:
        return None
    sizes = [e.constant for e in (*image[1:], *filters, *d.shape[1:])]
    known = [n for n in sizes if n]
    types = {x.dtype, w.dtype, d.value.dtype}
    if len(known) < len(sizes) or len(types) > 1 or d.value.dtype not in TYPES or d.shape[0] != image[0]:
        return None
    channels, high, (count, deep), window = (
        known[0],
        known[1 : rank - 1],
        known[rank - 1 : rank + 1],
        known[rank + 1 : 2 * rank - 1],
    )
    made = known[-(rank - 2) :]
    if known[2 * rank - 1] != count or channels % deep or count % (channels // deep):
        return None
    taps = _taps(w, total, window)
    filter_, groups = Index.of(d.axes[1]), channels // deep
    inner = taps[0] if taps is not None else None
    channel = floor_div(filter_, Index.of(count // groups)) * deep + _at(inner) if groups > 1 else _at(inner)
    if taps is None or w.index[0] != filter_ or not same_index(x.index[:2], (Index.of(d.axes[0]), channel), d.axes[:1]):
        return None
    steps = [
        _steps(e, a, t, n, k, m)
        for e, a, t, n, k, m in zip(x.index[2:], d.axes[2:], taps[1:], high, window, made, strict=True)
    ]
    plain = [s for s in steps if s is not None]
    guards = {(g.index, g.extent) for g in x.guards} <= set(zip(x.index[2:], image[2:], strict=True))
    zero = x.otherwise is None or (isinstance(x.otherwise, Const) and x.otherwise.value == 0)
    if len(plain) < len(steps) or not guards or not zero:
        return None
    strides, pads, dilations = (_two(tuple(s[i] for s in plain), fill) for i, fill in enumerate((1, 0, 1)))
    return Convolution(
        x, w, total, d.shape[0], channels, _two(high, 1), count, _two(window, 1), _two(made, 1), strides, pads,
        dilations, groups,
    )  # fmt: skip


def _taps(w: Load, total: Reduce, window: Sequence[int]) -> tuple[Axis | None, ...] | None:
    """The ranges over channels and taps of filters, None for one of a single element; None where it is otherwise."""
    found: list[Axis | None] = []
    for e in w.index[1:]:
        axis = next((r for r in total.ranges if e == Index.of(r)), None)
        if axis is None and e != ZERO:
            return None
        found.append(axis)
    mine = [a for a in found if a is not None]
    whole = all(a is not None or n == 1 for a, n in zip(found[1:], window, strict=True))
    return tuple(found) if len(mine) == len(set(mine)) == len(total.ranges) and whole else None


def _steps(e: Index, out: Axis, tap: Axis | None, have: int, window: int, made: int) -> tuple[int, int, int] | None:
    """Stride, padding and dilation along an axis; None where padding is not as cuDNN has it, the same on both sides."""
    stride = coefficient(e, out)
    dilation = coefficient(e, tap) if tap is not None else ONE
    step, apart = (s.constant if s is not None else None for s in (stride, dilation))
    if step is None or apart is None:
        return None
    rest = e - Index.of(out) * step - (Index.of(tap) * apart if tap is not None else ZERO)
    pad = (-rest).constant
    if pad is None or pad < 0 or apart < 1:
        return None
    room = have + 2 * pad - apart * (window - 1) - 1
    step = step if step or made > 1 else max(room + 1, 1)
    return (step, pad, apart) if step > 0 and room >= 0 and room // step + 1 == made else None


def _two(values: Sequence[int], fill: int) -> tuple[int, int]:
    """Numbers of height and width."""
    return (values[0], values[1]) if len(values) > 1 else (fill, values[0])


def _at(axis: Axis | None) -> Index:
    return Index.of(axis) if axis is not None else ZERO


def same_index(one: Sequence[Index], other: Sequence[Index], axes: Sequence[Axis]) -> bool:
    """Whether indices are equal, where axes of one element are 0."""
    unit = {a: ZERO for a in axes if a.extent == ONE}
    return all(substitute(a, unit) == substitute(b, unit) for a, b in zip(one, other, strict=True))
