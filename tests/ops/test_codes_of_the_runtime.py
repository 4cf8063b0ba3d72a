"""Operators on quantized values give ONNX Runtime's results bit by bit, for all scales and zero points."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ops.case import Case, model, ours, runtime_says
from tests.ops.cases_contrib import M

RNG = np.random.default_rng
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere the runtime rounds otherwise")


def _codes(rng: np.random.Generator, *shape: int, dtype: str = "uint8", most: int = 256) -> np.ndarray[Any, Any]:
    low = np.iinfo(dtype).min * most // 256
    return rng.integers(low, low + most, shape).astype(dtype)


def _scales(rng: np.random.Generator, *shape: int, low: float = 0.005, high: float = 0.1) -> np.ndarray[Any, Any]:
    return np.asarray(rng.uniform(low, high, shape), np.float32)


def _given(rng: np.random.Generator, *shape: int, dtype: str = "uint8") -> tuple[np.ndarray[Any, Any], ...]:
    return _codes(rng, *shape, dtype=dtype), _scales(rng), _codes(rng, dtype=dtype)


def _sum(one: tuple[int, ...], two: tuple[int, ...], dtype: str = "uint8") -> Callable[[int], Case]:
    def case(seed: int) -> Case:
        rng = RNG(seed)
        first, second, last = (_given(rng, *s, dtype=dtype) for s in (one, two, ()))
        return Case(M + "QLinearAdd", (*first, *second, *last[1:]))

    return case


def _mean(seed: int) -> Case:
    rng = RNG(seed)
    result = _scales(rng, low=0.002), _codes(rng)
    return Case(M + "QLinearGlobalAveragePool", (*_given(rng, 3, 40, 7, 7), *result), {"channels_last": 0})


def _convolution(group: int, bias: bool = True) -> Callable[[int], Case]:
    """With few weights: what a processor without 8-bit products saturates does not matter."""

    def case(seed: int) -> Case:
        rng = RNG(seed)
        w = _codes(rng, 16, 16 // group, 3, 3, dtype="int8", most=64), _scales(rng, 16), np.zeros(16, np.int8)
        biases = (rng.integers(-9000, 9000, 16).astype(np.int32),) if bias else ()
        given = *_given(rng, 1, 16, 12, 12), *w, _scales(rng, low=0.4, high=4), _codes(rng), *biases
        return Case("QLinearConv", given, {"group": group, "pads": [1, 1, 1, 1]}, constants=(3, 4, 5))

    return case


def _product(seed: int) -> Case:
    rng = RNG(seed)
    w = _codes(rng, 64, 48, dtype="int8", most=64), _scales(rng, 48), np.zeros(48, np.int8)
    return Case("QLinearMatMul", (*_given(rng, 50, 64), *w, _scales(rng, low=0.4, high=4), _codes(rng)))


def _gemm(seed: int) -> Case:
    rng = RNG(seed)
    w = _codes(rng, 48, 64, dtype="int8", most=64), _scales(rng, 48), np.zeros(48, np.int8)
    bias = rng.integers(-9000, 9000, 48).astype(np.int32)
    given = *_given(rng, 50, 64), *w, bias, _scales(rng, low=0.4, high=4), _codes(rng)
    return Case(M + "QGemm", given, {"transB": 1, "alpha": 0.7})


CASES: dict[str, Callable[[int], Case]] = {
    "sum": _sum((64, 256), (64, 256)),
    "sum of signed codes": _sum((64, 256), (64, 256), "int8"),
    "sum of a row and matrices": _sum((256,), (64, 256)),
    "sum of numbers of rows": _sum((64, 1), (64, 256)),
    "sum with numbers of rows": _sum((64, 256), (64, 1)),
    "sum of a number": _sum((), (64, 256)),
    "mean": _mean,
    "convolution": _convolution(1),
    "convolution without bias": _convolution(1, bias=False),
    "depthwise convolution": _convolution(16),
    "grouped convolution": _convolution(4),
    "product": _product,
    "gemm": _gemm,
}


@pytest.mark.parametrize("what", CASES)
def test_a_row_makes_the_codes_of_the_runtime(what: str) -> None:
    made: set[int] = set()
    for seed in range(12):
        case = CASES[what](seed)
        (got,) = ours(case)
        said = runtime_says(case, model(case, [got.dtype]))
        assert said is not None
        made |= set(got.reshape(-1).tolist())
        assert np.array_equal(got, said[0]), (seed, np.argwhere(got != said[0])[:5])
    assert len(made) > 100, "most codes saturate"
