"""Cases of convolutions and pooling, plain and channels last: strides, padding, dilation, groups, odd channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import F16, F32, F64, DType
from tests.kernels.compiled import Case
from tests.rules.build import Build


def conv(
    name: str,
    x: tuple[int | str, ...],
    filters: tuple[int, ...],
    *,
    after: str = "relu",
    bias: bool = True,
    last: str = "xry",
    sizes: Any = ({},),
    dtype: DType = F32,
    way: int | None = None,
    form: int | None = None,
    **attrs: Any,
) -> Case:
    """A convolution and what comes after it; `last` names the images that lie channels last."""
    b = Build()
    scale = np.sqrt(np.prod(filters[1:]))
    inputs = [b.input("x", *x, dtype=dtype), b.constant((b.rng.normal(size=filters) / scale).astype(dtype.numpy))]
    if bias:
        inputs.append(b.constant(b.rng.normal(size=filters[:1]).astype(dtype.numpy)))
    y = b.node("Conv", *inputs, out="y" if not after else "", kernel_shape=filters[2:], **attrs)
    outputs = []
    if "both" in after:
        outputs.append(y)
    if "residual" in after:
        have = b.types[y]
        assert have is not None
        y = b.node("Add", y, b.input("r", *(e.constant or repr(e) for e in have.shape), dtype=dtype))
    if "clip" in after:
        y = b.node("Clip", y, b.constant(0.0), b.constant(0.5), out="y")
    elif after:
        y = b.node("Relu", y, out="y")
    values = tuple(v for v in last if v in b.types)
    return Case(name, b.graph(*outputs, y), tuple(sizes), values, way=way, form=form)


def of_transposed(
    name: str, x: tuple[int | str, ...], filters: tuple[int, ...], sizes: Any = ({},), **attrs: Any
) -> Case:
    """A convolution of a transposed image, as frameworks that keep channels last export their first one."""
    b = Build()
    image = b.node("Transpose", b.input("x", *x), perm=(0, len(x) - 1, *range(1, len(x) - 1)))
    weights = b.constant((b.rng.normal(size=filters) / np.sqrt(np.prod(filters[1:]))).astype(np.float32))
    y = b.node("Conv", image, weights, kernel_shape=filters[2:], **attrs)
    return Case(name, b.graph(b.node("Relu", y, out="y")), tuple(sizes), ("y",))


def pads(size: int, rank: int = 2) -> tuple[int, ...]:
    return (size,) * (2 * rank)


OPEN = ({"N": 1, "H": 1, "W": 1}, {"N": 2, "H": 11, "W": 21}, {"N": 9, "H": 30, "W": 3})


def convolutions() -> list[Case]:
    three = {"pads": pads(1)}
    return [
        conv("conv3_even", (1, 32, 14, 14), (32, 32, 3, 3), **three, after="residual"),
        conv("conv3_lines", (2, 16, 5, 28), (40, 16, 3, 3), **three, after="residual"),  # tiles are parts of lines
        conv("conv3_lines_any", ("N", 16, 3, 20), (40, 16, 3, 3), **three, sizes=({"N": 1}, {"N": 3})),
        conv("conv5_lines", (1, 16, 6, 14), (40, 16, 5, 5), pads=pads(2)),  # two of a tile's rows are padding
        conv("conv3_lines_apart", (1, 16, 6, 28), (40, 16, 3, 3), pads=pads(2), dilations=(2, 2)),
        conv("conv3_lines_strided", (1, 16, 9, 28), (40, 16, 3, 3), pads=pads(1), strides=(2, 2)),
        conv("conv1_lines_strided", (1, 16, 9, 28), (40, 16, 1, 1), strides=(2, 2)),
        conv("one_filter_any", ("N", 8, "H", "W"), (1, 8, 5, 5), pads=pads(2), last="", sizes=OPEN),
        conv("one_filter_signal_any", ("N", 32, "W"), (1, 32, 7), pads=pads(3, 1), last="", sizes=OPEN),
        conv("one_filter_last", (2, 16, 9, 11), (1, 16, 3, 3), pads=pads(1), last="x"),
        conv("one_filter_last_any", ("N", 24, "H", "W"), (1, 24, 3, 3), pads=pads(1), last="x", sizes=OPEN),
        conv("conv_whole_height", (2, 3, 70, 9), (16, 3, 70, 3), pads=(0, 1, 0, 1), last=""),  # 70 lines in a window
        conv("conv_whole_height_last", ("N", 4, 96, "T"), (16, 4, 96, 3), pads=(0, 1, 0, 1), last="y",
             sizes=({"N": 1, "T": 3}, {"N": 3, "T": 17})),
        conv("conv3_packed", (1, 72, 7, 7), (264, 72, 3, 3), **three, after="residual", way=-1),
        conv("conv3_packed_parts", (2, 160, 7, 7), (260, 160, 3, 3), **three, strides=(2, 1), way=-1),
        *(conv(f"conv3_way_{way}", (1, 40, 7, 9), (72, 40, 3, 3), pads=pads(1), way=way) for way in range(4)),
        conv("conv3_odd", (1, 5, 9, 9), (11, 5, 3, 3), **three, after="residual"),
        conv("conv3_odd_plain", (1, 5, 9, 9), (11, 5, 3, 3), **three, after="residual", last=""),
        conv("conv3_plain_in", (1, 5, 9, 9), (11, 5, 3, 3), **three, last="y"),
        conv("conv3_plain_out", (1, 16, 9, 9), (16, 16, 3, 3), **three, last="x"),
        conv("conv3_bare", (2, 8, 6, 7), (16, 8, 3, 3), after="", bias=False, **three),
        conv("conv3_both", (1, 8, 6, 7), (16, 8, 3, 3), after="both", **three),
        conv("conv3_stride", (1, 16, 15, 15), (40, 16, 3, 3), strides=(2, 2), **three),
        conv("conv3_dilated", (1, 9, 12, 12), (16, 9, 3, 3), dilations=(2, 2), pads=pads(2)),
        conv("conv3_past", (1, 9, 5, 6), (40, 9, 3, 3), dilations=(5, 4), pads=(5, 4, 5, 4)),  # most of it padding
        conv("conv3_past_lines", (1, 8, 5, 28), (40, 8, 3, 3), dilations=(7, 1), pads=(7, 1, 7, 1)),
        conv("conv3_past_any", ("N", 9, "H", "W"), (40, 9, 3, 3), dilations=(3, 9), pads=(3, 9, 3, 9),
             sizes=({"N": 2, "H": 1, "W": 1}, {"N": 1, "H": 2, "W": 13}, {"N": 1, "H": 11, "W": 25})),
        conv("conv3_past_few", (1, 9, 4, 4), (5, 9, 3, 3), dilations=(5, 4), pads=(5, 4, 5, 4)),
        conv("conv3_uneven", (1, 9, 12, 10), (16, 9, 3, 2), strides=(2, 1), pads=(0, 1, 2, 0), last=""),
        conv("conv3_same", (1, 9, 11, 11), (16, 9, 3, 3), strides=(2, 2), auto_pad="SAME_UPPER"),
        conv("conv3_valid", (1, 9, 11, 11), (16, 9, 3, 3), last="x"),
        conv("conv5", (1, 12, 10, 10), (20, 12, 5, 5), pads=pads(2)),
        conv("conv1", (1, 64, 7, 7), (32, 64, 1, 1), after="residual"),
        conv("conv1_plain", (1, 24, 7, 5), (33, 24, 1, 1), last=""),
        conv("conv1_stride", (1, 24, 9, 9), (17, 24, 1, 1), strides=(2, 2)),
        conv("conv1_image", (1, 40, 1, 1), (30, 40, 1, 1)),
        conv("conv_tall", (1, 8, 12, 9), (16, 8, 3, 1), pads=(1, 0, 1, 0)),
        conv("conv_few_out", (1, 16, 9, 9), (3, 16, 3, 3), **three),
        conv("conv_few_out_deep", (1, 40, 7, 9), (2, 40, 3, 3), **three, after="residual"),
        conv("conv_few_out_shallow", (1, 3, 9, 11), (4, 3, 3, 3), **three),
        conv("conv1_few_out", (2, 40, 7, 9), (3, 40, 1, 1)),
        conv("conv1_along_rows", (1, 24, 7, 9), (33, 24, 1, 1), last="y"),  # pixels lie side by side: copied, k by k
        conv("conv1_along_rows_deep", (1, 300, 5, 9), (70, 300, 1, 1), last="ry", after="residual", way=-1),
        conv("conv1_along_rows_images", (2, 24, 3, 5), (33, 24, 1, 1), last="y"),
        conv("conv1_along_rows_short", (1, 24, 1, 7), (33, 24, 1, 1), last="y"),
        conv("conv1_half_a_panel", (1, 24, 7, 9), (48, 24, 1, 1), after="residual"),
        conv("conv_one_out", (1, 40, 7, 9), (1, 40, 3, 3), **three),
        conv("conv_one_in", (1, 1, 9, 9), (16, 1, 3, 3), **three),
        conv("conv_line", (2, 8, 21), (16, 8, 3), pads=(1, 1)),
        conv("conv_volume", (1, 4, 5, 6, 7), (8, 4, 3, 3, 3), pads=pads(1, 3)),
        conv("stem", (1, 3, 24, 24), (64, 3, 7, 7), strides=(2, 2), pads=pads(3), last="y"),
        conv("stem_plain", (1, 3, 15, 15), (20, 3, 3, 3), strides=(2, 2), pads=pads(1), after="clip", last=""),
        of_transposed("stem_transposed", ("N", 23, 24, 3), (64, 3, 7, 7), strides=(2, 2),
                      pads=pads(3), sizes=({"N": 1}, {"N": 2})),
        of_transposed("stem_transposed_odd", (2, 13, 11, 5), (19, 5, 3, 5), pads=(1, 2, 0, 1)),
        of_transposed("stem_transposed_line", (1, 17, 3), (16, 3, 3), pads=(1, 1)),
        of_transposed("conv1_transposed", (1, 7, 5, 3), (16, 3, 1, 1), pads=pads(1)),
        of_transposed("conv_transposed_pixel", (1, 1, 1, 3), (16, 3, 3, 3), pads=pads(1)),
        conv("group_two", (1, 16, 8, 8), (24, 8, 3, 3), group=2, **three),
        conv("group_many", (1, 32, 6, 6), (32, 4, 3, 3), group=8, **three, last=""),
        conv("groups4", (1, 32, 9, 9), (32, 4, 3, 3), group=8, **three, after="residual"),
        conv("groups4_stride", (2, 48, 9, 8), (48, 4, 3, 3), group=12, strides=(2, 2), **three),
        conv("groups8", (1, 48, 7, 7), (48, 8, 3, 3), group=6, **three, after="clip"),
        conv("groups8_odd", (1, 40, 7, 5), (40, 8, 3, 3), group=5, **three),  # channels are no whole vectors
        conv("groups8_dilated", (2, 40, 6, 7), (40, 8, 3, 3), group=5, dilations=(2, 2), pads=pads(2)),
        conv("groups8_stride", (1, 24, 7, 5), (24, 8, 3, 3), group=3, strides=(1, 2), **three, after="residual"),
        conv("groups8_five", (1, 32, 9, 10), (32, 8, 5, 5), group=4, pads=pads(2)),
        conv("groups16", (1, 48, 8, 15), (48, 16, 3, 3), group=3, **three),
        conv("groups32", (1, 64, 5, 7), (64, 32, 3, 3), group=2, **three, after="residual"),
        conv("groups2_dilated", (1, 16, 9, 9), (16, 2, 3, 3), group=8, dilations=(2, 2), pads=pads(2)),
        conv("groups8_points", (1, 32, 6, 6), (32, 8, 1, 1), group=4),
        conv("groups48_taps", (1, 96, 8), (96, 48, 70), group=2, pads=(35, 35)),  # 70 pieces, one if groups lie apart
        conv("groups66", (1, 132, 5, 7), (92, 66, 3, 3), group=2, **three),  # in tiles, a third of a panel is unused
        conv("groups66_line", (2, 132, 11), (132, 66, 8), group=2, pads=(4, 4), last="y", after="residual"),
        conv("groups66_points", (1, 198, 9), (198, 66, 1), group=3, last=""),
        *(conv(f"groups66_way_{way}", (1, 132, 7, 9), (140, 66, 3, 3), group=2, **three, way=way) for way in range(4)),
        conv("groups66_lower", (1, 66, 9, 8), (66, 22, 3, 3), group=3, strides=(2, 2), **three, form=1),
        conv("groups6", (1, 24, 6, 6), (24, 6, 3, 3), group=4, **three),  # lanes of several groups do not line up
        conv("groups_widen", (1, 16, 6, 6), (32, 4, 3, 3), group=4, **three),
        conv("groups_lone", (1, 32, 1, 1), (32, 8, 1, 1), group=4),
        conv("groups_any_image", ("N", 32, "H", "W"), (32, 8, 3, 3), group=4, **three,
             sizes=({"N": 1, "H": 5, "W": 7}, {"N": 2, "H": 1, "W": 1})),
        conv("depth5_any_width", ("N", 24, "H", "W"), (24, 1, 5, 5), group=24, pads=pads(2), strides=(2, 1),
             sizes=[{"N": 2, "H": 3, "W": w} for w in (1, 2, 3, 4, 5, 9, 12, 13, 21)]),
        conv("depth3_any_width", (1, 19, 4, "W"), (19, 1, 3, 3), group=19, pads=(1, 0, 1, 2), strides=(1, 2),
             after="clip", sizes=[{"W": w} for w in (1, 2, 3, 7, 16, 17, 37)]),
        conv("depth_any_dilated", (1, 16, 9, "W"), (16, 1, 3, 4), group=16, pads=(2, 5, 2, 3), dilations=(2, 3),
             strides=(1, 3), sizes=[{"W": w} for w in (2, 3, 11, 29, 64)]),
        conv("depth_even", (1, 32, 14, 14), (32, 1, 3, 3), group=32, after="clip", **three),
        conv("depth7", (1, 40, 18, 18), (40, 1, 7, 7), group=40, pads=pads(3), after=""),
        conv("depth7_small", (2, 19, 5, 7), (19, 1, 7, 7), group=19, pads=pads(3)),
        conv("depth_line", (2, 19, 53), (19, 1, 9), group=19, pads=(4, 4), last=""),  # most vectors need no masks
        conv("depth_line_uneven", (1, 19, 67), (19, 1, 7), group=19, pads=(11, 2), dilations=(2,), after="", last=""),
        conv("depth_line_strided", (1, 3, 107), (3, 1, 5), group=3, strides=(2,), pads=(2, 2), last=""),
        conv("depth_line_any", ("N", 19, 41), (19, 1, 5), group=19, pads=(2, 2), last="",
             sizes=({"N": 1}, {"N": 3})),
        conv("depth_far", (1, 4, 181, 191), (4, 1, 3, 3), group=4, **three, last=""),  # next lines are prefetched
        conv("depth_far_strided", (1, 3, 421, 439), (3, 1, 3, 3), group=3, strides=(2, 2), **three, last=""),
        conv("line_far", (1, 5, 9001), (16, 5, 3), pads=(1, 1), last=""),
        conv("depth_odd", (1, 19, 7, 7), (19, 1, 3, 3), group=19, strides=(2, 2), after="clip", **three),
        conv("depth_plain", (1, 19, 7, 7), (19, 1, 3, 3), group=19, after="clip", last="", **three),
        conv("depth_wide", (1, 8, 30, 30), (8, 1, 5, 5), group=8, pads=pads(2)),
        conv("depth_dilated", (1, 16, 11, 11), (16, 1, 3, 3), group=16, dilations=(2, 2), pads=pads(2)),
        conv("depth_twice", (1, 6, 8, 8), (12, 1, 3, 3), group=6, **three),
        conv("depth_tall", (1, 16, 9, 1), (16, 1, 3, 1), group=16, pads=(1, 0, 1, 0)),
        conv("conv_any_batch", ("N", 8, 7, 7), (24, 8, 3, 3), **three, sizes=({"N": 1}, {"N": 3})),
        conv("conv_any_image", ("N", 8, "H", "W"), (24, 8, 3, 3), **three,
             sizes=({"N": 1, "H": 5, "W": 7}, {"N": 2, "H": 1, "W": 1}, {"N": 1, "H": 16, "W": 3})),
        conv("conv1_any_image", (1, 8, "H", "W"), (24, 8, 1, 1), last="", sizes=({"H": 5, "W": 7}, {"H": 1, "W": 1})),
        conv("depth_any_image", (1, 20, "H", "W"), (20, 1, 3, 3), group=20, strides=(2, 2), **three,
             sizes=({"H": 9, "W": 7}, {"H": 2, "W": 3})),
        conv("conv_no_image", (0, 8, 5, 5), (16, 8, 3, 3), **three),
    ]  # fmt: skip


def lines(
    name: str, images: int | str, steps: int, channels: int, filters: int, taps: int, *, pool: str = "",
    stride: int = 1, sizes: Any = ({},), way: int | None = None,
) -> Case:  # fmt: skip
    """Convolutions of lines whose channels are contiguous, and what reduces all steps of them."""
    b = Build(18)
    x = b.node("Transpose", b.input("x", images, steps, channels), perm=(0, 2, 1))
    w = b.constant((b.rng.normal(size=(filters, channels, taps)) / np.sqrt(channels * taps)).astype(np.float32))
    y = b.node("Tanh", b.node("Conv", x, w, kernel_shape=(taps,), strides=(stride,)))
    if pool.startswith("Reduce"):
        return Case(name, b.graph(b.node(pool, y, b.ints(2), out="y", keepdims=0)), sizes, way=way)
    return Case(name, b.graph(b.node(pool, y, out="y") if pool else b.node("Neg", y, out="y")), sizes, way=way)


def lines_last() -> list[Case]:
    return [
        lines("lines", 3, 19, 24, 40, 5),
        lines("lines_pool", 3, 19, 24, 40, 5, pool="GlobalMaxPool"),
        lines("lines_pool_strided", 2, 33, 16, 33, 4, pool="GlobalAveragePool", stride=3),
        lines("lines_sum", 2, 18, 17, 50, 3, pool="ReduceSum"),
        lines("lines_squares", 2, 18, 17, 50, 3, pool="ReduceSumSquare"),
        *(lines(f"lines_any_way_{way}", "N", 20, 16, 72, 5, pool="GlobalMaxPool", way=way,
                sizes=({"N": 1}, {"N": 5})) for way in range(4)),
    ]  # fmt: skip


def typed() -> list[Case]:
    """Convolutions of other element types."""
    out = []
    for t in (F64, F16):
        b = Build()
        w = b.constant((b.rng.normal(size=(12, 6, 3, 3)) / 7).astype(t.numpy))
        y = b.node("Conv", b.input("x", 1, 6, 7, 7, dtype=t), w, kernel_shape=(3, 3), pads=pads(1))
        out.append(Case(f"conv_{t}", b.graph(y)))
    b = Build()
    y = b.node("Conv", b.input("x", 1, 6, 7, 7), b.input("w", 20, 6, 3, 3), kernel_shape=(3, 3), pads=pads(1))
    out.append(Case("conv_filters_given", b.graph(y)))
    return out


def joined(
    name: str,
    filters: tuple[int, ...],
    shapes: Any = ((1, 16, 9, 11), (1, 7, 9, 11)),
    last: str = "x",
    sizes: Any = ({},),
    **attrs: Any,
) -> Case:
    """A convolution of images that are put together along their channels."""
    b = Build()
    x = b.node("Concat", *(b.input(f"x{i}", *shape) for i, shape in enumerate(shapes)), axis=1)
    w = b.constant((b.rng.normal(size=filters) / np.sqrt(np.prod(filters[1:]))).astype(np.float32))
    y = b.node("Relu", b.node("Conv", x, w, kernel_shape=filters[2:], **attrs), out="y")
    values = tuple(v for v in ("x0", "x1", "x2", "y") if v in b.types and v[0] in last)
    return Case(name, b.graph(y), tuple(sizes), values)


def transposed() -> Case:
    """A transposed convolution whose windows lie side by side: its columns are three axes of what is stored."""
    b = Build()
    w = b.constant((b.rng.normal(size=(12, 20, 2, 3)) / 4).astype(np.float32))
    bias = b.constant(b.rng.normal(size=20).astype(np.float32))
    y = b.node("ConvTranspose", b.input("x", 1, 12, 5, 4), w, bias, out="y", kernel_shape=(2, 3), strides=(2, 3))
    return Case("transposed_side_by_side", b.graph(y), ({},), ("x", "y"))


def upwards(
    name: str, x: tuple[int | str, ...], filters: tuple[int, ...], sizes: Any = ({},), last: str = "", **attrs: Any
) -> Case:
    """A transposed convolution whose windows overlap: elements with another remainder have other taps."""
    b = Build()
    w = b.constant((b.rng.normal(size=filters) / 8).astype(np.float32))
    bias = b.constant(b.rng.normal(size=filters[1:2]).astype(np.float32))
    y = b.node("ConvTranspose", b.input("x", *x), w, bias, kernel_shape=filters[2:], **attrs)
    return Case(name, b.graph(b.node("Relu", y, out="y")), tuple(sizes), tuple(last))


def frames_overlapped(name: str, frames: int | str, sizes: Any) -> Case:
    """A spectrum that is computed and laid back into a wave: one channel, to which several frames each contribute."""
    b = Build()
    w = b.constant((b.rng.normal(size=(6, 1, 12)) / 8).astype(np.float32))
    x = b.node("Concat", *(b.node(op, b.input("x", 2, 3, frames)) for op in ("Sin", "Cos")), axis=1)
    y = b.node("ConvTranspose", x, w, out="y", kernel_shape=(12,), strides=(4,))
    return Case(name, b.graph(y), sizes)


def concatenations() -> list[Case]:
    three = {"pads": pads(1)}
    any_image = (("N", 8, "H", "W"), ("N", 5, "H", "W"))
    out = [
        joined("joined3", (20, 23, 3, 3), last="xy", **three),
        joined("joined3_plain", (20, 23, 3, 3), last="", **three),
        joined("joined3_valid", (20, 23, 3, 3), last="xy"),
        joined("joined3_stride", (20, 23, 3, 3), last="xy", strides=(2, 2), **three),
        joined("joined3_dilated", (20, 23, 3, 3), last="xy", dilations=(2, 1), pads=(2, 1, 2, 1)),
        joined("joined3_apart", (20, 23, 3, 3), strides=(2, 3), dilations=(2, 2), pads=pads(2)),
        joined("joined3_lone", (20, 23, 3, 3), ((1, 16, 1, 5), (1, 7, 1, 5)), last="xy", **three),
        joined("joined3_three", (33, 20, 3, 3), ((2, 3, 7, 7), (2, 16, 7, 7), (2, 1, 7, 7)), last="xy", **three),
        joined("joined3_groups", (16, 8, 3, 3), ((1, 12, 8, 8), (1, 4, 8, 8)), last="xy", group=2, **three),
        joined("joined3_depth", (20, 1, 3, 3), ((1, 16, 7, 7), (1, 4, 7, 7)), last="xy", group=20, **three),
        joined("joined1_stride", (20, 23, 1, 1), last="xy", strides=(2, 2)),
        joined("joined1_segments", (70, 56, 1, 1), ((1, 16, 9, 11), (1, 32, 9, 11), (1, 8, 9, 11)), last="xy"),
        joined("joined1_segments_lines", (70, 48, 1, 1), ((2, 16, 8, 28), (2, 32, 8, 28)), last="xy", strides=(2, 2)),
        joined("joined_tall", (20, 23, 3, 1), last="xy", pads=(1, 0, 1, 0)),
        joined("joined_line", (20, 23, 5), ((1, 16, 13), (1, 7, 13)), pads=(2, 2)),
        joined("joined_any", (20, 13, 3, 3), any_image, last="xy", **three,
               sizes=({"N": 1, "H": 5, "W": 7}, {"N": 2, "H": 1, "W": 3})),
    ]  # fmt: skip
    for op, shapes in (("MaxPool", ((1, 16, 9, 8), (1, 5, 9, 8))), ("AveragePool", ((2, 3, 5, 9), (2, 40, 5, 9)))):
        b = Build()
        x = b.node("Concat", *(b.input(f"x{i}", *shape) for i, shape in enumerate(shapes)), axis=1)
        y = b.node(op, x, out="y", kernel_shape=(3, 3), strides=(2, 1), **three)
        out.append(Case(f"joined_{op}", b.graph(y), ({},), ("x0", "x1", "y")))
    b = Build()
    x, z = b.input("x", 1, 12, 4, 5), b.input("z", 1, 7, 8, 10)
    up = b.node("Resize", x, "", b.constant([1.0, 1.0, 2.0, 2.0]), mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    w = b.constant((b.rng.normal(size=(20, 19, 3, 3)) / 13).astype(np.float32))
    y = b.node("Conv", b.node("Concat", up, z, axis=1), w, out="y", kernel_shape=(3, 3), **three)
    frames = (frames_overlapped("overlapped", 9, ({},)), frames_overlapped("overlapped_any", "T", ({"T": 1}, {"T": 7})))
    sides, two = ({"H": 1, "W": 2}, {"H": 4, "W": 5}), {"strides": (2, 2)}
    same, wide = {**two, "pads": pads(1), "output_padding": (1, 1)}, ("N", 9, "H", "W")
    out += [
        upwards("upwards3", (1, 9, 5, 4), (9, 20, 3, 3), **same),
        upwards("upwards3_last", (1, 9, 5, 4), (9, 20, 3, 3), last="xy", **same),
        upwards("upwards3_any", wide, (9, 20, 3, 3), [{"N": 2, **s} for s in sides], **same),
        upwards("upwards3_few", (2, 9, 5, 12), (9, 4, 3, 3), last="xy", **same),
        upwards("upwards3_few_plain", (1, 12, 9, 33), (12, 3, 3, 3), **same),
        upwards("upwards5_any", wide, (9, 5, 5, 5), [{"N": 2, **s} for s in sides], pads=pads(2), **two),
        upwards("upwards3_cut", (2, 9, 5, 4), (9, 20, 3, 3), pads=(1, 0, 0, 1), **two),
        upwards("upwards4", (1, 9, 5, 4), (9, 20, 4, 4), pads=pads(1), **two),
        upwards("upwards4_any", wide, (9, 20, 4, 4), [{"N": 2, **s} for s in sides], pads=pads(1), **two),
        upwards("upwards_uneven", (1, 9, 5, 4), (9, 20, 4, 3), pads=(1, 1, 1, 0), **two),
        upwards("upwards8_line", (1, 9, 6), (9, 20, 16), strides=(8,), pads=(4, 4)),
    ]
    return [*out, transposed(), *frames, Case("joined_enlarged", b.graph(y), ({},), ("x", "z", "y"))]


def pool(name: str, op: str, x: tuple[int | str, ...], last: str = "xy", sizes: Any = ({},), **attrs: Any) -> Case:
    b = Build()
    return Case(name, b.graph(b.node(op, b.input("x", *x), out="y", **attrs)), tuple(sizes), tuple(last))


def poolings() -> list[Case]:
    three = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": pads(1)}
    out = []
    for op, tag in (("MaxPool", "max"), ("AveragePool", "mean")):
        out += [
            pool(f"{tag}_three", op, (1, 16, 14, 14), **three),
            pool(f"{tag}_three_plain", op, (1, 5, 13, 14), "", **three),
            pool(f"{tag}_two", op, (2, 19, 8, 8), kernel_shape=(2, 2), strides=(2, 2)),
            pool(f"{tag}_ceil", op, (1, 6, 10, 11), kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
            pool(f"{tag}_ceil_padded", op, (1, 16, 10, 11), ceil_mode=1, **three),
            pool(f"{tag}_line", op, (1, 5, 17), kernel_shape=(4,), strides=(3,), pads=(2, 1)),
            pool(f"{tag}_volume", op, (1, 16, 4, 5, 6), kernel_shape=(2, 2, 2), strides=(1, 2, 1)),
            pool(f"{tag}_any_width", op, (1, 16, 7, "W"), sizes=[{"W": w} for w in (1, 2, 9, 18, 35)], **three),
            pool(f"{tag}_any", op, ("N", 16, 9, 9), sizes=({"N": 1}, {"N": 3}), **three),
            pool(f"{tag}_beyond", op, (1, 20, 5, 7), kernel_shape=(40, 40), strides=(40, 40), ceil_mode=1),
            pool(f"{tag}_wide", op, (1, 8, 12, 12), kernel_shape=(7, 7), strides=(1, 1), pads=pads(3)),
        ]
    for stride in (1, 2, 3):  # padding is not what the function makes of it
        b = Build()
        x = b.node("Relu", b.input("x", 2, 5, 13, 41))
        y = b.node("MaxPool", x, out="y", kernel_shape=(3, 3), strides=(stride, stride), pads=pads(1))
        out.append(Case(f"max_of_relu_{stride}", b.graph(y)))
    out += [
        pool("mean_counted", "AveragePool", (1, 16, 14, 14), count_include_pad=1, **three),
        pool("mean_counted_ceil", "AveragePool", (1, 6, 10, 11), "", count_include_pad=1, ceil_mode=1, **three),
        pool("max_dilated", "MaxPool", (1, 16, 12, 12), kernel_shape=(3, 3), dilations=(2, 2)),
        pool("global_mean", "GlobalAveragePool", (2, 20, 7, 7), "x"),
        pool("global_mean_plain", "GlobalAveragePool", (2, 20, 7, 7), ""),
        pool("global_max", "GlobalMaxPool", (2, 20, 7, 6), "x"),
        pool(
            "global_any",
            "GlobalAveragePool",
            ("N", 20, "H", "W"),
            "",
            ({"N": 2, "H": 5, "W": 3}, {"N": 1, "H": 1, "W": 1}),
        ),
    ]
    b = Build()
    y = b.node("Flatten", b.node("GlobalAveragePool", b.input("x", 1, 64, 7, 7)))
    out.append(Case("global_flat", b.graph(y), ({},), ("x",)))
    return out


def normalizations() -> list[Case]:
    """Images normalized by channel: lanes run over the channels where those lie side by side."""
    out = []
    for name, shape, last in (("", (2, 40, 5, 7), "xy"), ("_in", (1, 33, 4, 3), "x"), ("_few", (1, 5, 9, 9), "xy")):
        b = Build()
        scale, bias = (b.constant(b.rng.normal(size=shape[1]).astype(np.float32)) for _ in range(2))
        y = b.node("Relu", b.node("InstanceNormalization", b.input("x", *shape), scale, bias), out="y")
        out.append(Case(f"normalized_by_channel{name}", b.graph(y), ({},), tuple(last)))
    b = Build()
    y = b.node("Softmax", b.input("x", 2, 7, 3, 40), axis=1, out="y")
    return [*out, Case("softmax_over_channels", b.graph(y))]


CASES: tuple[Case, ...] = (*normalizations(), *convolutions(), *lines_last(), *concatenations(), *typed(), *poolings())
