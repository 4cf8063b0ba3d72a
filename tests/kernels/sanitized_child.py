"""Runs kernels of a sanitized library on buffers of exactly the specified size, one task after another.

Started by test_sanitized.py with the sanitizers' libraries preloaded: any access outside of a tensor ends it.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CORES = (1, 3)
SIZES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}  # bytes by ONNX type

OUTPUT = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_int)
SCRATCH = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("dims", ctypes.POINTER(ctypes.c_int64)), ("rank", ctypes.c_int))


class Host(ctypes.Structure):
    _fields_ = (("output", OUTPUT), ("scratch", SCRATCH), ("parallel", PARALLEL), ("cores", ctypes.c_int))


RUN = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(Host), ctypes.POINTER(Tensor))


class Kernel(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("inputs", ctypes.c_int), ("outputs", ctypes.c_int),
                ("input_types", ctypes.POINTER(ctypes.c_int)), ("output_types", ctypes.POINTER(ctypes.c_int)),
                ("run", RUN))  # fmt: skip


class Memory:
    """Blocks of memory, given back together."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None)
        self.libc.free.argtypes = [ctypes.c_void_p]
        self.blocks: list[int] = []

    def block(self, size: int) -> int:
        """The address of a block of this many bytes, none more, which starts at a multiple of 64."""
        at = ctypes.c_void_p()
        if self.libc.posix_memalign(ctypes.byref(at), ctypes.c_size_t(64), ctypes.c_size_t(size)):
            raise MemoryError(size)
        self.blocks.append(at.value or 0)
        return at.value or 0

    def copy(self, array: np.ndarray[Any, Any]) -> int:
        """The address of a copy of an array that starts at no better multiple than that of its type."""
        at = self.block(array.nbytes + array.itemsize) + array.itemsize
        ctypes.memmove(at, array.ctypes.data, array.nbytes)
        return at

    def free(self) -> None:
        for at in self.blocks:
            self.libc.free(at)
        self.blocks = []


def run(kernel: Kernel, arrays: Sequence[np.ndarray[Any, Any]], cores: int) -> None:
    """One run of a kernel; raises RuntimeError with its message."""
    memory = Memory()

    def output(_: int, index: int, dims: Any, rank: int) -> int:
        count = int(np.prod([dims[i] for i in range(rank)], dtype=np.int64))
        return memory.block(count * SIZES[kernel.output_types[index]])

    def parallel(_: int, tasks: int, function: int, user: int) -> None:
        task = TASK(function)
        for number in range(tasks):
            task(user, number)

    host = Host(OUTPUT(output), SCRATCH(lambda _, size: memory.block(size)), PARALLEL(parallel), cores)
    tensors = [Tensor(memory.copy(a), (ctypes.c_int64 * max(a.ndim, 1))(*a.shape), a.ndim) for a in arrays]
    message = kernel.run(ctypes.byref(host), (Tensor * max(len(tensors), 1))(*tensors))
    memory.free()
    if message:
        raise RuntimeError(f"{kernel.name.decode()}: {message.decode()}")


def main(library: str, jobs: str) -> None:
    """Run each kernel of the library on each of its sets of inputs."""
    loaded = ctypes.CDLL(library)
    loaded.RegisterCustomOps.restype = ctypes.POINTER(ctypes.POINTER(Kernel))
    table = loaded.RegisterCustomOps()
    with Path(jobs).open("rb") as file:
        work: list[list[list[np.ndarray[Any, Any]]]] = pickle.load(file)
    for number, sets in enumerate(work):
        for arrays in sets:
            sys.stderr.write(f"{table[number].contents.name.decode()}\n")
            for cores in CORES:
                run(table[number].contents, arrays, cores)
    sys.stdout.write(f"{len(work)} kernels\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
