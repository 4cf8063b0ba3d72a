"""CUDA text of GPU kernels, compiled for the host and run there."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.build import SUPPORT
from onnxfuse.emit.spell import stored
from onnxfuse.ir.dtype import BF16, DType
from onnxfuse.ir.interpret import bound
from onnxfuse.ir.interpret.elements import from_stored
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda import device_text, function_name
from onnxfuse.render.cuda_parameters import TensorMap, tensor_maps
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import Array, compile_library

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-DEMULATED", "-D__CUDACC__", "-Og", f"-I{HERE}", f"-I{SUPPORT}")
_FUNCTION = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+)(?:, \d+)?\) (\w+)\((.*)\) \{')


def entries(text: str) -> Iterator[str]:
    """For each function of the device `run_NAME`, which takes what a launch does, and its arguments and threads."""
    for threads, name, given in _FUNCTION.findall(text):
        types = [p.rpartition(" ")[0].replace(" __restrict__", "") for p in given.split(", ") if p]
        values = ", ".join(f"*({t}*)p[{k}]" for k, t in enumerate(types))
        sizes = "".join(f", {128 if t.endswith('Map') else 8}" for t in types)
        yield f'extern "C" const int arguments_{name}[] = {{{len(types)}, {threads}{sizes}}};\n'
        yield f'extern "C" void run_{name}(void** p, unsigned grid, unsigned block, size_t shared, unsigned seed) {{\n'
        yield f"  emulated::launch(grid, block, shared, seed, [&] {{ {name}({values}); }});\n}}\n"


def library_of(text: str, name: str) -> Path:
    """A library of the device's part of translation units."""
    whole = text + "".join(entries(text))
    folder = CACHE / "threads"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}_{sha256(whole.encode()).hexdigest()[:16]}.cpp"
    source.write_text(whole, encoding="utf-8")
    launch = compile_library([HERE / "emulated_launch.cpp"], folder, ("-std=c++20", "-O2", f"-I{HERE}"))
    return compile_library([source, launch], folder, FLAGS, prelude='#include "cuda.h"\n')


def compiled(kernels: Mapping[str, Kernel]) -> Path:
    """A library of kernels by their names."""
    return library_of("".join(device_text(kernel, name) for name, kernel in kernels.items()), next(iter(kernels)))


@cache
def alone(kernel: Kernel, name: str) -> ctypes.CDLL:
    """The library of one kernel."""
    return ctypes.CDLL(str(compiled({name: kernel})))


def run(
    kernel: Kernel, name: str, inputs: Sequence[Array], library: ctypes.CDLL | None = None, seed: int = 1
) -> tuple[Array, ...]:
    """The outputs of a kernel for inputs in storage order."""
    library = library or alone(kernel, name)
    symbols = bound(kernel, [a.shape for a in inputs])
    here = Iterations((), np.zeros(1, np.int64), symbols, {})
    outputs = [_poisoned([int(here.index(e)) for e in p.storage], in_memory(p.dtype)) for p in kernel.outputs]
    scratch = [_poisoned([int(here.index(b.size))], in_memory(b.dtype)) for b in kernel.scratch]
    given = [as_stored(a, p.dtype) for p, a in zip(kernel.inputs, inputs, strict=True)]
    arrays = [np.ascontiguousarray(a) for a in given] + outputs + scratch
    values: list[Any] = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
    values += [ctypes.c_int64(n) for n in symbols.values()]
    named = [*(p.name for p in (*kernel.inputs, *kernel.outputs)), *(b.name for b in kernel.scratch)]
    values += [_mapped(m, arrays[named.index(m.source)], int(here.index(m.all_rows))) for m in tensor_maps(kernel)]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    for number, phase in enumerate(kernel.phases):
        assert phase.launch is not None
        grid, block, shared = (int(here.index(e)) for e in (phase.launch.grid, phase.launch.block, phase.launch.shared))
        launched = library[f"run_{function_name(name, number)}"]
        launched(pointers, ctypes.c_uint(grid), ctypes.c_uint(block), ctypes.c_size_t(shared), ctypes.c_uint(seed))
    return tuple(from_stored(a, p.dtype) for p, a in zip(kernel.outputs, outputs, strict=True))


def _mapped(m: TensorMap, matrix: Array, rows: int) -> ctypes.Array[ctypes.c_int64]:
    """A tensor map as the emulator has it (emulated.h)."""
    numbers = (matrix.ctypes.data, rows, m.all_columns, m.pitch, m.rows)
    return (ctypes.c_int64 * 16)(*numbers)


def as_stored(x: Array, dtype: DType) -> Array:
    """An array as it lies in memory: numbers of bfloat16 as their bits, where they are not bits already."""
    return stored(x, dtype) if x.dtype == np.float32 else x


def in_memory(dtype: DType) -> np.dtype[np.generic]:
    """The type of elements in memory: those of bfloat16 are its bits."""
    return np.dtype(np.uint16) if dtype == BF16 else dtype.numpy


def _poisoned(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
    """Memory that nothing was stored in: floats that are no number."""
    made = np.frombuffer(b"\xff" * (int(np.prod(shape, dtype=np.int64)) * dtype.itemsize), dtype).copy()
    return made.reshape(shape)
