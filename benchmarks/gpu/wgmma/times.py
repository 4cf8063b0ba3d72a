"""Fences that are needed, and times of products."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.driver import LOCAL_BYTES, REGISTERS
from benchmarks.gpu.jobs.times import distance
from benchmarks.gpu.wgmma.here import Here, tensor_map
from benchmarks.gpu.wgmma.kernels import SHARED, Row, tiles

SHAPES = (  # rows, depth, columns
    (1024, 768, 3072), (1024, 3072, 768), (1576, 768, 3072), (1576, 3072, 768), (1576, 768, 768), (3136, 96, 384),
    (3136, 384, 96), (25088, 96, 384), (25088, 384, 96), (197, 768, 3072), (197, 3072, 768), (128, 768, 3072),
    (128, 3072, 768), (784, 192, 768), (6272, 192, 768),
)  # fmt: skip
MORE = ((1024, 768, 768), (392, 768, 3072), (1568, 384, 1536), (2048, 1024, 4096), (333, 136, 200))  # generated ones
LARGEST, ENDS = 1 << 21, 256  # elements of a result that are all compared; else so many rows at either end
STEP = 16  # of the depth, of an instruction


def fences(here: Here) -> Iterator[tuple[str, Row]]:
    """Sums that were wrong, of 264 blocks in 2,000 turns."""
    pages = here.given(np.repeat(np.arange(1, 8, dtype=np.float16), 64 * STEP))
    for copies, fenced in ((0, 1), (1, 1), (0, 0), (1, 0)):
        ones = here.given(np.zeros(1, np.uint32))
        kernel = here.kernel(f"fences {copies} {fenced}", 4096)
        kernel.launcher(264, 128, 4096, pages, ctypes.c_int(2000), ones)(here.stream)
        here.sync()
        wrong = int(here._read(ones.value, "uint32", 1)[0])
        yield f"{'copies' if copies else 'stores'}, {'fenced' if fenced else 'not fenced'}", {"wrong": wrong}
        here.freed(ones)


def timed(here: Here, *, bulk: bool) -> Iterator[tuple[str, Row]]:
    """Each kernel in all shapes that it takes: microseconds in a graph, and how far it is from float64."""
    mine = [t for t in tiles() if t.bulk == bulk and t.shared <= SHARED]
    functions = {t: here.kernel(t.name, t.shared) for t in mine}
    rng, failed = np.random.default_rng(0), here.given(np.zeros(1, np.uint32))
    for rows, depth, columns in SHAPES:
        a, b = (rng.standard_normal(s, np.float32).astype(np.float16) for s in ((rows, depth), (depth, columns)))
        parts = [(0, rows)] if rows * columns <= LARGEST else [(0, ENDS), (rows - ENDS, rows)]
        wanted = np.concatenate([a[m:n].astype(np.float64) for m, n in parts]) @ b.astype(np.float64)
        left, right = here.given(a), here.given(b)
        result = here.given(np.zeros(rows * columns, np.float16))
        sizes = [ctypes.c_int(n) for n in (rows, columns, depth)]
        for t in mine:
            if not t.takes(columns, depth):
                continue
            grid = -(-rows // (t.high * 64)) * (columns // t.columns)
            if bulk:
                maps = (
                    tensor_map(here, left.value, rows, depth, depth, t.high * 64),
                    tensor_map(here, right.value, depth, columns, columns, 64),
                )
                values = [*maps, result, *sizes, failed]
            else:
                values = [left, right, result, *sizes]
            launch = functions[t].launcher(grid, t.threads, t.shared, *values)
            here._poison(result.value, rows * columns * 2)

            def run(launch: Callable[[Any], None] = launch) -> None:
                launch(here.stream)

            run()
            here.sync()
            got = [here._read(result.value + m * columns * 2, "float16", (n - m) * columns) for m, n in parts]
            found: Row = {"error": distance(np.concatenate(got), wanted.ravel())}
            times = here._in_graph([run], here._count(run))
            found |= {"us": sorted(times)[len(times) // 2], "least_us": min(times), "blocks": grid}
            found |= {"gave up": int(here._read(failed.value, "uint32", 1)[0])} if bulk else {}
            yield f"{rows} x {depth} x {columns}: {t.name}", found
        here.freed(left, right, result)
    for t, function in functions.items():
        yield (
            f"registers: {t.name}",
            {"registers": function.attribute(REGISTERS), "local": function.attribute(LOCAL_BYTES)},
        )
