"""Rows of scans: each element combined with all before it, block by block, so that no element waits for another.

Blocks of `BLOCK` elements are combined first, then blocks of those where they are many. What lies before an element is
some blocks of each size, the largest first, and the first elements of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.compose import inside
from onnxfuse.ir.index import Axis, Index, floor_div
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Guard, Scalar
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, Stages, total, wide

BLOCK = 8  # pieces of a size that make one of the next


@dataclass(frozen=True, slots=True)
class Pieces:
    """Parts of an axis of one size: what each comes to, read at a full index, and how many there are."""

    read: Element
    count: Index


def scan_row(op: str, combine: str) -> Row:
    """CumSum or CumProd along a known axis, exclusive or not, from either end."""

    def define(view: View) -> tuple[Definition, ...]:
        have, stages = view.shape(0), Stages(view)
        at = view.axis(view.static_ints(1)[0], len(have))
        turned = bool(view.attr("reverse", 0))

        def from_end(index: At) -> At:
            return (*index[:at], have[at] - 1 - index[at], *index[at + 1 :]) if turned else index

        x = wide(view)
        sizes = [Pieces(lambda index: x(from_end(index)), have[at])]
        while (sizes[-1].count.constant or 0) > BLOCK or (len(sizes) == 1 and have[at].constant is None):
            sizes.append(_blocks(stages, have, at, combine, sizes[-1], f"%{len(sizes)}"))
        own = view.attr("exclusive", 0)

        def value(index: At) -> Scalar:
            place = from_end(index)
            parts = [
                _before(view, combine, sizes, depth, place, at, last=1 if depth else own)
                for depth in reversed(range(len(sizes)))
            ]
            whole = parts[0]
            for part in parts[1:]:
                (whole,) = MONOIDS[combine].merge((whole,), (part,))
            return whole

        stages.output(have, value)
        return tuple(stages.made)

    return Row(op, define, shape_inputs=(1,))


def _blocks(stages: Stages, have: At, at: int, combine: str, small: Pieces, tag: str) -> Pieces:
    """Pieces of the next size; the last one may hold fewer."""
    count = floor_div(small.count + (BLOCK - 1), Index.of(BLOCK))
    shape = (*have[:at], count, *have[at + 1 :])

    def one(index: At) -> Scalar:
        j = Axis(f"{stages.view.out()}{tag}:j", Index.of(BLOCK))
        place = index[at] * BLOCK + j
        x = small.read((*index[:at], place, *index[at + 1 :]))
        return total(combine, (j,), inside((Guard(place, small.count),), x, MONOIDS[combine].init(x.dtype)[0]))

    return Pieces(stages.value(tag, shape, one), count)


def _before(view: View, combine: str, sizes: list[Pieces], depth: int, index: At, at: int, last: int) -> Scalar:
    """The pieces of one size that lie before a place, in the piece of the next size that holds it.

    With `last` the one that holds the place is left out.
    """
    here, size = index[at], sizes[depth]
    largest = depth == len(sizes) - 1
    j = Axis(f"{view.out()}:j{depth}", size.count if largest else Index.of(BLOCK))
    first = 0 if largest else floor_div(here, Index.of(BLOCK ** (depth + 1))) * BLOCK
    place = first + Index.of(j)
    guards = (Guard(place, size.count), Guard(floor_div(here, Index.of(BLOCK**depth)) - last - place, size.count))
    x = size.read((*index[:at], place, *index[at + 1 :]))
    return total(combine, (j,), inside(guards, x, MONOIDS[combine].init(x.dtype)[0]))


ROWS: tuple[Row, ...] = (
    scan_row("CumSum", "sum"),
    scan_row("CumProd", "prod"),
)
