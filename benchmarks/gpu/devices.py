"""Where kernels of threads are run for a check: a GPU through its driver, or the emulator on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.driver import MOST_DYNAMIC_SHARED, Driver
from onnxfuse.build.nvrtc import compiled
from onnxfuse.ir.interpret import bound
from onnxfuse.ir.interpret.elements import from_stored
from onnxfuse.ir.interpret.values import Places
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda import device_text, function_name
from onnxfuse.target import Gpu, gpus_of
from tests.kernels.compiled import Case
from tests.threads import emulator
from tests.threads.scheduled import library_of, name_of

Array = npt.NDArray[Any]
UNASKED = 48 << 10  # bytes of shared memory that a block has without being asked for
POISON = 0xFF  # of each byte of memory that nothing was stored in: floats that are no number


class Device(Protocol):
    """Runs kernels; `target` is what they are scheduled and compiled for."""

    name: str
    target: Gpu

    def run(self, case: Case, kernel: Kernel, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """What the kernel of a case makes of inputs in storage order."""


class Emulated:
    """The text of kernels on the host, a fiber for each thread, in an order that a seed shuffles."""

    def __init__(self, seed: int = 1) -> None:
        self.name, self.target, self._seed = "emulator", gpus_of(("sm_90",))[0], seed

    def run(self, case: Case, kernel: Kernel, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """What the kernel of a case makes of inputs in storage order."""
        return emulator.run(kernel, name_of(case), inputs, library_of(case), self._seed)


class Cuda:
    """The first GPU of this machine, through libcuda alone; its primary context is retained and made current."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._call("cuInit", 0)
        device, context, title = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(256)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDeviceGetName", title, 256, device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self.name, self.target = title.value.decode(), gpus_of(("native",))[0]

    def _call(self, name: str, *arguments: Any) -> None:
        self._driver.check(getattr(self._driver.lib, name)(*arguments))

    def run(self, case: Case, kernel: Kernel, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """What the kernel of a case makes of inputs in storage order; other memory of the device is poisoned first."""
        name = name_of(case)
        image = compiled(device_text(kernel, name), self.target.flags)
        symbols = bound(kernel, [a.shape for a in inputs])
        here = Places((), np.zeros(1, np.int64), symbols, {})
        outputs = [
            np.empty([int(here.index(e)) for e in p.storage], emulator.in_memory(p.dtype)) for p in kernel.outputs
        ]
        scratch = [int(here.index(b.size)) * b.dtype.bytes for b in kernel.scratch]
        given = [emulator.as_stored(a, p.dtype) for p, a in zip(kernel.inputs, inputs, strict=True)]
        memory = [self._copied(np.ascontiguousarray(a)) for a in given]
        memory += [self._poisoned(size) for size in (*(a.nbytes for a in outputs), *scratch)]
        values = [*memory, *map(ctypes.c_int64, symbols.values())]
        try:
            for number, phase in enumerate(kernel.phases):
                assert phase.launch is not None
                sizes = (phase.launch.grid, phase.launch.block, phase.launch.shared)
                grid, block, shared = (int(here.index(e)) for e in sizes)
                function = self._driver.load_library(image.code, function_name(name, number))
                if shared > UNASKED:
                    self._call("cuFuncSetAttribute", function.handle, MOST_DYNAMIC_SHARED, shared)
                cells = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
                self._call("cuLaunchKernel", function.handle, grid, 1, 1, block, 1, 1, shared, None, cells, None)
                self._call("cuStreamSynchronize", None)
            for made, where in zip(outputs, memory[len(inputs) :], strict=False):
                self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(made.ctypes.data), where, ctypes.c_size_t(made.nbytes))
        finally:
            for where in memory:
                self._call("cuMemFree_v2", where)
        return tuple(from_stored(a, p.dtype) for p, a in zip(kernel.outputs, outputs, strict=True))

    def _poisoned(self, size: int) -> ctypes.c_uint64:
        where = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(max(size, 16)))
        self._call("cuMemsetD8_v2", where, ctypes.c_ubyte(POISON), ctypes.c_size_t(max(size, 16)))
        return where

    def _copied(self, value: Array) -> ctypes.c_uint64:
        where = self._poisoned(value.nbytes)
        self._call("cuMemcpyHtoD_v2", where, ctypes.c_void_p(value.ctypes.data), ctypes.c_size_t(value.nbytes))
        return where
