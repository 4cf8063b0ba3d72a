"""Fractions of the copy's bandwidth that kernels of rows and elements reach, and what lies between two kernels.

Kernels are those that the scheduler makes, of tensors that no cache holds; times are of CUDA events, through the driver
alone. A fraction is of the bytes that a kernel has to read and write, over the time, to the same of a copy.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.devices import Cuda
from benchmarks.gpu.wish import CheckRequest, Facts
from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.kernel import Kernel
from onnxfuse.measure.gpu import GpuTimer
from tests.kernels.compiled import Case
from tests.rules.build import Build
from tests.threads.scheduled import scheduled

WIDTHS = (64, 256, 768, 1024, 4096, 16384, 65536)
TURNS, RUNS = 7, 5
WANTED = 0.85  # of the copy's bandwidth
NON_BLOCKING, THREAD_LOCAL = 1, 1  # of streams, and of what is captured in them
CHAIN = 200  # empty kernels behind each other
EMPTY = '#include "cuda.h"\nextern "C" __global__ void __launch_bounds__(32) empty() {\n}\n'


def graphs(rows: int, width: int, dtype: DType) -> Iterator[tuple[str, Graph]]:
    """Neighbourhoods of transformers on so many rows."""
    b = Build(20)
    yield "softmax", b.graph(b.node("Softmax", b.input("x", rows, width, dtype=dtype), axis=-1))
    b = Build(20)
    weights = [b.constant(np.linspace(0.5, 1, width, dtype=dtype.numpy)) for _ in range(2)]
    yield "layernorm", b.graph(b.node("LayerNormalization", b.input("x", rows, width, dtype=dtype), *weights, axis=-1))
    b = Build(20)
    weights = [b.constant(np.linspace(0.5, 1, width, dtype=dtype.numpy)) for _ in range(2)]
    total = b.node("Add", b.input("x", rows, width, dtype=dtype), b.input("r", rows, width, dtype=dtype))
    yield "residual_layernorm", b.graph(b.node("LayerNormalization", total, *weights, axis=-1))
    b = Build(20)
    bias = b.constant(np.linspace(-1, 1, width, dtype=dtype.numpy))
    yield "bias_gelu", b.graph(b.node("Gelu", b.node("Add", b.input("x", rows, width, dtype=dtype), bias)))


def bandwidth(wish: CheckRequest) -> Facts:
    """The fraction of each kernel, the copy's bandwidth, and microseconds between empty kernels."""
    if not isinstance(wish.device, Cuda):
        return {"skipped": "there is no device: nothing is timed", "ok": True}
    size = int(wish.megabytes * 1e6)
    fractions = dict(wish.known.get("fractions", {}))
    found: Facts = {"copy_gbps": 2 * size / _copy(wish.device, size) * 1e-9, "boundary_us": _boundary(wish.device)}
    found["graph_boundary_us"] = _boundary(wish.device, graph=True)
    left = 0
    for case in [*cases(size)][:: wish.every]:
        if case.name in fractions or wish.late:
            left += case.name not in fractions
            continue
        kernel = scheduled(case)
        assert isinstance(kernel, Kernel), kernel
        with GpuTimer(wish.device.target, wish.device.compiled) as timer:
            seconds = timer.seconds(kernel)
        shapes = [(p.dtype.bytes, [e.constant or 0 for e in p.storage]) for p in (*kernel.inputs, *kernel.outputs)]
        moved = sum(element * int(np.prod(shape)) for element, shape in shapes)
        fractions[case.name] = moved / seconds * 1e-9 / found["copy_gbps"]
    below = [name for name, share in fractions.items() if share < WANTED]
    return found | {"fractions": fractions, "below": below, "out_of_time": left, "ok": bool(fractions)}


def cases(size: int) -> Iterator[Case]:
    """The kernels, on tensors of about so many bytes."""
    for width in WIDTHS:
        for dtype in (F16, F32):
            rows = max(size // (width * dtype.bytes), 1)
            yield from (Case(f"{name}_{dtype}_{width}", graph) for name, graph in graphs(rows, width, dtype))


def timed(device: Cuda, call: Callable[[], Any]) -> float:
    """Seconds of a call by events of the device: the median of turns, of several calls each."""
    begin, end = ctypes.c_void_p(), ctypes.c_void_p()
    for event in (begin, end):
        device.call("cuEventCreate", ctypes.byref(event), 0)
    call()
    spent = []
    for _ in range(TURNS):
        device.call("cuEventRecord", begin, None)
        for _ in range(RUNS):
            call()
        device.call("cuEventRecord", end, None)
        device.call("cuEventSynchronize", end)
        ms = ctypes.c_float()
        device.call("cuEventElapsedTime", ctypes.byref(ms), begin, end)
        spent.append(ms.value / RUNS * 1e-3)
    return statistics.median(spent)


def _copy(device: Cuda, size: int) -> float:
    """Seconds in which so many bytes are copied within the device's memory."""
    places = [device.poisoned(size) for _ in range(2)]
    try:
        return timed(device, lambda: device.call("cuMemcpyDtoDAsync_v2", *places, ctypes.c_size_t(size), None))
    finally:
        for place in places:
            device.call("cuMemFree_v2", place)


def _boundary(device: Cuda, *, graph: bool = False) -> float:
    """Microseconds from one empty kernel of a stream, or of a CUDA graph, to the next."""
    function = device.loaded(device.compiled(EMPTY, device.target.flags).code, "empty")

    def chain(stream: ctypes.c_void_p | None = None) -> None:
        for _ in range(CHAIN):
            device.call("cuLaunchKernel", function, device.target.sms, 1, 1, 32, 1, 1, 0, stream, None, None)

    if not graph:
        return timed(device, chain) / CHAIN * 1e6
    stream, captured, made = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    device.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
    device.call("cuStreamBeginCapture_v2", stream, THREAD_LOCAL)
    chain(stream)
    device.call("cuStreamEndCapture", stream, ctypes.byref(captured))
    device.call("cuGraphInstantiateWithFlags", ctypes.byref(made), captured, ctypes.c_ulonglong(0))
    return timed(device, lambda: device.call("cuGraphLaunch", made, None)) / CHAIN * 1e6
