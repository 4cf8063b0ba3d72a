"""Where kernels of threads are run for a check: a GPU through its driver, or the emulator on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.driver import MOST_DYNAMIC_SHARED, CudaError, Driver
from onnxfuse.build.nvrtc import compiled
from onnxfuse.build.resources import Image
from onnxfuse.ir.interpret import bound
from onnxfuse.ir.interpret.elements import from_stored
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda import device_text, function_name
from onnxfuse.target import Gpu, gpus_of
from tests.kernels.compiled import Case
from tests.threads import emulator
from tests.threads.scheduled import library_of, name_of, unit_of

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
    """The text of kernels on the host, a fiber for each thread, in an order that a seed shuffles.

    Kernels are compiled with those of their unit, or with `few` others.
    """

    def __init__(self, seed: int = 1, few: tuple[Case, ...] = ()) -> None:
        self.name, self.target, self.seed, self._few = "emulator", gpus_of(("sm_90",))[0], seed, few

    def run(self, case: Case, kernel: Kernel, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """What the kernel of a case makes of inputs in storage order."""
        library = unit_of(self._few) if self._few else library_of(case)
        return emulator.run(kernel, name_of(case), inputs, library, self.seed)


class Cuda:
    """The first GPU of this machine, through libcuda alone; its primary context is retained and made current.

    `compiler` makes the code of a translation unit for flags.
    """

    def __init__(self, compiler: Callable[[str, Sequence[str]], Image] = compiled) -> None:
        self._driver, self.compiled = Driver(), compiler
        self.call("cuInit", 0)
        device, context, title = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(256)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDeviceGetName", title, 256, device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.name, self.target = title.value.decode(), gpus_of(("native",))[0]

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver. Raises CudaError with its own name for what went wrong."""
        self._driver.check(getattr(self._driver.lib, name)(*arguments))

    def usable(self) -> bool:
        """Whether the context still works: an address that is not there, say, ends it."""
        try:
            self.call("cuStreamSynchronize", None)
            self._free([self.poisoned(16)])
        except CudaError:
            return False
        return True

    def run(self, case: Case, kernel: Kernel, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """What the kernel of a case makes of inputs in storage order; other memory of the device is poisoned first."""
        memory, launch, outputs = self._prepared(name_of(case), kernel, inputs)
        try:
            launch()
            self.call("cuStreamSynchronize", None)
            for made, where in zip(outputs, memory[len(inputs) :], strict=False):
                self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(made.ctypes.data), where, ctypes.c_size_t(made.nbytes))
        finally:
            self._free(memory)
        return tuple(from_stored(a, p.dtype) for p, a in zip(kernel.outputs, outputs, strict=True))

    def loaded(self, code: bytes, name: str) -> ctypes.c_void_p:
        """A function of code for the device."""
        return self._driver.load_library(code, name).handle

    def _prepared(
        self, name: str, kernel: Kernel, inputs: Sequence[Array]
    ) -> tuple[list[ctypes.c_uint64], Callable[[], None], list[Array]]:
        """Memory of inputs, outputs and scratch, what launches all phases, and arrays for the outputs."""
        image = self.compiled(device_text(kernel, name), self.target.flags)
        symbols = bound(kernel, [a.shape for a in inputs])
        here = Iterations((), np.zeros(1, np.int64), symbols, {})
        outputs = [
            np.empty([int(here.index(e)) for e in p.storage], emulator.in_memory(p.dtype)) for p in kernel.outputs
        ]
        scratch = [int(here.index(b.size)) * b.dtype.bytes for b in kernel.scratch]
        given = [emulator.as_stored(a, p.dtype) for p, a in zip(kernel.inputs, inputs, strict=True)]
        memory = [self._copied(np.ascontiguousarray(a)) for a in given]
        memory += [self.poisoned(size) for size in (*(a.nbytes for a in outputs), *scratch)]
        values = [*memory, *map(ctypes.c_int64, symbols.values())]
        cells = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        phases = []
        for number, phase in enumerate(kernel.phases):
            assert phase.launch is not None
            sizes = (phase.launch.grid, phase.launch.block, phase.launch.shared)
            grid, block, shared = (int(here.index(e)) for e in sizes)
            function = self.loaded(image.code, function_name(name, number))
            if shared > UNASKED:
                self.call("cuFuncSetAttribute", function, MOST_DYNAMIC_SHARED, shared)
            if grid > 0:  # nothing to do is no launch, as for the launcher
                phases.append((function, grid, block, shared))

        def launch() -> None:
            assert values is not None, "what the cells point to is kept"
            for function, grid, block, shared in phases:
                self.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, cells, None)

        return memory, launch, outputs

    def _free(self, memory: Sequence[ctypes.c_uint64]) -> None:
        for where in memory:
            self.call("cuMemFree_v2", where)

    def poisoned(self, size: int) -> ctypes.c_uint64:
        """Memory of the device, filled with values that are no numbers."""
        where = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(max(size, 16)))
        self.call("cuMemsetD8_v2", where, ctypes.c_ubyte(POISON), ctypes.c_size_t(max(size, 16)))
        return where

    def _copied(self, value: Array) -> ctypes.c_uint64:
        where = self.poisoned(value.nbytes)
        self.call("cuMemcpyHtoD_v2", where, ctypes.c_void_p(value.ctypes.data), ctypes.c_size_t(value.nbytes))
        return where
