"""A lowered group to the kernel that threads run: phases of rows or of elements, and how each is divided among them."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from onnxfuse.cost.gpu_products import tiles_of
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import ZERO
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Buffer, Kernel, Phase, Substitutions
from onnxfuse.ir.launch import ALIGNED
from onnxfuse.ir.layout import Layout
from onnxfuse.lower import Lowered
from onnxfuse.lower.extents import Sized, sized
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.attention import Attention, attention_of
from onnxfuse.schedule.analysis.binds import binds_of
from onnxfuse.schedule.analysis.bounds import checked
from onnxfuse.schedule.analysis.canonical import Canonical, canonical
from onnxfuse.schedule.analysis.memory import Nest, Place, dense, nest_of
from onnxfuse.schedule.analysis.softmax import with_shares
from onnxfuse.schedule.gpu.attention.parts import InParts, parts_of, put_together
from onnxfuse.schedule.gpu.attention.phase import attention_phase
from onnxfuse.schedule.gpu.choices import WIDTHS, aligned, divisions
from onnxfuse.schedule.gpu.delinearize import in_order_read, split_as_read
from onnxfuse.schedule.gpu.elements.flat import flat_phase
from onnxfuse.schedule.gpu.elements.transpose import transposing_phase
from onnxfuse.schedule.gpu.elements.turned import turned_phase
from onnxfuse.schedule.gpu.libraries.convolutions import filters_last, left_to_library
from onnxfuse.schedule.gpu.libraries.products import with_library
from onnxfuse.schedule.gpu.phases import partition, pieces_joined, reduces
from onnxfuse.schedule.gpu.product import product_phase
from onnxfuse.schedule.gpu.products import MatrixProduct, choice_of, in_parts, product_of
from onnxfuse.schedule.gpu.rows import Phased, row_phase
from onnxfuse.schedule.gpu.scans import Lines, lines_of, scan_phase
from onnxfuse.schedule.gpu.scatters import Updates, one_after_the_other, start_of, updates_of, updating_phase
from onnxfuse.schedule.gpu.skinny import Skinny, skinny_of, skinny_phase
from onnxfuse.schedule.gpu.split_reductions import split_reductions
from onnxfuse.schedule.gpu.tiles import tile_of
from onnxfuse.schedule.gpu.windows import window_phase
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.passes.block_reductions import block_reductions
from onnxfuse.schedule.passes.dependent_launches import constants_ahead, dependent_launches
from onnxfuse.schedule.passes.driver import Check, Pass, through, verified
from onnxfuse.schedule.passes.legalize import legalize
from onnxfuse.schedule.passes.whole_guards import whole_guards
from onnxfuse.target import Gpu

PASSES: tuple[Pass[Gpu], ...] = (
    Pass("block reductions", block_reductions),
    Pass("whole guards", whole_guards),
    Pass("dependent launches", dependent_launches),
    Pass("legalize", lambda kernel, target: legalize(kernel)),
)
"""What a kernel goes through once its phases are divided among threads, in this order."""


Part = AlignedJobs | Attention | InParts | Lines | Skinny | MatrixProduct | Updates  # what a phase makes


def schedule(
    lowered: Lowered,
    layouts: Mapping[str, Layout],
    target: Gpu,
    *,
    constants: Container[str] = (),
    check: Check = verified,
    measured: Substitutions | None = None,
) -> Kernel | Decision:
    """The kernel of a group, or why there is none yet.

    `constants` are values that no kernel stores; of these filters of convolutions are stored channels last, for cuDNN.
    `check` is told the kernel after each step. `measured` has pairs of tiles of products, by their text: the second is
    taken where the first would be.
    """
    group = sized(lowered, {**layouts, **filters_last(lowered, constants)})
    if not isinstance(group, Sized):
        reason = f"the extent {group[0]!r} cannot be read from any input of the group"
        return Decision("E-SHAPE-UNKNOWN", (lowered.group.name,), reason, "give --dim or --input-shape")
    c = canonical(group)
    values = {p.name: p.value for p in (*c.inputs, *c.outputs)}
    inputs, outputs = (tuple(replace(p, value=p.name) for p in part) for part in (c.inputs, c.outputs))
    nest = _scheduled(replace(c, inputs=inputs, outputs=outputs), target, measured or ())
    if isinstance(nest, Decision):
        return replace(nest, nodes=(lowered.group.name,))
    made = through(PASSES, nest, target, check)
    inputs, outputs = (tuple(replace(p, value=values[p.name]) for p in part) for part in (made.inputs, made.outputs))
    return constants_ahead(replace(made, inputs=inputs, outputs=outputs), constants)


@lru_cache(256)
def _scheduled(c: Canonical, target: Gpu, measured: Substitutions) -> Kernel | Decision:
    """The kernel of a group before all passes, once for equal groups."""
    if any(d.recurrent for d in c.definitions):
        return Decision("E-NO-KERNEL", (), "a recurrence computes its steps one after the other", "--target cpu")
    if any(map(one_after_the_other, c.definitions)):
        reason = "so many updates of a scatter to so few lines would be applied one after the other"
        return Decision("E-NO-KERNEL", (), reason)
    outputs = [p.name for p in c.outputs]
    c = replace(c, definitions=pieces_joined(with_shares(c.definitions, outputs), outputs))
    shapes = {p.name: p.shape for p in (*c.inputs, *c.outputs)} | {d.name: d.shape for d in c.definitions}
    bounded = checked(c.definitions, shapes)
    if isinstance(bounded, Decision):
        return bounded
    definitions, requires = bounded
    c = replace(c, definitions=definitions)
    return replace(_kernel(c, target, dict(measured)), requires=tuple(dict.fromkeys((*requires, *c.conditions))))


def _kernel(c: Canonical, target: Gpu, measured: Mapping[str, str]) -> Kernel:
    """The kernel of a group: its values in phases, those that later phases read in the run's memory."""
    places = {p.name: dense(p.name, p.dtype, p.shape, p.layout) for p in (*c.inputs, *c.outputs)}
    left = left_to_library(c)
    split = split_reductions(left.definitions, places, target)
    c = replace(c, definitions=split.definitions, apart=tuple(sorted(split.parts)))
    parts = _parts(c, places, target, measured, left.calls)
    types = {p.name: p.dtype for p in (*c.inputs, *c.outputs)}
    phases: list[Phase] = []
    scratch: list[Buffer] = []
    for at, part in enumerate(parts):
        read = {name for later in parts[at + 1 :] for name in _reads(later)}
        kept = _kept(part, read, places, scratch)
        made = _phase(part, places, kept, types | {b.name: b.dtype for b in scratch}, target)
        call = next((left.calls[n.name] for n in _nests(part) if n.name in left.calls), None)
        phases.append(replace(made.phase, library=call) if call is not None else made.phase)
        scratch += made.scratch
    products = [p for p in parts if isinstance(p, MatrixProduct) and p.nest.name not in left.calls]
    choices = tuple(choice_of(p, target) for p in products)
    return Kernel(c.inputs, c.outputs, tuple(scratch), binds_of(c, c.inputs), tuple(phases), choices=choices)


def _parts(
    c: Canonical, places: dict[str, Place], target: Gpu, measured: Mapping[str, str], calls: Container[str]
) -> list[Part]:
    """What the phases make, in order: rows that are gone through together, products and attention.

    Each of the convolutions that there are `calls` for is one phase.
    """
    if all(product(p.shape) == ZERO for p in c.outputs):
        return []
    outputs = [p.name for p in c.outputs]
    found = attention_of(c.definitions, outputs, places)
    found = found if found is not None and tile_of(found, target) is not None else None
    whole = {found.nest.name} | found.consumed if found is not None else set()
    rest = [d for d in c.definitions if d.name not in whole]
    own: dict[str, Part] = {found.nest.name: found} if found is not None else {}
    own |= {d.name: scan for d in rest if (scan := lines_of(d, outputs, places)) is not None}
    own |= {d.name: u for d in rest if (u := updates_of(d, outputs)) is not None}
    own |= {d.name: s for d in rest if d.name not in own and (s := skinny_of(d, outputs, places, target)) is not None}
    by_name = {d.name: d for d in rest}
    own |= {d.name: _convolution(d, outputs, places, target) for d in rest if d.name in calls}
    for d in (d for d in rest if d.name not in own):
        product_ = product_of(d, by_name, outputs, places, target, measured)
        if product_ is not None:
            product_ = with_library(product_, places, target)
            own[d.name] = product_
            whole |= product_.consumed
    parts: list[Part] = []
    waiting: list[Definition] = []
    for d in c.definitions:
        part = own.get(d.name)
        if part is None:
            waiting += [d] if d.name not in whole else []
            continue
        waiting += [start_of(part)] if isinstance(part, Updates) else []
        parts += _rows(waiting, c.apart, outputs, places, target)
        waiting = []
        if isinstance(part, MatrixProduct) and part.tile.splits > 1:
            part, last = in_parts(part, d)
            places[part.nest.name] = dense(part.nest.name, part.nest.dtype, part.nest.shape)
            waiting = [last]
        if isinstance(part, Attention) and (divided := parts_of(part, target)) is not None:
            places |= divided.places(part)
            waiting = [*put_together(part, divided, d)]
            part = InParts(part, divided)
        parts.append(part)
    return [*parts, *_rows(waiting, c.apart, outputs, places, target)]


def _convolution(d: Definition, outputs: Sequence[str], places: Mapping[str, Place], target: Gpu) -> Part:
    """A convolution as one phase, for where the library does not compute it."""
    found = product_of(d, {}, outputs, places, target)
    tiles = tiles_of(found.sizes, target) if found is not None else ()
    tile = next((t for t in tiles if t.splits == 1 and not t.grouped), None)
    if found is not None and tile is not None:
        return replace(found, tile=tile)
    (alone,) = partition([Job(replace(nest_of(d, places), output=d.name in outputs))], target)
    return alone


def _rows(
    definitions: Sequence[Definition],
    apart: Collection[str],
    outputs: Sequence[str],
    places: Mapping[str, Place],
    target: Gpu,
) -> list[AlignedJobs]:
    """Definitions, with their axes split as their readers' are, as phases of rows and elements."""
    nests: dict[str, Nest] = {}
    for d in definitions:
        nests[d.name] = replace(nest_of(d, places, nests), output=d.name in outputs)
    forms = (list(nests.values()), in_order_read(list(nests.values()))) if nests else ()
    found = [partition(list(map(Job, split_as_read(form))), target, apart) for form in forms]
    return min(found, key=lambda phases: (len(phases), sum(not p.shared for p in phases)), default=[])


def _reads(part: Part) -> set[str]:
    """Values that a part reads."""
    if not isinstance(part, AlignedJobs):
        return {*part.reads}
    return {load.source for j in part.jobs for load in j.reads} | {name for j in part.jobs for name in j.looks_up}


def _kept(part: Part, read: Container[str], places: dict[str, Place], scratch: list[Buffer]) -> set[str]:
    """Values of a phase that later phases `read` get a place in the run's memory; their names."""
    made = _nests(part)
    kept = {n.name for n in made if n.name in read and not n.output}
    there = {b.name for b in scratch}  # what a phase before has stored, which this one updates
    for nest in (n for n in made if n.name in kept and n.name not in there):
        places[nest.name] = dense(nest.name, nest.dtype, nest.shape)
        scratch.append(Buffer(nest.name, nest.dtype, product(nest.shape), "global"))
    return kept


def _nests(part: Part) -> Sequence[Nest]:
    """What a part makes."""
    if isinstance(part, AlignedJobs):
        return [j.nest for j in part.jobs]
    return part.nests if isinstance(part, InParts) else [part.nest]


def _phase(part: Part, places: dict[str, Place], kept: set[str], types: Mapping[str, DType], target: Gpu) -> Phased:
    """The first division of a phase that fits."""
    if not isinstance(part, (AlignedJobs, Skinny)):
        return Phased(_own_phase(part, places, target), ())
    if isinstance(part, Skinny):
        phase = skinny_phase(part, places, types, target)
        if phase is not None:
            return Phased(phase, ())
        part = partition([Job(part.nest)], target)[0]
    if all(set(j.nest.axes) == set(part.shared) and not reduces(j) for j in part.jobs):
        elements = _of_elements(part, places, types, target)
        if elements is not None:
            return Phased(elements, ())
    sliding = window_phase(part, places, target)
    if sliding is not None:
        return Phased(sliding, ())
    unaligned: set[int] = set()
    for d in divisions(part, places, min(t.bytes for t in types.values()), target):
        made = row_phase(part, d, places, kept, target) if d.width not in unaligned else None
        if made is None:
            continue
        if d.width == 1 or aligned(made.phase, {**types, **{b.name: b.dtype for b in made.scratch}}):
            return made
        unaligned.add(d.width)
    raise AssertionError("schedule: no division fits a phase")


def _of_elements(
    part: AlignedJobs, places: Mapping[str, Place], types: Mapping[str, DType], target: Gpu
) -> Phase | None:
    """A phase without reductions: turned in shared memory, or each thread at elements side by side."""
    turned = transposing_phase(part, places, target) or turned_phase(part, places, types, target)
    if turned is not None:
        return turned
    for width in (w for w in WIDTHS if w * min(t.bytes for t in types.values()) <= ALIGNED):
        phase = flat_phase(part, width, places, target)
        if phase is not None and (width == 1 or aligned(phase, types)):
            return phase
    return None


def _own_phase(
    part: Attention | InParts | Lines | MatrixProduct | Updates, places: dict[str, Place], target: Gpu
) -> Phase:
    """The phase of a part that is one whatever it looks like."""
    if isinstance(part, Lines):
        return scan_phase(part, places, target)
    if isinstance(part, Updates):
        return updating_phase(part, places, target)
    if isinstance(part, MatrixProduct):
        return product_phase(part, places, target)
    whole, divided = (part.attention, part.parts) if isinstance(part, InParts) else (part, None)
    phase = attention_phase(whole, places, target, divided)
    assert phase is not None, "schedule: an attention has a tile"
    return phase
