"""Schedules a lowered group as a kernel: phases, stages, register tiles, vectors and buffers are decided here."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import ZERO, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Buffer, Kernel, Phase, RankedSchedules, Substitutions
from onnxfuse.ir.layout import Layout
from onnxfuse.lower import Lowered
from onnxfuse.lower.extents import Sized, sized
from onnxfuse.schedule.analysis.binds import binds_of
from onnxfuse.schedule.analysis.bounds import checked
from onnxfuse.schedule.analysis.canonical import Canonical, canonical
from onnxfuse.schedule.analysis.forms import forms_of
from onnxfuse.schedule.analysis.image import with_bent_images
from onnxfuse.schedule.analysis.memory import dense
from onnxfuse.schedule.analysis.softmax import with_shares
from onnxfuse.schedule.cpu.candidates import AsMeasured, Best, CostRanking, ScheduleCandidate
from onnxfuse.schedule.cpu.chain import chain_phase
from onnxfuse.schedule.cpu.convolution import Algorithms
from onnxfuse.schedule.cpu.exchange import exchanged_phase
from onnxfuse.schedule.cpu.groups import channel_blocks
from onnxfuse.schedule.cpu.prepare import prepare
from onnxfuse.schedule.cpu.rows import row_phase
from onnxfuse.schedule.cpu.sequential.recurrences import recurrence_phase
from onnxfuse.schedule.cpu.sequential.scans import scan_phase
from onnxfuse.schedule.cpu.sequential.scatters import scatter_phase
from onnxfuse.schedule.cpu.strips import Strips, strip_candidates, strips_of, with_windows
from onnxfuse.schedule.cpu.task_work import weighed
from onnxfuse.schedule.nests.align import AlignedJobs, chained, partition, with_prologue
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.prepared import Prepared
from onnxfuse.schedule.passes.driver import Check, Pass, through, unchecked, verified
from onnxfuse.schedule.passes.legalize import legalize
from onnxfuse.schedule.passes.prefetch import prefetched
from onnxfuse.schedule.passes.streaming_stores import streamed, too_large
from onnxfuse.target import Cpu

PASSES: tuple[Pass[Cpu], ...] = (
    Pass("prefetch", prefetched),
    Pass("streaming stores", streamed),
    Pass("legalize", lambda kernel, target: legalize(kernel)),
    Pass("task work", weighed),
)
"""The passes over a kernel once its loop nests are chosen, in this order."""


def schedule(
    lowered: Lowered,
    layouts: Mapping[str, Layout],
    constants: Container[str],
    target: Cpu,
    half: DType | None = None,
    run_weight_bytes: float = 0.0,
    best: Best = CostRanking.best,
    *,
    winograd: bool = False,
    exchange: bool = True,
    check: Check = verified,
    measured: Substitutions | None = None,
) -> Kernel | Decision:
    """The kernel of a group, given the layouts of its inputs and outputs and the constants, which may be packed.

    With `half`, float32 weights of contractions are stored in that dtype if there are tiles for it. `best` ranks the
    schedule candidates of a contraction; the default takes the least predicted time, with weights that are read once
    per run of the model, `run_weight_bytes` in all. `winograd` allows Winograd's algorithm for 3x3 convolutions,
    `exchange` a packing of constants that is specific to this target. `check` is told the chosen kernel as loop nests,
    and after each pass. `measured` has pairs of candidate names: the second is taken where the first would be, and the
    kernel lists all candidates, those for tuning included.
    """
    best = AsMeasured(measured) if measured is not None else best
    group = sized(lowered, layouts)
    if not isinstance(group, Sized):
        reason = f"the extent {group[0]!r} cannot be read from any input of the group"
        return Decision("E-SHAPE-UNKNOWN", (lowered.group.name,), reason, "give --dim or --input-shape")
    c = canonical(group)
    weights = frozenset(p.name for p in c.inputs if p.value in constants)
    values = {p.name: p.value for p in (*c.inputs, *c.outputs)}
    made = _scheduled(
        _positional(c),
        weights,
        target,
        half,
        run_weight_bytes,
        best,
        winograd=winograd,
        exchange=exchange and half is None,
    )
    if isinstance(made, Decision):
        return replace(made, nodes=(lowered.group.name,))
    kernel = made.checked(target, check)
    inputs, outputs = (
        tuple(replace(p, value=values[p.name]) for p in part) for part in (kernel.inputs, kernel.outputs)
    )
    return replace(kernel, inputs=inputs, outputs=outputs)


def _positional(c: Canonical) -> Canonical:
    """The group with parameters named by position only, so that equal groups are equal."""
    inputs, outputs = (tuple(replace(p, value=p.name) for p in part) for part in (c.inputs, c.outputs))
    return replace(c, inputs=inputs, outputs=outputs)


@dataclass(slots=True)
class _Made:
    """A kernel as loop nests, and after all passes; it is remembered which of them `verified` found nothing in."""

    nest: Kernel
    kernel: Kernel
    right: tuple[Pass[Cpu], ...] | None = None

    def checked(self, target: Cpu, check: Check) -> Kernel:
        """The kernel, of which `check` was told; equal groups are verified once."""
        if check is unchecked or (check is verified and self.right is PASSES):
            return self.kernel
        kernel = through(PASSES, self.nest, target, check)
        if check is verified and kernel == self.kernel:
            self.right = PASSES
        return kernel


@lru_cache(512)
def _scheduled(
    c: Canonical,
    weights: frozenset[str],
    target: Cpu,
    half: DType | None,
    run_weight_bytes: float,
    best: Best,
    *,
    winograd: bool,
    exchange: bool,
) -> _Made | Decision:
    """The kernel of a group; computed once for equal groups."""
    c = replace(c, definitions=with_shares(c.definitions, [p.name for p in c.outputs]))
    shapes = {p.name: p.shape for p in (*c.inputs, *c.outputs)} | {d.name: d.shape for d in c.definitions}
    bounded = checked(c.definitions, shapes)
    if isinstance(bounded, Decision):
        return bounded
    definitions, requires = bounded
    c = with_bent_images(replace(c, definitions=definitions))
    settings = (weights, target, run_weight_bytes, best)
    forms = forms_of(c, weights)
    nests: list[Kernel] = []
    windowed: list[Canonical] = []
    for form in forms:
        prepared = prepare(form, weights, target, half)
        nests.append(_nests(form, prepared, *settings, winograd=winograd))
        if half is None and with_windows(prepared.jobs):
            windowed.append(form)
    by_strips = range(len(nests), len(nests) + len(windowed))
    for form in windowed:
        prepared = prepare(form, weights, target, half)
        nests.append(_nests(form, prepared, *settings, winograd=winograd, strips=True))
    prepared = prepare(c, weights, target, half)
    if half is None and any(channel_blocks(d, prepared.places, weights, target) for d in c.definitions):
        by_tiles = prepare(c, weights, target, lanes=False)
        if sum(j.tiled is not None for j in by_tiles.jobs) > sum(j.tiled is not None for j in prepared.jobs):
            nests.append(_nests(c, by_tiles, *settings, winograd=winograd))
    if any(map(prologued, partition(prepared.jobs, prepared.places, prologues=True))):
        nests.append(_nests(c, prepared, *settings, winograd=winograd, prologues=True))
    if exchange:
        prepared = prepare(c, weights, target, exchange=True)
        if any(_is_exchanged(j) for j in prepared.jobs):
            nests.append(_nests(c, prepared, *settings, winograd=winograd))
    requires = tuple(dict.fromkeys((*requires, *c.conditions)))
    nests = [replace(kernel, requires=requires) for kernel in nests]
    kernels = [through(PASSES, kernel, target) for kernel in nests]
    ranking = CostRanking(kernels[0], c.symbols, target, weights, run_weight_bytes, by_strips, c.computed)
    taken = ranking.best_kernel(kernels)
    (nest,) = (nest for nest, kernel in zip(nests, kernels, strict=True) if kernel is taken)
    return _Made(nest, taken)


def prologued(part: AlignedJobs) -> bool:
    """Whether a phase makes rows and multiplies them by weights."""
    return part.jobs[0].tiled is None and with_prologue(part.jobs)


def _is_exchanged(job: Job) -> bool:
    return job.tiled is not None and job.tiled.lines is not None


def _nests(
    c: Canonical,
    prepared: Prepared,
    weights: frozenset[str],
    target: Cpu,
    run_weight_bytes: float,
    best: Best,
    *,
    winograd: bool,
    prologues: bool = False,
    strips: bool = False,
) -> Kernel:
    """The kernel of one form of a group, with the best candidate for each of its phases.

    With `prologues`, contractions with weights compute the rows that they read, unless those are inputs. With `strips`,
    a convolution and the window after it are one phase.
    """
    inputs = tuple(
        replace(p, layout=prepared.layouts.get(p.name, p.layout), dtype=prepared.types.get(p.name, p.dtype))
        for p in c.inputs
    )
    own = Kernel(inputs, c.outputs, (), (), ())
    ranking = CostRanking(own, c.symbols, target, weights, run_weight_bytes, computed=c.computed)
    large = too_large(c.outputs, target)
    phases: list[Phase] = []
    choices: list[RankedSchedules] = []
    scratch: list[Buffer] = []
    inner = (nest for j in prepared.jobs for nest in j.values if not nest.output)
    values = tuple(Buffer(nest.name, nest.dtype, product(nest.shape), "global") for nest in inner)
    algorithms = Algorithms(ranking, best, values, prepared.places, winograd)
    empty = all(product(p.shape) == ZERO for p in c.outputs)
    parts = [] if empty else partition(prepared.jobs, prepared.places, prologues=prologues)
    parts = [one for part in parts for one in (algorithms.separate(part) if chained(part.jobs) else [part])]
    at = 0
    while at < len(parts):
        part, later = parts[at], parts[at + 1 :]
        joined = _in_strips(parts[at:], prepared, scratch, target) if strips else None
        if joined is not None:
            merged, candidates = joined
            own = replace(ranking.kernel, scratch=tuple(v for v in values if v.name not in merged.on_task))
            candidate, compared = best(replace(ranking, kernel=own), candidates, [])
            at += merged.parts - 1
        elif part.jobs[0].tiled is not None and _by_itself(part):
            _give_scratch(part, later, prepared, scratch)
            candidate, compared, _ = algorithms.chosen(part)
        else:
            candidate, compared = ScheduleCandidate("", (_phase(part, later, prepared, scratch, large, target),)), ()
        phases.extend(candidate.phases)
        scratch.extend(candidate.scratch)
        choices.extend(compared)
        at += 1
    return Kernel(inputs, c.outputs, _sized(scratch), binds_of(c, inputs), tuple(phases), choices=tuple(choices))


def _by_itself(part: AlignedJobs) -> bool:
    """Whether a phase is one contraction with weights that are packed; rows of each of a batch are read unpacked."""
    job = part.jobs[0]
    unpacked = not part.batch or (job.tiled is not None and job.tiled.left.dtype == job.tiled.product.left)
    return len(part.jobs) == 1 and not _is_exchanged(job) and unpacked


def _phase(
    part: AlignedJobs,
    later: list[AlignedJobs],
    prepared: Prepared,
    scratch: list[Buffer],
    large: frozenset[str],
    target: Cpu,
) -> Phase:
    """A phase that has one schedule only."""
    kept = _give_scratch(part, later, prepared, scratch)
    if _is_exchanged(part.jobs[0]):
        return exchanged_phase(part.jobs[0], prepared.places, target)
    if part.jobs[0].scan is not None:
        return scan_phase(part, prepared.places, target)
    if part.jobs[0].scatter is not None:
        return scatter_phase(part, prepared.places, target)
    if part.jobs[0].recurrence is not None:
        return recurrence_phase(part, prepared.places, target)
    if chained(part.jobs) or prologued(part):
        return chain_phase(part, prepared.places, kept, target)
    return row_phase(part, prepared.places, kept, large, target)


def _in_strips(
    parts: list[AlignedJobs], prepared: Prepared, scratch: list[Buffer], target: Cpu
) -> tuple[Strips, list[ScheduleCandidate]] | None:
    """The first phases as one by strips of lines, and the candidates for it; None if there is no such phase."""
    found = strips_of(parts, prepared.layouts, target)
    if found is None:
        return None
    _give_scratch(parts[found.parts - 1], parts[found.parts :], prepared, scratch)
    candidates = list(strip_candidates(found, prepared.places, target))
    return (found, candidates) if candidates else None


def _give_scratch(part: AlignedJobs, later: list[AlignedJobs], prepared: Prepared, scratch: list[Buffer]) -> set[str]:
    """Allocates scratch for the values of a phase that later phases read; returns their names."""
    read = {read.source for t in later for j in t.jobs for read in j.reads}
    read |= {name for t in later for j in t.jobs for name in j.looks_up}
    kept: set[str] = set()
    for job in part.jobs:
        for nest in job.values:
            name = nest.name
            if nest.output or (name not in read and job.recurrence is None):
                continue
            kept.add(name)
            layout = prepared.layouts.get(name, Layout())
            prepared.places[name] = dense(name, nest.dtype, nest.shape, layout)
            scratch.append(Buffer(name, nest.dtype, product(layout.shape(nest.shape)), "global"))
    return kept


def _sized(scratch: list[Buffer]) -> tuple[Buffer, ...]:
    """The buffers, one per name, as large as the largest of them. Raises TypeError where one name has two dtypes."""
    found: dict[str, Buffer] = {}
    for b in scratch:
        other = found.get(b.name)
        if other is not None and other.dtype != b.dtype:
            raise TypeError(f"scratch {b.name} of {other.dtype} and of {b.dtype}")
        found[b.name] = b if other is None else replace(b, size=_room(other.size, b.size))
    return tuple(found.values())


def _room(a: Index, b: Index) -> Index:
    """The larger of two sizes where it is known, else their sum."""
    signs = {factor > 0 for _, factor in (a - b).terms}  # of extents and their quotients, none of which is negative
    return a + b if len(signs) == 2 else a if signs == {True} else b
