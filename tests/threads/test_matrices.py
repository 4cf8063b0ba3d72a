"""Fragments that a warp loads as matrices at once: what lanes hold by the PTX manual, and where kernels do so."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.kernel import Kernel, Loop, ReduceLoop, Stmt, When, all_statements
from onnxfuse.ir.launch import MatrixLoad
from onnxfuse.ir.verify import verify
from tests.kernels.pool_host import compiler
from tests.threads import attention_cases, product_cases
from tests.threads.emulator import library_of
from tests.threads.scheduled import kernel_of

LOADED = r"""
#include "cuda.h"
extern "C" __global__ void __launch_bounds__(32) loaded(const f16* __restrict__ in, uint16_t* __restrict__ out) {
  SHARED(arena);
  f16* const held = reinterpret_cast<f16*>(arena);
  for (int i = threadIdx.x; i < 32 * 8; i += 32) held[i] = in[i];
  __syncthreads();
  f16 fragment[8];
  load_matrices<%d, %s>(fragment, held + 8 * threadIdx.x);
  for (int i = 0; i < %d; i++) out[8 * threadIdx.x + i] = fragment[i].bits;
}
"""
# By the PTX manual, what lanes 0, 1, 5 and 31 hold of a matrix: rows and columns of both elements.
HELD = {0: ((0, 0), (0, 1)), 1: ((0, 2), (0, 3)), 5: ((1, 2), (1, 3)), 31: ((7, 6), (7, 7))}


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("transposed", [False, True], ids=["row-major", "transposed"])
@pytest.mark.parametrize("count", [2, 4])
def test_lanes_hold_of_matrices_what_the_manual_says(count: int, transposed: bool) -> None:
    library = ctypes.CDLL(str(library_of(LOADED % (count, str(transposed).lower(), 2 * count), "loaded")))
    given = np.arange(256, dtype=np.float16)
    out = np.zeros((32, 8), np.uint16)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (given, out)]
    arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(p) for p in pointers))
    library.run_loaded(arguments, ctypes.c_uint(1), ctypes.c_uint(32), ctypes.c_size_t(512), ctypes.c_uint(1))
    matrices = given.reshape(4, 8, 8)
    for lane, places in HELD.items():
        for i in range(count):
            want = [matrices[i][c, r] if transposed else matrices[i][r, c] for r, c in places]
            assert list(out[lane, 2 * i : 2 * i + 2].view(np.float16)) == want


def loads_of(name: str) -> tuple[Kernel, list[MatrixLoad]]:
    """The kernel of a case, and how it loads fragments."""
    case = next(c for c in (*product_cases.TILED, *attention_cases.TYPED) if c.name == name)
    kernel = kernel_of(case)
    loops = (s for s in all_statements(kernel) if isinstance(s, Loop))
    return kernel, [s.matrices for s in loops if s.matrices is not None]


@pytest.mark.parametrize(
    ("name", "transposed"),
    [("tiles_float16", [False, True]), ("transposed_float16", [False, False]),
     ("window_bfloat16", [False, False, False, True])],
)  # fmt: skip
def test_all_fragments_are_loaded_as_matrices(name: str, transposed: list[bool]) -> None:
    kernel, found = loads_of(name)
    assert [m.transposed for m in found] == transposed
    assert verify(kernel) == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, transposed=not m.transposed), lambda m: replace(m, row=m.row + 8),
        lambda m: replace(m, count=2), None,
    ],
    ids=["turned", "elsewhere", "fewer", "missing"],
)  # fmt: skip
def test_matrices_that_are_others_than_the_loop_s_are_found(change: Any) -> None:
    kernel, (first, *_) = loads_of("tiles_float16")

    def planted(s: Stmt) -> Stmt:
        if isinstance(s, Loop) and s.matrices == first:
            return replace(s, matrices=change(first) if change is not None else None)
        return replace(s, body=tuple(map(planted, s.body))) if isinstance(s, (Loop, When, ReduceLoop)) else s

    (phase,) = kernel.phases
    broken = replace(kernel, phases=(replace(phase, body=tuple(map(planted, phase.body))),))
    assert any("matrices" in found for found in verify(broken))
