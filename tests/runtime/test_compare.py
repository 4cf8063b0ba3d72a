"""Distances and limits of the comparison, for every element type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.runtime.engine import Array
from onnxfuse.verify import compare

INF, NAN = np.inf, np.nan


def error(a: Array, b: Array) -> float:
    return compare.distance(a, b).error


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_one_percent_is_one_percent(dtype: type):
    a = np.random.default_rng(0).standard_normal((40, 50)).astype(dtype)
    assert error(a, a) == 0.0
    assert error(a, (a * 1.01).astype(dtype)) == pytest.approx(0.01, rel=0.2)


def test_a_scale_is_what_a_reference_has_at_least():
    a, b = np.zeros(100, np.float32), np.full(100, 1e-8, np.float32)
    assert compare.distance(a, b, 1e-2).error == pytest.approx(1e-6)
    assert compare.distance(a + 1, b + 1.01, 1e-2).error == pytest.approx(0.01, rel=1e-3)


def test_one_wrong_element_in_a_million_is_above_every_float32_floor():
    a = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    b = a.copy()
    b[-1] = -b[-1]
    assert error(a, b) > compare.FLOORS["float32"]


@pytest.mark.parametrize(
    ("a", "b", "finite"),
    [
        ([1, NAN, INF, -INF], [1, NAN, INF, -INF], True),
        ([1, NAN], [1, 2], False),
        ([1, 2], [1, NAN], False),
        ([1, INF], [1, -INF], False),
        ([1, INF], [1, 1e30], False),
        ([1, NAN], [1, INF], False),
    ],
)
def test_nan_and_infinity_must_be_in_the_same_places(a: list[float], b: list[float], finite: bool):
    assert np.isfinite(error(np.array(a, np.float32), np.array(b, np.float32))) == finite


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_long_tensors_are_compared_to_their_ends(dtype: type):
    """Blocks do not show: neither their borders nor what is not finite in one of them."""
    random = np.random.default_rng(0)
    a = random.standard_normal((3, 70_001)).astype(dtype)
    b = (a * (1 + 1e-3 * random.standard_normal(a.shape))).astype(dtype)
    off = b.astype(np.float64) - a
    found = compare.distance(a, b)
    assert found.error == pytest.approx(float(np.linalg.norm(off) / np.linalg.norm(a.astype(np.float64))), rel=1e-6)
    assert found.max_abs == pytest.approx(float(np.abs(off).max()))
    assert found.rms == pytest.approx(float(np.sqrt(np.mean(a.astype(np.float64) ** 2))), rel=1e-6)
    a[1, 65_000:65_010] = b[1, 65_000:65_010] = [NAN, INF] * 5
    assert error(a, b) == pytest.approx(found.error, rel=1e-3)
    b[1, 65_003] = 0
    assert error(a, b) == INF


def test_shapes_and_types_must_agree():
    a = np.zeros((2, 3), np.float32)
    assert error(a, a.T) == error(a, a.astype(np.float64)) == INF
    assert "float32[3, 2] instead of float32[2, 3]" in compare.distance(a, a.T).reason


def test_integers_are_equal_or_not():
    a = np.arange(10)
    assert error(a, a) == 0.0
    assert error(a, np.where(a == 3, 4, a)) == pytest.approx(0.1)
    assert error(a > 4, a > 3) == pytest.approx(0.1)
    assert error(np.array(["x", "y"]), np.array(["x", "z"])) == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_few_quantized_numbers_may_be_one_step_apart(dtype: type):
    a = np.arange(5000, dtype=np.int64).astype(dtype) // dtype(2)
    for few, found in ((1, 0.0), (5, 0.0), (6, 6 / 5000), (5000, 1.0)):
        moved = a.copy()
        moved[:few] += dtype(1)
        assert error(a, moved) == pytest.approx(found)
    assert error(a[:10], np.r_[a[:9], a[9:10] + dtype(1)]) == 0.0
    assert error(a[:10], np.r_[a[:9], a[9:10] + dtype(2)]) == pytest.approx(0.1)


def test_nothing_to_compare_is_no_difference():
    assert error(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)) == 0.0
    assert error(np.zeros(3, np.float32), np.zeros(3, np.float32)) == 0.0
    assert error(np.zeros(3, np.float32), np.ones(3, np.float32)) > 1.0


def test_limits():
    assert compare.limit([1e-6, 3e-5], 2e-5, exact=False) == pytest.approx(3e-4)
    assert compare.limit([], 2e-5, exact=False) == 2e-5
    assert compare.limit([0.0], 2e-5, exact=True) == 0.0


def test_a_group_bound_lets_rounding_pass_and_one_percent_not():
    """Sums in another order, of the lengths that networks have."""
    random = np.random.default_rng(0)
    for length in (8, 768, 4096):
        a, b = random.standard_normal((2, 64, length)).astype(np.float32)
        exact, other = np.einsum("ik,jk->ij", a, b), (a[:, None] * b[None]).cumsum(-1, dtype=np.float32)[..., -1]
        bound = compare.group_bound(np.dtype(np.float32), length)
        assert error(exact, other) < bound < error(exact, exact * np.float32(1.01)) / 50


def test_the_worst_of_several():
    found = [compare.Distance(0.1, 1.0, rms=5.0), compare.Distance(0.2, 0.5, rms=7.0)]
    assert compare.worst(found) == compare.Distance(0.2, 0.5, rms=5.0, at=1)
