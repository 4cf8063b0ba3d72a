"""Rows of data movement operators (Reshape, Transpose, Slice, Concat, ...): each is an index map."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfuse.ir.dtype import I64
from onnxfuse.ir.extents import named
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Symbol, divides, floor_div, greatest, least
from onnxfuse.ir.index import modulo as index_modulo
from onnxfuse.ir.indexing import flatten, product, unflatten
from onnxfuse.ir.scalar import Const, FromIndex, Guard, Load, Scalar, apply, const
from onnxfuse.ops.elementwise import aligned, broadcast
from onnxfuse.ops.proofs import apart, equated, never_negative, over_flat, unclamped
from onnxfuse.ops.spec import Definition, Row, View

_HUGE = 2**31 - 1


def unit_at(axes: tuple[Axis, ...]) -> tuple[Index, ...]:
    """The index that runs along axes, 0 where an axis has one element."""
    return tuple(ZERO if a.extent == ONE else Index.of(a) for a in axes)


def reshaped(view: View, shape: tuple[Index, ...]) -> tuple[Definition, ...]:
    """The same elements in row-major order in another shape of equally many elements."""
    axes, have = view.axes(shape), view.shape(0)
    one, two, values = _counts(have, shape)
    if one != two and not values and view.attr("allowzero", 0):  # else a 0, for a small image, copies an extent
        have, shape = _windows_fit(view, have, shape)
        one, two, values = _counts(have, shape)
    if one != two and not values:
        raise view.unsized(f"{have!r} does not reshape to {shape!r} for every size", (*have, *shape))
    view.demand(one, "equals", two)
    have, shape = (tuple(over_flat(e, values) for e in s) for s in (have, shape))
    index = unflatten(flatten(unit_at(axes), shape), have)
    return (Definition(view.out(), axes, view.load(0, index)),)


def _counts(have: tuple[Index, ...], shape: tuple[Index, ...]) -> tuple[Index, Index, dict[Symbol, Index]]:
    """What the numbers of elements of two shapes do not share, and values of symbols that make these equal."""
    one, two = apart(product(have), product(shape))
    return one, two, equated(one, two) if one != two else {}


def _windows_fit(view: View, *shapes: tuple[Index, ...]) -> Iterator[tuple[Index, ...]]:
    """The shapes where no window of a pooling is larger than its image, which is demanded."""
    for shape in shapes:
        found = tuple(map(unclamped, shape))
        for bound in (e for _, bounds in found for e in bounds):
            view.demand(bound, "is at least", ZERO)
        yield tuple(named(e) for e, _ in found)


def reshape_target(view: View) -> tuple[Index, ...]:
    """The target shape of a Reshape: 0 copies an extent, -1 is inferred by exact division."""
    have = view.shape(0)
    asked = list(view.extents(1))
    copy = not view.attr("allowzero", 0)
    for at, e in enumerate(asked):
        if e == ZERO and copy:
            asked[at] = have[view.axis(at, len(have))]
    inferred = [at for at, e in enumerate(asked) if e.constant == -1]
    if inferred:
        known = product([e for at, e in enumerate(asked) if at not in inferred])
        rest = divides(known, product(have)) if known != ZERO else None
        if rest is None:
            raise view.unsized(f"{product(have)!r} elements over {known!r} is not an extent", (*have, known))
        asked[inferred[0]] = rest
    return tuple(asked)


def reshape(view: View) -> tuple[Definition, ...]:
    """Reshape."""
    return reshaped(view, reshape_target(view))


def axes_of_node(view: View, since: int, rank: int) -> tuple[int, ...] | None:
    """The `axes` of a node: an attribute before opset `since`, an input from there on; None when not given."""
    if view.opset >= since:
        given = view.static_ints(1) if view.has(1) else None
    else:
        given = view.attr("axes", None)
    return None if given is None else tuple(view.axis(a, rank) for a in given)


def squeeze(view: View) -> tuple[Definition, ...]:
    """Squeeze: removes unit axes, the named ones or all."""
    have = view.shape(0)
    named = axes_of_node(view, 13, len(have))
    unsure = [e for e in have if e.constant is None]
    if named is None and unsure:
        reason = f"the rank of the result depends on whether {unsure[0]!r} is 1"
        raise view.refuse("E-SHAPE-UNKNOWN", reason, "give axes")
    for at in named or ():
        view.demand(have[at], "equals", ONE)
    drop = named if named is not None else tuple(i for i, e in enumerate(have) if e == ONE)
    return reshaped(view, tuple(e for i, e in enumerate(have) if i not in drop))


def unsqueeze(view: View) -> tuple[Definition, ...]:
    """Unsqueeze: inserts unit axes at the named positions of the result."""
    have = list(view.shape(0))
    given = view.static_ints(1) if view.opset >= 13 else view.attr("axes", ())
    rank = len(have) + len(given)
    places = {view.axis(a, rank) for a in given}
    view.lengths("different axes", tuple(places), len(given))
    for at in sorted(places):
        have.insert(at, ONE)
    return reshaped(view, tuple(have))


def flatten_node(view: View) -> tuple[Definition, ...]:
    """Flatten to two axes."""
    have = view.shape(0)
    at = view.attr("axis", 1)
    at = view.axis(at, len(have) + (at >= 0))
    return reshaped(view, (product(have[:at]), product(have[at:])))


def transpose(view: View) -> tuple[Definition, ...]:
    """Transpose by perm (default: reversed)."""
    have = view.shape(0)
    perm = view.attr("perm", tuple(reversed(range(len(have)))))
    if sorted(perm) != list(range(len(have))):
        raise view.refuse("E-INVALID", f"perm {tuple(perm)} is not a permutation of {len(have)} dimensions")
    axes = view.axes(tuple(have[p] for p in perm))
    index = [ZERO] * len(have)
    for a, p in zip(axes, perm, strict=True):
        index[p] = Index.of(a)
    return (Definition(view.out(), axes, view.load(0, tuple(index))),)


def expand(view: View) -> tuple[Definition, ...]:
    """Expand: broadcast to the given shape."""
    shape = broadcast(view, [view.shape(0), view.extents(1)])
    axes = view.axes(shape)
    return (Definition(view.out(), axes, view.load(0, aligned(view, view.shape(0), axes))),)


Piece = tuple[int, Index, Index, int]  # axis, start, end, step; bounds counted from the front, not clamped


def slices(view: View) -> tuple[Piece, ...]:
    """The bounds of a Slice, one piece per sliced axis; they are attributes before opset 10."""
    have = view.shape(0)
    if view.opset < 10:
        starts, ends = (tuple(Index.of(i) for i in view.attr(k, ())) for k in ("starts", "ends"))
        where, steps = view.attr("axes", None), None
    else:
        starts, ends = view.ints(1), view.ints(2)
        where = view.static_ints(3) if view.has(3) else None
        steps = view.static_ints(4) if view.has(4) else None
    where = tuple(view.axis(a, len(have)) for a in (range(len(starts)) if where is None else where))
    for name, values in (("starts", starts), ("ends", ends), ("steps", steps or where)):
        view.lengths(name, values, len(where))
    out: list[Piece] = []
    for at, start, end, step in zip(where, starts, ends, steps or (1,) * len(where), strict=True):
        if not step:
            raise view.refuse("E-INVALID", "a step is 0")
        lowest = ZERO if step > 0 else Index.of(-1)
        out.append((at, _from_front(start, have[at], ZERO, step), _from_front(end, have[at], lowest, step), step))
    return tuple(out)


def _from_front(bound: Index, extent: Index, lowest: Index, step: int) -> Index:
    """A bound of a slice, counted from the front, with the huge numbers that mean "to the end" replaced."""
    n = bound.constant
    if n is not None and n >= _HUGE:
        return extent if step > 0 else extent - 1
    if n is not None and n <= -_HUGE:
        return lowest
    return from_front(bound, extent)


def from_front(place: Index, extent: Index) -> Index:
    """A position on an axis, counted from the end where it is negative, as one counted from the front."""
    if never_negative(place):
        return place
    if never_negative(-1 - place):
        return place + extent
    return place + extent * least(ONE, greatest(ZERO, -place))  # adds the extent where place < 0


def _slice_bounds(view: View, piece: Piece) -> tuple[Index, Index]:
    """First index and extent of one sliced axis.

    Where bounds may lie out of range, the extent that shape inference found is used: it holds in every run, and may
    follow from the consumers of the result.
    """
    at, start, end, step = piece
    extent = view.shape(0)[at]
    n, a, b = extent.constant, start.constant, end.constant
    if n is not None and a is not None and b is not None:
        low, high = (0, n) if step > 0 else (-1, n - 1)
        first = min(max(a, 0), high)
        return Index.of(first), Index.of(len(range(first, min(max(b, low), high), step)))
    whole = (start, end) in ((ZERO, extent), (extent - 1, extent), (ZERO, ONE))
    inner = never_negative(start) and never_negative(end - start) and never_negative(extent - end)
    if step > 0 and (whole or inner):
        return start, floor_div(end - start + (step - 1), Index.of(step))
    if step < 0 and start == extent - 1 and end == -1:
        return start, floor_div(extent - step - 1, Index.of(-step))
    back = (end - extent).constant
    if step < 0 and start == extent - 1 and back is not None and back < 0:  # the end may lie before the first element
        return start, floor_div(least(extent, Index.of(-1 - back)) - step - 1, Index.of(-step))
    given = view.types.get(view.out())
    if step == 1 and given is not None and len(given.shape) > at:
        return start if never_negative(start) and n is not None else within(start, extent), given.shape[at]
    if step < 0:
        raise view.unsized(f"a slice {start!r}:{end!r}:{step} of the extent {extent!r}", (start, end, extent))
    begin = within(start, extent)
    return begin, floor_div(between(begin, within(end, extent)) + (step - 1), Index.of(step))


def within(bound: Index, extent: Index) -> Index:
    """A bound of a slice with a positive step, clamped to the axis."""
    bound = bound if never_negative(bound) else greatest(ZERO, bound)
    if never_negative(extent - bound):
        return bound
    return extent if never_negative(bound - extent) else least(bound, extent)


def between(begin: Index, end: Index) -> Index:
    """The number of elements from one bound to another, at least 0."""
    return end - begin if never_negative(end - begin) else greatest(ZERO, end - begin)


def slice_node(view: View) -> tuple[Definition, ...]:
    """Slice with steps."""
    have = view.shape(0)
    first, shape, stride = [ZERO] * len(have), list(have), [1] * len(have)
    for piece in slices(view):
        at, stride[piece[0]] = piece[0], piece[3]
        first[at], shape[at] = _slice_bounds(view, piece)
    axes = view.axes(tuple(shape))
    index = tuple(f + Index.of(a) * s for f, a, s in zip(first, axes, stride, strict=True))
    index = tuple(greatest(ZERO, i) if s < 0 else i for i, s in zip(index, stride, strict=True))
    return (Definition(view.out(), axes, view.load(0, index)),)


def split(view: View) -> tuple[Definition, ...]:
    """Split into pieces along one axis."""
    have = view.shape(0)
    at = view.axis(view.attr("axis", 0), len(have))
    if view.opset >= 13 and view.has(1):
        sizes = view.extents(1)
    elif view.opset < 13 and view.attr("split", None):
        sizes = tuple(map(Index.of, view.attr("split", ())))
    else:
        sizes = _equal_parts(view, have[at], len(view.node.outputs))
    view.lengths("the split", sizes, len(view.node.outputs))
    out: list[Definition] = []
    offset = ZERO
    for k, size in enumerate(sizes):
        axes = view.axes((*have[:at], size, *have[at + 1 :]), output=k)
        index = tuple(Index.of(a) + (offset if i == at else ZERO) for i, a in enumerate(axes))
        out.append(Definition(view.out(k), axes, view.load(0, index)))
        offset = offset + size
    return tuple(out)


def _equal_parts(view: View, whole: Index, count: int) -> tuple[Index, ...]:
    """An extent in equal parts, the last one smaller where it is not divisible; a symbolic extent must be divisible."""
    n, part = whole.constant, divides(Index.of(count), whole)
    if n is not None:
        size = -(-n // count)
        return tuple(Index.of(min(size, max(0, n - k * size))) for k in range(count))
    if part is None:
        raise view.unsized(f"{count} equal parts of the symbolic extent {whole!r}", (whole,))
    return (part,) * count


def concat(view: View) -> tuple[Definition, ...]:
    """Concat: a chain of guarded loads, one per input."""
    count = len(view.node.inputs)
    first = view.shape(0)
    at = view.axis(view.attr("axis", 0), len(first))
    for i in range(count):
        view.lengths("the shape of a piece", view.shape(i), len(first))
    extents = [view.shape(i)[at] for i in range(count)]
    beside = [_one_extent(view, [view.shape(i)[d] for i in range(count)], at == d) for d in range(len(first))]
    shape = (*beside[:at], sum(extents, ZERO), *beside[at + 1 :])
    axes = view.axes(shape)
    offset = shape[at]
    value: Scalar = const(0, view.dtype(0))
    for i in reversed(
        range(count)
    ):  # every input is guarded, the last too: inputs may be read before a guard is evaluated
        offset = offset - extents[i]
        index = tuple(Index.of(a) - (offset if d == at else ZERO) for d, a in enumerate(axes))
        piece = view.load(i, index)
        if isinstance(piece, Load):
            value = Load(piece.source, piece.index, piece.dtype, (Guard(index[at], extents[i]),), value)
        else:
            inside = apply("less", FromIndex(index[at] - extents[i], I64), Const(0, I64))
            value = apply("select", inside, piece, value)
    return (Definition(view.out(), axes, value),)


def _one_extent(view: View, extents: list[Index], joined: bool) -> Index:
    """The common extent of all inputs of a Concat on an axis other than the concatenated one."""
    chosen = next((e for e in extents if e.constant is not None), extents[0])
    for e in extents if not joined else ():
        view.demand(e, "equals", chosen)
    return chosen


def tile(view: View) -> tuple[Definition, ...]:
    """Tile by repeats."""
    have = view.shape(0)
    view.lengths("repeats", view.ints(1), len(have))
    axes = view.axes(tuple(e * r for e, r in zip(have, view.ints(1), strict=True)))
    index = tuple(index_modulo(Index.of(a), e) if e != ZERO else ZERO for a, e in zip(axes, have, strict=True))
    return (Definition(view.out(), axes, view.load(0, index)),)


def _blocksize(view: View) -> Index:
    size = view.attr("blocksize", 1)
    view.positive("blocksize", (size,))
    return Index.of(size)


def depth_to_space(view: View) -> tuple[Definition, ...]:
    """DepthToSpace, both modes."""
    n, c, h, w = view.ranked(0, 4, 4)
    b = _blocksize(view)
    depth = floor_div(c, b * b)
    axes = view.axes((n, depth, h * b, w * b))
    i, ch, y, x = unit_at(axes)
    inside = index_modulo(y, b) * b + index_modulo(x, b)
    channel = ch * b * b + inside if view.attr("mode", "DCR") == "CRD" else inside * depth + ch
    return (Definition(view.out(), axes, view.load(0, (i, channel, floor_div(y, b), floor_div(x, b)))),)


def space_to_depth(view: View) -> tuple[Definition, ...]:
    """SpaceToDepth, both modes."""
    n, c, h, w = view.ranked(0, 4, 4)
    b = _blocksize(view)
    view.nonempty((c,))
    axes = view.axes((n, c * b * b, floor_div(h, b), floor_div(w, b)))
    i, ch, y, x = unit_at(axes)
    if view.attr("mode", "DCR") == "CRD":
        block, channel = index_modulo(ch, b * b), floor_div(ch, b * b)
    else:
        block, channel = floor_div(ch, c), index_modulo(ch, c)
    index = (i, channel, y * b + floor_div(block, b), x * b + index_modulo(block, b))
    return (Definition(view.out(), axes, view.load(0, index)),)


ROWS: tuple[Row, ...] = (
    Row("Reshape", reshape, since=5, shape_inputs=(1,)),
    Row("Squeeze", squeeze, shape_inputs=(1,)),
    Row("Unsqueeze", unsqueeze, shape_inputs=(1,)),
    Row("Flatten", flatten_node),
    Row("Transpose", transpose),
    Row("Expand", expand, shape_inputs=(1,)),
    Row("Slice", slice_node, shape_inputs=(1, 2, 3, 4)),
    Row("Split", split, since=2, shape_inputs=(1,)),
    Row("Concat", concat, since=4),
    Row("Tile", tile, since=6, shape_inputs=(1,)),
    Row("DepthToSpace", depth_to_space),
    Row("SpaceToDepth", space_to_depth),
)
