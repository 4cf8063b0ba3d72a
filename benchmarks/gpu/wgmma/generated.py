"""Generated products with bias and GELU, by warpgroups and as before, made ready without a device, and timed on one.

Beside them what they replace: the library's product (`library.py`), and a kernel of ours behind it.
"""

from __future__ import annotations

import base64
import ctypes
import json
import lzma
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gpu.jobs.times import distance
from benchmarks.gpu.wgmma.here import Here, tensor_map
from benchmarks.gpu.wgmma.kernels import Row
from benchmarks.gpu.wgmma.times import MORE, SHAPES
from onnxfuse.build.cuda import unspilled
from onnxfuse.build.nvrtc import compiler
from onnxfuse.cost.gpu_products import BlockTile, Sizes, seconds_of, tiles_of
from onnxfuse.ir.dtype import BF16, F16, DType
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.lower import lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.render.cuda import device_text, function_name
from onnxfuse.render.cuda_parameters import tensor_maps
from onnxfuse.schedule.gpu import products, scheduler
from onnxfuse.schedule.passes.driver import unchecked
from onnxfuse.target import gpus_of
from tests.kernels.compiled import group_of_all
from tests.rules.build import Build

GENERATED = Path(".cache/gpu-wgmma/generated.xz")
HOPPER = gpus_of(("sm_90a",), graph=True)[0]
BOXED, OTHERS = 6, 1  # tiles of each product that are timed
ENDS = 160  # rows at either end that are compared


def product(rows: int, depth: int, columns: int, dtype: DType, *, deep: bool) -> Graph:
    """Gelu(x w + b), also by the transpose of w."""
    b = Build(20)
    x, bias = b.input("x", rows, depth, dtype=dtype), b.input("bias", columns, dtype=dtype)
    if deep:
        w = b.input("w", columns, depth, dtype=dtype)
        return b.graph(b.node("Gelu", b.node("Gemm", x, w, bias, transB=1)))
    y = b.node("MatMul", x, b.input("w", depth, columns, dtype=dtype))
    return b.graph(b.node("Gelu", b.node("Add", y, bias)))


def behind(rows: int, columns: int) -> Graph:
    """Gelu(x + b): what is behind the library's product."""
    b = Build(20)
    x, bias = b.input("x", rows, columns, dtype=F16), b.input("bias", columns, dtype=F16)
    return b.graph(b.node("Gelu", b.node("Add", x, bias)))


def kernel(graph: Graph, tile: BlockTile | None) -> Kernel:
    """The kernel of a graph, with a tile."""
    group = group_of_all(graph)
    lowered = lower(group, Plan(graph, (group,), {}), ROWS)
    assert not isinstance(lowered, Decision), lowered
    scheduler._scheduled.cache_clear()
    with (
        patch.object(scheduler, "with_library", lambda p, places, target: p),
        patch.object(products, "tiles_of", lambda s, t: (tile,) if tile is not None else tiles_of(s, t)),
    ):
        made = scheduler.schedule(lowered, {}, HOPPER, check=unchecked)
    assert isinstance(made, Kernel), made
    return made


def prepare(most: int = 1 << 20) -> int:
    """Compile what is not in the file yet, so many at most; how many are left."""
    known = {job["name"]: job for job in _stored_jobs()}
    made: list[Row] = []
    left = 0
    for shape, graph, tile, predicted, deep, dtype in _wanted():
        name = _name(shape, tile, deep, dtype)
        if name in known:
            made.append(known[name])
        elif most > 0:
            most -= 1
            made.append(_job(name, shape, graph(), tile, predicted, deep=deep, dtype=dtype))
        else:
            left += 1
    GENERATED.parent.mkdir(parents=True, exist_ok=True)
    GENERATED.write_bytes(lzma.compress(json.dumps(made).encode()))
    return left


def _stored_jobs() -> list[Row]:
    found: list[Row] = json.loads(lzma.decompress(GENERATED.read_bytes())) if GENERATED.exists() else []
    return found


Wanted = tuple[tuple[int, int, int], Callable[[], Graph], BlockTile | None, float, bool, DType]


def _wanted() -> Iterator[Wanted]:
    """Shapes, graphs, tiles, predicted seconds, whether the right side lies along the depth, and types."""
    for shape in (*SHAPES, *MORE):
        rows, depth, columns = shape
        s = Sizes(1, rows, columns, depth, F16, boxes=True)
        ranked = tiles_of(s, HOPPER)
        graph = partial(product, *shape, F16, deep=False)
        for t in (*_apart([t for t in ranked if t.boxed])[:BOXED], *[t for t in ranked if not t.grouped][:OTHERS]):
            yield shape, graph, t, seconds_of(s, t, HOPPER), False, F16
        yield shape, partial(behind, rows, columns), None, 0.0, False, F16
    for dtype, deep in ((F16, True), (BF16, False), (BF16, True)):
        for shape in ((1024, 768, 3072), (333, 136, 200)):
            s = Sizes(1, shape[0], shape[2], shape[1], dtype, deep, boxes=True)
            for t in [t for t in tiles_of(s, HOPPER) if t.boxed][:2]:
                yield shape, partial(product, *shape, dtype, deep=deep), t, seconds_of(s, t, HOPPER), deep, dtype


def _name(shape: tuple[int, int, int], tile: BlockTile | None, deep: bool, dtype: DType) -> str:
    kind = "" if dtype == F16 and not deep else f" {dtype}{' deep' if deep else ''}"
    return f"{' x '.join(map(str, shape))}{kind}: {tile if tile is not None else 'behind'}"


def _apart(tiles: list[BlockTile]) -> list[BlockTile]:
    """The first tile of each geometry."""
    found: dict[object, BlockTile] = {}
    for t in tiles:
        found.setdefault((t.rows, t.columns, t.high, t.wide, t.splits > 1), t)
    return list(found.values())


def _job(
    name: str,
    shape: tuple[int, int, int],
    graph: Graph,
    tile: BlockTile | None,
    predicted: float,
    *,
    deep: bool = False,
    dtype: DType = F16,
) -> Row:
    made = kernel(graph, tile)
    image = unspilled(device_text(made, "kernel"), HOPPER.flags, compiler())
    named = [*(p.name for p in (*made.inputs, *made.outputs)), *(b.name for b in made.scratch)]
    launches = []
    for number, phase in enumerate(made.phases):
        assert phase.launch is not None
        how = (phase.launch.grid, phase.launch.block, phase.launch.shared)
        launches.append((function_name("kernel", number), *(e.constant or 0 for e in how)))
    sys.stderr.write(f"{name} {[(f.registers, f.spills) for f in image.functions]}\n")
    maps = [
        (named.index(m.source), m.all_rows.constant or 0, m.all_columns, m.pitch, m.rows) for m in tensor_maps(made)
    ]
    return {
        "name": name, "shape": shape, "deep": deep, "dtype": str(dtype),
        "predicted_us": predicted * 1e6, "code": base64.b85encode(image.code).decode(), "launches": launches,
        "inputs": [p.value for p in made.inputs], "maps": maps, "registers": [f.registers for f in image.functions],
        "scratch": [(b.size.constant or 0) * b.dtype.bytes for b in made.scratch],
    }  # fmt: skip


def stored(x: Any, dtype: str) -> Any:
    """Numbers as the device has them."""
    if dtype == "float16":
        return x.astype(np.float16)
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def loaded(x: Any, dtype: str) -> Any:
    """And as float64."""
    return (x if dtype == "float16" else (x.astype(np.uint32) << 16).view(np.float32)).astype(np.float64)


@cache
def erf_of_grid() -> tuple[Any, Any]:
    """Numbers, and erf of them, between which others are interpolated."""
    grid = np.linspace(-6, 6, 1 << 16)
    return grid, np.vectorize(math.erf)(grid)


def gelu(x: Any) -> Any:
    """By erf."""
    return 0.5 * x * (1 + np.interp(x / math.sqrt(2), *erf_of_grid()))


def timed_generated(here: Here) -> Iterator[tuple[str, Row]]:
    """Each job: microseconds in a graph, and how far it is from float64."""
    memory: dict[str, ctypes.c_uint64] = {}
    key, wanted, some = "", None, np.zeros(0)
    rng = np.random.default_rng(0)
    for job in _stored_jobs():
        rows, depth, columns = job["shape"]
        if f"{job['shape']} {job['deep']} {job['dtype']}" != key:
            key = f"{job['shape']} {job['deep']} {job['dtype']}"
            here.freed(*memory.values())
            sizes = {"x": (rows, depth), "w": (columns, depth) if job["deep"] else (depth, columns), "bias": (columns,)}
            given = {n: stored(rng.standard_normal(s, np.float32), job["dtype"]) for n, s in sizes.items()}
            memory = {n: here.given(x) for n, x in given.items()}
            memory["y"] = here.given(np.zeros(rows * columns, np.float16))
            x, w, bias = (loaded(given[n], job["dtype"]) for n in ("x", "w", "bias"))
            some = np.unique(np.concatenate([np.arange(min(rows, ENDS)), np.arange(max(rows - ENDS, 0), rows)]))
            wanted = gelu(x[some] @ (w.T if job["deep"] else w) + bias)
        yield job["name"], _timed(here, job, memory, some, wanted)


def _timed(here: Here, job: Mapping[str, Any], memory: Mapping[str, ctypes.c_uint64], some: Any, wanted: Any) -> Row:
    rows, _, columns = job["shape"]
    plain = job["name"].endswith("behind")
    scratch = [here.given(np.zeros(n, np.uint8)) for n in job["scratch"]]
    source = {**memory, "x": memory["y"]} if plain else memory
    result = here.given(np.zeros(rows * columns, np.float16)) if plain else memory["y"]
    places = [*(source[n] for n in job["inputs"]), result, *scratch]
    kind = 6 if job["dtype"] == "float16" else 9
    maps = [tensor_map(here, places[at].value, m, n, pitch, lines, kind) for at, m, n, pitch, lines in job["maps"]]
    launches = [
        here.function(base64.b85decode(job["code"]), name, shared).launcher(grid, block, shared, *places, *maps)
        for name, grid, block, shared in job["launches"]
    ]
    here._poison(result.value, rows * columns * 2)

    def run() -> None:
        for launch in launches:
            launch(here.stream)

    run()
    here.sync()
    found: Row = {"predicted_us": job["predicted_us"], "registers": job["registers"]}
    if not plain:
        raw = here.raw(result.value, rows * columns).reshape(rows, columns)[some]
        got = loaded(raw.view(np.float16) if job["dtype"] == "float16" else raw, job["dtype"])
        found["error"] = distance(got, wanted)
    times = here._in_graph([run], here._count(run))
    found |= {"us": sorted(times)[len(times) // 2], "least_us": min(times)}
    here.freed(*scratch, *([result] if plain else []))
    return found
