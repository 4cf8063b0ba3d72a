"""Graphs compiled as one kernel each, many in one library, and compared with their definitions.

Many kernels go into one translation unit; its library is compiled once, kept by content, and shared by every process of
a test run.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from onnxfuse.emit.spell import stored
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Group, Plan, group_of
from onnxfuse.ir.kernel import Kernel, Param, RankedSchedules
from onnxfuse.ir.layout import Layout, channels_last
from onnxfuse.ir.products import AMX_BF16
from onnxfuse.lower import Lowered, lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan.legality import CPU
from onnxfuse.render.cpp import render
from onnxfuse.render.source import Source
from onnxfuse.render.tile_units import tiles_sources
from onnxfuse.schedule.cpu import convolution, scheduler
from onnxfuse.schedule.cpu.candidates import CostRanking, ScheduleCandidate
from onnxfuse.schedule.cpu.scheduler import schedule
from onnxfuse.schedule.cpu.winograd import WinogradBlocking
from onnxfuse.target import CPUS, Target, has_features, machine, targets_of
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import LoadedKernel, Pool, compile_library, compile_object
from tests.kernels.rounding import check, reference
from tests.rules.build import draw

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
Feeds = Callable[[Graph, np.random.Generator, Sizes], dict[str, Array]]

# As the build compiles them, but quicker: what -O3 makes of kernels, tests of models and `make slow` tell.
FLAGS = ("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-Wno-psabi")
FULL = ("x86-64-v4", "bf16")  # compiled with -O3 too
HERE = [name for name, row in CPUS.items() if row.machine in ("", machine())]  # classes of this architecture
# Machine classes, one whose machines have more than the class asks for, and one that shares the weights of a wider one.
_DOTS = {"extras": ("avx512bf16",), "flags": (*CPUS["x86-64-v4"].flags, "-mavx512bf16")}
SHARING = "x86-64-v3 beside v4"
MODEL = Path(__file__).with_name("amx_model.h")  # of the matrix unit, so that any machine with AVX-512 runs its tiles
_MODELLED = (*_DOTS["flags"], f'-DONNXFUSE_AMX_UNIT="{MODEL}"')
_AMX = CPUS["sapphirerapids"]
MACHINES = {
    **CPUS,
    _AMX.name: replace(_AMX, flags=(*_AMX.flags, *AMX_BF16.flags)),
    "bf16": replace(CPUS["x86-64-v4"], **_DOTS),
    "amx-model": replace(_AMX, features=CPUS["x86-64-v4"].features, flags=_MODELLED),
    SHARING: targets_of(("x86-64-v4", "x86-64-v3"))[1],
}
BUILDS = {**MACHINES, "little-cache": replace(CPUS["x86-64-v4"], l2_bytes=64 << 10)}
# Classes that differ from another in products and caches: most kernels are the same, and compiled alike.
LIKE = {_AMX.name: "x86-64-v4", "bf16": "x86-64-v4", "amx-model": "x86-64-v4"}
ENOUGH = 10**12  # picoseconds of work that kernels are told they have, so that small ones are divided among tasks too
BRIEF = 5_000  # turns of an idle thread: more than between two phases, less than until the next run
_OWN = re.compile(r"\b(Run_|phase\d+|run_kernel|input_types|output_types)\b")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A graph that becomes one kernel.

    `sizes` are the values of its symbols to try, `last` the images that lie channels last; `feeds` draws inputs other
    than normal numbers; `half` is the type that float32 weights of contractions are held in. `way` is the number of the
    way to go through contractions, from either end, where that is not left to predictions; `form` is that of the
    kernel's form.
    """

    name: str
    graph: Graph
    sizes: tuple[Sizes, ...] = ({},)
    last: tuple[str, ...] = ()
    feeds: Feeds = draw
    half: DType | None = None
    way: int | None = None
    form: int | None = None
    winograd: WinogradBlocking | None = None  # by which convolutions go by Winograd's algorithm, where they can

    @property
    def layouts(self) -> dict[str, Layout]:
        return {v: channels_last(len(t.shape)) for v in self.last if (t := self.graph.types[v]) is not None}


def group_of_all(graph: Graph) -> Group:
    """All nodes of a graph as one group."""
    wanted = Counter(v for n in graph.nodes for v in dict.fromkeys(n.reads))
    wanted.update(graph.outputs)
    return group_of("g", graph.nodes, wanted)


@cache
def lowered_of(case: Case, widened: tuple[DType, ...] = ()) -> Lowered | Decision:
    """The lowered group of a case, as all machine classes of a backend share it: with types that this has `widened`."""
    group = group_of_all(case.graph)
    return lower(group, Plan(case.graph, (group,), case.layouts, widened=widened), ROWS)


def kernel_of(case: Case, target: Target) -> Kernel | Decision:
    """The scheduled kernel of a case, or why there is none."""
    lowered = lowered_of(case, CPU.widened)
    if isinstance(lowered, Decision):
        return lowered
    best, winograd = partial(_best, case.way), case.winograd is not None
    with by(case.winograd), formed(case.form):
        return schedule(lowered, case.layouts, case.graph.constants, target, case.half, best=best, winograd=winograd)


@contextmanager
def formed(number: int | None) -> Iterator[None]:
    """Kernels are of the form of this number, where they have so many, or the one predicted to take least."""
    with ExitStack() as patched:
        if number is not None:
            taken = patch.object(CostRanking, "best_kernel", lambda _, kernels: kernels[number % len(kernels)])
            patched.enter_context(taken)
        yield


@contextmanager
def by(division: WinogradBlocking | None) -> Iterator[None]:
    """Convolutions that can go by Winograd's algorithm do, and divide their work so: the direct one takes for ever.

    Those for images of any size do on images of 20 positions or more.
    """
    with ExitStack() as patched:
        if division is not None:
            patched.enter_context(patch.object(convolution, "divisions_of", lambda *_: [division]))
            patched.enter_context(patch.object(CostRanking, "seconds", _quick_by_winograd))
            patched.enter_context(patch.object(convolution.ContractionPhase, "large_enough", _from_20_positions))
            forget()
            patched.callback(forget)
        yield


def forget() -> None:
    """What was scheduled or chosen before is done again."""
    scheduler._scheduled.cache_clear()
    convolution._decided.cache_clear()


def _quick_by_winograd(judge: CostRanking, way: ScheduleCandidate, *_: Any) -> tuple[float, ...]:
    """Winograd's algorithm takes no time, the direct one for ever."""
    return (1.0 if way.name.startswith("Winograd") else 1e9,) * len(judge.machines)


def _from_20_positions(phase: convolution.ContractionPhase, *_: Any) -> convolution.LargeEnough | None:
    """Where a convolution for images of any size goes by Winograd's algorithm."""
    return convolution.LargeEnough(0, 20 * convolution.PARTS) if phase.open else None


def _best(
    number: int | None, judge: CostRanking, ways: Sequence[ScheduleCandidate], *others: Any
) -> tuple[ScheduleCandidate, tuple[RankedSchedules, ...]]:
    """The way of this number, where there are so many, or the one predicted to take least."""
    return judge.best(ways, *others) if number is None else (ways[max(number, -len(ways)) % len(ways)], ())


@cache
def scheduled(case: Case, target: str) -> Kernel | Decision | Exception:
    """The same, made once; a bug in it is the concern of the case that shows it."""
    try:
        return kernel_of(case, BUILDS[target])
    except Exception as problem:
        return problem


def own_names(text: str, name: str) -> str:
    """The text of a kernel whose names do not clash with those of others in one translation unit."""
    return _OWN.sub(rf"\1_{name}", text)


def parts_of(cases: Sequence[Case], target: str) -> tuple[str, tuple[Source, ...]]:
    """One translation unit with the kernels of all cases, onnxfuse_NAME each, and those of the register tiles."""
    parts, kernels = [], []
    for case in cases:
        kernel = scheduled(case, target)
        if isinstance(kernel, Kernel):
            kernels.append(kernel)
            text = render(kernel, case.name, case.name).text
            text = text.replace("parts_of(host->cores, ", f"parts_of(host->cores, {ENOUGH} + ")
            parts.append(own_names(text, case.name))
    return "\n".join(parts), tiles_sources(kernels)


def unit_of(cases: Sequence[Case], target: str) -> str:
    """All of it in one translation unit."""
    text, tiles = parts_of(cases, target)
    return "\n".join([text, *(each.text for each in tiles)])


@cache
def is_own(case: Case, target: str) -> bool:
    """Whether a class's kernel is another one than that of the class that it is like."""
    return target not in LIKE or unit_of((case,), target) != unit_of((case,), LIKE[target])


@cache
def library_of(cases: tuple[Case, ...], target: str, *, fully: bool = False) -> Path:
    """The library of some cases for a machine class, of those that have a kernel of their own there.

    It is compiled quickly, or `fully` as a build compiles it.
    """
    row = BUILDS[target]
    text, tiles = parts_of([case for case in cases if is_own(case, target)], target)
    march = row.flags or (("-march=x86-64",) if machine() == "x86_64" else ())
    flags = (*FLAGS, "-O3" if fully else "-Og", f"-DONNXFUSE_PANEL={row.panel}")
    units = ((f"{cases[0].name}-{target}", text), *((each.symbol, each.text) for each in tiles))
    objects = [compile_object(name, unit, CACHE, flags, march) for name, unit in units]
    return compile_library(objects, CACHE, flags, march)


def packed(layout: Layout, array: Array) -> Array:
    """An array in storage order; one without axes keeps having none."""
    return layout.pack(array) if array.ndim else array


@cache
def inputs_of(case: Case, number: int) -> dict[str, Array]:
    """The inputs of a case for one of its sizes."""
    return case.feeds(case.graph, np.random.default_rng(7), case.sizes[number])


@cache
def expected(case: Case, number: int) -> dict[str, tuple[Array, Array]]:
    """What the rows of a case make of its inputs for one of its sizes, and the bounds."""
    found = reference(case.graph, inputs_of(case, number), case.sizes[number])
    if case.winograd is None:
        return found
    reach = case.winograd.transform.outputs - 1
    return {name: (values, over_tiles(bound, reach)) for name, (values, bound) in found.items()}


def over_tiles(bound: Array, reach: int) -> Array:
    """Of each pixel the largest bound of those in its reach: tiles round all their results as the largest of them."""
    wide = np.pad(bound, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    return np.lib.stride_tricks.sliding_window_view(wide, (2 * reach + 1,) * 2, (2, 3)).max((-2, -1))


def fed(kernel: Kernel, case: Case, number: int) -> list[Array]:
    """A kernel's inputs in storage order; weights of bfloat16 as their bits."""
    arrays, weights = inputs_of(case, number), case.graph.constants

    def weight(p: Param) -> Array:
        return stored(packed(p.layout, weights[p.value].load()), p.dtype)

    return [packed(p.layout, arrays[p.value]) if p.value in arrays else weight(p) for p in kernel.inputs]


def identical(a: Array, b: Array) -> bool:
    """Whether two arrays have the same bytes; one NaN is as good as another."""
    bits = [np.frombuffer(x.tobytes(), np.uint8).reshape(*x.shape, x.itemsize) for x in (a, b)]
    return bool(((bits[0] == bits[1]).all(-1) | ((a != a) & (b != b))).all())


def ran(kernel: Kernel, case: Case, number: int, loaded: Sequence[LoadedKernel]) -> float:
    """Run a kernel on pools of several sizes; assert equal bytes and right values; the largest part of a bound used."""
    inputs, wanted = fed(kernel, case, number), expected(case, number)
    first, *others = (each.run(*inputs) for each in loaded)
    for other in others:
        assert all(map(identical, first, other)), "threads change the result"
    used = 0.0
    for p, got in zip(kernel.outputs, first, strict=True):
        used = max(used, check(got, p.dtype, *(packed(p.layout, a) for a in wanted[p.value])))
    return used


def verified(unit: tuple[Case, ...], case: Case, target: str, *, fully: bool = False) -> float:
    """Compile a case with the others of its unit for a machine class, run it at all sizes with one to three threads."""
    row = BUILDS[target]
    modelled = [name for name in row.extras if target == "amx-model" and name.startswith("amx")]
    needed = {*row.features, *row.extras}.difference(modelled)
    if row.machine not in ("", machine()) or not has_features(needed):
        pytest.skip(f"this machine cannot run {target}")
    kernel = scheduled(case, target)
    if isinstance(kernel, Exception):
        raise kernel
    assert isinstance(kernel, Kernel), kernel
    if not is_own(case, target):
        return 0.0  # of the class that it is like the same text is compiled, by a test of the same run
    library = library_of(unit, target, fully=fully)
    with Pool(1) as one, Pool(2, BRIEF) as two, Pool(3, BRIEF) as three:
        loaded = [pool.load(library, f"onnxfuse_{case.name}") for pool in (one, two, three)]
        used = max(ran(kernel, case, number, loaded) for number in range(len(case.sizes)))
    assert not modelled or not ctypes.CDLL(str(library)).amx_left_behind(), "a task leaves the matrix unit in use"
    return used
