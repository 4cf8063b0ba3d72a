"""What a timer asks of the first GPU of this machine: PyCUDA where it can be imported, else the driver by ctypes.

Both are current in the device's primary context, in which ONNX Runtime works too, as long as they are open.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from onnxfuse.errors import DeviceError
from onnxfuse.ir.fragments import LINE
from onnxfuse.render.cuda_parameters import ELEMENTS, TensorMap

MAP_BYTES, MAP_ALIGNED = 128, 64  # of a tensor map
DYNAMIC_SHARED, UNASKED = 8, 48 << 10  # an attribute of functions; bytes of shared memory available without it


def _doubled(first: int, size: int) -> Iterator[tuple[int, int]]:
    """How copies of what is there already fill the rest: how many bytes are there, and are copied behind them.

    >>> list(_doubled(2, 11))
    [(2, 2), (4, 4), (8, 3)]
    """
    while first < size:
        yield first, min(first, size - first)
        first *= 2


class GpuCalls(Protocol):
    """Loads code, gives memory, launches and times. All raise DeviceError with the driver's reason."""

    title: str

    def close(self) -> None:
        """The context that was current before is so again."""

    def load(self, code: bytes) -> Any:
        """Code for the device."""

    def unload(self, library: Any) -> None:
        """Give code back."""

    def function(self, library: Any, name: str, shared: int) -> Any:
        """A function, whose blocks may have so many bytes of shared memory."""

    def memory(self, size: int) -> Any:
        """Bytes of the device, all zero."""

    def fill(self, memory: Any, x: npt.NDArray[Any]) -> None:
        """An array to the device."""

    def repeat(self, memory: Any, first: int, size: int) -> None:
        """The first bytes of memory, again and again, to the rest of its bytes."""

    def free(self, memory: Any) -> None:
        """Give memory back."""

    def tensor_map(self, m: TensorMap, memory: Any, rows: int) -> Any:
        """What the copy engine has to know of a matrix of so many rows, as a parameter of a kernel."""

    def launcher(
        self, function: Any, how: tuple[int, int, int], memory: Sequence[Any], sizes: Sequence[int], maps: Sequence[Any]
    ) -> Callable[[], None]:
        """What launches blocks of threads with bytes of shared memory.

        Given are memory, then 64-bit integers, then tensor maps.
        """

    def begin(self) -> None:
        """The clock starts behind what was launched."""

    def end(self) -> float:
        """Milliseconds since then, when all that was launched has ended."""


class OwnCalls:
    """libcuda.so.1 by ctypes; nothing else of CUDA is needed."""

    title = "the CUDA driver"

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        device, context, self._before = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuCtxGetCurrent", ctypes.byref(self._before))
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._events = [self._made("cuEventCreate", 0) for _ in range(2)]

    def close(self) -> None:
        """The context that was current before is so again."""
        self._call("cuCtxSetCurrent", self._before)

    def load(self, code: bytes) -> Any:
        """Code for the device."""
        none, zero = ctypes.c_void_p(), ctypes.c_uint(0)
        return self._made("cuLibraryLoadData", code, none, none, zero, none, none, zero)

    def unload(self, library: Any) -> None:
        """Give code back."""
        self._call("cuLibraryUnload", library)

    def function(self, library: Any, name: str, shared: int) -> Any:
        """A function, whose blocks may have so many bytes of shared memory."""
        function = self._made("cuKernelGetFunction", self._made("cuLibraryGetKernel", library, name.encode()))
        if shared > UNASKED:
            self._call("cuFuncSetAttribute", function, DYNAMIC_SHARED, shared)
        return function

    def memory(self, size: int) -> Any:
        """Bytes of the device, all zero."""
        where = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", where, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return where

    def fill(self, memory: Any, x: npt.NDArray[Any]) -> None:
        """An array to the device."""
        self._call("cuMemcpyHtoD_v2", memory, ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.nbytes))

    def repeat(self, memory: Any, first: int, size: int) -> None:
        """The first bytes of memory, again and again, to the rest of its bytes."""
        for done, count in _doubled(first, size):
            to = ctypes.c_uint64(memory.value + done)
            self._call("cuMemcpyDtoDAsync_v2", to, memory, ctypes.c_size_t(count), None)

    def free(self, memory: Any) -> None:
        """Give memory back."""
        self._call("cuMemFree_v2", memory)

    def tensor_map(self, m: TensorMap, memory: Any, rows: int) -> Any:
        """What the copy engine has to know of a matrix of so many rows: a parameter, as long as that is referenced."""
        room = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNED))()
        made = (ctypes.c_ubyte * MAP_BYTES).from_buffer(room, -ctypes.addressof(room) % MAP_ALIGNED)
        extents, pitches = (ctypes.c_uint64 * 2)(m.all_columns, rows), (ctypes.c_uint64 * 1)(m.pitch * m.dtype.bytes)
        box, strides = (ctypes.c_uint32 * 2)(LINE, m.rows), (ctypes.c_uint32 * 2)(1, 1)
        swizzle_128, promote_128 = 3, 2
        self._call(
            "cuTensorMapEncodeTiled", ctypes.byref(made), ELEMENTS[m.dtype], 2, memory, extents, pitches, box, strides,
            0, swizzle_128, promote_128, 0,
        )  # fmt: skip
        return made

    def launcher(
        self, function: Any, how: tuple[int, int, int], memory: Sequence[Any], sizes: Sequence[int], maps: Sequence[Any]
    ) -> Callable[[], None]:
        """What launches blocks of threads with bytes of shared memory."""
        (grid, block, shared), values = how, [*memory, *map(ctypes.c_int64, sizes), *maps]
        cells = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))

        def launch() -> None:
            assert len(values) == len(cells), "what the cells point to is kept"
            self._call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, cells, None)

        return launch

    def begin(self) -> None:
        """The clock starts behind what was launched."""
        self._call("cuEventRecord", self._events[0], None)

    def end(self) -> float:
        """Milliseconds since then, when all that was launched has ended."""
        begin, end = self._events
        found = ctypes.c_float()
        self._call("cuEventRecord", end, None)
        self._call("cuEventSynchronize", end)
        self._call("cuEventElapsedTime", ctypes.byref(found), begin, end)
        return found.value

    def _made(self, name: str, *given: Any) -> ctypes.c_void_p:
        """A handle that a function of the driver gives."""
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *given)
        return made

    def _call(self, name: str, *given: Any) -> None:
        wrong = getattr(self._lib, name)(*given)
        if wrong:
            raise DeviceError(f"tune: the CUDA driver's {name} fails with error {wrong}")


class PycudaCalls:
    """PyCUDA's driver module (`pip install 'onnxfuse[pycuda]'`)."""

    title = "PyCUDA"

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._do(driver.init)
        self._context = self._do(self._do(driver.Device, 0).retain_primary_context)
        self._do(self._context.push)
        self._events = [self._do(driver.Event) for _ in range(2)]

    def close(self) -> None:
        """The context that was current before is so again."""
        self._do(self._context.pop)

    def load(self, code: bytes) -> Any:
        """Code for the device."""
        return self._do(self._driver.module_from_buffer, code)

    def unload(self, library: Any) -> None:
        """Its module is given back with its last reference."""

    def function(self, library: Any, name: str, shared: int) -> Any:
        """A function, whose blocks may have so many bytes of shared memory."""
        function = self._do(library.get_function, name)
        if shared > UNASKED:
            attribute = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._do(function.set_attribute, attribute, shared)
        return function

    def memory(self, size: int) -> Any:
        """Bytes of the device, all zero."""
        where = self._do(self._driver.mem_alloc, size)
        self._do(self._driver.memset_d8, where, 0, size)
        return where

    def fill(self, memory: Any, x: npt.NDArray[Any]) -> None:
        """An array to the device."""
        self._do(self._driver.memcpy_htod, memory, x)

    def repeat(self, memory: Any, first: int, size: int) -> None:
        """The first bytes of memory, again and again, to the rest of its bytes."""
        for done, count in _doubled(first, size):
            self._do(self._driver.memcpy_dtod, int(memory) + done, int(memory), count)

    def free(self, memory: Any) -> None:
        """Give memory back."""
        self._do(memory.free)

    def tensor_map(self, m: TensorMap, memory: Any, rows: int) -> Any:
        """PyCUDA passes none."""
        raise DeviceError("tune: PyCUDA has no tensor maps, which kernels for sm_90a take")

    def launcher(
        self, function: Any, how: tuple[int, int, int], memory: Sequence[Any], sizes: Sequence[int], maps: Sequence[Any]
    ) -> Callable[[], None]:
        """What launches blocks of threads with bytes of shared memory."""
        (grid, block, shared), given = how, [*map(int, memory), *sizes]
        self._do(function.prepare, "P" * len(memory) + "q" * len(sizes))
        places = ((grid, 1, 1), (block, 1, 1))
        return lambda: self._do(function.prepared_call, *places, *given, shared_size=shared)

    def begin(self) -> None:
        """The clock starts behind what was launched."""
        self._do(self._events[0].record)

    def end(self) -> float:
        """Milliseconds since then, when all that was launched has ended."""
        begin, end = self._events
        self._do(end.record)
        self._do(end.synchronize)
        return float(self._do(end.time_since, begin))

    def _do(self, call: Any, *given: Any, **named: Any) -> Any:
        try:
            return call(*given, **named)
        except self._driver.Error as wrong:
            raise DeviceError(f"tune: PyCUDA: {wrong}") from None


def gpu_calls(*, maps: bool = False) -> GpuCalls:
    """Calls of the first GPU, which pass tensor maps where `maps` says so. Raises DeviceError where there is none."""
    if maps:
        return OwnCalls()
    try:
        driver = importlib.import_module("pycuda.driver")
    except ImportError:  # not installed, or it finds no driver
        return OwnCalls()
    return PycudaCalls(driver)
