"""A worker that launches prepared jobs on the first GPU and times them: a line of JSON for each one that it reads.

Runs follow each other in a CUDA graph, on the same memory, so that everything comes from the second cache but what a
job says comes from memory: there are so many copies of it that the cache holds none until its turn. A fault of a kernel
leaves the context unusable: the worker says so and ends, and another one takes its place. It needs the driver alone.
"""

from __future__ import annotations

import ctypes
import json
import lzma
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.driver import MOST_DYNAMIC_SHARED, Driver, Function
from benchmarks.gpu.jobs.served import served

ROOM = 3 << 30  # bytes that all buffers of a job fit
DRAWN = 1 << 22  # random numbers of each type, which inputs are cut from
APART = 1 << 18  # where the numbers of the next input begin
ALIGNED = 512
COLD = 160 << 20  # bytes that no cache holds
MOST_COPIES = 256
TURNS, WARM = 5, 60
LEAST_US, MOST_RUNS = 400.0, 100
UNASKED = 48 << 10
NON_BLOCKING, THREAD_LOCAL = 1, 1
HEAD = 1 << 16  # elements of an output, from either end, that are compared with those of other tiles
LARGEST = 1 << 22  # elements of a matrix that rows are multiplied by on the host

Array = npt.NDArray[Any]


class Worker:
    """The device's context, a stream, events, and memory for one job at a time."""

    def __init__(self, code: bytes) -> None:
        self.driver, self.code = Driver(), code
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.stream = self._made("cuStreamCreate", NON_BLOCKING)
        self.events = [self._made("cuEventCreate", 0) for _ in range(2)]
        self.room, self.used = self._memory(ROOM), 0
        rng = np.random.default_rng(0)
        drawn = rng.standard_normal(DRAWN, np.float32)
        self.drawn: dict[str, Array] = {"float32": drawn, "float16": drawn.astype(np.float16)}
        self.source = {name: self._memory(x.nbytes) for name, x in self.drawn.items()}
        for name, x in self.drawn.items():
            where, size = ctypes.c_uint64(self.source[name]), ctypes.c_size_t(x.nbytes)
            self.call("cuMemcpyHtoD_v2", where, ctypes.c_void_p(x.ctypes.data), size)
        self.known: dict[str, list[Array]] = {}
        self.wanted: dict[str, Array | None] = {}
        for _ in range(WARM):
            self._poison(self.room, ROOM)
        self.sync()

    def call(self, name: str, *given: Any) -> None:
        """A function of the driver. Raises CudaError with its own name for what went wrong."""
        self.driver.check(getattr(self.driver.lib, name)(*given))

    def _made(self, name: str, *given: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *given)
        return made

    def _memory(self, size: int) -> int:
        where = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(size))
        return where.value

    def sync(self) -> None:
        """Wait for all that was launched. Raises CudaError where it went wrong."""
        self.call("cuStreamSynchronize", self.stream)

    # jobs -------------------------------------------------------------------------------------------------------------

    def timed(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Microseconds of a job and what else is found out; raises CudaError."""
        self.used = 0
        begin, size = job["image"]
        code = self.code[begin : begin + size]
        functions = [self._function(code, name, shared) for name, _, _, shared in job["launches"]]
        inputs = [self._input(n, each) for n, each in enumerate(job["inputs"])]
        outputs = [self._room(t, n) for t, n in job["outputs"]]
        scratch = [self._room(t, n) for t, n in job["scratch"]]
        for (t, n), where in zip((*job["outputs"], *job["scratch"]), (*outputs, *scratch), strict=True):
            self._poison(where, n * width(t))
        run = self._run(job, functions, [*inputs, *outputs, *scratch])
        run()
        self.sync()
        found: dict[str, Any] = {"resident": [self._resident(f, job, n) for n, f in enumerate(functions)]}
        if job["what"] == "product":
            found |= self._checked(job, outputs)
        runs = self._count(run)
        times = self._in_graph([run], runs)
        found |= {"us": statistics.median(times), "least_us": min(times), "runs": runs}
        if job["place"] == 0:
            found["stream_us"] = statistics.median(self._between(run, runs) for _ in range(3))
        if job["place"] == 0 and job["fresh"]:
            copies = self._copied(job, functions, inputs, [*outputs, *scratch])
            if copies:
                times = self._in_graph(copies, max(runs, len(copies)) // len(copies) * len(copies))
                found["fresh_us"] = statistics.median(times)
        return found

    def _function(self, code: bytes, name: str, shared: int) -> Function:
        function = self.driver.load_library(code, name)
        if shared > UNASKED:
            self.call("cuFuncSetAttribute", function.handle, MOST_DYNAMIC_SHARED, shared)
        return function

    def _resident(self, function: Function, job: Mapping[str, Any], number: int) -> int:
        """Blocks that a multiprocessor holds at once."""
        _, _, block, shared = job["launches"][number]
        found = ctypes.c_int()
        room = ctypes.c_size_t(shared)
        self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(found), function.handle, block, room)
        return found.value

    def _room(self, dtype: str, count: int) -> int:
        """Where a buffer lies."""
        where, size = self.room + self.used, max(count * width(dtype), 16)
        self.used += -(-size // ALIGNED) * ALIGNED
        if self.used > ROOM:
            raise RuntimeError("the buffers of a job are too large")
        return where

    def _poison(self, where: int, size: int) -> None:
        self.call(
            "cuMemsetD8Async", ctypes.c_uint64(where), ctypes.c_ubyte(0xFF), ctypes.c_size_t(max(size, 1)), self.stream
        )

    def _input(self, number: int, given: Sequence[Any]) -> int:
        """An input in memory: random numbers, integers are 0."""
        _, dtype, count = given
        where = self._room(dtype, count)
        if dtype not in self.source:
            size = ctypes.c_size_t(max(count * width(dtype), 1))
            self.call("cuMemsetD8Async", ctypes.c_uint64(where), ctypes.c_ubyte(0), size, self.stream)
            return where
        for to, begin, end in pieces(number, count):
            self._copy(
                where + to * width(dtype), self.source[dtype] + begin * width(dtype), (end - begin) * width(dtype)
            )
        return where

    def _copy(self, to: int, source: int, size: int) -> None:
        self.call(
            "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), self.stream
        )

    def _run(self, job: Mapping[str, Any], functions: Sequence[Function], places: Sequence[int]) -> Callable[[], None]:
        """What launches all phases on the stream."""
        values = [*map(ctypes.c_uint64, places), *map(ctypes.c_int64, job["symbols"])]
        launches = [
            function.launcher(grid, block, shared, *values)
            for function, (_, grid, block, shared) in zip(functions, job["launches"], strict=True)
        ]
        stream = self.stream

        def run() -> None:
            for launch in launches:
                launch(stream)

        return run

    def _copied(
        self, job: Mapping[str, Any], functions: Sequence[Function], inputs: Sequence[int], others: Sequence[int]
    ) -> list[Callable[[], None]]:
        """Runs whose fresh inputs lie elsewhere each, so many that no cache holds them until they come again."""
        sizes = {n: job["inputs"][n][2] * width(job["inputs"][n][1]) for n in job["fresh"]}
        count = math.ceil(COLD / max(sum(sizes.values()), 1)) + 1
        if count > MOST_COPIES:
            return []
        runs = []
        for _ in range(count):
            mine = list(inputs)
            for n, size in sizes.items():
                mine[n] = self._room(*job["inputs"][n][1:])
                self._copy(mine[n], inputs[n], size)
            runs.append(self._run(job, functions, [*mine, *others]))
        return runs

    # clocks -----------------------------------------------------------------------------------------------------------

    def _between(self, work: Callable[[], None], times: int) -> float:
        """Microseconds of a run, of so many behind each other."""
        begin, end = self.events
        found = ctypes.c_float()
        self.call("cuEventRecord", begin, self.stream)
        for _ in range(times):
            work()
        self.call("cuEventRecord", end, self.stream)
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", ctypes.byref(found), begin, end)
        return found.value / times * 1e3

    def _count(self, run: Callable[[], None]) -> int:
        """Runs that take long enough for the clock."""
        return max(5, min(MOST_RUNS, math.ceil(LEAST_US / max(self._between(run, 2), 0.1))))

    def _in_graph(self, runs: Sequence[Callable[[], None]], count: int) -> list[float]:
        """Microseconds of a run, in turns of so many in a CUDA graph."""
        with self._captured(runs, count) as launch:
            launch()
            return [self._between(launch, 1) / count for _ in range(TURNS)]

    @contextmanager
    def _captured(self, runs: Sequence[Callable[[], None]], count: int) -> Iterator[Callable[[], None]]:
        self.call("cuStreamBeginCapture_v2", self.stream, THREAD_LOCAL)
        try:
            for n in range(count):
                runs[n % len(runs)]()
        finally:
            graph = self._ended()
        made = ctypes.c_void_p()
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        try:
            yield lambda: self.call("cuGraphLaunch", made, self.stream)
        finally:
            self.call("cuGraphExecDestroy", made)
            self.call("cuGraphDestroy", graph)

    def _ended(self) -> ctypes.c_void_p:
        """The graph of what was captured."""
        graph = ctypes.c_void_p()
        self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        return graph

    # results ----------------------------------------------------------------------------------------------------------

    def _checked(self, job: Mapping[str, Any], outputs: Sequence[int]) -> dict[str, float]:
        """How far a product is from other tiles of it, and a few of its rows from the host's."""
        ((dtype, count),) = job["outputs"]
        ends = [self._read(outputs[0] + at * width(dtype), dtype, n) for at, n in both_ends(count)]
        name = f"{job['label']} {job['dtype']}"
        first = self.known.setdefault(name, ends)
        found = {"apart": max(distance(a, b) for a, b in zip(ends, first, strict=True))}
        if name not in self.wanted:
            self.wanted[name] = self._reference(job)
        wanted = self.wanted[name]
        if wanted is not None:
            rows, columns = job["torch"]["rows"], job["torch"]["columns"]
            got = [self._read(outputs[0] + r * columns * width(dtype), dtype, columns) for r in few(rows)]
            found["error"] = distance(np.stack(got), wanted)
        return found

    def _read(self, where: int, dtype: str, count: int) -> Array:
        made = np.empty(count, dtype)
        size = ctypes.c_size_t(made.nbytes)
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(made.ctypes.data), ctypes.c_uint64(where), size)
        return made.astype(np.float64)

    def _reference(self, job: Mapping[str, Any]) -> Array | None:
        """A few rows of a plain product, or of one with bias and GELU; None where it is another, or too large."""
        how = job["torch"]
        rows, depth, columns = (how[n] for n in ("rows", "depth", "columns"))
        if how["epilogue"] not in ("plain", "gelu") or depth * columns > LARGEST or rows * depth > LARGEST:
            return None
        given = {name: self._host(n, dtype, count) for n, (name, dtype, count) in enumerate(job["inputs"])}
        x = given["x"].reshape(rows, depth)[list(few(rows))]
        y = x @ given["w"].reshape(depth, columns)
        if how["epilogue"] == "plain":
            return y.astype(np.float64)
        y = y + given["bias"]
        return np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))(y.astype(np.float64))  # type: ignore[no-any-return]  # an array

    def _host(self, number: int, dtype: str, count: int) -> Array:
        made = np.concatenate([self.drawn[dtype][begin:end] for _, begin, end in pieces(number, count)])
        return made.astype(np.float32)


def unpacked(pack: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Jobs, and the code of all of them (`prepare.py`)."""
    text, _, code = lzma.decompress(pack.read_bytes()).partition(b"\n")
    return json.loads(text), code


def pieces(number: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Where in an input which of the random numbers go: to, first, last."""
    done, at = 0, number * APART % DRAWN
    while done < count:
        many = min(DRAWN - at, count - done)
        yield done, at, at + many
        done, at = done + many, 0


def both_ends(count: int) -> list[tuple[int, int]]:
    """Positions and numbers of elements that are compared."""
    return [(0, count)] if count <= 2 * HEAD else [(0, HEAD), (count - HEAD, HEAD)]


def few(rows: int) -> tuple[int, ...]:
    """Rows that are checked."""
    return tuple(sorted({0, rows // 2, rows - 1}))


def distance(a: Array, b: Array) -> float:
    """Relative L2 of two arrays; what is no number is infinitely far."""
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return 1e30
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))


def width(dtype: str) -> int:
    """Bytes of an element."""
    return 1 if dtype == "bool" else np.dtype(dtype).itemsize


def main() -> None:
    """A line for each job; after a fault that leaves no context, `fatal` and the end."""
    worker = Worker(unpacked(Path(sys.argv[1]))[1])
    served(worker.timed, worker.sync)


if __name__ == "__main__":
    main()
