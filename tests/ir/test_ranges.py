"""Value ranges are sound, and as tight as the rules that use them need."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.dtype import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from onnxfuse.ir.functions import FUNCTIONS, Function
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.ranges import ANY, Range, of_array, range_of, wrapped
from onnxfuse.ir.scalar import Apply, Const, Load, Reduce, Scalar, apply, const

Array = np.ndarray[Any, Any]
FLOATS = ("bool", "bit", "shift", "and", "or", "xor", "not", "snapped", "coded", "cast")
REAL = [f for f in FUNCTIONS.values() if not f.name.startswith(FLOATS)]
WHOLE = [
    f for f in FUNCTIONS.values()
    if f.name in ("add", "sub", "mul", "min", "max", "neg", "abs", "sign", "mod", "less", "greater_equal", "select")
    or f.name.startswith("bit_")
]  # fmt: skip
ENDS = (-inf, -1e30, -3.0, -1.0, -0.25, 0.0, 0.25, 1.0, 2.0, 7.0, 1e30, inf)


def load(name: str, dtype: DType = F32) -> Load:
    return Load(name, (), dtype)


def points(rng: np.random.Generator, r: Range, dtype: type) -> Array:
    """Numbers in a range: its ends, what lies between, zeros of both signs and NaN where they may be."""
    low, high = (min(max(end, -3e38), 3e38) for end in (r.low, r.high))
    part = rng.uniform(0, 1, 24)
    found = [r.low, r.high, *(low * (1 - part) + high * part), *rng.uniform(-4, 4, 24), 0.0]
    kept = [v + 0.0 for v in found if r.low <= v <= r.high]  # no -0
    kept += [-0.0] * (r.minus and r.zero) + [nan] * r.nan
    return np.asarray(kept).astype(dtype)


def drawn(rng: np.random.Generator) -> Range:
    low, high = sorted(rng.choice(ENDS, 2))
    return Range(float(low), float(high), bool(rng.integers(2)), bool(rng.integers(2)))


def check(found: Range, got: Array, what: object) -> None:
    """Every number that was computed is in the range."""
    real = got[~np.isnan(got)] if got.dtype.kind == "f" else got.astype(np.int64)
    assert found.nan or len(real) == len(got), what
    assert not len(real) or (found.low <= real.min() and real.max() <= found.high), (what, real.min(), real.max())
    if got.dtype.kind == "f":
        assert found.minus or not np.signbit(real[real == 0]).any(), what
        assert not found.whole or (real == np.floor(real)).all(), what


@pytest.mark.parametrize("f", REAL, ids=lambda f: f.name)
def test_functions_of_real_numbers(f: Function) -> None:
    rng = np.random.default_rng(len(f.name))
    for _ in range(60):
        ranges = [drawn(rng) for _ in range(f.arity)]
        if f.name == "snap":
            ranges[1:] = [Range.number(-3.0), Range.number(5.0)]
        names = [f"x{k}" for k in range(f.arity)]
        same = f.arity == 2 and rng.integers(3) == 0
        if same:
            names, ranges = [names[0]] * 2, [ranges[0]] * 2
        args = [load(n, BOOL if f.name == "select" and k == 0 else F32) for k, n in enumerate(names)]
        made = Apply(f.name, tuple(args), BOOL if f.result == "bool" else F32)
        if f.name == "select":
            ranges[0] = Range(0, 1, whole=True)
        known = dict(zip(names, ranges, strict=True))
        found = range_of(made, lambda at, known=known: known[at.source])
        sets = [points(rng, r, np.float32) for r in ranges]
        grid = [g.reshape(-1) for g in np.meshgrid(*sets, indexing="ij")] if not same else [sets[0]] * 2
        if f.name == "select":
            grid[0] = grid[0] > 0.5
        with np.errstate(all="ignore"):
            check(
                found,
                np.asarray(f.numpy(*grid)).astype(np.bool_ if f.result == "bool" else np.float32),
                (f.name, ranges),
            )


@pytest.mark.parametrize("dtype", [I8, U8, I32, I64], ids=str)
@pytest.mark.parametrize("f", WHOLE, ids=lambda f: f.name)
def test_functions_of_whole_numbers_wrap_around(f: Function, dtype: DType) -> None:
    rng = np.random.default_rng(5)
    limits = np.iinfo(dtype.numpy)
    for _ in range(20):
        sets, ranges = [], []
        for _ in range(f.arity):
            low, high = sorted(
                rng.integers(max(limits.min, -(2**40)), min(limits.max, 2**40), 2, endpoint=True).tolist()
            )
            ranges.append(Range(low, high, whole=True))
            sets.append(rng.integers(low, high, 12, endpoint=True).astype(dtype.numpy))
        if f.name == "mod" and (ranges[1].low <= 0):
            continue
        args = tuple(load(f"x{k}", BOOL if f.name == "select" and k == 0 else dtype) for k in range(f.arity))
        if f.name == "select":
            ranges[0], sets[0] = Range(0, 1, whole=True), rng.integers(0, 2, 12).astype(bool)
        made = Apply(f.name, args, BOOL if f.result == "bool" else dtype)
        found = range_of(made, lambda at, known=ranges: known[int(at.source[1:])])
        with np.errstate(all="ignore"):
            check(found, np.asarray(f.numpy(*sets)), (f.name, ranges))


@pytest.mark.parametrize("to", [F16, BF16, F64, I8, U8, I32, BOOL], ids=str)
def test_conversions(to: DType) -> None:
    rng = np.random.default_rng(6)
    for _ in range(60):
        r = drawn(rng)
        values = points(rng, r, np.float32)
        if to.kind in "iu":  # what lies outside of a type may become anything
            limits = np.iinfo(to.numpy)
            values = values[(values > limits.min) & (values < limits.max)]
        found = range_of(Apply("cast", (load("x"),), to), lambda at, r=r: r)
        with np.errstate(all="ignore"):
            check(found, values.astype(to.numpy), r)


@pytest.mark.parametrize("name", sorted(MONOIDS))
@pytest.mark.parametrize("n", [1, 2, 7])
def test_reductions(name: str, n: int) -> None:
    rng = np.random.default_rng(n)
    axis = Axis("r", Index.of(n))
    slots = 2 if name.startswith("arg") else 1
    for _ in range(40):
        r = drawn(rng)
        body: tuple[Scalar, ...] = (load("x"), Const(0, I64))[:slots]
        found = range_of(Reduce(name, (axis,), body, F32), lambda at, r=r: r)
        values = points(rng, r, np.float32)
        terms = rng.choice(values, (64, n))
        how = {"sum": np.sum, "prod": np.prod, "min": np.min, "argmin": np.min}.get(name, np.max)
        with np.errstate(all="ignore"):
            check(found, np.asarray(how(terms, axis=1), np.float32), (name, r))


def test_interval_ends_are_rounded_outwards() -> None:
    third = wrapped(Range(1 / 3, 1 / 3), F32)
    assert third.low < 1 / 3 < third.high and third.high - third.low < 1e-7
    assert wrapped(Range(1e-42, 2.0), F32).low == 0  # may be flushed
    assert wrapped(Range(70000.0, 1e9), F16) == Range(65504.0, inf)
    assert wrapped(Range(0, 300, whole=True), U8) == Range(0, 255, whole=True)


def test_constants() -> None:
    assert of_array(np.asarray([1.0, -2.0, nan], np.float32), F32) == Range(-2.0, 1.0, True)
    assert of_array(np.asarray([0.0, -0.0], np.float32), F32).minus
    assert not of_array(np.asarray([0.0, 1.0], np.float32), F32).minus
    assert of_array(np.zeros(0, np.float32), F32) == ANY


R, S, A = Axis("r", Index.of(8)), Axis("s", Index.of(8)), Axis("a", Index.of(8))
INPUT = Range(-10.0, 10.0)


def element(at: Axis) -> Load:
    return Load("x", (Index.of(at),), F32)


def test_softmax_is_a_probability_and_no_nan() -> None:
    peak = Reduce("max", (R,), (element(R),), F32)
    power = apply("exp", apply("sub", element(A), peak))
    total = Reduce("sum", (S,), (substitute_axes(power, {A: Index.of(S)}),), F32)
    found = range_of(apply("div", power, total), lambda load: INPUT)
    assert found == Range(found.low, found.high) and 0 <= found.low < 1e-8 and 1 <= found.high < 1.001
    anything = range_of(apply("div", power, total), lambda load: ANY)
    assert anything.nan and anything.low == 0
    masked = range_of(apply("div", power, total), lambda load: Range(-inf, 10.0))
    assert masked.nan  # a row may hold nothing but -inf
    other = apply("exp", apply("sub", element(A), Reduce("max", (R,), (Load("y", (Index.of(R),), F32),), F32)))
    assert range_of(other, lambda load: INPUT).high > 1e8  # the largest of something else


def test_what_is_normalized_is_at_most_the_root_of_the_number_of_terms() -> None:
    mean = apply("div", Reduce("sum", (R,), (apply("mul", element(R), element(R)),), F32), const(8, F32))
    deviation = apply("sqrt", apply("add", mean, const(1e-12, F32)))
    for normal in (apply("div", element(A), deviation), apply("mul", element(A), apply("reciprocal", deviation))):
        assert range_of(normal, lambda load: INPUT).most < 2.9
        assert range_of(normal, lambda load: ANY) == ANY
    others = apply("div", Load("y", (Index.of(A),), F32), deviation)
    assert range_of(others, lambda load: INPUT).most > 1e6


def test_parts_of_a_sum_may_overflow_both_ways() -> None:
    total = Reduce("sum", (R,), (element(R),), F32)
    assert range_of(total, lambda load: Range(-3e38, 3e38)).nan, "inf less inf, where the sum is taken in two parts"
    assert not range_of(total, lambda load: Range(-3e37, 3e37)).nan
    assert not range_of(total, lambda load: Range(0.0, 3e38)).nan
    half = Reduce("sum", (R,), (Load("x", (Index.of(R),), F16),), F16)
    assert range_of(half, lambda load: Range(-6e4, 6e4)).nan


def test_a_check_for_nan_excludes_it() -> None:
    x = load("x")
    kept = apply("select", apply("isnan", x), const(0, F32), x)
    assert not range_of(kept, lambda load: ANY).nan
    assert range_of(apply("select", apply("isnan", load("y")), const(0, F32), x), lambda load: ANY).nan
