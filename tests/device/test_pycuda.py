"""Timing through PyCUDA, of which there is a stand-in here: the calls that its documentation has, over the driver's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfuse.build.nvrtc import libraries
from onnxfuse.measure.gpu import symbol_of
from onnxfuse.render.cuda import device_text
from tests.craft.sources import ROOT
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.threads.driver_mock import HERE
from tests.threads.emulator import library_of
from tests.threads.product_cases import CASES
from tests.threads.scheduled import kernel_of

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
STAND_IN = """
import ctypes

class Error(Exception):
    pass

def call(name, *given):
    wrong = getattr(ctypes.CDLL("libcuda.so.1"), name)(*given)
    if wrong:
        raise Error(f"{name} failed: {wrong}")

def made(name, *given):
    found = ctypes.c_void_p()
    call(name, ctypes.byref(found), *given)
    return found

def init():
    call("cuInit", 0)

class Context:
    def __init__(self, handle):
        self.handle = handle
    def push(self):
        call("cuCtxSetCurrent", self.handle)
    @staticmethod
    def pop():
        call("cuCtxSetCurrent", None)

class Device:
    def __init__(self, number):
        self.number = number
    def retain_primary_context(self):
        return Context(made("cuDevicePrimaryCtxRetain", self.number))

class Memory:
    def __init__(self, size):
        self.place = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.place), ctypes.c_size_t(size))
    def __int__(self):
        return self.place.value
    def free(self):
        call("cuMemFree_v2", self.place)

mem_alloc = Memory

def memset_d8(to, value, count):
    call("cuMemsetD8_v2", to.place, ctypes.c_ubyte(value), ctypes.c_size_t(count))

def memcpy_htod(to, x):
    call("cuMemcpyHtoD_v2", to.place, ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.nbytes))

def memcpy_dtod(to, of, count):
    call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(of), ctypes.c_size_t(count), None)

class function_attribute:
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

class Function:
    def __init__(self, handle):
        self.handle = handle
    def set_attribute(self, attribute, value):
        call("cuFuncSetAttribute", self.handle, attribute, value)
    def prepare(self, types):
        self.types = types
    def prepared_call(self, grid, block, *given, shared_size=0):
        assert len(given) == len(self.types)
        values = [ctypes.c_int64(x) for x in given]
        cells = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        call("cuLaunchKernel", self.handle, *grid, *block, shared_size, None, cells, None)

class Module:
    def __init__(self, code):
        none, zero = ctypes.c_void_p(), ctypes.c_uint(0)
        self.handle = made("cuLibraryLoadData", code, none, none, zero, none, none, zero)
    def get_function(self, name):
        return Function(made("cuKernelGetFunction", made("cuLibraryGetKernel", self.handle, name.encode())))

module_from_buffer = Module

class Event:
    def __init__(self):
        open(__import__("os").environ["DRIVER_LOG"], "a").write("pycuda event\\n")
        self.handle = made("cuEventCreate", 0)
    def record(self):
        call("cuEventRecord", self.handle, None)
    def synchronize(self):
        call("cuEventSynchronize", self.handle)
    def time_since(self, other):
        found = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(found), other.handle, self.handle)
        return found.value
"""
CHILD = """
import json, sys
from onnxfuse.errors import DeviceError
from onnxfuse.measure.gpu import GpuTimer
from onnxfuse.schedule.gpu.scheduler import schedule
from onnxfuse.target import GPUS
from tests.kernels.compiled import lowered_of
from tests.threads.product_cases import CASES
kernel = schedule(lowered_of(CASES[0]), {}, GPUS["sm_90"])
try:
    with GpuTimer(GPUS["sm_90"]) as timer:
        found = {"title": timer.calls.title, "seconds": timer.seconds(kernel)}
except DeviceError as problem:
    found = {"problem": str(problem)}
print(json.dumps(found))
"""


def timed(folder: Path, *, pycuda: bool, **environment: str) -> tuple[dict[str, object], list[str]]:
    """What a process of its own says of the time of a kernel, and what the driver was asked for."""
    kernel = kernel_of(CASES[0])
    kernels = library_of(device_text(kernel, symbol_of(kernel)), "timed")
    (folder / "libcuda.so.1").symlink_to(compile_library([HERE / "driver.cpp"], CACHE / "threads", ("-O1",)))
    if pycuda:
        (folder / "pycuda").mkdir()
        (folder / "pycuda" / "__init__.py").write_text("")
        (folder / "pycuda" / "driver.py").write_text(STAND_IN)
    log = folder / "calls"
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "DRIVER_KERNELS": str(kernels), "DRIVER_LOG": str(log)}
    env |= {"PYTHONPATH": f"{folder}:{ROOT}", **environment}
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), log.read_text().splitlines()


@pytest.mark.parametrize(("pycuda", "title"), [(True, "PyCUDA"), (False, "the CUDA driver")])
def test_a_kernel_is_timed_by_what_is_there(pycuda: bool, title: str, tmp_path: Path) -> None:
    found, calls = timed(tmp_path, pycuda=pycuda)
    assert found["title"] == title
    assert isinstance(found["seconds"], float) and found["seconds"] > 0
    assert not [c for c in calls if c.startswith("refused")]
    assert len([c for c in calls if c.startswith("launch")]) > 7
    assert ("pycuda event" in calls) == pycuda


@pytest.mark.parametrize("pycuda", [True, False])
def test_what_the_driver_refuses_is_said(pycuda: bool, tmp_path: Path) -> None:
    """A device that the code is not for."""
    found, _ = timed(tmp_path, pycuda=pycuda, DRIVER_CAPABILITY="80")
    assert "cuLibraryLoadData" in str(found["problem"])
