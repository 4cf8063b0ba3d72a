"""Rows of attention as ONNX Runtime's transformer optimizer writes it: with its projections, or without them.

As the runtime computes it on CPUs: where a mask is 0, a large negative number is added to scores, not -inf, so that a
query whose keys are all hidden takes the mean of their values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from onnxfuse.ir.compose import inside
from onnxfuse.ir.dtype import I64
from onnxfuse.ir.graph import Constant
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, least, modulo
from onnxfuse.ir.scalar import FromIndex, Guard, Load, Scalar, apply, cast, const
from onnxfuse.ops.contrib import MICROSOFT
from onnxfuse.ops.normalization import shares, spread
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.speller import Speller
from onnxfuse.ops.stages import At, Element, Stages, total, wide

_FILTER = -10000.0  # what is added where a mask is 0, by default
_PACKED = 3  # queries, keys and values
_OF_HEADS = 4  # axes of a tensor with one for heads


@dataclass(frozen=True, slots=True)
class _Part:
    """Queries, keys or values: the element at (batch, head, position, channel), and the extents of the last two.

    The first `former` of the positions are former ones.
    """

    element: Element
    length: Index
    width: int
    former: Index = ZERO


def attention(view: View) -> tuple[Definition, ...]:
    """Attention: queries, keys and values are products of input 0 and columns of input 1.

    Inputs 2 to 5 are the bias of the products, a mask, former keys and values, and what is added to scores. Output 1 is
    all keys and values.
    """
    if view.attr("do_rotary", 0) or view.attr("past_present_share_buffer", 0) or view.has(6):
        raise view.refuse("E-NO-KERNEL", "positions are rotated in it, or former keys and values share a buffer")
    s = Stages(view)
    batch, length, depth = view.ranked(0, 3, 3)
    rows, columns = view.ranked(1, 2, 2)
    view.demand(depth, "equals", rows)
    widths = tuple(view.attr("qkv_hidden_sizes", ())) or (_known(view, columns) // _PACKED,) * _PACKED
    view.lengths("qkv_hidden_sizes", widths, _PACKED)
    k = Axis(f"{view.out()}%packed:k", depth)

    def projected(at: At) -> Scalar:
        x, w = view.load(0, (*at[:2], Index.of(k))), view.load(1, (Index.of(k), at[2]))
        made = total("sum", (k,), apply("mul", x, w))
        made = apply("add", made, wide(view, 2)(at[2:])) if view.has(2) else made
        return cast(made, x.dtype)

    packed = s.value("%packed", (batch, length, Index.of(sum(widths))), projected)

    def part(begin: int, width: int) -> _Part:
        each = _per_head(view, width)
        return _Part(lambda at: packed((at[0], at[2], at[1] * each + at[3] + begin)), length, each)

    q, *parts = map(part, accumulate(widths, initial=0), widths)
    if view.has(4) or _wanted(view, 1):
        if widths[1] != widths[2]:
            raise view.refuse("E-NO-KERNEL", "keys and values that are kept are not equally wide")
        first, step = parts[0].element, widths[1]
        new = _Part(lambda at: first((*at[1:4], at[4] + at[0] * step)), length, parts[0].width)
        both = _behind(s, "%kept", (1, 4), (Index.of(2), batch), new)
        parts = [replace(both, element=partial(_of_kind, both.element, kind)) for kind in range(2)]
    keys, values = parts
    _attended(s, q, keys, values, mask=3)
    return tuple(s.made)


def _of_kind(both: Element, kind: int, at: At) -> Scalar:
    """Keys (0) or values (1) of a tensor that has both."""
    return both((Index.of(kind), *at))


def multi_head_attention(view: View) -> tuple[Definition, ...]:
    """MultiHeadAttention: queries, keys and values are inputs 0 to 2; the latter two may have their heads already.

    Inputs 3 to 7 are a bias of all three, a mask, what is added to scores, and former keys and values. Outputs 1 and 2
    are all keys and values.
    """
    if not (view.has(1) and view.has(2)) or view.has(8) or view.has(9) or len(view.node.outputs) > _PACKED:
        raise view.refuse("E-NO-KERNEL", "inputs are packed, former keys and values share a buffer, or scores are read")
    s, begin, parts = Stages(view), 0, list[_Part]()
    batch = view.ranked(0, 3, 3)[0]
    for i, tag in enumerate(("%queries", "%keys", "%values")):
        view.demand(view.ranked(i, 3, _OF_HEADS)[0], "equals", batch)
        parts.append(_given(s, tag, i, begin))
        begin += parts[-1].width * _heads(view)
        if i:
            parts[-1] = _behind(s, tag, (i, 5 + i), (batch,), parts[-1])
    q, keys, values = parts
    view.demand(keys.length, "equals", values.length)
    _attended(s, q, keys, values, mask=4)
    return tuple(s.made)


def _spelled_with_caches(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """MultiHeadAttention of one output: in a body the runtime does not infer the types of all keys and values.

    Former keys and values stand before the new ones, which have the bias and their heads already then.
    """
    wanted = len(view.node.outputs)
    if wanted == 1 and not (view.has(6) or view.has(7)):
        return (put.add(view.node.key, *inputs, **view.node.attrs),)
    begin, parts = 0, list[str]()
    for i in range(_PACKED):
        x, shape = inputs[i], view.shape(i)
        width = _known(view, shape[-1])
        if view.has(3):
            ends = ((begin,), (begin + width,), (0,))
            x = put.add("Add", x, put.add("Slice", inputs[3], *(put.vector(tuple(map(Index.of, e))) for e in ends)))
        begin += width
        if i and len(shape) < _OF_HEADS:
            split = (0, 0, _heads(view), width // _heads(view))
            x = put.add("Reshape", x, put.constant(Constant.of(np.array(split, np.int64), I64)))
            x = put.add("Transpose", x, perm=(0, 2, 1, 3))
        if i and view.has(5 + i):
            x = put.add("Concat", inputs[5 + i], x, axis=2)
        parts.append(x)
    given = (*parts, "", *inputs[4:6]) if view.has(6) else inputs
    made = put.add(view.node.key, *given, **view.node.attrs)
    return (made, *parts[1:])[:wanted]


def _known(view: View, extent: Index) -> int:
    """A width that has to be known. Raises Refused."""
    if extent.constant is None:
        raise view.unsized(f"{extent!r} channels", (extent,))
    return extent.constant


def _heads(view: View) -> int:
    return int(view.attr("num_heads", 1))


def _per_head(view: View, width: int) -> int:
    """The channels of one head, at least one. Raises Refused where heads have not equally many."""
    view.positive("num_heads", (_heads(view),))
    if width % _heads(view) or not width:
        raise view.refuse("E-INVALID", f"{width} channels do not make {_heads(view)} heads")
    return width // _heads(view)


def _given(s: Stages, tag: str, i: int, begin: int) -> _Part:
    """Queries, keys or values as input i, plus the bias (input 3) from `begin` on."""
    view, shape = s.view, s.view.shape(i)
    if len(shape) == _OF_HEADS:
        view.demand(shape[1], "equals", Index.of(_heads(view)))
        return _Part(partial(view.load, i), shape[2], _per_head(view, _known(view, shape[3]) * _heads(view)))
    each = _per_head(view, _known(view, shape[2]))
    element: Element = partial(view.load, i)
    if view.has(3):
        x, bias = wide(view, i), wide(view, 3)
        biased = s.value(
            f"{tag}%biased", shape, lambda at: cast(apply("add", x(at), bias((at[2] + begin,))), view.dtype(i))
        )
        element = biased
    return _Part(lambda at: element((at[0], at[2], at[1] * each + at[3])), shape[1], each)


def _behind(s: Stages, tag: str, at: tuple[int, int], outer: At, new: _Part) -> _Part:
    """New keys or values behind former ones, as an output and an input (`at`) if the node has these.

    `outer` are the extents before that of heads.
    """
    view, (output, former) = s.view, at
    rank = len(outer) + 3
    count = view.ranked(former, rank, rank)[-2] if view.has(former) else ZERO

    def joined(at: At) -> Scalar:
        place = at[-2] - count
        late = new.element((*at[:-2], place, at[-1]))
        if not view.has(former):
            return late
        late = inside((Guard(place, new.length),), late, const(0, late.dtype))
        return inside((Guard(at[-2], count),), view.load(former, at), late)

    length = count + new.length
    shape = (*outer, Index.of(_heads(view)), length, Index.of(new.width))
    if view.has(former):
        view.demand(view.shape(former)[-4], "equals", outer[-1])
    if _wanted(view, output):
        s.output(shape, joined, k=output)
        return _Part(lambda at: Load(view.out(output), at, view.dtype(0)), length, new.width, count)
    return _Part(s.value(tag, shape, joined), length, new.width, count) if view.has(former) else new


def _wanted(view: View, output: int) -> bool:
    return output < len(view.node.outputs) and bool(view.node.outputs[output])


def _attended(s: Stages, q: _Part, keys: _Part, values: _Part, mask: int) -> None:
    """Output 0: what each query attends to. Input `mask` is a mask, and input 5 is added to scores, if given."""
    view = s.view
    batch, heads = view.shape(0)[0], Index.of(_heads(view))
    have = (batch, heads, q.length, keys.length)
    if q.width != keys.width:
        raise view.refuse("E-INVALID", f"queries have {q.width} channels, keys {keys.width}")
    if view.attr("unidirectional", 0) and keys.length - keys.former != q.length:
        raise view.refuse("E-NO-KERNEL", "later keys are hidden of those that do not belong to queries")
    scale = float(view.attr("scale", 0.0)) or 1 / math.sqrt(q.width)
    c, j = Axis(f"{view.out()}%scores:c", Index.of(q.width)), Axis(f"{view.out()}%heads:j", keys.length)

    def score(at: At) -> Scalar:
        one, other = q.element((*at[:3], Index.of(c))), keys.element((*at[:2], at[3], Index.of(c)))
        return total("sum", (c,), apply("mul", one, other))

    scores = s.value("%scores", have, score)

    def masked(at: At) -> Scalar:
        made = scores(at)
        made = apply("mul", made, const(scale, made.dtype))
        if view.has(5):
            made = apply("add", made, _bias(view, have)(at))
        if view.has(mask):
            hidden = apply("less_equal", _mask(view, mask, have, at), const(0, view.dtype(mask)))
            low = const(float(view.attr("mask_filter_value", _FILTER)), made.dtype)
            made = apply("add", made, apply("select", hidden, low, const(0, made.dtype)))
        if view.attr("unidirectional", 0):
            seen = apply("less", FromIndex(at[3] - at[2] - keys.former - 1, I64), const(0, I64))
            made = apply("select", seen, made, const(float("-inf"), made.dtype))
        return made

    weights = shares(s, have, (3,), s.value("%masked", have, masked))

    def mean(at: At) -> Scalar:
        weight, value = weights((*at[:3], Index.of(j))), values.element((*at[:2], Index.of(j), at[3]))
        return total("sum", (j,), apply("mul", weight, value))

    made = s.value("%heads", (*have[:3], Index.of(values.width)), mean)

    def of_head(at: At) -> Scalar:
        width = Index.of(values.width)
        return made((at[0], floor_div(at[2], width), at[1], modulo(at[2], width)))

    s.output((batch, q.length, heads * values.width), of_head)


def _bias(view: View, have: At) -> Element:
    """What is added to scores (input 5): of a batch and of heads, one for all or one for each."""
    shape = view.ranked(5, _OF_HEADS, _OF_HEADS)
    open_ = [k < 2 and e.constant is None and e != have[k] for k, e in enumerate(shape)]  # it may be 1
    for k, extent in enumerate(shape):
        if not open_[k] and (k >= 2 or extent != ONE):
            view.demand(extent, "equals", have[k])

    def element(at: At) -> Scalar:
        spot = spread(view, shape, have, at)
        return wide(view, 5)(tuple(least(i, e - 1) if o else i for i, e, o in zip(spot, shape, open_, strict=True)))

    return element


def _mask(view: View, i: int, have: At, at: At) -> Scalar:
    """Input i at a score, positive where a key is not hidden.

    It is a mask of (batch, key) or of (batch, query, key), or tells how many keys each of a batch has.
    """
    batch, _, queries, keys = have
    shape = view.ranked(i, 1, 3)
    for extent, other in zip(shape, {2: (batch, keys), 3: (batch, queries, keys)}.get(len(shape), ()), strict=False):
        view.demand(extent, "equals", other)
    if len(shape) > 1:
        return view.load(i, (at[0], *at[5 - len(shape) :]))
    if shape != (batch,):
        raise view.refuse("E-NO-KERNEL", "the mask may tell where keys begin, too")
    return apply("sub", view.load(i, at[:1]), cast(FromIndex(at[3], I64), view.dtype(i)))


ROWS: tuple[Row, ...] = (
    Row(MICROSOFT + "Attention", attention),
    Row(MICROSOFT + "MultiHeadAttention", multi_head_attention, spell=_spelled_with_caches),
)
