"""Compile C++ kernels, run them on numpy arrays and race them, on a thread pool of their own and without ONNX Runtime.

>>> library = compile_library([Path("kernel.cpp")], tmp_path)              # doctest: +SKIP
>>> with Pool(threads=2) as pool:                                          # doctest: +SKIP
...     outputs = pool.load(library, "kernel_gemm").run(x, w, b)
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from onnxfuse.build.toolchain import PRECOMPILING, Toolchain, find_toolchain, meaning
from onnxfuse.errors import ToolchainError
from onnxfuse.render.source import PRELUDE

Array = np.ndarray[Any, np.dtype[Any]]

ROOT = Path(__file__).resolve().parents[2]
TILES = ROOT / "onnxfuse" / "render" / "tiles"
FLAGS = ("-O3", "-fPIC", "-shared", "-Wno-psabi")
MARCH = "-march="
NATIVE = (f"{MARCH}native",)

SPINS = 50_000  # some milliseconds

# ONNX TensorProto numbers; bfloat16 travels as uint16.
DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_,
          10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64, 16: np.uint16}  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("dims", ctypes.POINTER(ctypes.c_int64)), ("rank", ctypes.c_int))


@cache
def compiler() -> Toolchain | None:
    """The C++ compiler that the build itself would take; None where there is none."""
    try:
        return find_toolchain("auto")
    except ToolchainError:
        return None


def spelled(flags: Sequence[str], family: str) -> tuple[str, ...]:
    """Flags that name any machine of x86-64, or this one, as a family of compilers spells them, and its meaning."""
    named = (f"-mcpu={f[len(MARCH) :].replace('-', '_')}" if f.startswith(MARCH) else f for f in flags)
    return (*meaning(family), *(named if family == "zig" else flags))


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time in here, by a file that is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_library(
    sources: Sequence[Path],
    folder: Path,
    flags: Sequence[str] = (),
    march: Sequence[str] = NATIVE,
    *,
    prelude: str = "",
) -> Path:
    """A shared library of `sources` in `folder`, named by content, headers included: the same text compiles once.

    What all of them start with may be a `prelude`, which is precompiled. Raises RuntimeError with the compiler's words.
    """
    command = _command(flags, march)
    first = _precompiled(command, folder, prelude) if prelude else ()
    return _kept(command, (*first, *map(str, sources), "-ldl", "-lpthread"), sources, folder, ".so")


def compile_object(name: str, text: str, folder: Path, flags: Sequence[str], march: Sequence[str] = NATIVE) -> Path:
    """An object of a text that starts like a kernel, named by content too. Raises RuntimeError likewise."""
    command = _command(flags, march)
    with alone(folder / f"{name}.lock"):
        source = folder / f"{name}.cpp"
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        return _kept(command, (*_precompiled(command, folder, PRELUDE), "-c", str(source)), [source], folder, ".o")


def _command(flags: Sequence[str], march: Sequence[str]) -> tuple[str, ...]:
    """The compiler with flags. -iquote: with -I our math.h would stand before the one of C."""
    cxx = compiler()
    if cxx is None:
        raise RuntimeError("no C++ compiler: install one or set CXX")
    return (*cxx.command, *FLAGS, *spelled((*march, *flags), cxx.family), f"-iquote{TILES}")


@cache
def _precompiled(command: tuple[str, ...], folder: Path, text: str) -> tuple[str, ...]:
    """Flags that take a text from a precompiled header, where the compiler can."""
    cxx = compiler()
    if cxx is None or cxx.family not in PRECOMPILING:
        return ()
    source = folder / "prelude.h"
    with alone(folder / "prelude.lock"):
        source.write_text(text)
        made = _kept(command, ("-x", "c++-header", str(source)), [source], folder, ".h.gch")
        header = made.with_suffix("")
        if not header.exists():
            header.write_text(text)
    return ("-include", str(header))


def _kept(command: Sequence[str], arguments: Sequence[str], sources: Sequence[Path], folder: Path, suffix: str) -> Path:
    """What a command makes of sources, in a file named by what it is made of."""
    named = (Path(flag[2:]) for flag in command if flag.startswith("-I"))
    folders = {TILES, *named, *(s.parent for s in sources)} - {folder}
    texts = [p.read_bytes() for p in [*sources, *(h for f in sorted(folders) for h in sorted(f.glob("*.h")))]]
    digest = hashlib.sha256(b"\0".join([*(c.encode() for c in command), *texts])).hexdigest()[:16]
    target = folder / f"{sources[0].stem}-{digest}{suffix}"
    if target.exists():
        return target
    with alone(folder / f"{target.name}.lock"):
        if not target.exists():
            _compile([*command, *arguments], target)
    return target


def _compile(command: Sequence[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        partial = Path(scratch) / target.name
        done = subprocess.run([*command, "-o", str(partial)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        partial.replace(target)


def aligned(array: Array) -> Array:
    """A contiguous copy whose data starts at a multiple of 64 bytes, as large weights do in a mapped model."""
    flat = np.empty(array.nbytes + 64, np.uint8)
    start = -flat.ctypes.data % 64
    copy = flat[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@cache
def _host() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compile_library([Path(__file__).with_suffix(".cpp")], _cache())))
    for name in ("pool_create", "kernel_load", "runner_create", "runner_output_data"):
        getattr(library, name).restype = ctypes.c_void_p
    for name in ("kernel_name", "runner_run", "runner_race"):
        getattr(library, name).restype = ctypes.c_char_p
    library.runner_output_dims.restype = ctypes.POINTER(ctypes.c_int64)
    return library


def _cache() -> Path:
    return ROOT / ".cache" / "kernels"


class LoadedKernel:
    """One kernel of a library with its own outputs and scratch. Outputs live until the next run of the same kernel."""

    def __init__(self, host: ctypes.CDLL, pool: int, threads: int, library: Path, symbol: str) -> None:
        error = ctypes.c_char_p()
        self._host = host
        kernel = host.kernel_load(str(library).encode(), symbol.encode(), ctypes.byref(error))
        if not kernel:
            raise RuntimeError(f"{library}: {(error.value or b'').decode()}")
        self._kernel = ctypes.c_void_p(kernel)
        self.name: str = host.kernel_name(self._kernel).decode()
        self.input_dtypes = [np.dtype(DTYPES[host.kernel_input_type(self._kernel, i)])
                             for i in range(host.kernel_inputs(self._kernel))]  # fmt: skip
        self.output_dtypes = [np.dtype(DTYPES[host.kernel_output_type(self._kernel, i)])
                              for i in range(host.kernel_outputs(self._kernel))]  # fmt: skip
        self.runner = ctypes.c_void_p(host.runner_create(self._kernel, ctypes.c_void_p(pool), threads))

    def tensors(self, arrays: Sequence[Array]) -> Any:
        """The arrays as the kernel sees them, alive as long as the arrays; TypeError on a wrong count or type."""
        if [a.dtype for a in arrays] != self.input_dtypes:
            raise TypeError(f"{self.name}: takes {self.input_dtypes}, not {[a.dtype for a in arrays]}")
        if not all(a.flags.c_contiguous for a in arrays):
            raise TypeError(f"{self.name}: inputs must be C-contiguous")
        made = [_Tensor(a.ctypes.data, (ctypes.c_int64 * max(a.ndim, 1))(*a.shape), a.ndim) for a in arrays]
        return (_Tensor * max(len(made), 1))(*made)

    def run(self, *arrays: Array) -> list[Array]:
        """One run; copies of the outputs. Raises RuntimeError with the kernel's message."""
        message = self._host.runner_run(self.runner, self.tensors(arrays))
        if message is not None:
            raise RuntimeError(f"{self.name}: {message.decode()}")
        return self.outputs()

    def outputs(self) -> list[Array]:
        """Copies of what the last run wrote."""
        result = []
        for i, dtype in enumerate(self.output_dtypes):
            rank = self._host.runner_output_rank(self.runner, i)
            shape = tuple(self._host.runner_output_dims(self.runner, i)[k] for k in range(rank))
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            data = self._host.runner_output_data(self.runner, i)
            result.append(np.frombuffer(ctypes.string_at(data, size) if size else b"", dtype).reshape(shape).copy())
        return result


class Pool:
    """A pool of `threads` threads, the caller included, and the kernels loaded on it. A context manager.

    An idle thread spins for so many turns before it sleeps; those of measurements spin longer than the turns between
    two runs take.
    """

    def __init__(self, threads: int, spins: int = SPINS) -> None:
        self.threads = threads
        self._host = _host()
        self._pool = self._host.pool_create(threads, spins)
        self._loaded: list[LoadedKernel] = []

    def load(self, library: Path, symbol: str) -> LoadedKernel:
        """The kernel whose descriptor is the symbol `symbol` of `library`."""
        kernel = LoadedKernel(self._host, self._pool, self.threads, library, symbol)
        self._loaded.append(kernel)
        return kernel

    def race(self, kernels: Sequence[LoadedKernel], input_sets: Sequence[Sequence[Array]], rounds: int) -> Array:
        """Seconds [kernel, round] of runs in turns A B A B; round r uses input_sets[r % len(input_sets)]."""
        sets = [kernels[0].tensors(arrays) for arrays in input_sets]
        pointers = (ctypes.POINTER(_Tensor) * len(sets))(*(ctypes.cast(s, ctypes.POINTER(_Tensor)) for s in sets))
        runners = (ctypes.c_void_p * len(kernels))(*(k.runner for k in kernels))
        seconds = np.zeros((len(kernels), rounds))
        message = self._host.runner_race(
            runners, len(kernels), pointers, len(sets), rounds, ctypes.c_void_p(seconds.ctypes.data)
        )
        if message is not None:
            raise RuntimeError(message.decode())
        return seconds

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for kernel in self._loaded:
            self._host.runner_destroy(kernel.runner)
        self._host.pool_destroy(ctypes.c_void_p(self._pool))
