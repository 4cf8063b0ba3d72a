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


def transposed_convolutions() -> list[Case]:
    out = []
    for x, w, attrs in (
        ((2, 3, 11), (3, 4, 3), {}),
        ((1, 3, 5), (3, 4, 3), {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
        ((1, 3, 5), (3, 4, 4), {"strides": [3], "dilations": [2]}),
        ((1, 3, 5), (3, 2, 5), {"strides": [2], "dilations": [2], "pads": [2, 1]}),
        ((1, 3, 5), (3, 2, 4), {"strides": [4], "dilations": [6], "pads": [1, 0]}),
        ((1, 3, 4, 5), (3, 2, 3, 3), {}),
        ((1, 3, 4, 5), (3, 2, 2, 2), {"strides": [2, 2]}),
        ((2, 3, 4, 5), (3, 2, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 3, 4, 5), (3, 2, 3, 2), {"strides": [3, 2], "output_padding": [1, 1]}),
        ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((1, 3, 4, 5), (3, 2, 4, 3), {"strides": [2, 2], "pads": [1, 1, 2, 0]}),
        ((1, 3, 6), (3, 2, 16), {"strides": [8], "pads": [4, 4]}),
        ((1, 3, 4, 5), (3, 2, 1, 1), {"strides": [2, 3]}),
        ((1, 4, 4, 5), (4, 2, 3, 3), {"group": 2, "strides": [2, 2], "pads": [0, 1, 1, 0]}),
        ((1, 4, 4, 5), (4, 1, 3, 3), {"group": 4, "strides": [2, 1], "pads": [1, 1, 1, 1]}),
        ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": [3, 2], "output_shape": [10, 8]}),
        ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": [3, 2], "output_shape": [9, 6], "auto_pad": "SAME_UPPER"}),
        ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 3, 3, 3), (3, 2, 4, 4), {"strides": [2, 3], "auto_pad": "SAME_LOWER"}),
        ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "VALID"}),
        ((1, 1, 3, 3), (1, 2, 2, 2), {"dilations": [2, 2]}),
        ((1, 2, 3, 4, 2), (2, 3, 2, 3, 2), {"strides": [1, 2, 2], "pads": [1, 0, 0, 0, 1, 1]}),
        ((0, 2, 3, 3), (2, 3, 3, 3), {}),
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ):  # fmt: skip
        given = (data(*x, seed=1), data(*w, seed=2))
        length = int(np.prod(w)) // w[1]
        wrong = "onnx" if "group" in attrs or not x[0] else ""  # it takes no groups of several channels, and no nothing
        out.append(Case("ConvTranspose", given, attrs, 11, length=length, wrong=wrong))
        bias = data(w[1] * attrs.get("group", 1), seed=3)
        out.append(Case("ConvTranspose", (*given, bias), attrs, 22, length=length, constants=(1, 2), wrong=wrong))
    x, w = data(1, 3, 5, 5), data(3, 2, 3, 3, seed=1)
    out.append(Case("ConvTranspose", (x, w), {"strides": [2, 2]}, 7, length=27))
    out += [Case("ConvTranspose", (x.astype(t), w.astype(t)), {}, 22, length=27) for t in ("float16", "float64")]
    for auto in ("SAME_UPPER", "SAME_LOWER"):  # kernels shorter than the stride; the reference adds zeros at the end
        for taps in (1, 2):
            given = (data(2, 3, 4), data(3, 2, taps, seed=1))
            attrs = {"auto_pad": auto, "strides": [3]}
            out.append(Case("ConvTranspose", given, attrs, 13, length=6, wrong="onnx", note="short"))
    return out


def columns() -> list[Case]:
    out = []
    for image, block, attrs in (
        ((5, 5), (1, 5), {}),
        ((5, 6), (2, 3), {}),
        ((6, 6), (2, 2), {"strides": [2, 2]}),
        ((5, 5), (3, 3), {"pads": [1, 1, 1, 1]}),
        ((7, 7), (3, 2), {"strides": [2, 3], "dilations": [2, 1], "pads": [0, 1, 1, 0]}),
        ((4, 5, 6), (2, 1, 3), {"strides": [1, 2, 2]}),
    ):
        rank = len(image)
        s, d = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
        p = attrs.get("pads", [0] * 2 * rank)
        blocks = [
            (m + p[i] + p[i + rank] - d[i] * (k - 1) - 1) // s[i] + 1
            for i, (m, k) in enumerate(zip(image, block, strict=True))
        ]
        x = data(2, 3 * int(np.prod(block)), int(np.prod(blocks)))
        wrong = "onnx" if rank > 2 else ""
        given = (x, np.array(image), np.array(block))
        out.append(Case("Col2Im", given, attrs, 18, length=9, note=f"{image}{block}".replace(" ", ""), wrong=wrong))
    return out


def sums_of_products() -> list[Case]:
    out = []
    for equation, shapes in (
        ("ij,jk->ik", ((3, 5), (5, 7))),
        ("ij,jk", ((3, 5), (5, 7))),
        ("bij,bjk->bik", ((2, 3, 5), (2, 5, 7))),
        ("bij, bkj -> bik", ((2, 3, 5), (2, 4, 5))),
        ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("bqhd,bkhd->bhqk", ((2, 4, 3, 5), (2, 6, 3, 5))),
        ("i,i->", ((5,), (5,))),
        ("i,j->ij", ((5,), (7,))),
        ("ij->ji", ((3, 5),)),
        ("ij->i", ((3, 5),)),
        ("ij->", ((3, 5),)),
        ("ii->i", ((4, 4),)),
        ("ii", ((4, 4),)),
        ("...ii->...i", ((2, 3, 3),)),
        ("...ij,...jk->...ik", ((2, 1, 3, 5), (4, 5, 7))),
        ("...ij,jk", ((2, 3, 5), (5, 7))),
        ("b...,b...->...", ((3, 2, 4), (3, 2, 4))),
        ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
        ("ij,ij,ij->i", ((2, 3), (2, 3), (2, 3))),
        ("abc,bd,ac->d", ((2, 3, 4), (3, 5), (2, 4))),
        ("ij,jk->ik", ((3, 0), (0, 7))),
        (",ij->ij", ((), (2, 3))),
    ):
        given = tuple(data(*s, seed=k) for k, s in enumerate(shapes))
        wrong = "runtime" if equation == "...ij,...jk->...ik" else ""  # it does not repeat axes of one element
        out.append(Case("Einsum", given, {"equation": equation}, 12, length=60, wrong=wrong))
    for t in ("float64", "int64", "float16"):
        given = (data(3, 5, dtype=t), data(5, 4, dtype=t, seed=1))
        out.append(Case("Einsum", given, {"equation": "ij,jk->ik"}, 12, length=5))
    return out


CASES: tuple[Case, ...] = (
    *products(),
    *gemms(),
    *convolutions(),
    *transposed_convolutions(),
    *columns(),
    *sums_of_products(),
)
