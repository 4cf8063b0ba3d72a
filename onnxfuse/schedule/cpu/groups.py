"""Grouped convolutions: vector lanes over the channels of several small groups, and loops over large groups."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from onnxfuse.ir.compose import loads, walk
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.indexing import coefficient, grouped, product, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Split, Stmt
from onnxfuse.ir.scalar import Reduce
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.memory import Nest, Place
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.target import Cpu

LINE = 64  # bytes of a cache line
LARGEST = 64  # channels of a group above which register tiles are faster


def channel_blocks(
    d: Definition, places: Mapping[str, Place], constants: Container[str], target: Cpu
) -> dict[Axis, int]:
    """The channel axis that lanes run over, and its block size; empty if `d` is no reduction over small groups.

    The channels are contiguous both in `d` and in its input, which has as many per group. A block is a vector or a
    group, whichever is larger; all channels if they are not a multiple of that. The filters of a block, which every
    position reads, fit in L2.
    """
    sums = [n for n in walk(d.value) if isinstance(n, Reduce)]
    if len(sums) != 1 or d.name not in places:
        return {}
    taps = product([r.extent for r in sums[0].ranges]).constant or 0
    most = target.l2_bytes // 2 // (sums[0].dtype.bytes * max(1, taps))  # channels of a block
    store = places[d.name].offset(tuple(map(Index.of, d.axes)))
    reads = [x for x in loads(sums[0]) if x.source in places and x.source not in constants]
    for a in (a for a in d.axes if coefficient(store, a) == ONE):
        sizes = {found[0] for x in reads if (found := grouped(places[x.source].offset(x.index), a))}
        size, extent = next(iter(sizes), 0), a.extent.constant
        if len(sizes) == 1 and 1 < size <= LARGEST and extent is not None:
            block = max(size, target.lanes)
            return {a: block if extent % block == 0 else extent} if block <= most else {}
    return {}


def group_axis(t: Tiled) -> Axis:
    """The axis over all groups of a contraction: its batch axes as one."""
    return Axis("g", product([a.extent for a in t.batch]))


def digits_of(flat: Axis, axes: Sequence[Axis]) -> dict[Axis, Index]:
    """The axes that are fused to a flat one, as functions of it."""
    return dict(zip(axes, unflatten(Index.of(flat), tuple(a.extent for a in axes)), strict=True))


def shared_lines(stored: Sequence[Nest], axes: Sequence[Axis], places: Mapping[str, Place]) -> bool:
    """Whether one line is stored to for several values of an axis: cores that divide it take turns at the line."""
    held = [n for n in stored if n.name in places]
    steps = [(n, coefficient(places[n.name].offset(n.dims), a)) for n in held for a in axes if a.extent != ONE]
    return any(s is not None and 0 < abs(s.constant or 0) * n.dtype.bytes < LINE for n, s in steps)


def by_group(
    job: Job, body: tuple[Stmt, ...], splits: tuple[Split, ...], places: Mapping[str, Place]
) -> tuple[tuple[Stmt, ...], tuple[Split, ...]]:
    """The body of a phase and how it is divided, for all groups of a contraction.

    Groups are divided among tasks first, unless they share lines of the result, and the first of the `splits` of one.
    """
    t = job.tiled
    if t is None or not t.batch:
        return body, splits
    g, (first, *others) = group_axis(t), splits
    whole = tuple(bind for s in others for bind in (Bind(s.first, ZERO), Bind(s.last, s.extent)))
    lo, hi = Axis("g0", g.extent), Axis("g1", g.extent + 1)
    loop = Loop(g, Index.of(lo), Index.of(hi), "serial", (*whole, *body))
    groups = Split(lo, hi, g.extent)
    return (loop,), (first, groups) if shared_lines([job.nest], t.batch, places) else (groups, first)
