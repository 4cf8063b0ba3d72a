"""The CUDA driver and NVRTC by ctypes: compile, load, launch. Contexts and memory are torch's (the primary context)."""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REGISTERS, LOCAL_BYTES, SHARED_BYTES = 4, 3, 1  # CU_FUNC_ATTRIBUTE_...
MOST_DYNAMIC_SHARED = 8
COOPERATIVE, DEPENDENT = 2, 6  # CU_LAUNCH_ATTRIBUTE_...: COOPERATIVE, PROGRAMMATIC_STREAM_SERIALIZATION


class CudaError(RuntimeError):
    """The driver or the compiler refused; the message is its own."""


def places() -> list[str]:
    """Folders in which pip's CUDA packages and a toolkit keep their parts."""
    found = importlib.util.find_spec("nvidia")
    roots = [
        path for root in (found.submodule_search_locations or () if found else ()) for path in glob.glob(f"{root}/*")
    ]
    return [*roots, *glob.glob("/usr/local/cuda*"), *glob.glob("/usr/local/cuda*/targets/*")]


def library(name: str, mode: int = ctypes.RTLD_LOCAL) -> ctypes.CDLL:
    """The first library whose file begins with `name`; OSError where there is none."""
    for place in places():
        for path in sorted(glob.glob(f"{place}/lib*/{name}*")):
            return ctypes.CDLL(path, mode)
    return ctypes.CDLL(name, mode)


def include_folders() -> list[str]:
    """Folders with cuda_fp16.h."""
    return sorted({os.path.dirname(path) for place in places() for path in glob.glob(f"{place}/include/cuda_fp16.h")})[
        :1
    ]


class Compiler:
    """NVRTC. Its builtins have to be in the process before it is."""

    def __init__(self) -> None:
        self.builtins = library("libnvrtc-builtins.so", ctypes.RTLD_GLOBAL)
        self.lib = library("libnvrtc.so")
        self.options = tuple(f"--include-path={folder}" for folder in include_folders())

    @property
    def version(self) -> str:
        """Of the compiler."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(
        self, source: str, arch: str = "sm_90", defines: Sequence[str] = (), *options: str
    ) -> tuple[bytes, str]:
        """A cubin, or PTX where `arch` begins with `compute_`, and what ptxas says."""
        program = ctypes.c_void_p()
        self._check(self.lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
        words = (f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *self.options, *options)
        given = [word.encode() for word in (*words, *(f"-D{each}" for each in defines))]
        code = self.lib.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        log = self._text(program, self.lib.nvrtcGetProgramLogSize, self.lib.nvrtcGetProgramLog).decode().strip("\0\n ")
        if code:
            raise CudaError(log or f"nvrtc {code}")
        ptx = arch.startswith("compute_")
        size, get = ("nvrtcGetPTXSize", "nvrtcGetPTX") if ptx else ("nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        image = self._text(program, getattr(self.lib, size), getattr(self.lib, get))
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        return image, log

    def compile_all(self, jobs: Sequence[tuple[Any, ...]], threads: int) -> list[tuple[bytes, str]]:
        """The same for many, in threads: ctypes lets go of the interpreter's lock."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda job: self.compile(*job), jobs))

    def _text(self, program: ctypes.c_void_p, size: Any, get: Any) -> bytes:
        count = ctypes.c_size_t()
        self._check(size(program, ctypes.byref(count)))
        text = ctypes.create_string_buffer(count.value)
        self._check(get(program, text))
        return text.raw

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise CudaError(f"nvrtc {code}")


class _Value(ctypes.Union):
    _fields_ = (("flag", ctypes.c_int), ("room", ctypes.c_char * 64))


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", _Value))


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class Driver:
    """The functions of libcuda that a launcher needs."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")

    def check(self, code: int) -> None:
        """Raise the driver's own name for a code that is not zero."""
        if code:
            name = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(name))
            raise CudaError((name.value or b"?").decode())

    @property
    def version(self) -> int:
        """As the driver says it: 13000 is 13.0."""
        value = ctypes.c_int()
        self.check(self.lib.cuDriverGetVersion(ctypes.byref(value)))
        return value.value

    def load(self, image: bytes, name: str = "kernel") -> Function:
        """A function of a module in the current context."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.lib.cuModuleLoadData(ctypes.byref(module), image))
        self.check(self.lib.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
        return Function(self, module, function)

    def load_library(self, image: bytes, name: str = "kernel") -> Function:
        """The same by a library, which needs no current context to be loaded."""
        module, kernel, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        none = (None, None, 0, None, None, 0)
        self.check(self.lib.cuLibraryLoadData(ctypes.byref(module), image, *none))
        self.check(self.lib.cuLibraryGetKernel(ctypes.byref(kernel), module, name.encode()))
        self.check(self.lib.cuKernelGetFunction(ctypes.byref(function), kernel))
        return Function(self, None, function)


@dataclass
class Function:
    """A kernel that can be launched."""

    driver: Driver
    module: ctypes.c_void_p | None
    handle: ctypes.c_void_p

    def attribute(self, which: int) -> int:
        """Registers, spilled bytes and so on."""
        value = ctypes.c_int()
        self.driver.check(self.driver.lib.cuFuncGetAttribute(ctypes.byref(value), which, self.handle))
        return value.value

    def launcher(self, grid: int, threads: int, shared: int, *values: Any, attributes: Sequence[int] = ()) -> Any:
        """A call that takes a stream's number and launches; attributes are those of CU_LAUNCH_ATTRIBUTE that are on."""
        cells = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        given = (_Attribute * max(1, len(attributes)))()
        for one, number in zip(given, attributes, strict=False):
            one.id, one.value.flag = number, 1
        config = _Config(grid, 1, 1, threads, 1, 1, shared, None, given, len(attributes))
        ex, check, handle, keep = self.driver.lib.cuLaunchKernelEx, self.driver.check, self.handle, values

        def launch(stream: int) -> None:
            config.stream = stream
            check(ex(ctypes.byref(config), handle, cells, None))
            assert keep is not None

        return launch

    def unload(self) -> None:
        """Give the module back."""
        if self.module is not None:
            self.driver.check(self.driver.lib.cuModuleUnload(self.module))


def pointer(tensor: Any) -> ctypes.c_void_p:
    """The address of a tensor, as a kernel takes it."""
    return ctypes.c_void_p(tensor.data_ptr() if tensor is not None else 0)
