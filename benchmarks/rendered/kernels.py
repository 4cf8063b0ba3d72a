"""From a twin's model to a loadable kernel, by the same functions, flags and cache as a user's build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rendered.models import Twin
from benchmarks.twins.cases import Array
from onnxfuse.build import EXPORTED, BuildRequest, build_library
from onnxfuse.build.cache import Cache
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.config import Options
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Plan
from onnxfuse.ir.kernel import Kernel, Param
from onnxfuse.load import load, simplify_shapes
from onnxfuse.lower import lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.render.cpp import render
from onnxfuse.render.source import Source
from onnxfuse.render.tile_units import tiles_sources
from onnxfuse.rewrite import rewrite
from onnxfuse.schedule.cpu.candidates import Best, CostRanking
from onnxfuse.schedule.cpu.scheduler import schedule
from onnxfuse.target import targets_of
from tests.kernels.pool_host import aligned

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "rendered"
NATIVE = targets_of(())[0]

# A library of a build exports one symbol. Here it is the descriptor of the one kernel, copied when it is loaded.

_GLUE = f"""#include "host.h"
extern "C" const onnxfuse::Kernel onnxfuse_kernel;
extern "C" __attribute__((visibility("default"))) const onnxfuse::Kernel {EXPORTED} = onnxfuse_kernel;
"""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A compiled kernel and what it takes, in its own order; `weight` is the index of its largest constant."""

    library: Path
    kernel: Kernel
    inputs: tuple[Array, ...]
    weight: int | None


def planned(twin: Twin, best: Best = CostRanking.best) -> tuple[Graph, Plan, Kernel]:
    """The model's graph and plan, and the kernel of the group that makes `twin.group`, of the ways that are `best`.

    The group is what the twin computes, whatever a planner would add to it from around it. Raises RuntimeError where it
    is not legal.
    """
    options = Options()
    graph, _ = rewrite(simplify_shapes(load(twin.model, options)), options)
    made = plan(graph, ROWS, options, grouping=_grouping(graph, (*twin.feeds, twin.group, *graph.outputs)))
    for group in made.groups:
        if group.outputs == (twin.group,):
            lowered = lower(group, made, ROWS)
            if isinstance(lowered, Decision):
                raise RuntimeError(f"not lowered: {lowered.reason}")
            kernel = schedule(lowered, made.layouts, graph.constants, NATIVE, best=best)
            if isinstance(kernel, Decision):
                raise RuntimeError(f"not scheduled: {kernel.reason}")
            others = {p.value for p in kernel.inputs} - {*graph.constants, *twin.feeds}
            if others:
                raise RuntimeError(f"the kernel reads {sorted(others)}, which the twin does not")
            return graph, made, kernel
    raise RuntimeError(f"no group makes {twin.group} alone: {[g.outputs for g in made.groups]}")


def _grouping(graph: Graph, values: Sequence[str]) -> list[tuple[str, ...]]:
    """Names of nodes in groups that make one of the values each, from the others."""
    makers = {o: n for n in graph.nodes for o in n.outputs}
    found = []
    for value in dict.fromkeys(values):
        inside, waiting = set(), [value]
        while waiting:
            n = makers.get(waiting.pop())
            if n is not None and n.name not in inside:
                inside.add(n.name)
                waiting += [v for v in n.reads if v not in values]
        found.append(tuple(n.name for n in graph.nodes if n.name in inside))
    return [names for names in found if names]


def rendered(name: str, twin: Twin, folder: Path = FOLDER, best: Best = CostRanking.best) -> Rendered:
    """The kernel of a twin's model, of the ways that are `best`, built into `folder`."""
    graph, _, kernel = planned(twin, best)
    glue = Source("glue", _GLUE)
    flags = NATIVE.compiled
    sources = (render(kernel, "kernel", name, flags), *tiles_sources([kernel], flags=flags))
    folder.mkdir(parents=True, exist_ok=True)
    toolchain, cache = find_toolchain("auto"), Cache(folder / "objects")
    out = folder / f"{name}.so"
    library = build_library(BuildRequest(sources, [glue], toolchain, cache, 0, out))
    constants = [p.value if p.value in graph.constants else None for p in kernel.inputs]
    arrays = tuple(_stored(p, graph, twin) for p in kernel.inputs)
    return Rendered(library.path, kernel, arrays, _largest(constants, arrays))


def _stored(param: Param, graph: Graph, twin: Twin) -> Array:
    """What an input is fed, as it lies in memory."""
    value = param.value
    logical = twin.feeds[value] if value in twin.feeds else graph.constants[value].load()
    return aligned(param.layout.pack(logical))


def _largest(constants: Sequence[str | None], arrays: Sequence[Array]) -> int | None:
    sizes = [(a.nbytes, i) for i, (name, a) in enumerate(zip(constants, arrays, strict=True)) if name is not None]
    return max(sizes)[1] if sizes else None
