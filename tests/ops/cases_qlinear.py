"""Cases of ONNX Runtime's operators on quantized values, with the runtime as the only reference.

Scales of operands are powers of two, so that only codes are rounded, and those of results are not, so that no number is
a tie: the runtime rounds some of them after it has added the zero point.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.case import Array, Case
from tests.ops.cases_coded import codes, f32, zero
from tests.ops.cases_contrib import M


def qlinear(op: str, *inputs: Any, attrs: dict[str, Any] | None = None, **more: Any) -> Case:
    """A case of an operator that ONNX does not know."""
    return Case(M + op, inputs, attrs or {}, **{"opset": 13, "wrong": "onnx"} | more)


def given(dtype: str, *shape: int, scale: float = 0.25, at: int = 3) -> tuple[Array, Array, Array]:
    """Codes, their scale and their zero point."""
    return codes(dtype, *shape), f32(scale), zero(at, dtype)


def result(dtype: str, scale: float = 0.53, at: int = 5) -> tuple[Array, Array]:
    """A scale and a zero point."""
    return f32(scale), zero(at, dtype)


def cases() -> list[Case]:
    out = []
    for dtype in ("uint8", "int8"):
        image, row = given(dtype, 2, 5, 7, 6, at=9), given(dtype, 3, 8)
        for op in ("QLinearAdd", "QLinearMul"):
            out.append(qlinear(op, *row, *given(dtype, 3, 8, scale=0.5, at=1), *result(dtype, 1.07)))
            out.append(qlinear(op, *row, *given(dtype, 8, scale=0.5, at=1), *result(dtype, 1.07)))
        out.append(qlinear("QLinearLeakyRelu", *row, *result(dtype), attrs={"alpha": 0.125}))
        out.append(qlinear("QLinearSigmoid", *given(dtype, 3, 8, scale=0.05), *result(dtype, 1 / 256, 0)))
        out.append(qlinear("QLinearGlobalAveragePool", *image, *result(dtype)))
        window = {"kernel_shape": [2, 2], "strides": [2, 1]}
        out.append(qlinear("QLinearAveragePool", *image, *result(dtype), attrs=window))
        padded = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
        out.append(qlinear("QLinearAveragePool", *image, *result(dtype), attrs=padded))
        parts = (*given(dtype, 2, 3, 4), *given(dtype, 2, 5, 4, scale=1.0, at=7))
        out.append(qlinear("QLinearConcat", *result(dtype), *parts, attrs={"axis": 1}))
        which = np.arange(24).reshape(3, 8) % 3 == 0
        out.append(qlinear("QLinearWhere", which, *row, *given(dtype, 3, 8, scale=0.5, at=1), *result(dtype)))
    for dtype in ("uint8", "int8"):
        rows, turned = given(dtype, 3, 8, at=9), given(dtype, 8, 3, at=9)
        w, scales = codes("int8", 8, 5), f32(0.5, 0.25, 1.0, 0.5, 2.0)
        bias, zeros = np.arange(-40, 60, 20, dtype=np.int32), np.zeros(5, np.int8)
        out.append(qlinear("QGemm", *rows, w, scales, zeros, bias, *result(dtype, 27.3)))
        both = {"transA": 1, "transB": 1, "alpha": 0.5}
        out.append(qlinear("QGemm", *turned, w.T.copy(), scales, zeros, bias, *result(dtype, 27.3), attrs=both))
        out.append(qlinear("QGemm", *rows, w, f32(0.5), zero(3, "int8"), bias[None]))
    softmax = {"opset": 13, "axis": -1}
    out.append(qlinear("QLinearSoftmax", *given("uint8", 3, 8, scale=0.1), *result("uint8", 1 / 256, 0), attrs=softmax))
    return out


CASES = tuple(cases())
