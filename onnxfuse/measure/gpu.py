"""Seconds of kernels on the first GPU of this machine, by events of its driver."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from onnxfuse.build.cache import key_of
from onnxfuse.build.nvrtc import compiled
from onnxfuse.build.resources import Image
from onnxfuse.ir.interpret import bound
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.kernel import Kernel
from onnxfuse.measure.gpu_calls import gpu_calls
from onnxfuse.render.cuda import device_text, function_name
from onnxfuse.render.cuda_launch import kernel_text
from onnxfuse.render.cuda_parameters import tensor_maps
from onnxfuse.target import Gpu

TURNS, LEAST_MS, MOST_LAUNCHES = 7, 0.5, 200
RANDOM = 1 << 14  # numbers, which are repeated


def symbol_of(kernel: Kernel) -> str:
    """The name of a kernel's functions while it is measured."""
    return f"measured_{key_of(kernel_text(kernel))[:16]}"


class GpuTimer:
    """The first GPU of this machine, whose primary context is current to the thread as long as this is open.

    `compiler` makes the code of a translation unit for flags.
    """

    def __init__(self, target: Gpu, compiler: Callable[[str, Sequence[str]], Image] = compiled) -> None:
        """Raises DeviceError where the driver fails."""
        self.target, self._compiled = target, compiler
        self.calls = gpu_calls(maps=target.warpgroups)

    def __enter__(self) -> GpuTimer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.calls.close()

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of a run of a kernel of known sizes: the median of turns. Floats are random, integers 0.

        Raises DeviceError where it cannot be compiled or run.
        """
        with self.launching(kernel) as launch:
            return self._timed(launch)

    @contextmanager
    def launching(self, kernel: Kernel) -> Iterator[Callable[[], None]]:
        """What launches all phases of a kernel of known sizes on the default stream, on memory of its own."""
        name = symbol_of(kernel)
        library = self.calls.load(self._compiled(device_text(kernel, name), self.target.flags).code)
        memory: list[Any] = []
        try:
            yield self._launch(kernel, name, library, memory)
        finally:
            for where in memory:
                self.calls.free(where)
            self.calls.unload(library)

    def _launch(self, kernel: Kernel, name: str, library: Any, memory: list[Any]) -> Callable[[], None]:
        """What launches all phases of a kernel, on memory that is listed."""
        shapes = [tuple(e.constant or 0 for e in p.storage) for p in kernel.inputs]
        symbols = bound(kernel, shapes)
        here = Iterations((), np.zeros(1, np.int64), symbols, {})
        for p, shape in zip(kernel.inputs, shapes, strict=True):
            size = int(np.prod(shape)) * p.dtype.bytes
            memory.append(self.calls.memory(max(size, 16)))
            if p.dtype.numpy.kind == "f" and size:
                row = np.random.default_rng(0).standard_normal(min(size // p.dtype.bytes, RANDOM))
                self.calls.fill(memory[-1], row.astype(p.dtype.numpy))
                self.calls.repeat(memory[-1], row.size * p.dtype.bytes, size)
        extents = [(p.storage, p.dtype) for p in kernel.outputs] + [((b.size,), b.dtype) for b in kernel.scratch]
        for dims, dtype in extents:
            size = int(np.prod([int(here.index(e)) for e in dims])) * dtype.bytes
            memory.append(self.calls.memory(max(size, 16)))
        sizes = [int(n) for n in symbols.values()]
        named = [*(p.name for p in (*kernel.inputs, *kernel.outputs)), *(b.name for b in kernel.scratch)]
        maps = [
            self.calls.tensor_map(m, memory[named.index(m.source)], int(here.index(m.all_rows)))
            for m in tensor_maps(kernel)
        ]
        launches = []
        for number, phase in enumerate(kernel.phases):
            assert phase.launch is not None
            how = (phase.launch.grid, phase.launch.block, phase.launch.shared)
            grid, block, shared = (int(here.index(e)) for e in how)
            function = self.calls.function(library, function_name(name, number), shared)
            launches.append(self.calls.launcher(function, (grid, block, shared), memory, sizes, maps))

        def launch() -> None:
            for each in launches:
                each()

        return launch

    def _timed(self, launch: Callable[[], None]) -> float:
        """Seconds of one launch: the median of turns of several."""
        count = 1
        while self._milliseconds(launch, count) < LEAST_MS and count < MOST_LAUNCHES:
            count *= 2
        return statistics.median(self._milliseconds(launch, count) for _ in range(TURNS)) / count * 1e-3

    def _milliseconds(self, launch: Callable[[], None], count: int) -> float:
        self.calls.begin()
        for _ in range(count):
            launch()
        return self.calls.end()
