"""A lowered group to the kernel that threads run: phases of rows or of elements, and how each is divided among them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import ZERO
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Buffer, Kernel, Phase
from onnxfuse.ir.launch import ALIGNED
from onnxfuse.ir.layout import Layout
from onnxfuse.lower import Lowered
from onnxfuse.lower.extents import Sized, sized
from onnxfuse.lower.scans import scan_of
from onnxfuse.schedule.analysis.binds import binds_of
from onnxfuse.schedule.analysis.bounds import conditions
from onnxfuse.schedule.analysis.canonical import Canonical, canonical
from onnxfuse.schedule.analysis.memory import Nest, Place, dense, nest_of
from onnxfuse.schedule.analysis.softmax import with_shares
from onnxfuse.schedule.gpu.choices import WIDTHS, aligned, divisions
from onnxfuse.schedule.gpu.digits import split_as_read
from onnxfuse.schedule.gpu.flat import flat_phase
from onnxfuse.schedule.gpu.phases import partition, reduces
from onnxfuse.schedule.gpu.rows import Phased, row_phase
from onnxfuse.schedule.nests.align import Together
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.passes.block_reductions import block_reductions
from onnxfuse.schedule.passes.driver import Check, Pass, through, verified
from onnxfuse.schedule.passes.legalize import legalize
from onnxfuse.schedule.passes.whole_guards import whole_guards
from onnxfuse.target import Gpu

PASSES: tuple[Pass[Gpu], ...] = (
    Pass("block reductions", block_reductions),
    Pass("whole guards", whole_guards),
    Pass("legalize", legalize),
)
"""What a kernel goes through once its phases are divided among threads, in this order."""


def schedule(
    lowered: Lowered,
    layouts: Mapping[str, Layout],
    constants: Container[str],
    target: Gpu,
    half: DType | None = None,
    round_bytes: float = 0.0,
    *,
    winograd: bool = False,
    exchange: bool = True,
    check: Check = verified,
) -> Kernel | Decision:
    """The kernel of a group, or why there is none yet. What packs weights is of other targets, and asked of them.

    `check` sees the kernel after each step.
    """
    group = sized(lowered, layouts)
    if not isinstance(group, Sized):
        reason = f"the extent {group[0]!r} cannot be read from any input of the group"
        return Decision("E-SHAPE-UNKNOWN", (lowered.group.name,), reason, "give --dim or --input-shape")
    c = canonical(group)
    values = {p.name: p.value for p in (*c.inputs, *c.outputs)}
    inputs, outputs = (tuple(replace(p, value=p.name) for p in part) for part in (c.inputs, c.outputs))
    made = _scheduled(replace(c, inputs=inputs, outputs=outputs), target, check)
    if isinstance(made, Decision):
        return replace(made, nodes=(lowered.group.name,))
    inputs, outputs = (tuple(replace(p, value=values[p.name]) for p in part) for part in (made.inputs, made.outputs))
    return replace(made, inputs=inputs, outputs=outputs)


@lru_cache(256)
def _scheduled(c: Canonical, target: Gpu, check: Check) -> Kernel | Decision:
    """The kernel of a group, once for equal groups."""
    if any(scan_of(d) is not None for d in c.definitions):
        return Decision("E-NO-KERNEL", (), "results that are each made of the one before have no kernel for GPUs yet")
    c = replace(c, definitions=with_shares(c.definitions, [p.name for p in c.outputs]))
    shapes = {p.name: p.shape for p in (*c.inputs, *c.outputs)} | {d.name: d.shape for d in c.definitions}
    requires = conditions(c.definitions, shapes)
    if isinstance(requires, Decision):
        return requires
    made = replace(_kernel(c, target), requires=tuple(dict.fromkeys((*requires, *c.conditions))))
    return through(PASSES, made, target, check)


def _kernel(c: Canonical, target: Gpu) -> Kernel:
    """The kernel of a group: its values in phases, those that later phases read in the run's memory."""
    places = {p.name: dense(p.name, p.dtype, p.shape, p.layout) for p in (*c.inputs, *c.outputs)}
    outputs = {p.name for p in c.outputs}
    nests: dict[str, Nest] = {}
    for d in c.definitions:
        nests[d.name] = replace(nest_of(d, places, nests), output=d.name in outputs)
    jobs = list(map(Job, split_as_read(list(nests.values()))))
    parts = [] if all(product(p.shape) == ZERO for p in c.outputs) else partition(jobs)
    types = {p.name: p.dtype for p in (*c.inputs, *c.outputs)}
    phases: list[Phase] = []
    scratch: list[Buffer] = []
    for at, part in enumerate(parts):
        later = [j for t in parts[at + 1 :] for j in t.jobs]
        kept = _kept(part, later, places, scratch)
        made = _phase(part, places, kept, types | {b.name: b.dtype for b in scratch}, target)
        phases.append(made.phase)
        scratch += made.scratch
    return Kernel(c.inputs, c.outputs, tuple(scratch), binds_of(c, c.inputs), tuple(phases))


def _kept(part: Together, later: Sequence[Job], places: dict[str, Place], scratch: list[Buffer]) -> set[str]:
    """Values of a phase that later phases read get a place in the run's memory; their names."""
    read = {load.source for j in later for load in j.reads} | {name for j in later for name in j.looks_up}
    kept = {j.nest.name for j in part.jobs if j.nest.name in read and not j.nest.output}
    for nest in (j.nest for j in part.jobs if j.nest.name in kept):
        places[nest.name] = dense(nest.name, nest.dtype, nest.shape)
        scratch.append(Buffer(nest.name, nest.dtype, product(nest.shape), "global"))
    return kept


def _phase(part: Together, places: dict[str, Place], kept: set[str], types: Mapping[str, DType], target: Gpu) -> Phased:
    """The first division of a phase that fits."""
    if all(set(j.nest.axes) == set(part.shared) and not reduces(j) for j in part.jobs):
        for width in (w for w in WIDTHS if w * min(t.bytes for t in types.values()) <= ALIGNED):
            phase = flat_phase(part, width, places, target)
            if phase is not None and (width == 1 or aligned(phase, types)):
                return Phased(phase, ())
    unaligned: set[int] = set()
    for d in divisions(part, places, min(t.bytes for t in types.values())):
        made = row_phase(part, d, places, kept, target) if d.width not in unaligned else None
        if made is None:
            continue
        if d.width == 1 or aligned(made.phase, {**types, **{b.name: b.dtype for b in made.scratch}}):
            return made
        unaligned.add(d.width)
    raise AssertionError("schedule: no division fits a phase")
