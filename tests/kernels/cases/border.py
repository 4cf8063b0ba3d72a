"""Cases between nodes of the runtime: channels-first images in every form of a kernel, and transposition by blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import F16, F32, I64, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Array, Case, Feeds, Sizes
from tests.rules.build import Build, draw

FORMS = 5  # more than any kernel has: those that it has not are the first ones again
LAST = -1


def strange(graph: Graph, random: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Normal numbers, and NaN and infinities among them."""
    made = draw(graph, random, sizes)
    for x in made.values():
        spots = random.integers(0, x.size, 6)
        x.reshape(-1)[spots] = np.array([np.nan, np.inf, -np.inf, np.nan, -np.inf, np.inf], x.dtype)
    return made


def pool(op: str, *shape: int | str, after: str = "Neg", before: str = "", **attrs: Any) -> Graph:
    """A pool and something elementwise behind it, and before it."""
    b = Build()
    x = b.input("x", *shape)
    return b.graph(b.node(after, b.node(op, b.node(before, x) if before else x, **attrs)))


def pools() -> list[Case]:
    """Pools of every form."""
    square: dict[str, Any] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    halves: dict[str, Any] = {"kernel_shape": (2, 2), "strides": (2, 2)}
    graphs = {
        "max_halves": pool("MaxPool", 1, 5, 9, 37, **halves),
        "max_padded": pool("MaxPool", 2, 3, 11, 41, strides=(2, 2), **square),
        "max_thirds": pool("MaxPool", 1, 3, 10, 53, strides=(3, 3), **square),
        "max_line": pool("MaxPool", 1, 7, 45, kernel_shape=(5,), strides=(4,), pads=(2, 2)),
        "max_small": pool("MaxPool", 1, 17, 3, 3, **square),
        "max_dilated": pool("MaxPool", 1, 3, 9, 40, kernel_shape=(3, 3), dilations=(2, 2), pads=(2, 2, 2, 2)),
        "mean_padded": pool("AveragePool", 1, 3, 7, 35, **square),
        "mean_strided": pool("AveragePool", 1, 3, 7, 35, strides=(2, 2), **square),
        "mean_counted": pool("AveragePool", 1, 3, 7, 19, count_include_pad=1, **square),
        "mean_ceil": pool("AveragePool", 1, 3, 8, 20, ceil_mode=1, strides=(2, 2), **square),
        "mean_wide": pool("AveragePool", 1, 2, 4, 40, kernel_shape=(1, 11), pads=(0, 5, 0, 5)),
    }
    out = [Case(f"{name}_form_{form}", g, form=form) for name, g in graphs.items() for form in range(FORMS)]
    strangers = ((f"max_strange_{form}", form) for form in range(FORMS))
    far = pool("MaxPool", 1, 2, 305, 304, **square)  # larger than half of L2
    return [
        *out,
        *(Case(name, graphs["max_padded"], feeds=strange, form=form) for name, form in strangers),
        Case("max_far", far, feeds=strange, form=0),
    ]


def conv(
    name: str, shape: tuple[int | str, ...], filters: tuple[int, ...], *, residual: bool = False, last: str = "",
    sizes: tuple[Sizes, ...] = ({},), form: int = LAST, feeds: Feeds = draw, **attrs: Any,
) -> Case:  # fmt: skip
    """A convolution with its sides exchanged, and what follows it."""
    b = Build()
    x = b.input("x", *shape)
    y = b.node("Conv", x, b.weights(*filters), b.weights(filters[0]), kernel_shape=filters[2:], **attrs)
    y = b.node("Add", y, x) if residual else b.node("Relu", y)
    y = b.node("Mul", y, b.node("Sigmoid", y), out="y")
    return Case(name, b.graph(y), sizes, tuple(last), feeds, form=form)


def convolutions() -> list[Case]:
    """Convolutions between images that lie as the runtime has them, filters as rows."""
    one: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    apart: dict[str, Any] = {"dilations": (2, 2), "pads": (2, 2, 2, 2)}
    return [
        conv("exchanged", (1, 5, 9, 37), (11, 5, 3, 3), **one),
        conv("exchanged_images", (2, 5, 5, 16), (29, 5, 3, 3), **one),
        conv("exchanged_narrow", (1, 5, 9, 7), (3, 5, 3, 3), **one),
        conv("exchanged_points", (1, 24, 7, 5), (33, 24, 1, 1)),
        conv("exchanged_points_whole", (1, 24, 8, 8), (33, 24, 1, 1)),
        conv("exchanged_points_of_images", (3, 24, 7, 5), (17, 24, 1, 1)),
        conv("exchanged_residual", (1, 20, 7, 13), (20, 20, 3, 3), residual=True, **one),
        conv("exchanged_stride", (1, 3, 17, 71), (16, 3, 3, 3), strides=(2, 2), **one),
        conv("exchanged_thirds", (1, 3, 17, 71), (14, 3, 3, 3), strides=(3, 3), **one),
        conv("exchanged_far", (1, 3, 9, 70), (14, 3, 3, 3), strides=(1, 5), **one),
        conv("exchanged_last", (1, 3, 17, 71), (16, 3, 3, 3), strides=(2, 2), last="y", **one),
        conv("exchanged_apart", (1, 6, 9, 21), (13, 6, 3, 3), **apart),
        conv("exchanged_line", (2, 8, 97), (16, 8, 3), pads=(1, 1)),
        conv("exchanged_line_of_one", (1, 8, 1), (16, 8, 1)),
        conv("exchanged_several_lines", (2, 7, 7, 7), (13, 7, 3, 3), **one),
        conv("exchanged_several_lines_residual", (1, 19, 11, 13), (19, 19, 3, 3), residual=True, **one),
        conv("exchanged_several_lines_stride", (1, 5, 17, 7), (9, 5, 3, 3), strides=(2, 2), **one),
        conv("exchanged_several_lines_apart", (1, 5, 7, 9), (9, 5, 3, 3), dilations=(2, 2), pads=(2, 2, 2, 2)),
        conv("exchanged_several_lines_open", (1, 5, 9, 11), (9, 5, 3, 3)),
        conv("exchanged_several_lines_uneven", (1, 5, 9, 6), (9, 5, 3, 3), pads=(0, 2, 1, 0)),
        conv("exchanged_seams_exact", (1, 1, 28, 28), (32, 1, 5, 5), pads=(2, 2, 2, 2)),
        conv("exchanged_seams_long", (1, 3, 7, 45), (23, 3, 3, 3), feeds=strange, **one),
        conv("exchanged_seams_strange", (1, 2, 13, 23), (7, 2, 3, 3), feeds=strange, **one),
        conv("exchanged_seams_residual", (2, 19, 5, 17), (19, 19, 3, 3), residual=True, **one),
        conv("exchanged_seams_strided", (1, 3, 19, 37), (13, 3, 3, 3), strides=(2, 2), feeds=strange, **one),
        conv("exchanged_seams_uneven", (1, 3, 9, 87), (13, 3, 3, 2), strides=(1, 4), pads=(0, 2, 1, 0)),
        conv("exchanged_seams_tight", (1, 3, 9, 38), (13, 3, 1, 1), strides=(1, 2)),
        conv("exchanged_seams_volume", (1, 2, 3, 5, 19), (7, 2, 3, 3, 3), pads=(1, 1, 1, 1, 1, 1)),
        conv("exchanged_seams_parts", (1, 67, 7, 19), (17, 67, 3, 3), **one),
        conv("exchanged_seams_together", (1, 5, 223, 129), (33, 5, 1, 1), strides=(2, 2)),
        conv("exchanged_parts", (1, 67, 9, 13), (17, 67, 3, 3), **one),
        conv("exchanged_parts_images", (2, 40, 5, 31), (9, 40, 5, 3), pads=(2, 1, 2, 1)),
        conv("exchanged_parts_line", (1, 140, 53), (19, 140, 3), pads=(1, 1)),
        conv("exchanged_together", (1, 7, 113, 127), (13, 7, 1, 1)),
        conv("exchanged_together_images", (2, 5, 89, 97), (19, 5, 1, 1)),
        conv("exchanged_together_windows", (1, 3, 101, 96), (37, 3, 3, 3), **one),
        conv("exchanged_together_apart", (1, 5, 223, 131), (33, 5, 1, 1), strides=(2, 2)),
        conv("one_filter", (1, 9, 1, 97), (1, 9, 1, 3), pads=(0, 1, 0, 1)),
        conv("exchanged_any_batch", ("N", 8, 7, 19), (24, 8, 3, 3), sizes=({"N": 1}, {"N": 3}), **one),
        *opened(),
        *lengths(),
        conv("exchanged_any_width", (1, 8, 7, "W"), (24, 8, 1, 1), sizes=({"W": 1}, {"W": 33})),
        *(
            conv(f"deep_{way}_{end}_{form}", (2, 19, 9, 11), (19, 1, 3, 3), group=19, last=end, form=form, **how)
            for way, how in (("even", one), ("stride", {"strides": (2, 2), **one}), ("apart", apart))
            for end in "xy"
            for form in range(2)
        ),
        conv("padded_and_turned", (1, 16, 9, 37), (40, 16, 3, 3), form=0, **one),
        conv("padded_and_turned_line", (2, 19, 97), (16, 19, 3), form=0, pads=(1, 1)),
        conv("padded_and_turned_prime", (1, 19, 499), (16, 19, 3), form=0, pads=(1, 1), strides=(2,)),
    ]


def opened() -> list[Case]:
    """Images of open height and width: panels go on across the padding between two lines."""
    ends = ({"N": 1, "H": 1, "W": 1}, {"N": 2, "H": 7, "W": 3}, {"N": 1, "H": 9, "W": 16}, {"N": 2, "H": 5, "W": 61})
    large = tuple({**each, "H": each["H"] + 4, "W": each["W"] + 4} for each in ends)
    empty = tuple({"N": 2, "L": n} for n in (3, 4, 5, 256, 257, 300))
    lines = ({"N": 1, "L": 1}, {"N": 5, "L": 3}, {"N": 3, "L": 61}, {"N": 2, "L": 300})
    any_: tuple[int | str, ...] = ("N", 5, "H", "W")
    one: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    halves: dict[str, Any] = {"kernel_shape": (2, 2), "strides": (2, 2)}
    square: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), **one}
    return [
        conv("exchanged_open", any_, (11, 5, 3, 3), sizes=ends, feeds=strange, **one),
        conv("exchanged_open_inside", any_, (17, 5, 3, 3), sizes=large, feeds=strange),
        conv("exchanged_open_residual", ("N", 19, "H", "W"), (19, 19, 3, 3), residual=True, sizes=ends, **one),
        conv("exchanged_open_apart", any_, (9, 5, 3, 3), dilations=(2, 2), pads=(2, 2, 2, 2), sizes=ends),
        conv("exchanged_open_uneven", any_, (9, 5, 3, 3), pads=(0, 2, 1, 0), sizes=large),
        conv("exchanged_open_strides", any_, (9, 5, 3, 3), strides=(2, 2), sizes=ends, **one),
        conv("exchanged_open_far", ("N", 1, "H", "W"), (32, 1, 11, 11), pads=(5, 5, 5, 5), sizes=ends),
        conv("exchanged_open_parts", ("N", 67, "H", "W"), (17, 67, 3, 3), sizes=ends, **one),
        conv("turned_open", ("N", 16, "H", "W"), (40, 16, 3, 3), form=0, sizes=ends, feeds=strange, **one),
        conv("turned_open_line", ("N", 19, "L"), (16, 19, 3), form=0, pads=(1, 2), sizes=lines),
        *(Case(f"turned_open_{n}", cut(*pads), empty) for n, pads in enumerate(((-1, 3), (2, 1), (0, 4), (-2, -1)))),
        Case("turned_open_empty", cut(2, 1), ({"N": 2, "L": 0}, {"N": 3, "L": 1}, {"N": 1, "L": 2})),
        Case("max_open_beside", shifted(), ends),
        Case("max_open", pool("MaxPool", "N", 3, "H", "W", before="Relu", **square), ends, feeds=strange),
        Case("max_open_halves", pool("MaxPool", "N", 3, "H", "W", before="Relu", **halves), ends),
        Case("mean_open_halves", pool("AveragePool", "N", 3, "H", "W", **halves), ends),
        *(
            conv(f"deep_open_{taps}_{step}_{form}", ("N", 6, "H", "W"), (6, 1, taps, taps), group=6, form=form,
                 strides=(step, step), pads=(taps // 2,) * 4, sizes=ends)
            for taps, step, form in ((3, 2, 0), (3, 2, 1), (5, 1, 0), (5, 1, 2))
        ),
    ]  # fmt: skip


def lengths() -> list[Case]:
    """Windows over rows of every short length, of which blocks have the ends, the interior, all of it or nothing."""
    upright = tuple({"N": 2, "H": n, "W": 7} for n in (*range(1, 15), 16, 17, 20, 25))
    sizes = (*upright, *({**each, "H": 3, "W": each["H"]} for each in upright[::2]))
    large = tuple({**each, "H": each["H"] + 6, "W": each["W"] + 6} for each in sizes)
    image: tuple[int | str, ...] = ("N", 5, "H", "W")
    ends = {
        "3": ((3, 3), {"pads": (1,) * 4}), "5": ((5, 5), {"pads": (2,) * 4}), "7": ((7, 7), {"pads": (3,) * 4}),
        "dilated": ((3, 3), {"dilations": (2, 2), "pads": (2,) * 4}),
        "far": ((3, 3), {"dilations": (5, 5), "pads": (5,) * 4}),
        "before": ((5, 5), {"pads": (4, 4, 0, 0)}), "behind": ((5, 5), {"pads": (0, 0, 4, 4)}),
        "strides": ((5, 5), {"strides": (2, 2), "pads": (2,) * 4}),
        "apart": ((2, 2), {"strides": (2, 2), "pads": (1,) * 4}), "wide": ((1, 5), {"pads": (0, 2, 0, 2)}),
    }  # fmt: skip
    inside: dict[str, Any] = {"group": 5, "sizes": large}
    pooled: dict[str, Any] = {"kernel_shape": (3, 3), "pads": (1,) * 4}
    return [
        *(
            conv(f"lengths_{name}_{form}", image, (5, 1, *taps), group=5, form=form, sizes=sizes, **how)
            for name, (taps, how) in ends.items()
            for form in range(2)
        ),
        *(conv(f"lengths_inside_{form}", image, (5, 1, 5, 5), form=form, **inside) for form in range(2)),
        conv("lengths_beside", image, (5, 1, 3, 3), group=5, residual=True, pads=(1,) * 4, form=0, sizes=sizes),
        *(
            Case(f"lengths_{op}_{before}", pool(op, *image, before=before, **pooled), sizes, feeds=strange)
            for op, before in (("MaxPool", ""), ("MaxPool", "Relu"), ("AveragePool", ""))
        ),
    ]


def turned(
    *shape: int | str, perm: tuple[int, ...], beside: bool = False, dtype: DType = F32, after: str = "Exp"
) -> Graph:
    """A Transpose and something elementwise, with another tensor that lies as the result if there is one `beside`."""
    b = Build()
    x = b.node(after, b.node("Transpose", b.input("x", *shape, dtype=dtype), perm=perm))
    if beside:
        x = b.node("Sub", x, b.input("y", *(shape[p] for p in perm), dtype=dtype))
    return b.graph(x)


def rows_turned(*shape: int | str, dtype: DType = F32, sizes: tuple[Sizes, ...] = ({},)) -> list[Case]:
    """A softmax over the channels of an image, which are brought to the end, in both forms."""
    b = Build()
    x = b.node("Softmax", b.node("Transpose", b.input("x", *shape, dtype=dtype), perm=(0, 2, 3, 1)), axis=-1)
    graph, name = b.graph(x), "_".join(map(str, shape))
    return [Case(f"rows_turned_{dtype}_{name}_{form}", graph, sizes, form=form) for form in range(2)]


def padded(*pads: int, shape: tuple[int, ...] = (2, 19, 11, 37)) -> Graph:
    """A padded image, its channels brought to the end."""
    b = Build()
    x = b.node("Pad", b.input("x", *shape), b.ints(*pads))
    return b.graph(b.node("Transpose", x, perm=(0, 2, 3, 1)))


def shifted() -> Graph:
    """A pool of open size, and beside it an image whose lines begin three lines later."""
    b = Build()
    x, z = (b.input(name, "N", 3, "H", "W") for name in "xz")
    x = b.node("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    return b.graph(b.node("Add", x, b.node("Pad", z, b.ints(0, 0, 3, 0, 0, 0, -3, 0))))


def cut(before: int, behind: int) -> Graph:
    """Signals of open length, padded or cut at both ends, their channels brought to the end."""
    b = Build()
    x = b.node("Pad", b.input("x", "N", 19, "L"), b.ints(0, 0, before, 0, 0, behind))
    return b.graph(b.node("Exp", b.node("Transpose", x, perm=(0, 2, 1))))


def mirrored(
    *shape: int | str,
    filters: int,
    taps: int,
    mode: str = "reflect",
    axes: str = "yx",
    last: bool = False,
    **attrs: Any,
) -> Graph:
    """A convolution of an image that is reflected, repeated or continued at its border along some axes."""
    b = Build(19)
    before = [taps // 2 * (axis in axes) for axis in "ncyx"]
    x = b.input("x", *shape)
    x = b.node("Transpose", x, perm=(0, 3, 1, 2)) if last else x
    channels = int(shape[3 if last else 1])
    weights = b.weights(filters, channels // attrs.get("group", 1), taps, taps)
    x = b.node("Pad", x, b.ints(*before, *before), mode=mode)
    return b.graph(b.node("Relu", b.node("Conv", x, weights, kernel_shape=(taps, taps), **attrs)))


def mirrors() -> list[Case]:
    """Windows that read an image through its border."""
    open_ends = ({"N": 1, "H": 5, "W": 7}, {"N": 2, "H": 9, "W": 33}, {"N": 1, "H": 40, "W": 3})
    return [
        Case("mirrored", mirrored(2, 16, 9, 11, filters=5, taps=3)),
        Case("mirrored_any", mirrored("N", 3, "H", "W", filters=33, taps=5), open_ends),
        Case("mirrored_last_any", mirrored("N", "H", "W", 16, filters=32, taps=3, last=True), open_ends),
        Case("mirrored_few_filters", mirrored("N", 8, "H", "W", filters=3, taps=5), open_ends),
        Case("mirrored_columns", mirrored(1, 8, 9, 20, filters=16, taps=3, axes="x")),
        Case("mirrored_steps", mirrored("N", 8, "H", "W", filters=16, taps=3, strides=(2, 2)), open_ends),
        Case("mirrored_apart", mirrored(1, 8, 19, 20, filters=16, taps=3, dilations=(2, 3))),
        Case("mirrored_channels", mirrored("N", 16, "H", "W", filters=16, taps=3, group=16), open_ends),
        Case("mirrored_groups", mirrored(1, 16, 9, 20, filters=32, taps=3, group=2)),
        Case("repeated", mirrored("N", 8, "H", "W", filters=16, taps=5, mode="edge"), open_ends),
        Case("continued", mirrored("N", 8, "H", "W", filters=16, taps=3, mode="wrap"), open_ends),
    ]


def blocks() -> list[Case]:
    """Blocks that are turned, plain and padded, and computed with."""
    shapes = ((17, 19), (8, 8), (9, 257), (331, 33), (64, 64), (513, 12), (7, 40), (1025, 33), (1037, 33))
    sizes = ({"N": 1, "H": 1, "W": 1}, {"N": 2, "H": 3, "W": 5}, {"N": 1, "H": 9, "W": 31})
    lines = ({"H": 1, "W": 1}, {"H": 7, "W": 300}, {"H": 33, "W": 16})
    return [
        *(Case(f"turned_{a}_{b}", turned(a, b, perm=(1, 0))) for a, b in shapes),
        *(Case(f"turned_beside_{a}_{b}", turned(a, b, perm=(1, 0), beside=True)) for a, b in shapes),
        Case("turned_image", turned(2, 19, 5, 37, perm=(0, 2, 3, 1), beside=True)),
        Case("turned_back", turned(2, 5, 37, 19, perm=(0, 3, 1, 2), beside=True)),
        Case("turned_any_lines", turned("H", "W", perm=(1, 0)), lines),
        Case("turned_any_lines_beside", turned("H", "W", perm=(1, 0), beside=True, after="Relu"), lines),
        Case("turned_any_image", turned("N", 19, "H", "W", perm=(0, 2, 3, 1), after="Identity"), sizes),
        Case("turned_any_back", turned("N", "H", "W", 19, perm=(0, 3, 1, 2), beside=True), sizes),
        Case("turned_any_half", turned("N", 19, "H", "W", perm=(0, 2, 3, 1), dtype=F16), sizes),
        Case("turned_half", turned(19, 33, perm=(1, 0), dtype=F16)),
        Case("turned_half_beside", turned(2, 19, 5, 37, perm=(0, 2, 3, 1), beside=True, dtype=F16)),
        Case("turned_half_image", turned(64, 40, perm=(1, 0), dtype=F16, after="Identity")),
        Case("turned_strange", turned(33, 40, perm=(1, 0), after="Relu"), feeds=strange),
        *rows_turned(1, 67, 7, 7),
        *rows_turned(2, 19, 5, 6, dtype=F16),
        *rows_turned("N", 21, 3, "W", sizes=({"N": 1, "W": 1}, {"N": 2, "W": 33})),
        Case("padded_lines", padded(0, 0, 0, 1, 0, 0, 0, 2)),
        Case("padded_image", padded(0, 0, 1, 1, 0, 0, 2, 1)),
        Case("padded_all_round", padded(1, 2, 1, 1, 1, 3, 2, 1)),
        Case("padded_wide", padded(0, 0, 1, 9, 0, 0, 1, 12)),
    ]


def steps() -> list[Case]:
    """Every so many elements of a line."""
    out = []
    for dtype in (F32, F16, I64):
        for step in (2, 3, 4, 5):
            b = Build()
            x = b.node("Slice", b.input("x", 3, 101, dtype=dtype), *(b.ints(i) for i in (1, 101, 1, step)))
            out.append(Case(f"every_{step}_of_{dtype}", b.graph(b.node("Neg", x))))
    return out


CASES: tuple[Case, ...] = (*pools(), *convolutions(), *blocks(), *steps(), *mirrors())
