"""Cases of MatMul, Gemm and Conv: ranks, batches, transposes, groups, strides, dilations, padding, sizes 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.case import Case, data


def products() -> list[Case]:
    out = []
    for a, b in (
        ((3, 5), (5, 7)),
        ((5,), (5, 7)),
        ((3, 5), (5,)),
        ((5,), (5,)),
        ((2, 3, 5), (5, 7)),
        ((3, 5), (2, 5, 7)),
        ((2, 3, 5), (2, 5, 7)),
        ((1, 3, 5), (4, 5, 2)),
        ((4, 1, 3, 5), (2, 5, 7)),
        ((2, 3, 5), (5,)),
        ((5,), (2, 5, 3)),
        ((1, 1), (1, 1)),
        ((3, 1), (1, 7)),
        ((1, 13), (13, 1)),
        ((0, 5), (5, 7)),
        ((3, 0), (0, 7)),
        ((2, 0, 5), (5, 3)),
    ):
        out.append(Case("MatMul", (data(*a, seed=1), data(*b, seed=2)), length=max(1, a[-1])))
    for dtype in ("float64", "float16", "int32", "int64"):
        out.append(Case("MatMul", (data(3, 5, dtype=dtype), data(5, 7, dtype=dtype, seed=1)), length=5))
    out += [Case("MatMul", (data(3, 5), data(5, 7, seed=1)), opset=o, length=5) for o in (7, 9, 13)]
    out.append(Case("MatMul", (data(3, 1), data(1, 1, seed=1)), constants=(1,)))
    return out


def gemms() -> list[Case]:
    out = []
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = data(*((5, 3) if ta else (3, 5))), data(*((7, 5) if tb else (5, 7)), seed=1)
            attrs = {"transA": ta, "transB": tb}
            out.append(Case("Gemm", (a, b), attrs, 11, length=5))
            for c in ((7,), (3, 7), (3, 1), (1, 7), (1,), ()):
                given = (a, b, data(*c, seed=2))
                out.append(Case("Gemm", given, attrs | {"alpha": 0.5, "beta": 2.0}, 13, length=5))
    a, b, c = data(3, 5), data(5, 7, seed=1), data(7, seed=2)
    out += [Case("Gemm", (a, b, c), opset=o, length=5) for o in (7, 9, 11)]
    out.append(Case("Gemm", (a, b, c), {"beta": 0.0}, 13, length=5))
    for dtype in ("float64", "float16"):
        out.append(
            Case(
                "Gemm",
                tuple(data(*s, dtype=dtype, seed=3) for s in ((3, 5), (5, 7), (7,))),
                {"alpha": 0.3},
                13,
                length=5,
            )
        )
    out.append(Case("Gemm", (data(0, 5), b, c), {}, 13, length=5))
    out.append(Case("Gemm", (data(1, 1), data(1, 1), data(1)), {"alpha": 3.0}, 13))
    return out


def convolutions() -> list[Case]:
    out = []
    for x, w, attrs in (
        ((2, 3, 11), (4, 3, 3), {}),
        ((1, 3, 11), (4, 3, 3), {"strides": [2], "pads": [1, 2], "dilations": [2]}),
        ((1, 3, 7, 9), (5, 3, 3, 3), {}),
        ((1, 3, 7, 9), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((2, 3, 7, 9), (5, 3, 3, 2), {"strides": [2, 3], "pads": [0, 1, 2, 1]}),
        ((1, 3, 7, 9), (5, 3, 1, 1), {}),
        ((1, 3, 7, 9), (5, 3, 1, 1), {"strides": [2, 2]}),
        ((1, 3, 7, 9), (5, 3, 1, 1), {"pads": [1, 0, 0, 1]}),
        ((1, 1, 7, 9), (5, 1, 3, 3), {}),
        ((1, 3, 7, 9), (1, 3, 3, 3), {}),
        ((1, 6, 7, 5), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
        ((1, 3, 7, 5), (6, 1, 3, 3), {"group": 3}),
        ((2, 6, 5, 5), (4, 3, 3, 3), {"group": 2, "strides": [2, 2]}),
        ((1, 4, 5, 5), (6, 2, 1, 1), {"group": 2}),
        ((1, 3, 7, 9), (2, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((1, 3, 7, 9), (2, 3, 2, 4), {"auto_pad": "SAME_LOWER"}),
        ((1, 3, 7, 9), (2, 3, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
        ((1, 2, 7, 9), (2, 2, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
        ((1, 2, 7, 9), (3, 2, 7, 9), {}),
        ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"pads": [1, 0, 1, 0, 1, 0], "strides": [1, 2, 2]}),
        ((0, 3, 5, 5), (2, 3, 3, 3), {}),
        ((1, 1, 5), (1, 1, 1), {}),
    ):
        length = int(np.prod(w[1:]))
        given: tuple[Any, ...] = (data(*x, seed=1), data(*w, seed=2))
        attrs = {"kernel_shape": list(w[2:])} | attrs
        out.append(Case("Conv", given, attrs, 11, length=length))
        out.append(Case("Conv", (*given, data(w[0], seed=3)), attrs, 22, length=length, constants=(1, 2)))
    x, w, b = data(1, 3, 5, 5), data(4, 3, 3, 3, seed=1), data(4, seed=2)
    out.append(Case("Conv", (x, w, b), {}, 7, length=27))
    out.append(Case("Conv", (x.astype(np.float16), w.astype(np.float16), b.astype(np.float16)), {}, 22, length=27))
    out.append(Case("Conv", (x.astype(np.float64), w.astype(np.float64)), {}, 11, length=27))
    return out


CASES: tuple[Case, ...] = (*products(), *gemms(), *convolutions())
