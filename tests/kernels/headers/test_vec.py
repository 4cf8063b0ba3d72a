"""vec.h against numpy for every element type, on every instruction set this machine runs and in portable code."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.kernels.isa import PARAMETERS, bf16_bits, bf16_values, call, floats, probe, sample
from tests.kernels.pool_host import Array, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

NAMES: dict[str, Any] = {
    "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Overflow, NaN and division by zero are part of the samples."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module", params=PARAMETERS)
def vectors(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return probe(request.param, "vec_probe.cpp")


STORED: dict[str, Any] = {**NAMES, "b8": np.bool_, "f16": np.float16, "bf16": np.uint16}


@pytest.mark.parametrize("name", STORED)
def test_tails_move_n_elements_and_no_more(vectors: ctypes.CDLL, name: str) -> None:
    lanes = vectors.lanes()
    x = sample(STORED[name], 3 * lanes) if name != "bf16" else bf16_bits(sample(np.float32, 3 * lanes))
    for n in range(2 * lanes + 1):
        y = np.zeros_like(x)
        call(vectors, f"copy_{name}", x, y, n)
        assert (y[:n] == x[:n]).all()
        assert not y[n:].view(np.uint8).any()
    for n in range(lanes + 1):
        y = np.ones(lanes, x.dtype)
        call(vectors, f"load_short_{name}", x, y, n)
        assert (y == np.where(np.arange(lanes) < n, x[:lanes], 0)).all()
    for first, last in product(range(lanes + 1), repeat=2):
        y, at = np.ones(lanes, x.dtype), np.arange(lanes)
        call(vectors, f"load_inner_{name}", x, y, 100 * first + last)
        assert (y == np.where((first <= at) & (at < last), x[:lanes], 0)).all()
    y = np.zeros_like(x)
    call(vectors, f"get_put_{name}", x, y, x.size)
    assert (y == x).all()


_AT_THE_EDGE = """
import ctypes, mmap, sys
library, page = ctypes.CDLL(sys.argv[1]), mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, 2 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
if libc.mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0):
    sys.exit(3)
lanes = library.lanes()
for name, size in (pair.split(":") for pair in sys.argv[2:]):
    for n in range(lanes + 1):
        at = ctypes.c_void_p(start + page - n * int(size))
        getattr(library, "copy_" + name)(at, at, ctypes.c_long(n))
"""


def test_tails_do_not_touch_the_page_behind_them(vectors: ctypes.CDLL) -> None:
    """Loads and stores that end where readable memory ends: one byte too far kills the child."""
    pairs = [f"{name}:{np.dtype(dtype).itemsize}" for name, dtype in STORED.items()]
    done = subprocess.run([sys.executable, "-c", _AT_THE_EDGE, vectors._name, *pairs], check=False)
    assert done.returncode == 0


def values(name: str, n: int = 1000) -> Array:
    """n values a stored type can hold; bfloat16 ones as float32."""
    return bf16_values(bf16_bits(sample(np.float32, n))) if name == "bf16" else sample(STORED[name], n)


def representable(x: Array, target: Any) -> Array:
    """Those of the floats x whose truncation an integer type holds; ONNX leaves the others open."""
    if x.dtype.kind != "f" or target.kind not in "iu":
        return x
    info = np.iinfo(target)
    whole = np.trunc(x.astype(np.float64))
    return x[(whole >= float(info.min)) & (whole < float(info.max))]


def stored(x: Array, name: str) -> Array:
    """What a cast of x stores as a type."""
    if name == "bf16":
        return bf16_bits(x.astype(np.float32))
    return (x.astype(np.float32) if name == "f16" else x).astype(STORED[name])


@pytest.mark.parametrize("source", STORED)
def test_casts_to_every_type(vectors: ctypes.CDLL, source: str) -> None:
    for target in STORED:
        x = representable(values(source), np.dtype(np.float32 if target == "bf16" else STORED[target]))
        held, wanted = stored(x, source), stored(x, target)
        for form in ("cast", "cast_scalar"):
            y: Array = np.empty(x.size, STORED[target])
            call(vectors, f"{form}_{source}_{target}", held, y, x.size)
            assert (y.view(np.uint8) == wanted.view(np.uint8)).all(), (form, source, target)


def test_every_half_widens_and_every_rounding_case_narrows(vectors: ctypes.CDLL) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    halves, wide = bits.view(np.float16), np.empty(65536, np.float32)
    call(vectors, "cast_f16_f32", halves, wide, 65536)
    nan = np.isnan(halves)
    assert (np.isnan(wide) == nan).all()
    assert (wide[~nan].view(np.uint32) == halves[~nan].astype(np.float32).view(np.uint32)).all()
    brains = np.empty(65536, np.float32)
    call(vectors, "cast_bf16_f32", bits, brains, 65536)
    assert (brains.view(np.uint32) == bits.astype(np.uint32) << 16).all()
    x = floats()
    y, z = np.empty(x.size, np.float16), np.empty(x.size, np.uint16)
    call(vectors, "cast_f32_f16", x, y, x.size)
    call(vectors, "cast_f32_bf16", x, z, x.size)
    wanted = x.astype(np.float16)
    nan = np.isnan(x)
    assert np.isnan(y[nan]).all()
    assert np.isnan(bf16_values(z[nan])).all()
    assert (y[~nan].view(np.uint16) == wanted[~nan].view(np.uint16)).all()
    assert (z[~nan] == bf16_bits(x)[~nan]).all()


def pairs(name: str, n: int = 160) -> tuple[Array, Array]:
    """Two arrays of a type with equal lanes, and NaN, infinities and zeros of both signs for floats."""
    x, y = sample(NAMES[name], n), sample(NAMES[name], n, 1)
    y[::5] = x[::5]
    if name in ("f32", "f64"):
        special = np.array(list(product([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], repeat=2)), x.dtype)
        x[: len(special)], y[: len(special)] = special[:, 0], special[:, 1]
    return x, y


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_comparisons_masks_and_selection(vectors: ctypes.CDLL, name: str) -> None:
    x, y = pairs(name)
    for op, function in COMPARISONS.items():
        for form in (op, f"scalar_{op}"):
            z = np.empty(x.size, np.bool_)
            call(vectors, f"{form}_{name}", x, y, z, x.size)
            assert (z.view(np.uint8) == function(x, y).view(np.uint8)).all(), form
    for form, dtype in (("where", np.bool_), ("where_f64", np.float64), ("where_i8", np.int8)):
        condition = sample(dtype, x.size)
        z = np.empty_like(x)
        call(vectors, f"{form}_{name}", condition, x, y, z, x.size)
        chosen = np.where(condition if form == "where" else condition < 0, x, y)
        assert (z.view(np.uint8) == chosen.view(np.uint8)).all()


@pytest.mark.parametrize("name", NAMES)
def test_minima_and_maxima(vectors: ctypes.CDLL, name: str) -> None:
    x, y = pairs(name)
    wanted = {"max_nan_": np.maximum(x, y), "min_nan_": np.minimum(x, y)}
    wanted |= {"max_": np.where(x > y, x, y), "min_": np.where(x < y, x, y)}
    for op, result in wanted.items():
        z = np.empty_like(x)
        call(vectors, f"{op}{name}", x, y, z, x.size)
        assert ((z == result) | (np.isnan(z.astype(np.float64)) & np.isnan(result.astype(np.float64)))).all(), op


REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "max_nan": np.maximum, "min_nan": np.minimum,
}  # fmt: skip


def tree(rows: Array, combine: Callable[[Array, Array], Array]) -> Array:
    """The documented reduction order: lane i with lane i + width / 2, halving."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = combine(rows[:, :half], rows[:, half:])
    return rows[:, 0]


@pytest.mark.parametrize("name", NAMES)
def test_reductions_follow_a_fixed_tree(vectors: ctypes.CDLL, name: str) -> None:
    lanes = vectors.lanes()
    x = sample(NAMES[name], 64 * lanes)
    rows = x.reshape(64, lanes)
    for op, combine in REDUCTIONS.items():
        y = np.empty(64, x.dtype)
        call(vectors, f"reduce_{op}_{name}", x, y, x.size)
        assert (y == tree(rows, combine)).all(), op
    if name in ("f32", "f64"):
        for position in range(lanes):
            rows[position, position] = np.nan
        y = np.empty(64, x.dtype)
        for op in ("max_nan", "min_nan", "add"):
            call(vectors, f"reduce_{op}_{name}", x, y, x.size)
            assert (np.isnan(y) == (np.arange(64) < lanes)).all(), op


@pytest.mark.parametrize("name", NAMES)
def test_construction_masks_and_gather(vectors: ctypes.CDLL, name: str) -> None:
    lanes, dtype = vectors.lanes(), NAMES[name]
    y = np.empty(lanes, dtype)
    call(vectors, f"iota_{name}", y)
    assert (y == np.arange(lanes)).all()
    for value in (-0.0, 3.0):
        call(vectors, f"splat_{name}", np.array([value], dtype), y)
        assert (y.view(np.uint8) == np.full(lanes, value, dtype).view(np.uint8)).all()
    for n in range(lanes + 3):
        b = np.empty(lanes, np.bool_)
        call(vectors, f"first_{name}", b, n)
        assert (b == (np.arange(lanes) < n)).all()
    for position in range(lanes):
        one = (np.arange(lanes) == position).astype(dtype)
        assert call(vectors, f"any_{name}", one) == 1
        assert call(vectors, f"all_{name}", (1 - one).astype(dtype)) == 0
    assert call(vectors, f"any_{name}", np.zeros(lanes, dtype)) == 0
    assert call(vectors, f"all_{name}", np.ones(lanes, dtype)) == 1
    table, at = sample(dtype, 1000), np.random.default_rng(3).integers(0, 1000, lanes)
    for index in (np.int32, np.int64):
        call(vectors, f"gather{np.dtype(index).itemsize * 8}_{name}", table, at.astype(index), y)
        assert (y == table[at]).all()


def test_transpose(vectors: ctypes.CDLL) -> None:
    lanes = vectors.lanes()
    x = np.arange(lanes * lanes, dtype=np.float32)
    y = np.empty_like(x)
    call(vectors, "transpose_f32", x, y)
    assert (y.reshape(lanes, lanes) == x.reshape(lanes, lanes).T).all()


@pytest.mark.parametrize("op", ["add", "max"])
def test_reducing_many_rows_at_once_gives_the_same_bits_as_one_by_one(vectors: ctypes.CDLL, op: str) -> None:
    lanes = vectors.lanes()
    x = sample(np.float32, lanes * lanes)
    each, single = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    call(vectors, f"{op}_each", x, each)
    call(vectors, f"reduce_{op}_f32", x, single, x.size)
    assert (each.view(np.int32) == single.view(np.int32)).all()
