"""Cases of Winograd's algorithm: image borders, odd channels, fused consumers, each parallelization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnxfuse.ir.dtype import F16
from onnxfuse.schedule.cpu.toom import FOUR, TWO
from onnxfuse.schedule.cpu.winograd import WinogradBlocking
from tests.kernels.cases.window import conv, pads
from tests.kernels.compiled import Case

WAYS = {
    "two": WinogradBlocking(TWO, 1, by_panels=False, keep=True),
    "four": WinogradBlocking(FOUR, 1, by_panels=False, keep=True),
    "blocks": WinogradBlocking(FOUR, 2, by_panels=False, keep=False),
    "panels": WinogradBlocking(FOUR, 3, by_panels=True, keep=False),
    "tiles": WinogradBlocking(FOUR, 3, by_panels=False, keep=False),
    "few": WinogradBlocking(TWO, 2, by_panels=True, keep=False),
}


def cases() -> list[Case]:
    one: dict[str, Any] = {"pads": pads(1)}
    batches, sizes = (
        ({"N": 1}, {"N": 3}),
        ({"N": 1, "H": 9, "W": 7}, {"N": 2, "H": 1, "W": 2}, {"N": 1, "H": 4, "W": 30}, {"N": 2, "H": 3, "W": 3}),
    )
    table = [
        ("two", conv("even", (1, 16, 6, 8), (32, 16, 3, 3), **one, after="residual")),
        ("four", conv("fours", (1, 16, 8, 12), (32, 16, 3, 3), **one, after="residual")),
        ("two", conv("prime", (1, 17, 13, 7), (33, 17, 3, 3), **one, after="residual")),
        ("four", conv("prime4", (1, 33, 13, 7), (17, 33, 3, 3), **one, after="residual")),
        ("blocks", conv("batch", (3, 20, 15, 11), (40, 20, 3, 3), **one)),
        ("panels", conv("wide", (1, 100, 14, 14), (100, 100, 3, 3), **one, after="clip")),
        ("panels", conv("narrow", (1, 16, 21, 17), (24, 16, 3, 3), **one, after="residual")),  # more cores than panels
        ("tiles", conv("narrow", (1, 16, 21, 17), (70, 16, 3, 3), **one, after="residual")),  # one block has all
        ("few", conv("wide2", (2, 24, 9, 10), (70, 24, 3, 3), **one, after="residual")),
        ("four", conv("bare", (1, 12, 9, 9), (24, 12, 3, 3), after="", bias=False)),
        ("two", conv("uneven", (1, 9, 12, 10), (16, 9, 3, 3), pads=(0, 1, 2, 0))),
        ("four", conv("uneven4", (1, 9, 11, 10), (16, 9, 3, 3), pads=(2, 0, 1, 3), after="both residual")),
        ("four", conv("dot", (1, 8, 1, 1), (16, 8, 3, 3), **one)),
        ("blocks", conv("line", (2, 8, 1, 30), (16, 8, 3, 3), **one)),
        ("two", conv("three_in", (1, 3, 10, 9), (16, 3, 3, 3), **one, last="y")),
        ("four", conv("five_in", (1, 5, 10, 9), (16, 5, 3, 3), **one, last="xy")),
        ("four", conv("plain_out", (1, 16, 9, 14), (40, 16, 3, 3), **one, last="x")),
        ("four", conv("page", (1, 1024, 4, 5), (16, 1024, 3, 3), **one, bias=False)),
        ("four", conv("any_batch", ("N", 16, 7, 7), (24, 16, 3, 3), **one, sizes=batches, after="residual")),
        ("panels", conv("any_batch_panels", ("N", 16, 7, 6), (70, 16, 3, 3), **one, sizes=batches)),
        ("four", conv("dilated", (1, 16, 21, 19), (40, 16, 3, 3), dilations=(2, 1), **one, after="residual")),
        ("blocks", conv("dilated_odd", (2, 17, 13, 16), (33, 17, 3, 3), dilations=(3, 2), pads=pads(2))),
        ("panels", conv("dilated_past", (1, 8, 5, 6), (70, 8, 3, 3), dilations=(5, 4), pads=pads(5))),
        ("two", conv("any_dilated", ("N", 16, "H", "W"), (24, 16, 3, 3), dilations=(2, 3), pads=pads(3), sizes=sizes)),
        ("two", conv("any_image", ("N", 16, "H", "W"), (24, 16, 3, 3), **one, sizes=sizes)),
        ("blocks", conv("any_image4", ("N", 16, "H", "W"), (40, 16, 3, 3), **one, sizes=sizes, after="residual")),
        ("panels", conv("any_panels", ("N", 17, "H", "W"), (70, 17, 3, 3), **one, sizes=sizes)),
    ]
    table += [  # in groups; forms without lanes over the channels of several groups
        ("two", conv("groups", (1, 36, 13, 7), (40, 18, 3, 3), group=2, **one, after="residual", form=1)),
        ("four", conv("groups4", (2, 51, 9, 11), (51, 17, 3, 3), group=3, **one, form=1)),
        ("blocks", conv("groups_blocks", (1, 64, 14, 15), (80, 16, 3, 3), group=4, **one, form=1, last="x")),
        ("panels", conv("groups_panels", (1, 140, 14, 14), (140, 70, 3, 3), group=2, **one, after="clip")),
        ("tiles", conv("groups_tiles", (1, 140, 9, 9), (80, 70, 3, 3), group=2, **one, last="")),
        ("few", conv("groups_any", ("N", 132, "H", "W"), (132, 66, 3, 3), group=2, **one, sizes=sizes)),
    ]
    one["dtype"] = F16
    table += [  # in 16 bits: filters are widened when they are transformed
        ("two", conv("half", (1, 17, 13, 7), (33, 17, 3, 3), **one, after="residual")),
        ("four", conv("half4", (1, 16, 8, 12), (32, 16, 3, 3), **one, last="")),
        ("panels", conv("half_panels", (2, 24, 9, 10), (70, 24, 3, 3), **one, after="residual")),
        ("blocks", conv("half_any", ("N", 16, "H", "W"), (40, 16, 3, 3), **one, sizes=sizes)),
    ]
    return [replace(case, name=f"winograd_{case.name}_{way}", winograd=WAYS[way]) for way, case in table]


CASES: tuple[Case, ...] = tuple(cases())
