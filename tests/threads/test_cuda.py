"""GPU kernels as CUDA: run on the host, and compiled by NVRTC where it is installed."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from onnxfuse.build.nvrtc import compiled, libraries
from onnxfuse.ir.kernel import Kernel, tables
from onnxfuse.render.cuda import device_text
from onnxfuse.schedule.passes.legalize import legalize
from tests.kernels.cases import operator
from tests.kernels.compiled import check, expected, fed
from tests.kernels.pool_host import compiler
from tests.threads.emulator import library_of, run
from tests.threads.scheduled import scheduled
from tests.threads.written import WRITTEN

# What a kernel needs to be in its PTX for what was written in the IR.
INSTRUCTIONS = {
    "softmax": ("shfl.sync.bfly", "bar.sync", "st.shared"),
    "layer_norm": ("shfl.sync.bfly", "bar.sync", ".v4.f32", "st.global.v4"),
    "product": ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",),
    "pipelined": ("mma.sync.aligned.m16n8k16", "cp.async.cg.shared.global", "cp.async.wait_group 1", "bar.sync"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_statements_of_threads_are_spelled(name: str) -> None:
    text = device_text(legalize(WRITTEN[name].kernel), name)
    assert f"{name}_0(" in text
    assert ("__syncthreads();" in text) == (name != "product")
    assert ("sum_of_warp<32>(" in text) == (name in ("softmax", "layer_norm"))


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("architecture", ["80", "90"])
@pytest.mark.parametrize("name", WRITTEN)
def test_the_text_compiles(name: str, architecture: str) -> None:
    made = compiled(device_text(legalize(WRITTEN[name].kernel), name), [f"--gpu-architecture=compute_{architecture}"])
    assert [i for i in INSTRUCTIONS[name] if i not in made.code.decode()] == []


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", WRITTEN)
def test_the_text_computes_what_its_graph_means(name: str) -> None:
    written = WRITTEN[name]
    for number in range(len(written.case.sizes)):
        (got,) = run(legalize(written.kernel), name, fed(written.kernel, written.case, number))
        (out,) = written.kernel.outputs
        check(got, out.dtype, *expected(written.case, number)[out.value])


REVERSED = """
#include "cuda.h"
extern "C" __global__ void __launch_bounds__(64) turned(float* __restrict__ out) {
  SHARED(arena);
  float* const held = reinterpret_cast<float*>(arena);
  held[threadIdx.x] = threadIdx.x;
  %s
  out[threadIdx.x] = held[63 - threadIdx.x];
}
"""


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("barrier", "seen"), [("__syncthreads();", 0), ("", 5)])
def test_a_missing_barrier_is_seen_in_any_order_of_threads(barrier: str, seen: int) -> None:
    library = ctypes.CDLL(str(library_of(REVERSED % barrier, "turned")))
    wrong = 0
    for seed in range(5):
        out = np.zeros(64, np.float32)
        argument = ctypes.c_void_p(out.ctypes.data)
        given = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        library.run_turned(given, ctypes.c_uint(1), ctypes.c_uint(64), ctypes.c_size_t(256), ctypes.c_uint(seed))
        wrong += not np.array_equal(out, np.arange(63, -1, -1))
    assert wrong == seen


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_kernels_that_look_the_same_table_up_are_one_unit() -> None:
    kernel = scheduled(next(c for c in operator.CASES if c.name == "op_Resize_0_float32"))
    assert isinstance(kernel, Kernel)
    assert tables(kernel)
    ctypes.CDLL(str(library_of(device_text(kernel, "one") + device_text(kernel, "other"), "same_table")))
