"""The reference interpreter of kernels, in NumPy: it defines the semantics of the kernel IR.

It is vectorized over tasks (as many as the kernel can be divided into, up to a limit), threads of a launch, iterations
of vector loops, and iterations of loops without loop-carried dependences. Memory records who stored and read each
element: out-of-bounds accesses, reads of uninitialized elements, and data races between tasks of a phase or between
threads without a barrier raise `KernelFault`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfuse.ir.interpret.elements import Array, KernelFault, from_stored
from onnxfuse.ir.interpret.memory import Memory
from onnxfuse.ir.interpret.run import Interpreter
from onnxfuse.ir.interpret.threads import LogicalClock, Threads
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.kernel import Computed, ExtentBind, Kernel

TASKS = 128  # maximum tasks of a phase


def interpret(kernel: Kernel, inputs: Sequence[Array], lanes: int, tasks: int = TASKS) -> tuple[Array, ...]:
    """The outputs of a kernel for inputs in storage order, bfloat16 as its bits, on vectors of so many lanes.

    A phase is divided into up to `tasks` tasks.
    """
    symbols = bound(kernel, [a.shape for a in inputs])
    run = prepared(kernel, symbols, inputs, lanes, tasks)
    with np.errstate(all="ignore"):
        for phase in kernel.phases:
            run.phase(phase)
    for p in kernel.outputs:
        made = run.memory[p.name].made
        if made is not None and (made == 0).any():
            raise KernelFault(f"{int((made == 0).sum())} elements of {p.name} are never stored")
    here = Iterations((), np.zeros(1, np.int64), symbols, {})
    shapes = [tuple(int(here.index(e)) for e in p.storage) for p in kernel.outputs]
    return tuple(run.memory[p.name].values.reshape(shape) for p, shape in zip(kernel.outputs, shapes, strict=True))


def prepared(
    kernel: Kernel, symbols: dict[str, int], inputs: Sequence[Array], lanes: int, tasks: int, *, sample: bool = False
) -> Interpreter:
    """A run with its inputs and uninitialized buffers."""
    clock = LogicalClock()
    alone = Threads(clock, 1)
    run = Interpreter(symbols, clock, lanes, tasks, sample=sample)
    here = Iterations((), np.zeros(1, np.int64), symbols, {})
    for p, array in zip(kernel.inputs, inputs, strict=True):
        run.memory[p.name] = Memory(p.name, p.dtype, from_stored(array, p.dtype).reshape(1, -1), None, alone)
    sizes = [(o.name, o.dtype, [int(here.index(e)) for e in o.storage]) for o in kernel.outputs]
    sizes += [(b.name, b.dtype, [int(here.index(b.size))]) for b in kernel.scratch]
    for name, dtype, extents in sizes:
        size = int(np.prod(extents, dtype=np.int64))
        run.memory[name] = Memory.empty(name, dtype, size, alone, poisoned=not sample)
        run.memory[name].checked = not sample
    return run


def bound(kernel: Kernel, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The values of a kernel's symbols for inputs of these shapes. Raises KernelFault where they do not fit."""
    symbols: dict[str, int] = {}
    here = Iterations((), np.zeros(1, np.int64), symbols, {})
    for b in kernel.binds:
        if isinstance(b, Computed):
            symbols[b.symbol.name] = int(here.index(b.value))
        else:
            assert isinstance(b, ExtentBind)
            factor = int(here.index(b.factor))
            rest = shapes[b.input][b.axis] - int(here.index(b.rest))
            symbols[b.symbol.name] = rest // factor if factor else 0
    if any(int(here.index(e)) < 0 for e in kernel.requires):
        raise KernelFault("a dimension is smaller or larger than the model allows")
    for p, shape in zip(kernel.inputs, shapes, strict=True):
        if tuple(int(here.index(e)) for e in p.storage) != tuple(shape):
            raise KernelFault(f"{p.name} has another shape than the kernel was built for")
    return symbols
