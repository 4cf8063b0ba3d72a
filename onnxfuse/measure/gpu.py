"""Seconds of kernels on the first GPU of this machine, by events of its driver; no other part of CUDA is needed."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from onnxfuse.build.cache import key_of
from onnxfuse.build.nvrtc import compiled
from onnxfuse.errors import DeviceError
from onnxfuse.ir.interpret import bound
from onnxfuse.ir.interpret.values import Places
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda import device_text, function_name
from onnxfuse.render.cuda_launch import kernel_text
from onnxfuse.target import Gpu

TURNS, LEAST_MS, MOST_LAUNCHES = 7, 0.5, 200
DYNAMIC_SHARED, UNASKED = 8, 48 << 10  # an attribute of functions; bytes of shared memory available without it


def symbol_of(kernel: Kernel) -> str:
    """The name of a kernel's functions while it is measured."""
    return f"measured_{key_of(kernel_text(kernel))[:16]}"


class GpuTimer:
    """The first GPU of this machine, whose primary context is current to the thread as long as this is open."""

    def __init__(self, target: Gpu) -> None:
        """Raises DeviceError where the driver fails."""
        self.target = target
        self._lib = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._events = [self._made("cuEventCreate", 0) for _ in range(2)]

    def __enter__(self) -> GpuTimer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._call("cuCtxSetCurrent", None)

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of a run of a kernel of known sizes: the median of turns. Floats are random, integers 0.

        Raises DeviceError where it cannot be compiled or run.
        """
        name = symbol_of(kernel)
        image = compiled(device_text(kernel, name), self.target.flags)
        library = ctypes.c_void_p()
        none, zero = ctypes.c_void_p(), ctypes.c_uint(0)
        self._call("cuLibraryLoadData", ctypes.byref(library), image.code, none, none, zero, none, none, zero)
        memory: list[ctypes.c_uint64] = []
        try:
            return self._timed(self._launch(kernel, name, library, memory))
        finally:
            for where in memory:
                self._call("cuMemFree_v2", where)
            self._call("cuLibraryUnload", library)

    def _launch(
        self, kernel: Kernel, name: str, library: ctypes.c_void_p, memory: list[ctypes.c_uint64]
    ) -> Callable[[], None]:
        """What launches all phases of a kernel, on memory that is listed."""
        shapes = [tuple(e.constant or 0 for e in p.storage) for p in kernel.inputs]
        symbols = bound(kernel, shapes)
        here = Places((), np.zeros(1, np.int64), symbols, {})
        sizes = [(p, int(np.prod(shape)) * p.dtype.bytes) for p, shape in zip(kernel.inputs, shapes, strict=True)]
        for p, size in sizes:
            memory.append(self._memory(size))
            if p.dtype.numpy.kind == "f":
                row = np.random.default_rng(0).standard_normal(1 << 14).astype(p.dtype.numpy)
                noise = np.resize(row, size // row.itemsize)
                self._call("cuMemcpyHtoD_v2", memory[-1], ctypes.c_void_p(noise.ctypes.data), ctypes.c_size_t(size))
        extents = [(p.storage, p.dtype) for p in kernel.outputs] + [((b.size,), b.dtype) for b in kernel.scratch]
        for dims, dtype in extents:
            memory.append(self._memory(int(np.prod([int(here.index(e)) for e in dims])) * dtype.bytes))
        values: Sequence[Any] = [*memory, *map(ctypes.c_int64, symbols.values())]
        cells = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        phases = [self._phase(kernel, name, number, library, here) for number in range(len(kernel.phases))]

        def launch() -> None:
            assert values is not None, "what the cells point to is kept"
            for function, grid, block, shared in phases:
                self._call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, cells, None)

        return launch

    def _phase(
        self, kernel: Kernel, name: str, number: int, library: ctypes.c_void_p, here: Places
    ) -> tuple[ctypes.c_void_p, int, int, int]:
        """The function of a phase, blocks, threads of a block and bytes of shared memory."""
        launch = kernel.phases[number].launch
        assert launch is not None
        grid, block, shared = (int(here.index(e)) for e in (launch.grid, launch.block, launch.shared))
        found = self._made("cuLibraryGetKernel", library, function_name(name, number).encode())
        function = self._made("cuKernelGetFunction", found)
        if shared > UNASKED:
            self._call("cuFuncSetAttribute", function, DYNAMIC_SHARED, shared)
        return function, grid, block, shared

    def _timed(self, launch: Callable[[], None]) -> float:
        """Seconds of one launch: the median of turns of several."""
        count = 1
        while self._milliseconds(launch, count) < LEAST_MS and count < MOST_LAUNCHES:
            count *= 2
        return statistics.median(self._milliseconds(launch, count) for _ in range(TURNS)) / count * 1e-3

    def _milliseconds(self, launch: Callable[[], None], count: int) -> float:
        begin, end = self._events
        found = ctypes.c_float()
        self._call("cuEventRecord", begin, None)
        for _ in range(count):
            launch()
        self._call("cuEventRecord", end, None)
        self._call("cuEventSynchronize", end)
        self._call("cuEventElapsedTime", ctypes.byref(found), begin, end)
        return found.value

    def _memory(self, size: int) -> ctypes.c_uint64:
        """Memory of the device, filled with zeros."""
        where, size = ctypes.c_uint64(), max(size, 16)
        self._call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", where, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return where

    def _made(self, name: str, *given: Any) -> ctypes.c_void_p:
        """A handle that a function of the driver gives."""
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *given)
        return made

    def _call(self, name: str, *given: Any) -> None:
        """A function of the driver. Raises DeviceError."""
        wrong = getattr(self._lib, name)(*given)
        if wrong:
            raise DeviceError(f"tune: the CUDA driver's {name} fails with error {wrong}")
