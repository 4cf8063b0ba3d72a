"""What is launched to confront the cost model with a device, made ready without one: code, sizes, predicted seconds.

A job has all that a worker with a driver needs (`times.py`): no kernel is scheduled or compiled there.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gpu.cases.images_cache import FOLDER, image, key, stored
from benchmarks.gpu.jobs.cases import Kind, kinds
from onnxfuse.cost.gpu import cost_of, kernel_seconds, library_seconds
from onnxfuse.cost.gpu_products import BlockTile, Sizes, seconds_of, tiles_of
from onnxfuse.ir.dtype import F16
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.group import Plan
from onnxfuse.ir.interpret import bound
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.kernel import Kernel, Substitutions
from onnxfuse.lower import lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.render.cuda import device_text, function_name
from onnxfuse.schedule.gpu import products, scheduler
from onnxfuse.schedule.gpu import tiles as attention_tiles
from onnxfuse.schedule.gpu.tiles import AttentionTile
from onnxfuse.schedule.passes.driver import unchecked
from onnxfuse.target import Gpu, gpus_of
from tests.kernels.compiled import group_of_all

NAME = "kernel"
FIRST = 3  # tiles of the ranking that are measured whatever they are; of the others one of each geometry
TILES, LONGER, MORE_KEYS = 4, 3, 128  # of an attention; those with so many keys at a time, which none has
MORE_STAGES, DEEPER = (4, 8), 99  # of a product, and their place in the ranking, which has none of them
EMPTY = 'extern "C" __global__ void __launch_bounds__(128) kernel_0() {\n}\n'


@dataclass(frozen=True)
class Job:
    """Something to launch and time.

    `inputs` (with names), `outputs` and `scratch` are types and numbers of elements; `launches` are functions with the
    numbers of their blocks, of threads of a block and bytes of shared memory. Inputs in `fresh` come from memory, as in
    a network.
    """

    what: str
    label: str
    dtype: str
    tile: str
    place: int  # in the ranking
    rank: int
    predicted: Mapping[str, float]  # microseconds, by what predicts them
    image: str = ""
    functions: Sequence[Mapping[str, Any]] = ()
    inputs: Sequence[tuple[str, str, int]] = ()
    outputs: Sequence[tuple[str, int]] = ()
    scratch: Sequence[tuple[str, int]] = ()
    symbols: Sequence[int] = ()
    launches: Sequence[tuple[str, int, int, int]] = ()
    fresh: Sequence[int] = ()
    torch: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


def targets() -> tuple[Gpu, Gpu]:
    """The target of `--arch native` on an H100, for kernels of a CUDA graph and for those of a stream."""
    return gpus_of(("sm_90",), graph=True)[0], gpus_of(("sm_90",))[0]


def prepared(pack: Path, images: Path = FOLDER, threads: int = 1, only: str = "") -> tuple[int, list[str]]:
    """All jobs in a file; images that are in the folder are not compiled again. How many, and what went wrong.

    `only`: a regular expression that kind and label match.
    """
    jobs: list[Job] = []
    problems: list[str] = []
    texts: dict[str, str] = {}
    target = targets()[0]
    for kind in (k for k in kinds() if re.search(only, f"{k.what} {k.label}")):
        try:
            for job, text in _jobs(kind):
                texts[job.image] = text
                jobs.append(job)
        except Exception as problem:
            problems.append(f"{kind.label} {kind.dtype}: {type(problem).__name__}: {problem}"[:300])
    texts[key(EMPTY, target.flags)] = EMPTY
    with ThreadPoolExecutor(threads) as pool:
        made = dict(zip(texts, pool.map(lambda text: _image(text, target, images), texts.values()), strict=True))
    with_code = [_with_code(job, made[job.image], problems) for job in jobs]
    whole = [_empty(key(EMPTY, target.flags)), *(job for job in with_code if job is not None)]
    whole.sort(key=lambda job: (job.rank + (3 if job.place else 0), job.dtype == "float32"))
    _packed(whole, images, pack)
    return len(whole), problems


def _packed(jobs: Sequence[Job], images: Path, pack: Path) -> None:
    """Jobs and their code in a file: a line of JSON, in which places of code are said, and all code behind it."""
    places: dict[str, tuple[int, int]] = {}
    code = b""
    for name in dict.fromkeys(job.image for job in jobs):
        found = stored(name, images)
        assert found is not None, name
        places[name] = (len(code), len(found.code))
        code += found.code
    text = json.dumps([{**asdict(job), "image": places[job.image]} for job in jobs])
    pack.parent.mkdir(parents=True, exist_ok=True)
    pack.write_bytes(lzma.compress(text.encode() + b"\n" + code))


def _image(text: str, target: Gpu, folder: Path) -> list[dict[str, Any]] | str:
    """What functions take of a multiprocessor, or why there is no code."""
    try:
        return [asdict(f) for f in image(text, target.flags, folder).functions]
    except Exception as problem:
        return str(problem)[:300]


def _with_code(job: Job, functions: list[dict[str, Any]] | str, problems: list[str]) -> Job | None:
    if isinstance(functions, str):
        problems.append(f"{job.label} {job.dtype} {job.tile}: {functions}")
        return None
    return Job(**{**vars(job), "functions": functions})


def _empty(name: str) -> Job:
    """A kernel that does nothing, on every multiprocessor: what lies between two kernels."""
    blocks = targets()[0].sms
    return Job(
        "boundary", "empty kernel", "", "", 0, -1, {"cost": targets()[0].boundary_us}, name,
        launches=((function_name(NAME, 0), blocks, 128, 0),),
    )  # fmt: skip


def _jobs(kind: Kind) -> Iterator[tuple[Job, str]]:
    """The kernel that is chosen, then others; each with its text."""
    target, stream = targets()
    seen: list[Sizes] = []

    def spied(s: Sizes, t: Gpu) -> tuple[BlockTile, ...]:
        seen.append(s)
        return tiles_of(s, t)

    if kind.what == "attention":
        yield from _of_attention(kind, target)
        return
    with patch.object(products, "tiles_of", spied):
        first = _kernel(kind, target)
    if not first.choices:
        yield _job(kind, first, "", 0, {}, {})
        return
    usual = first.choices[0].candidates[0][0]
    sizes = next(s for s in reversed(seen) if str(tiles_of(s, target)[0]) == usual)
    of_stream = str(tiles_of(sizes, stream)[0])
    for place, tile in _some(sizes, target, of_stream, _count(kind)):
        kernel = _kernel(kind, target, ((usual, str(tile)),)) if place else first
        predicted = {"tile": seconds_of(sizes, tile, target), "tile, stream": seconds_of(sizes, tile, stream)}
        details = {"of_stream": str(tile) == of_stream, "sizes": list(kind.sizes or ()), "tile": _numbers(tile)}
        yield _job(kind, kernel, str(tile), place, predicted, details)
    for tile in _deeper(sizes, tiles_of(sizes, target)[0]) if _count(kind) > 1 else ():
        with patch.object(products, "tiles_of", lambda s, t, tile=tile: (tile,)):
            kernel = _kernel(kind, target)
        details = {"sizes": list(kind.sizes or ()), "tile": _numbers(tile)}
        yield _job(kind, kernel, str(tile), DEEPER, {"tile": seconds_of(sizes, tile, target)}, details)


def _deeper(s: Sizes, tile: BlockTile) -> Iterator[BlockTile]:
    """A tile with more stages than any has."""
    steps = -(-s.depth // tile.splits // tile.depth)
    yield from (replace(tile, stages=n) for n in MORE_STAGES if tile.stages > 1 and n - 1 <= steps)


def _of_attention(kind: Kind, target: Gpu) -> Iterator[tuple[Job, str]]:
    """The kernel that is chosen, those of the tiles that are predicted next, and some with more keys at a time."""
    cost, keys = attention_tiles.tile_cost, attention_tiles.KEYS
    places: dict[str, int] = {}
    for more, first, count in (((), 0, TILES), ((MORE_KEYS,), DEEPER, LONGER)):
        ranking: dict[str, float] = {}

        def ranked(t: AttentionTile, *given: Any, ranking: dict[str, float] = ranking) -> float:
            return ranking.setdefault(str(t), cost(t, *given))

        with patch.object(attention_tiles, "tile_cost", ranked), patch.object(attention_tiles, "KEYS", (*keys, *more)):
            _kernel(kind, target)
        named = [n for n in sorted(ranking, key=ranking.__getitem__) if not more or f"keys={MORE_KEYS}," in n]
        places |= {n: first or place for place, n in enumerate(named[:count]) if n not in places}
    for name, place in list(places.items())[: None if kind.rank < 4 else 1]:

        def forced(t: AttentionTile, *given: Any, name: str = name) -> float:
            return cost(t, *given) if str(t) == name else float("inf")

        with (
            patch.object(attention_tiles, "tile_cost", forced),
            patch.object(attention_tiles, "KEYS", (*keys, MORE_KEYS)),
        ):
            made = _kernel(kind, target)
        yield _job(kind, made, name, place, {}, {})


def _count(kind: Kind) -> int:
    """How many tiles of a product are measured."""
    if "plain" in kind.label:
        return 1
    return (10 if kind.dtype == F16 else 6) if kind.rank < 4 else 5


def _some(s: Sizes, target: Gpu, of_stream: str, count: int) -> list[tuple[int, BlockTile]]:
    """The first tiles of the ranking, then the best one of each geometry, and the one that is best in a stream."""
    ranked = tiles_of(s, target)
    found: list[tuple[int, BlockTile]] = []
    shapes = set()
    for place, tile in enumerate(ranked):
        shape = (tile.rows, tile.columns, tile.high, tile.wide, tile.splits)
        if place < FIRST or shape not in shapes:
            found.append((place, tile))
        shapes.add(shape)
        if len(found) >= count:
            break
    names = [str(tile) for _, tile in found]
    return found + [(n, t) for n, t in enumerate(ranked) if str(t) == of_stream and str(t) not in names][: count > 1]


def _numbers(t: BlockTile) -> dict[str, int]:
    return {n: getattr(t, n) for n in ("rows", "columns", "depth", "high", "wide", "stages", "splits", "threads")}


def _kernel(kind: Kind, target: Gpu, measured: Substitutions = ()) -> Kernel:
    """A scheduled kernel; products have their own tile where cuBLASLt would compute them."""
    scheduler._scheduled.cache_clear()
    group = group_of_all(kind.graph)
    lowered = lower(group, Plan(kind.graph, (group,), {}), ROWS)
    if isinstance(lowered, Decision):
        raise ValueError(lowered.reason)
    with patch.object(scheduler, "with_library", lambda p, places, target: p):
        made = scheduler.schedule(lowered, {}, target, check=unchecked, measured=measured)
    if isinstance(made, Decision):
        raise ValueError(made.reason)
    return made


def _job(
    kind: Kind,
    kernel: Kernel,
    tile: str,
    place: int,
    predicted: Mapping[str, float],
    details: Mapping[str, Any],
) -> tuple[Job, str]:
    target, stream = targets()
    text = device_text(kernel, NAME)
    shapes = [tuple(e.constant or 0 for e in p.storage) for p in kernel.inputs]
    symbols = bound(kernel, shapes)
    here = Iterations((), np.zeros(1, np.int64), symbols, {})
    costs = [cost_of(kernel, t) for t in (target, stream)]
    seconds = {n: c.seconds for n, c in zip(("cost", "cost, stream"), costs, strict=True) if c is not None}
    if kind.sizes is not None:
        rows, depth, columns = kind.sizes
        seconds["library"] = library_seconds(rows, columns, depth, kind.dtype, "", target)
    launches = []
    for number, phase in enumerate(kernel.phases):
        assert phase.launch is not None
        how = (phase.launch.grid, phase.launch.block, phase.launch.shared)
        grid, block, shared = (int(here.index(e)) for e in how)
        launches.append((function_name(NAME, number), grid, block, shared))
    inputs = [(p.value, str(p.dtype), int(np.prod(s))) for p, s in zip(kernel.inputs, shapes, strict=True)]
    outputs = [(str(p.dtype), int(np.prod([int(here.index(e)) for e in p.storage]))) for p in kernel.outputs]
    bytes_ = sum(n * _bytes(t) for t, n in (*(each[1:] for each in inputs), *outputs))
    seconds["bytes"] = kernel_seconds(bytes_, target)
    phases = [
        {"compute": p.compute * 1e6, "waiting": p.waiting * 1e6, "bytes": p.bytes, "all": p.seconds * 1e6}
        for p in (costs[0].phases if costs[0] is not None else ())
    ]
    job = Job(
        kind.what, kind.label, str(kind.dtype), tile, place, kind.rank,
        {n: s * 1e6 for n, s in {**predicted, **seconds}.items()}, key(text, target.flags), (),
        inputs, outputs, [(str(b.dtype), int(here.index(b.size))) for b in kernel.scratch],
        [int(n) for n in symbols.values()], launches,
        [n for n, p in enumerate(kernel.inputs) if p.value in kind.fresh], {**kind.torch, "dtype": str(kind.dtype)},
        {**details, "phases": phases, "moved": bytes_},
    )  # fmt: skip
    return job, text


def _bytes(dtype: str) -> int:
    return 1 if dtype == "bool" else np.dtype(dtype).itemsize
