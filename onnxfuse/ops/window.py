"""Sliding windows: where a convolution or pooling reads, per spatial axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from onnxfuse.ir.compose import inside
from onnxfuse.ir.dtype import I64, DType
from onnxfuse.ir.index import ZERO, Axis, Index, floor_div, greatest, least, modulo
from onnxfuse.ir.scalar import FromIndex, Guard, Reduce, Scalar, apply, const
from onnxfuse.ops.spec import View

SPELLED = 8  # taps up to which the divisor of an average is an unrolled sum, so that it is constant inside an image


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial axis: input extent, output extent, stride, dilation, low and high padding, kernel size."""

    have: Index
    extent: Index
    stride: int
    dilation: int
    low: Index
    high: Index
    size: int

    def index(self, out: Index, tap: Index) -> Index:
        """Input position of a tap; outside of 0..have-1 in the padding."""
        return out * self.stride + tap * self.dilation - self.low

    @property
    def padded(self) -> bool:
        """Whether a tap may lie outside the input."""
        last = (self.extent - 1) * self.stride + (self.size - 1) * self.dilation - self.low
        low, beyond = self.low.constant, (last - self.have + 1).constant
        room = self.have + self.low + self.high - (self.size - 1) * self.dilation - 1
        if beyond is None and self.extent == floor_div(room, Index.of(self.stride)) + 1:
            beyond = self.high.constant  # s * (room // s) <= room: no window ends behind the padding
        return low is None or low > 0 or beyond is None or beyond > 0

    @property
    def within(self) -> Window:
        """The window without leading and trailing taps that lie in the padding for every output."""
        have, extent, low = self.have.constant, self.extent.constant, self.low.constant
        if have is None or extent is None or low is None or extent < 1:
            return self
        first = max(0, -(-(low - (extent - 1) * self.stride) // self.dilation))
        end = min(self.size, -(-(have + low) // self.dilation))
        if end <= first:
            return self
        return replace(self, low=self.low - first * self.dilation, size=end - first)

    def cells(self, out: Index, name: str, counted: bool, dtype: DType) -> Scalar:
        """The divisor of an average: the taps inside the input, or inside the padded input when `counted`.

        Where it depends on the position, it is a sum over taps: unrolled, or a reduction over a range of that name.
        """
        if not counted and self.within != self:
            return self.within.cells(out, name, counted, dtype)
        low, extent = (self.low, self.have + self.low + self.high) if counted else (ZERO, self.have)
        last = (self.extent - 1) * self.stride + (self.size - 1) * self.dilation
        beyond = (last - (self.have + self.low + self.high) + 1).constant
        if not self.padded or (counted and beyond is not None and beyond <= 0):
            return const(self.size, dtype)

        def one(tap: Index) -> Scalar:
            at = self.index(out, tap) + low
            inside = [
                apply("greater_equal", FromIndex(at, I64), const(0, I64)),
                apply("less", FromIndex(at - extent, I64), const(0, I64)),
            ]
            return apply("select", apply("and", *inside), const(1, dtype), const(0, dtype))

        if self.size <= SPELLED:
            return reduce(lambda a, b: apply("add", a, b), (one(Index.of(k)) for k in range(self.size)))
        tap = Axis(name, Index.of(self.size))
        return Reduce("sum", (tap,), (one(Index.of(tap)),), dtype)


def groups_of(view: View, channels: Index) -> int:
    """The groups of a convolution, which divide these channels of its filters. Raises Refused."""
    count: int = view.attr("group", 1)
    view.positive("group", (count,))
    if (channels.constant or 0) % count:
        raise view.refuse("E-INVALID", f"{channels!r} channels do not make {count} groups")
    return count


def windows(view: View, kernel: tuple[int, ...], data: int = 0, *, pooled: bool = False) -> tuple[Window, ...]:
    """The windows of a node, a pooling one or a convolution, over the spatial axes of its input `data`."""
    spatial = view.shape(data)[2:]
    rank = len(spatial)
    if len(kernel) != rank:
        raise view.refuse("E-SHAPE-UNKNOWN", "the kernel's shape is not known")
    strides = tuple(view.attr("strides", None) or (1,) * rank)
    dilations = tuple(view.attr("dilations", None) or (1,) * rank)
    pads = tuple(view.attr("pads", None) or (0,) * (2 * rank))
    for name, values, wanted in (("strides", strides, rank), ("dilations", dilations, rank), ("pads", pads, 2 * rank)):
        view.lengths(name, values, wanted)
    view.positive("strides, dilations and kernels", (*strides, *dilations, *kernel))
    auto = view.attr("auto_pad", "NOTSET")
    out: list[Window] = []
    for i, (have, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        reach = d * (k - 1) + 1
        low, high = (
            (Index.of(pads[i]), Index.of(pads[i + rank])) if auto == "NOTSET" else _auto_pads(auto, have, reach, s)
        )
        room = have + (low + high - reach)
        if auto.startswith("SAME") and have.constant is None:
            extent = floor_div(have + (s - 1), Index.of(s))
        elif not view.attr("ceil_mode", 0):
            extent = _places(view, room, s, pooled)
        else:  # a last window that starts in the high padding is dropped
            extent = least(-floor_div(-room, Index.of(s)) + 1, -floor_div(-(have + low), Index.of(s)))
        out.append(Window(have, extent, s, d, low, high, k))
    return tuple(out)


def _places(view: View, room: Index, stride: int, pooled: bool) -> Index:
    """The number of positions of a window that may move by `room`.

    Where the window is larger than the image, a convolution fails; pooling truncates to one position.
    """
    moves = floor_div(room, Index.of(stride))
    if room.constant is None:
        view.demand(room, "is at least", Index.of(1 - stride if pooled else 0))
        moves = greatest(moves, ZERO) if pooled and stride > 1 else moves
    return moves + 1


def _auto_pads(auto: str, have: Index, reach: int, stride: int) -> tuple[Index, Index]:
    """Padding of SAME_UPPER and SAME_LOWER, which gives ceil(have / stride) positions.

    In all it is max(0, (-have) % stride + reach - stride), where `reach` is the span of the dilated window.
    """
    if auto == "VALID":
        return ZERO, ZERO
    more = modulo(have * (stride - 1), Index.of(stride))
    total = more + (reach - stride) if reach >= stride else more - least(more, Index.of(stride - reach))
    half = floor_div(total, Index.of(2))
    return (half, total - half) if auto == "SAME_UPPER" else (total - half, half)


def guarded_load(view: View, i: int, index: tuple[Index, ...], spots: tuple[Window, ...], fill: Scalar) -> Scalar:
    """Element `index` of input i (two outer axes, then the windows' axes), `fill` where it lies in the padding."""
    return inside(guards_of(index, spots), view.load(i, index), fill)


def guards_of(index: tuple[Index, ...], spots: tuple[Window, ...]) -> tuple[Guard, ...]:
    """The guards under which an element of windows (two outer axes, then theirs) is not padding."""
    return tuple(Guard(at, s.have) for at, s in zip(index[2:], spots, strict=True) if s.padded)
