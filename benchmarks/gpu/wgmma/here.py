"""The device, with the kernels of the pack."""

from __future__ import annotations

import base64
import ctypes
import json
import lzma
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.driver import MOST_DYNAMIC_SHARED, Function
from benchmarks.gpu.jobs.times import Worker
from benchmarks.gpu.wgmma.kernels import PACK, Row

LEFT_ROOM, RIGHT_ROOM = 32768, 65536  # bytes of the images of both sides

Array = npt.NDArray[Any]


class Here(Worker):
    """The device, with the kernels of the pack."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.pack: dict[str, Row] = json.loads(lzma.decompress(PACK.read_bytes()))

    def function(self, code: bytes, name: str, shared: int) -> Function:
        """A function of code that may have so many bytes of shared memory."""
        function = self.driver.load_library(code, name)
        self.call("cuFuncSetAttribute", function.handle, MOST_DYNAMIC_SHARED, shared)
        return function

    def raw(self, where: int, count: int) -> Array:
        """16-bit elements as they are."""
        made = np.empty(count, np.uint16)
        size = ctypes.c_size_t(made.nbytes)
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(made.ctypes.data), ctypes.c_uint64(where), size)
        return made

    def kernel(self, name: str, shared: int) -> Function:
        """A function that may have so many bytes of shared memory."""
        return self.function(base64.b85decode(self.pack[name]["code"]), "kernel", shared)

    def given(self, x: Array) -> ctypes.c_uint64:
        """An array in memory of the device."""
        x = np.ascontiguousarray(x)
        where = ctypes.c_uint64(self._memory(max(x.nbytes, 16)))
        self.call("cuMemcpyHtoD_v2", where, ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.nbytes))
        self.call("cuCtxSynchronize")  # it may be under way, and streams do not wait for it
        return where

    def freed(self, *places: ctypes.c_uint64) -> None:
        """Memory goes back."""
        for each in places:
            self.call("cuMemFree_v2", each)

    def sums(self, name: str, left: Array, right: Array, fragment: Array, *numbers: int) -> Array:
        """Registers of all threads after one instruction: forms of both sides, and where they begin in their images."""
        width = int(name.split()[1])
        given = [self.given(x) for x in (left, right, fragment)]
        out = self.given(np.full(64 * width, np.nan, np.float32))
        forms, places = map(ctypes.c_uint64, numbers[:2]), map(ctypes.c_uint32, numbers[2:])
        room = LEFT_ROOM + RIGHT_ROOM
        self.kernel(name, room).launcher(1, 128, room, *given, *forms, *places, out)(self.stream)
        self.sync()
        raw = self._read(out.value, "float32", 64 * width).reshape(128, width // 2)
        self.freed(*given, out)
        return raw


def tensor_map(here: Here, where: int, rows: int, columns: int, pitch: int, lines: int, kind: int = 6) -> Any:
    """A tensor map of a matrix in memory: boxes of 64 elements by `lines`, swizzled within 128 bytes.

    `kind`: 6 of float16, 9 of bfloat16.
    """
    room = (ctypes.c_ubyte * 192)()
    value = (ctypes.c_ubyte * 128).from_buffer(room, -ctypes.addressof(room) % 64)
    sizes, pitches = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(pitch * 2)
    box, strides = (ctypes.c_uint32 * 2)(64, lines), (ctypes.c_uint32 * 2)(1, 1)
    swizzle_128, promoted = 3, 2
    here.call(
        "cuTensorMapEncodeTiled", ctypes.byref(value), kind, 2, ctypes.c_uint64(where), sizes, pitches, box,
        strides, 0, swizzle_128, promoted, 0,
    )  # fmt: skip
    return value
