"""Products of integer codes, against ONNX's own evaluator and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.case import Array, Case

_RNG = np.random.default_rng(7)


def codes(dtype: str, *shape: int) -> Array:
    """Codes of every value."""
    info = np.iinfo(dtype)
    return _RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def zero(value: int, dtype: str) -> Array:
    """A zero point."""
    return np.array(value, dtype)


def f32(*values: float) -> Array:
    """One scale, or one for each column."""
    return np.array(values if len(values) > 1 else values[0], np.float32)


def products() -> list[Case]:
    out = []
    for left, right in (("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")):
        both = codes(left, 3, 7), codes(right, 7, 5)
        out.append(Case("MatMulInteger", both))
        out.append(Case("MatMulInteger", (*both, zero(5, left), zero(-3 if right == "int8" else 9, right))))
    stack = codes("uint8", 2, 3, 4), codes("uint8", 2, 4, 5)
    out.append(Case("MatMulInteger", (*stack, zero(12, "uint8"), zero(100, "uint8"))))
    image = codes("uint8", 1, 3, 6, 5), codes("uint8", 4, 3, 3, 3)
    out.append(Case("ConvInteger", (*image, zero(7, "uint8")), {"pads": [1, 1, 1, 1]}, constants=(1,)))
    out.append(Case("ConvInteger", (*image, zero(7, "uint8"), zero(3, "uint8")), {"strides": [2, 2]}))
    return out


def coded() -> list[Case]:
    out, how = [], {"precision": "float32"}
    for dtype in ("uint8", "int8"):
        a, b = (codes(dtype, 3, 6), f32(0.02), zero(4, dtype)), (codes(dtype, 6, 5), f32(0.01), zero(1, dtype))
        out.append(Case("QLinearMatMul", (*a, *b, f32(0.03), zero(9, dtype)), **how))
    x = codes("uint8", 1, 4, 5, 6), f32(0.02), zero(130, "uint8")
    w = codes("int8", 6, 4, 3, 3), f32(0.01, 0.02, 0.03, 0.01, 0.02, 0.05), np.zeros(6, np.int8)
    y: tuple[Any, ...] = f32(0.9), zero(100, "uint8")
    bias = _RNG.integers(-5000, 5000, 6).astype(np.int32)
    out.append(Case("QLinearConv", (*x, *w, *y), {"pads": [1, 1, 1, 1]}, **how, constants=(3,), wrong="onnx"))
    out.append(Case("QLinearConv", (*x, *w, *y, bias), {"strides": [2, 1]}, **how, wrong="onnx"))
    grouped = codes("int8", 4, 1, 3, 3), f32(0.01), zero(0, "int8")
    out.append(Case("QLinearConv", (*x, *grouped, *y), {"group": 4}, **how, wrong="onnx"))
    return out


def scaled() -> list[Case]:
    out = []
    for left, right in (("uint8", "uint8"), ("uint8", "int8")):
        both, column = (codes(left, 2, 3, 8), codes(right, 8, 5)), zero(-3 if right == "int8" else 9, right)
        bias = _RNG.standard_normal(5).astype(np.float32)
        given = (*both, f32(0.02), f32(0.01), zero(5, left), column)
        each = (*both, f32(0.02), f32(0.01, 0.02, 0.03, 0.01, 0.05), None, np.repeat(column, 5), bias)
        for inputs in (given[:4], given, each):
            out.append(Case("com.microsoft::MatMulIntegerToFloat", inputs, wrong="onnx", factor=4.0))
    return out


CASES = (*products(), *coded(), *scaled())
