"""The CUDA text of kernels of threads, compiled for the host and run there."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from onnxfuse.ir.interpret import bound
from onnxfuse.ir.interpret.values import Places
from onnxfuse.ir.kernel import Kernel
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import Array, compile_library
from tests.threads.cuda import parameters, render

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-DEMULATED", "-O1", f"-I{HERE}")


@cache
def library(kernel: Kernel, name: str) -> ctypes.CDLL:
    """A function `run_0`, `run_1`, ... for each phase: of pointers, symbols, and blocks."""
    text = render(kernel, name)
    pointers = [t for t, _ in parameters(kernel) if t != "i64"]
    given = [f"({t})pointers[{k}]" for k, t in enumerate(pointers)] + [
        f"symbols[{k}]" for k in range(len(kernel.binds))
    ]
    for number, phase in enumerate(kernel.phases):
        assert phase.launch is not None
        call = f"[&] {{ {name}_{number}({', '.join(given)}); }}"
        text += (
            f'extern "C" void run_{number}(void** pointers, i64* symbols, unsigned grid) {{\n'
            f"  launch(grid, {phase.launch.block!r}, {phase.launch.shared!r}, {call});\n}}\n"
        )
    folder = CACHE / "threads"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}_{sha256(text.encode()).hexdigest()[:16]}.cpp"
    source.write_text(text, encoding="utf-8")
    return ctypes.CDLL(str(compile_library([source], folder, FLAGS)))


def run(kernel: Kernel, name: str, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of a kernel for inputs in storage order."""
    symbols = bound(kernel, [a.shape for a in inputs])
    here = Places((), np.zeros(1, np.int64), symbols, {})
    outputs = [np.zeros([int(here.index(e)) for e in p.storage], p.dtype.numpy) for p in kernel.outputs]
    scratch = [np.zeros(int(here.index(b.size)), b.dtype.numpy) for b in kernel.scratch]
    arrays = [np.ascontiguousarray(a) for a in inputs] + outputs + scratch
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    numbers = (ctypes.c_longlong * max(len(symbols), 1))(*symbols.values())
    for number, phase in enumerate(kernel.phases):
        assert phase.launch is not None
        grid = ctypes.c_uint(int(here.index(phase.launch.grid)))
        getattr(library(kernel, name), f"run_{number}")(pointers, numbers, grid)
    return tuple(outputs)
