"""The CUDA text of kernels of threads, compiled for the host and run there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from onnxfuse.build import SUPPORT
from onnxfuse.ir.interpret import bound
from onnxfuse.ir.interpret.values import Places
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda import device_text, function_name, parameters
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import Array, compile_library

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-DEMULATED", "-O1", f"-I{HERE}", f"-I{SUPPORT}")


def entries(kernel: Kernel, name: str) -> Iterator[str]:
    """A function `run_NAME` for each phase: of pointers to arguments as a launch has them, blocks and a seed."""
    for number, phase in enumerate(kernel.phases):
        assert phase.launch is not None
        given = ", ".join(f"*({t.replace(' __restrict__', '')}*)p[{k}]" for k, (t, _) in enumerate(parameters(kernel)))
        yield f'extern "C" void run_{function_name(name, number)}(void** p, unsigned grid, unsigned seed) {{\n'
        call = f"[&] {{ {function_name(name, number)}({given}); }}"
        yield f"  emulated::launch(grid, {phase.launch.block!r}, {phase.launch.shared!r}, seed, {call});\n}}\n"


def compiled(texts: Mapping[str, Kernel]) -> Path:
    """A library of kernels by their names."""
    text = "".join(device_text(kernel, name) + "".join(entries(kernel, name)) for name, kernel in texts.items())
    folder = CACHE / "threads"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{next(iter(texts))}_{sha256(text.encode()).hexdigest()[:16]}.cpp"
    source.write_text(text, encoding="utf-8")
    return compile_library([source], folder, FLAGS)


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
    here = Places((), np.zeros(1, np.int64), symbols, {})
    outputs = [_poisoned([int(here.index(e)) for e in p.storage], p.dtype.numpy) for p in kernel.outputs]
    scratch = [_poisoned([int(here.index(b.size))], b.dtype.numpy) for b in kernel.scratch]
    arrays = [np.ascontiguousarray(a) for a in inputs] + outputs + scratch
    values = [ctypes.c_void_p(a.ctypes.data) for a in arrays] + [ctypes.c_int64(n) for n in symbols.values()]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    for number, phase in enumerate(kernel.phases):
        assert phase.launch is not None
        grid = ctypes.c_uint(int(here.index(phase.launch.grid)))
        library[f"run_{function_name(name, number)}"](pointers, grid, ctypes.c_uint(seed))
    return tuple(outputs)


def _poisoned(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
    """Memory that nothing was stored in: floats that are no number."""
    made = np.empty(shape, dtype)
    made.view(np.uint8 if made.ndim else dtype).fill(0xFF) if made.ndim else None
    return made
