"""The instruction sets that header tests run on, the probe libraries built for them, and the numbers fed to them."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.pool_host import Array, compile_library

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "kernels"

# Name, flags, CPU features needed. The portable ones are the code without intrinsics at the other widths.
ISAS = {
    "native": (("-march=native",), ()),
    "avx2": (("-march=x86-64-v3", "-O1"), ("avx2", "fma", "f16c")),
    "baseline": (("-march=x86-64", "-O1"), ("sse2",)),
    "portable-8": (("-march=x86-64", "-O1", "-DONNXFUSE_LANES=8"), ("sse2",)),
    "portable-16": (("-march=x86-64-v3", "-O1", "-DONNXFUSE_LANES=16"), ("avx2", "fma", "f16c")),
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.17549435e-38, 3.4028235e38, -3.4028235e38,
           88.722839, 88.72284, -103.97208, -103.97209, -87.33655, 9.0109, -9.0109, 3.919206, 1.0, -1.0, 0.5, -0.5,
           1.5, 2.5, 8388607.5, 8388608.0, 1e5]  # fmt: skip


def _features() -> set[str]:
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return set()


def _left(isa: str) -> bool:
    """Whether an instruction set is left to `make slow`: the portable ones, and AVX2 where that is what is native."""
    return isa.startswith("portable") or (isa == "avx2" and "avx2" in (here := _features()) and "avx512f" not in here)


PARAMETERS = [pytest.param(isa, marks=[pytest.mark.slow] if _left(isa) else []) for isa in ISAS]


def probe(isa: str, source: str) -> ctypes.CDLL:
    """The library of one probe for one instruction set; the test is skipped where this machine cannot run it."""
    march, needs = ISAS[isa]
    if needs and (platform.machine() != "x86_64" or not set(needs) <= _features()):
        pytest.skip(f"this machine cannot run {isa}")
    return ctypes.CDLL(str(compile_library([HERE / "headers" / source], CACHE, march=march)))


def call(library: ctypes.CDLL, name: str, *arguments: Array | int) -> int:
    """library.name(pointers and longs); its int result, where it has one."""
    converted = [ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_long(a) for a in arguments]
    return int(getattr(library, name)(*converted))


def floats() -> Array:
    """A million floats: every exponent and sign, the range where the functions bend more densely, special ones."""
    spread: Array = np.arange(0, 2**32, 5003, dtype=np.uint32).view(np.float32)
    near = np.linspace(-12, 12, 200_003).astype(np.float32)
    return np.concatenate([spread, near, np.array(SPECIAL, np.float32)])


def bf16_bits(x: Array) -> Array:
    """float32 to bfloat16, nearest even, as uint16."""
    u: Array = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((u.astype(np.uint64) + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), (u >> 16 | 0x40).astype(np.uint16), rounded)


def bf16_values(bits: Array) -> Array:
    """bfloat16 as uint16 to float32."""
    values: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return values


def sample(dtype: Any, n: int, seed: int = 0) -> Array:
    """n values of a type: random bits for integers, many magnitudes for floats."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind == np.bool_:
        return rng.integers(0, 2, n).astype(np.bool_)
    if kind.kind in "iu":
        return rng.integers(0, 2 ** (8 * kind.itemsize) - 1, n, np.uint64, endpoint=True).astype(kind)
    magnitude = 10 if kind == np.float16 else 20
    return (rng.standard_normal(n) * np.exp2(rng.integers(-magnitude, magnitude, n))).astype(kind)
