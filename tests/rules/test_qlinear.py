"""Quantized operators become QLinear operators where ONNX Runtime has them, and redundant clips are removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.dtype import I8, U8, DType
from tests.rules.build import Build, only, ops, rewritten, same

RULE = "qlinear-operators"


def parameters(b: Build, scale: Any, zero: Any, dtype: DType = U8) -> tuple[str, str]:
    """A scale and a zero point."""
    return b.constant(np.asarray(scale, np.float32)), b.constant(np.asarray(zero, dtype.numpy))


def decoded(b: Build, name: str, *shape: int, dtype: DType = U8) -> str:
    """Codes that are a graph input, as numbers."""
    return str(b.node("DequantizeLinear", b.input(name, *shape, dtype=dtype), *parameters(b, 0.05, 7, dtype)))


def coded(b: Build, x: str, dtype: DType = U8, scale: float = 0.0371234) -> str:
    """Numbers as codes."""
    return str(b.node("QuantizeLinear", x, *parameters(b, scale, 9, dtype)))


def weights(b: Build, shape: tuple[int, ...], axis: int) -> str:
    """Constant codes with a scale for each index of an axis."""
    codes = b.constant(b.rng.integers(-99, 99, shape).astype(np.int8))
    scales = b.constant(np.full(shape[axis], 0.02, np.float32))
    return str(b.node("DequantizeLinear", codes, scales, axis=axis))


def bias(b: Build, size: int, scale: float = 0.05 * 0.02) -> str:
    """A constant bias of 32 bits."""
    codes = b.constant(b.rng.integers(-99, 99, size).astype(np.int32))
    return str(b.node("DequantizeLinear", codes, b.constant(np.full(size, scale, np.float32)), axis=0))


def convolution(b: Build, **how: Any) -> str:
    """A convolution of codes."""
    w = weights(b, (8, 6, 3, 3), 0)
    return str(b.node("Conv", decoded(b, "x", 1, 6, 8, 8), w, bias(b, 8, **how), pads=(1, 1, 1, 1)))


OPERATORS: dict[str, tuple[Callable[[Build], str], str]] = {
    "Conv": (convolution, "QLinearConv"),
    "MatMul": (lambda b: b.node("MatMul", decoded(b, "x", 4, 6), weights(b, (6, 8), 1)), "QLinearMatMul"),
    "Gemm": (lambda b: b.node("Gemm", decoded(b, "x", 4, 6), weights(b, (8, 6), 0), bias(b, 8), transB=1), "QGemm"),
    "Add": (lambda b: b.node("Add", decoded(b, "x", 4, 6), decoded(b, "y", 6)), "QLinearAdd"),
    "mean": (lambda b: b.node("GlobalAveragePool", decoded(b, "x", 2, 6, 5, 5)), "QLinearGlobalAveragePool"),
}


@pytest.mark.parametrize("what", OPERATORS)
def test_an_operator_between_codes_is_the_runtimes(what: str) -> None:
    make, op = OPERATORS[what]
    b = Build(13)
    before = b.graph(coded(b, make(b)))
    after, fired = rewritten(before, only(RULE))
    assert fired == {RULE: 1}
    assert ops(after) == [op]
    same(before, after)


OTHERS: dict[str, Callable[[Build], str]] = {
    "a bias of another scale": lambda b: coded(b, convolution(b, scale=0.0011)),
    "codes of another type": lambda b: coded(b, convolution(b), I8),
    "no codes": lambda b: coded(b, b.node("Add", decoded(b, "x", 4, 6), b.input("y", 4, 6))),
    "signs": lambda b: coded(b, b.node("Add", decoded(b, "x", 4, 6, dtype=I8), decoded(b, "y", 4, 6, dtype=I8)), I8),
}


@pytest.mark.parametrize("what", OTHERS)
def test_others_stay(what: str) -> None:
    b = Build(13)
    assert rewritten(b.graph(OTHERS[what](b)), only(RULE))[1] == {}


def test_numbers_that_are_read_elsewhere_stay() -> None:
    b = Build(13)
    y = convolution(b)
    assert rewritten(b.graph(coded(b, y), b.node("Relu", y)), only(RULE))[1] == {}


LIMITS = {
    "Relu": (lambda b, x: b.node("Relu", x), 0, True),
    "Relu that codes do not have": (lambda b, x: b.node("Relu", x), 3, False),
    "Clip": (lambda b, x: b.node("Clip", x, b.constant(0.0), b.constant(6.0)), 0, True),
    "a lower Clip": (lambda b, x: b.node("Clip", x, b.constant(0.0), b.constant(5.0)), 0, False),
    "a Clip without end": (lambda b, x: b.node("Clip", x, b.constant(0.0)), 0, True),
}


@pytest.mark.parametrize("what", LIMITS)
def test_limits_that_codes_have_anyway_are_left_out(what: str) -> None:
    limit, zero, goes = LIMITS[what]
    b = Build(13)
    x = b.node("Mul", b.input("x", 5, 7), b.constant(4.0))
    before = b.graph(b.node("QuantizeLinear", limit(b, x), *parameters(b, 6 / 255, zero)))
    after, fired = rewritten(before, only("clip-before-quantize"))
    assert fired == ({"clip-before-quantize": 1} if goes else {})
    same(before, after)
