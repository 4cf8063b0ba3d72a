"""The row of RoiAlign: regions of an image, each resampled to a grid of bins (He et al., Mask R-CNN, 2017).

A bin is the mean of samples at fixed places inside of it, each interpolated between four elements. Where they lie along
either axis are intermediate values of the node, in the order of operations of ONNX Runtime; channels share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from onnxfuse.ir.dtype import F32, F64, I32
from onnxfuse.ir.index import ONE, Index, Loaded
from onnxfuse.ir.scalar import Scalar, apply, cast, const
from onnxfuse.ops.resampling.resize_axis import summed
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, Stages, number

_MOST_SAMPLES = 4  # of a bin along an axis: all of them are terms of one sum
_OFFSETS = {"half_pixel": 0.5, "output_half_pixel": 0.0}


@dataclass(frozen=True, slots=True)
class _Bins:
    """The bins along one axis: where regions begin and end in `rois`, and how many samples a bin has."""

    extent: Index  # of the image
    first: int
    last: int
    count: int
    samples: int


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """One of the two elements that a sample lies between: the value with its places, and its weight."""

    places: str
    extent: Index
    weight: Element


def roi_align(view: View) -> tuple[Definition, ...]:
    """RoiAlign by means of a fixed number of samples."""
    image, rois, images_of = view.ranked(0, 4, 4), view.ranked(1, 2, 2), view.ranked(2, 1, 1)
    mode, samples = view.attr("mode", "avg"), view.attr("sampling_ratio", 0)
    if mode != "avg":
        raise view.refuse("E-NO-KERNEL", f"mode {mode} is not supported")
    if not 0 < samples <= _MOST_SAMPLES:
        reason = "the number of samples depends on sizes of regions" if not samples else f"{samples} samples a bin"
        raise view.refuse("E-NO-KERNEL", f"sampling ratio {samples}: {reason}")
    if view.dtype(0) != F32 or view.dtype(1) != F32:
        raise view.refuse("E-DTYPE", f"{view.dtype(0)} in regions of {view.dtype(1)} has no kernel")
    view.demand(rois[1], "equals", Index.of(4))
    view.demand(images_of[0], "equals", rois[0])
    for extent in image[2:]:
        view.demand(extent, "is at least", ONE)
    stages = Stages(view)
    sides = [view.attr(name, 1) for name in ("output_height", "output_width")]
    bins = [_Bins(image[3 - k], k, k + 2, sides[1 - k], samples) for k in (1, 0)]  # x stands before y in `rois`
    rows, columns = ([_neighbours(stages, bin_, rois[0], sample) for sample in range(samples)] for bin_ in bins)

    def value(at: At) -> Scalar:
        region, channel, y, x = at
        one = Index.of(Loaded(view.node.inputs[2], (region,), image[0]))

        def term(row: _Neighbour, column: _Neighbour) -> Scalar:
            places = [
                Index.of(Loaded(n.places, (region, bin_), n.extent, inside=True)) for n, bin_ in ((row, y), (column, x))
            ]
            weight = apply("mul", row.weight((region, y)), column.weight((region, x)))
            return apply("mul", weight, view.load(0, (one, channel, *places)))

        terms = [
            summed([term(row, column) for row, column in product(around, beside)])
            for around, beside in product(rows, columns)
        ]
        return apply("div", summed(terms), const(samples * samples, F32))

    stages.output((rois[0], image[1], *map(Index.of, sides)), value)
    return tuple(stages.made)


def _neighbours(stages: Stages, bins: _Bins, regions: Index, sample: int) -> tuple[_Neighbour, _Neighbour]:
    """The elements before and behind one sample of each bin of each region."""
    shape = (regions, Index.of(bins.count))
    last = number(bins.extent - 1, I32)
    tag = f"{'xy'[bins.first]}{sample}"

    def coordinate(at: At) -> Scalar:
        """In elements of the image, at least 0; -2 farther than one element before it, or behind its edge."""
        x = _coordinate(stages.view, bins, sample, *at)
        held = apply("and", apply("greater_equal", x, const(-1, F32)), apply("less_equal", x, number(bins.extent, F32)))
        return apply("select", held, apply("max", x, const(0, F32)), const(-2, F32))

    x = stages.value(f"%at_{tag}", shape, coordinate)

    def low(at: At) -> Scalar:
        inside = apply("max", x(at), const(0, F32))
        return apply("min", cast(apply("floor", inside), I32), last)

    def high(at: At) -> Scalar:
        return apply("min", apply("add", low(at), const(1, I32)), last)

    def part(at: At) -> Scalar:
        """How far the sample lies behind the element before it; that is all where this one is the last."""
        before = low(at)
        return apply("select", apply("less", before, last), apply("sub", x(at), cast(before, F32)), const(0, F32))

    def neighbour(name: str, place: Element, share: Element) -> _Neighbour:
        """With a share of the sample, or none outside of the image."""

        def weight(at: At) -> Scalar:
            return apply("select", apply("less", x(at), const(0, F32)), const(0, F32), share(at))

        stages.value(f"%{name}_{tag}", shape, place)
        by = stages.value(f"%by_{name}_{tag}", shape, weight)
        return _Neighbour(f"{stages.view.out()}%{name}_{tag}", bins.extent, by)

    return neighbour("low", low, lambda at: apply("sub", const(1, F32), part(at))), neighbour("high", high, part)


def _coordinate(view: View, bins: _Bins, sample: int, region: Index, bin_: Index) -> Scalar:
    """Where a sample of a bin lies along an axis, in elements of the image.

    Each operation is done in double precision and then rounded, as one of the runtime is: none can be contracted.
    """

    def single(op: str, a: Scalar, b: Scalar) -> Scalar:
        return cast(apply(op, cast(a, F64), cast(b, F64)), F32)

    default = "half_pixel" if view.opset >= 16 else "output_half_pixel"
    pixels = view.attr("coordinate_transformation_mode", default)
    if pixels not in _OFFSETS:
        raise view.refuse("E-NO-KERNEL", f"coordinate transformation mode {pixels} is not supported")
    scale, offset = const(view.attr("spatial_scale", 1.0), F32), const(_OFFSETS[pixels], F32)
    first, last = (
        single("sub", single("mul", view.load(1, (region, Index.of(k))), scale), offset)
        for k in (bins.first, bins.last)
    )
    size = single("sub", last, first)
    size = size if pixels == "half_pixel" else apply("max", size, _ONE_PIXEL)
    width = single("div", size, const(bins.count, F32))
    begin = single("add", first, single("mul", number(bin_, F32), width))
    within = single("div", single("mul", const(sample + 0.5, F32), width), const(bins.samples, F32))
    return single("add", begin, within)


_ONE_PIXEL = const(1, F32)  # the least size of a region, where pixels are not centred
ROWS: tuple[Row, ...] = (Row("RoiAlign", roi_align),)
