"""math.h against numpy in float64, within stated bounds over all floats, on every instruction set this machine runs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from tests.kernels.isa import PARAMETERS, call, floats, probe
from tests.kernels.pool_host import Array, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Overflow, NaN and division by zero are part of the samples."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module", params=PARAMETERS)
def maths(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return probe(request.param, "math_probe.cpp")


# Each: float64 reference and the bound in units in the last place of the float result, over every finite float, both
# infinities, NaN, subnormals and both zeros. 0.5 is correct rounding.
def erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.tolist()])


FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "exp_": (np.exp, 1.3),
    "exp_or_zero_": (lambda x: np.where(x < -87, 0, np.exp(x)), 1.3),
    "log_": (np.log, 1.0),
    "tanh_": (np.tanh, 6.0),
    "erf_": (erf, 8.0),
    "sigmoid_": (lambda x: np.exp(np.where(x < 0, x, 0)) / (1 + np.exp(-np.abs(x))), 3.0),
    "softplus_": (lambda x: np.where(x > 0, x, 0) + np.log1p(np.exp(-np.abs(x))), 2.6),
    "sin_": (np.sin, 1.6),
    "cos_": (np.cos, 1.6),
    "sqrt_": (np.sqrt, 0.5),
    "rsqrt_": (lambda x: 1 / np.sqrt(x), 1.5),
    "reciprocal_": (lambda x: 1 / x, 0.5),
    "floor_": (np.floor, 0.0),
    "ceil_": (np.ceil, 0.0),
    "round_": (np.rint, 0.0),
    "trunc_": (np.trunc, 0.0),
    "abs_": (np.abs, 0.0),
    "sign_": (np.sign, 0.0),
    # what follows is libm lane by lane
    "tan_": (np.tan, 4.0),
    "asin_": (np.arcsin, 4.0),
    "acos_": (np.arccos, 4.0),
    "atan_": (np.arctan, 4.0),
    "sinh_": (np.sinh, 4.0),
    "cosh_": (np.cosh, 4.0),
    "asinh_": (np.arcsinh, 4.0),
    "acosh_": (np.arccosh, 4.0),
    "atanh_": (np.arctanh, 4.0),
}

MOST = {"exp_or_zero_": 88.0}  # the largest argument that a function takes


def ulps(y: Array, exact: Array) -> Array:
    """|y - exact| in units in the last place of exact rounded to y's type; 0 where both are one infinity or NaN."""
    rounded = exact.astype(y.dtype)
    size = np.abs(np.where(np.isfinite(rounded), rounded, 1))
    unit = np.where(size > 1, 2 * np.spacing(size / 2), np.spacing(size)).astype(np.float64)
    distance = np.abs(y.astype(np.float64) - exact) / unit
    same = (y == rounded) | (np.isnan(y) & np.isnan(rounded))
    distance = np.where(same, np.where(distance <= 0.5, distance, 0), distance)
    return np.where(np.isnan(distance), np.inf, distance)


def exact(function: Callable[[Array], Array], x: Array) -> Array:
    return function(x.astype(np.float64))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_float_function_stays_within_its_bound(maths: ctypes.CDLL, name: str) -> None:
    reference, bound = FUNCTIONS[name]
    x = floats()
    x = x[~(x > MOST.get(name, np.inf))]
    y, wanted = np.empty_like(x), exact(reference, x)
    call(maths, f"{name}_vector_float", x, y, x.size)
    error = ulps(y, wanted)
    worst = int(error.argmax())
    assert error[worst] <= bound, f"{error[worst]} ulp at {x[worst]!r}: {y[worst]!r}, not {wanted[worst]!r}"
    signs = (np.signbit(y) != np.signbit(wanted)) & ~np.isnan(wanted)
    assert not signs.any(), f"wrong sign at {x[signs][:4]}"


@pytest.mark.parametrize("name", [*FUNCTIONS, "gelu_erf", "gelu_tanh"])
def test_the_scalar_overload_gives_the_same_bits(maths: ctypes.CDLL, name: str) -> None:
    x = floats()[::37]
    vector, scalar = np.empty_like(x), np.empty_like(x)
    call(maths, f"{name}_vector_float", x, vector, x.size)
    call(maths, f"{name}_scalar_float", x, scalar, x.size)
    nan = np.isnan(vector)
    assert (np.isnan(scalar) == nan).all()
    assert (vector[~nan].view(np.int32) == scalar[~nan].view(np.int32)).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double_functions_follow_libm(maths: ctypes.CDLL, name: str) -> None:
    x = floats()[::101].astype(np.float64)
    wanted = exact(FUNCTIONS[name][0], x)
    for kind in ("vector", "scalar"):
        y = np.empty_like(x)
        call(maths, f"{name}_{kind}_double", x, y, x.size)
        assert ulps(y, wanted).max() <= 4.0


@pytest.mark.parametrize(("name", "bound"), [("gelu_erf", 4.5), ("gelu_tanh", 4.0)])
def test_gelu_errs_by_a_few_roundings_of_its_input(maths: ctypes.CDLL, name: str, bound: float) -> None:
    """1 + erf cancels for negative x, so the bound is in float epsilons of |x|, as for the operators one by one."""
    x = floats()
    x = x[np.isfinite(x)]
    wide = x.astype(np.float64)
    if name == "gelu_erf":
        inner = erf(wide / np.sqrt(2))
    else:
        inner = np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
    y = np.empty_like(x)
    call(maths, f"{name}_vector_float", x, y, x.size)
    error = np.abs(y - 0.5 * wide * (1 + inner))
    relative = (error / np.maximum(np.abs(wide), 2.0**-126)).max() * 2**24  # in a subnormal the rounding is absolute
    assert relative <= bound


def test_pow_of_floats(maths: ctypes.CDLL) -> None:
    special = [0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 1e-45, -1e-45, 1e38, -1e38, np.inf, -np.inf, np.nan, 1.5, -2.5,
               16777216, 16777217, 33554432, 8388607, 8388609, -8388609, 1e-10, -1e-10]  # fmt: skip
    grid = np.array(list(product(special, special))).T
    rng, n = np.random.default_rng(1), 200_000
    x = [
        grid[0],
        rng.uniform(0, 10, n),
        np.exp(rng.uniform(-87, 88, n)),
        rng.uniform(0.99, 1.01, n),
        -np.exp(rng.uniform(-5, 5, n)),
    ]
    y = [grid[1], rng.uniform(-10, 10, n), rng.uniform(-2, 2, n), rng.uniform(-5000, 5000, n), rng.integers(-20, 20, n)]
    base, power = (np.concatenate(v).astype(np.float32) for v in (x, y))
    wanted = np.power(base.astype(np.float64), power.astype(np.float64))
    for kind in ("vector", "scalar"):
        z = np.empty_like(base)
        call(maths, f"pow__{kind}_float", base, power, z, z.size)
        error = ulps(z, wanted)
        worst = int(error.argmax())
        assert error[worst] <= 0.7, (base[worst], power[worst], z[worst], wanted[worst])
        rounded = wanted.astype(np.float32)
        assert (np.isnan(rounded) | (np.signbit(z) == np.signbit(rounded))).all()


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_pow_of_integers_wraps(maths: ctypes.CDLL, kind: str) -> None:
    dtype = np.dtype(kind)
    x, y = (np.array(v, dtype) for v in zip(*product(range(-7, 8), range(30)), strict=True))
    bits = 8 * dtype.itemsize
    wrapped = [pow(int(a), int(b)) % 2**bits for a, b in zip(x, y, strict=True)]
    wanted = np.array(wrapped, f"u{dtype.itemsize}").view(dtype)
    for form in ("vector", "scalar"):
        z = np.empty_like(x)
        call(maths, f"pow__{form}_{kind}", x, y, z, z.size)
        assert (z == wanted).all()


@pytest.mark.parametrize("divisor", [0.0421, 1 / 255, 3.0, -0.7, 2.0**-99, 1.9e-38, 1e-42, 1.7e31, 0.0, np.inf, np.nan])
def test_a_quotient_to_round_is_that_of_a_division(maths: ctypes.CDLL, divisor: float) -> None:
    """To the last bit below 2^20; beyond, and where it is not finite, it has the same sign and is as far off."""
    rng, y = np.random.default_rng(5), np.float32(divisor)
    with np.errstate(all="ignore"):
        near = (rng.integers(-600, 600, 40000) * np.float32(0.5)) * y
        close = np.nextafter(near, np.float32(np.inf) * rng.choice([-1, 1], near.size).astype(np.float32))
        wild = rng.integers(0, 2**32, 40000, np.uint32).view(np.float32)
        x = np.concatenate([near, close, wild, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan] * 16)]).astype(
            np.float32
        )
        wanted = x / y
    z = np.empty_like(x)
    call(maths, "quotient_to_round", x, np.array([y]), z, x.size)
    small = (np.abs(wanted) < 2.0**20) & (np.abs(wanted) >= 0.25)
    assert (z[small] == wanted[small]).all()
    tiny = np.abs(wanted) < 0.25
    assert (np.abs(z[tiny]) < 0.5).all()
    large = np.abs(wanted) >= 2.0**20
    assert (np.abs(z[large]) >= 2.0**19).all()
    assert (np.signbit(z[large]) == np.signbit(wanted[large])).all()
    assert np.isnan(z[np.isnan(wanted)]).all()


@pytest.mark.parametrize("how", ["coded", "coded_together", "coded_side_by_side", "coded_in_pairs", "coded_alone"])
@pytest.mark.parametrize(("name", "zeros"), [("u8", (0, 7, 128, 255)), ("i8", (-128, -3, 0, 127))])
def test_codes_are_rounded_to_even_and_saturate(
    maths: ctypes.CDLL, how: str, name: str, zeros: tuple[int, ...]
) -> None:
    """Halves, what no integer of 32 bits holds, infinities, and NaN, which is the least code."""
    edges = [0.5, 1.5, -0.5, -1.5, 2.5, 127.5, 254.5, 255.5, 2.0**31, -(2.0**31), 2.0**31 - 128, 3e38, np.inf, np.nan]
    rng = np.random.default_rng(7)
    x = np.concatenate([edges, np.negative(edges), rng.integers(-1200, 1200, 356) * 0.25]).astype(np.float32)
    limits = np.iinfo(np.uint8 if name == "u8" else np.int8)
    for zero in zeros:
        y = np.zeros(x.size, limits.dtype)
        call(maths, f"{how}_{name}", x, y, np.array([zero], np.int32), x.size)
        whole = np.fmax(np.round(x.astype(np.float64)), -1e9) + zero
        assert (y == np.clip(whole, limits.min, limits.max).astype(limits.dtype)).all()
