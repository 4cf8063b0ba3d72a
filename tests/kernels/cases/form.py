"""Cases of convolutions between channels-first images, in every form that such a group has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.kernels.cases.window import conv, pads
from tests.kernels.compiled import Case

Shape = tuple[int | str, ...]
EXCHANGED, MASKED, PADDED, TURNED = -1, 0, -2, -1  # of the forms, where a group has them
UNEXCHANGED = ("one_filter", "one_pixel", "spectrum")  # a lone filter or place, or places far apart
IMAGES = ({"N": 2, "H": 5, "W": 7}, {"N": 1, "H": 1, "W": 90})

SUMS: Mapping[str, tuple[Shape, tuple[int, ...], dict[str, Any]]] = {
    "one_channel": ((1, 1, 20, 37), (16, 1, 5, 5), {"pads": pads(2)}),
    "one_filter": ((2, 16, 9, 17), (1, 16, 3, 3), {"pads": pads(1), "after": "residual"}),
    "one_pixel": ((3, 8, 1, 1), (16, 8, 3, 3), {"pads": pads(1)}),
    "prime": ((2, 7, 13, 11), (17, 7, 3, 3), {"pads": pads(1), "after": "residual"}),
    "lines": ((1, 5, 30, 14), (25, 5, 3, 3), {"pads": pads(1), "after": "clip"}),
    "long_line": ((1, 3, 3, 301), (13, 3, 3, 3), {"strides": (1, 2)}),
    "points": ((2, 24, 9, 7), (33, 24, 1, 1), {"after": "residual"}),
    "points_uneven": ((1, 24, 9, 7), (33, 24, 1, 1), {"after": "residual"}),
    "points_even": ((1, 9, 6, 8), (17, 9, 1, 1), {"after": "clip"}),
    "points_few": ((1, 12, 1, 13), (33, 12, 1, 1), {}),
    "line": ((2, 19, 101), (23, 19, 5), {"pads": (4, 4), "dilations": (2,)}),
    "line_strided": ((1, 9, 203), (12, 9, 10), {"strides": (5,), "bias": False}),
    "spectrum": ((1, 1, 700), (31, 1, 64), {"strides": (16,), "after": ""}),
    "dilated_past": ((1, 17, 12, 15), (9, 17, 3, 3), {"pads": pads(9), "dilations": (9, 9), "after": "residual"}),
    "dilated_once": ((2, 16, 9, 10), (16, 16, 3, 3), {"pads": (0, 4, 0, 4), "dilations": (1, 4)}),
    "volume": ((1, 3, 4, 5, 9), (5, 3, 3, 3, 3), {"pads": pads(1, 3)}),
    "any_line": ((1, 8, "L"), (14, 8, 3), {"pads": (1, 1), "sizes": ({"L": 1}, {"L": 31}, {"L": 300})}),
    "any_image": (("N", 6, "H", "W"), (9, 6, 3, 3), {"pads": pads(1), "sizes": IMAGES}),
    "any_dilated": (("N", 16, "H", "W"), (9, 16, 3, 3), {"pads": pads(8), "dilations": (8, 8), "sizes": IMAGES}),
}  # fmt: skip
WINDOWS: Mapping[str, tuple[Shape, tuple[int, ...], dict[str, Any]]] = {
    "deep7": ((1, 19, 18, 21), (19, 1, 7, 7), {"group": 19, "pads": pads(3)}),
    "deep3_prime": ((2, 37, 13, 17), (37, 1, 3, 3), {"group": 37, "pads": pads(1), "after": "residual"}),
    "deep5_strided": ((1, 16, 15, 33), (16, 1, 5, 5), {"group": 16, "pads": pads(2), "strides": (2, 2)}),
    "deep_dilated": ((1, 18, 20, 20), (18, 1, 3, 3), {"group": 18, "pads": pads(2), "dilations": (2, 2)}),
    "deep_widens": ((1, 16, 9, 10), (32, 1, 3, 3), {"group": 16, "pads": pads(1)}),
    "deep_narrow": ((2, 5, 7, 3), (5, 1, 5, 5), {"group": 5, "pads": pads(2)}),
    "deep_strided_edge": ((1, 11, 34, 33), (11, 1, 3, 3), {"group": 11, "pads": (0, 0, 1, 1), "strides": (2, 2)}),
    "deep_thirds": ((1, 7, 31, 50), (7, 1, 5, 5), {"group": 7, "pads": pads(2), "strides": (3, 3), "after": "clip"}),
    "deep_fourths": ((1, 3, 20, 70), (3, 1, 5, 5), {"group": 3, "pads": (2, 3, 1, 4), "strides": (1, 4)}),
    "one_filter": ((2, 13, 19, 23), (1, 13, 3, 3), {"pads": pads(1), "after": "residual"}),
    "deep_bare": ((1, 17, 12, 40), (17, 1, 3, 3), {"group": 17, "after": ""}),
    "deep_line": ((2, 21, 67), (21, 1, 9), {"group": 21, "pads": (4, 4)}),
    "deep_line_long": ((1, 16, 80), (16, 1, 31), {"group": 16, "pads": (15, 15)}),
    "deep_any": (("N", 16, "H", "W"), (16, 1, 3, 3), {"group": 16, "pads": pads(1), "sizes": IMAGES}),
}  # fmt: skip


CASES = [
    *(
        conv(f"exchanged_{name}", x, w, last="", form=EXCHANGED, **how)
        for name, (x, w, how) in SUMS.items()
        if name not in UNEXCHANGED
    ),
    *(conv(f"plain_{name}", x, w, last="", form=0, **how) for name, (x, w, how) in SUMS.items()),
    *(conv(f"masked_{name}", x, w, last="", form=MASKED, **how) for name, (x, w, how) in WINDOWS.items()),
    *(
        conv(f"padded_{name}", x, w, last="", form=PADDED, **how)
        for name, (x, w, how) in WINDOWS.items()
        if "pads" in how
    ),
    *(conv(f"turned_{name}", x, w, last="", form=TURNED, **how) for name, (x, w, how) in WINDOWS.items()),
]
assert len({case.name for case in CASES}) == len(CASES)
assert all(isinstance(case, Case) for case in CASES)
