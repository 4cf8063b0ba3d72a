"""A convolution, the window that reads its image, and perhaps a convolution after that, by strips of lines in one phase.

A strip is a few lines of the window's result. Its task computes the lines of the image that they read, then these lines,
then the last convolution of them; both images stay in buffers of the task, in its core's own cache, instead of being
written and read again as a whole. Lines that the next strip reads too are kept for it; at the borders of tasks they are
computed twice. So there are only as many tasks as cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least, lower, modulo, upper
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Split, Stmt, Store, When
from onnxfuse.ir.layout import Layout, channels_last
from onnxfuse.ir.scalar import Guard, Load
from onnxfuse.ir.tile import EVEN_ENTRIES
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.candidates import ScheduleCandidate
from onnxfuse.schedule.cpu.chain import segments_of, stage
from onnxfuse.schedule.cpu.flat import flat_phase
from onnxfuse.schedule.cpu.gemm import POINTERS
from onnxfuse.schedule.cpu.tiles import TABLE, C
from onnxfuse.schedule.nests.align import AlignedJobs, goes_by_rows, windows
from onnxfuse.schedule.nests.frame import Frame
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.target import Cpu

IMAGE = 4  # dimensions of an image, the third of which counts lines
ROOM = 0.6  # share of L2 for both images of a strip
LINES = (1, 2, 4, 7, 14, 28)  # lines of a strip that are considered
NEAR = 0.5  # share of L1 within which weights are read again for each line


@dataclass(frozen=True, slots=True)
class Strips:
    """Phases that can be one: the convolution that makes the image, the window, and the convolution after it, if any."""

    first: AlignedJobs
    window: AlignedJobs
    last: AlignedJobs | None
    line: Axis  # of the window's result
    read: Index  # the line of the image that a tap of it reads

    @property
    def parts(self) -> int:
        """How many phases become one."""
        return 2 if self.last is None else 3

    @property
    def held(self) -> tuple[str, ...]:
        """Values that no buffer of all tasks holds."""
        return (self.image.nest.name, *((self.made.nest.name,) if self.last is not None else ()))

    @property
    def image(self) -> Job:
        """The convolution that makes the image."""
        return self.first.jobs[0]

    @property
    def made(self) -> Job:
        """The window."""
        return self.window.jobs[0]


def with_windows(jobs: Sequence[Job]) -> bool:
    """Whether some jobs are convolutions on register tiles and others windows."""
    return any(j.tiled is not None for j in jobs) and any(j.tiled is None and windows(j) for j in jobs)


def strips_of(parts: Sequence[AlignedJobs], layouts: dict[str, Layout], target: Cpu) -> Strips | None:
    """The first two or three of these phases as strips; None if they are something else."""
    if len(parts) < 2 or any(len(p.jobs) != 1 for p in parts[:2]):
        return None
    (image,), (window,) = parts[0].jobs, parts[1].jobs
    reads = [x for x in window.reads if x.source == image.nest.name]
    if not _makes_lines(image, layouts, target) or not windows(window) or window.tiled is not None or len(reads) != 1:
        return None
    line = next((a for a in window.nest.axes if len(window.nest.dims) == IMAGE and window.nest.dims[2] == Index.of(a)), None)
    if line is None or window.nest.dtype != F32 or coefficient(reads[0].index[2], line) is None:
        return None
    if _reads(image, parts[2:]):
        return None
    three = len(parts) > 2 and not _reads(window, parts[3:]) and _reads_lines(parts[2], window, target)
    return Strips(parts[0], parts[1], parts[2] if three else None, line, reads[0].index[2])


def _reads(job: Job, parts: Sequence[AlignedJobs]) -> bool:
    """Whether some of these phases read a value."""
    return any(x.source == job.nest.name for p in parts for j in p.jobs for x in j.reads)


def _makes_lines(job: Job, layouts: dict[str, Layout], target: Cpu) -> bool:
    """Whether a job is a convolution to an image in channels last, whose lines are whole register tiles."""
    last = layouts.get(job.nest.name) == channels_last(IMAGE) and not job.nest.output
    return last and goes_by_rows(job) and _tile_rows(job, target) is not None


def _tile_rows(job: Job, target: Cpu) -> int | None:
    """Rows of a register tile, a number that divides a line; None if such tiles would be low."""
    assert job.tiled is not None
    width = job.tiled.rows[-1].extent.constant or 1
    lines = len(job.nest.dims) == IMAGE and job.nest.dims[3] == Index.of(job.tiled.rows[-1])
    return next((h for h in range(target.rows, target.rows // 2 - 1, -1) if lines and width % h == 0), None)


def _reads_lines(part: AlignedJobs, window: Job, target: Cpu) -> bool:
    """Whether a phase is a convolution that reads each pixel of a window's result by itself."""
    (job, *others) = part.jobs
    if others or not goes_by_rows(job) or window.nest.output or _tile_rows(job, target) is None:
        return False
    assert job.tiled is not None
    same = [a.extent for a in job.tiled.rows] == [e for e in _pixels(window) if e != 1]
    left = job.tiled.left
    return same and left.source == window.nest.name and not left.guards and not job.tiled.segments


def _pixels(job: Job) -> list[Index]:
    """Images, lines and pixels of a line of a result."""
    return [job.nest.shape[0], *job.nest.shape[2:]]


def strip_candidates(s: Strips, places: dict[str, Place], target: Cpu) -> Iterator[ScheduleCandidate]:
    """The phase with different numbers of strips, as far as both images of a strip fit in L2."""
    lines = s.line.extent.constant or 1
    for parts in sorted({-(-lines // n) for n in LINES}):
        phase = _phase(s, parts, places, target)
        if phase is None:
            return
        held = sum((b.size.constant or 0) * b.dtype.bytes for b in phase.locals if b.space == "local")
        if held <= ROOM * target.l2_bytes:
            yield ScheduleCandidate(f"strips of {-(-lines // parts)} lines", (phase,))


def _phase(s: Strips, parts: int, places: dict[str, Place], target: Cpu) -> Phase | None:
    """The phase of `parts` strips per image; None if the window has other loops than over lines."""
    images, height, width = _pixels(s.image)
    _, lines, across = _pixels(s.made)
    count = images * parts
    u, u0, u1 = Axis("u", count), Axis("u0", count), Axis("u1", count + 1)
    n, y0, y1 = Axis("n", images), Axis("y0", lines), Axis("y1", lines + 1)
    lo, hi = Axis("h0", height), Axis("h1", height + 1)
    rest = substitute(s.read, {s.line: ZERO})
    stride, low, high = coefficient(s.read, s.line), _least(rest), upper(rest)
    if stride is None or low is None or high is None or lines.constant is None:
        return None
    most = -(-lines.constant // parts)
    bounds = (
        Bind(n, floor_div(Index.of(u), Index.of(parts))),
        Bind(y0, floor_div(modulo(Index.of(u), Index.of(parts)) * lines, Index.of(parts))),
        Bind(y1, floor_div((modulo(Index.of(u), Index.of(parts)) + 1) * lines, Index.of(parts))),
        Bind(lo, greatest(stride * y0 + low, ZERO)),
        Bind(hi, least(stride * y1 - stride + high + 1, height)),
    )
    shared = most if stride.constant is None else most * stride.constant - (high - low + 1 - stride).constant
    if shared < 0:
        return None
    goes_on, start = Axis("goes", Index.of(2)), Axis("h", height)
    known = least(stride * y0 - stride + high + 1, height)  # lines before this one are known from the strip before
    bounds = (
        *bounds,
        Bind(goes_on, least(Index.of(u) - u0, ONE) * least(modulo(Index.of(u), Index.of(parts)), ONE)),
        Bind(start, Index.of(lo) + goes_on * greatest(known - lo, ZERO)),
    )
    tall = least(stride * (most - 1) + high - low + 1, height)
    here = dict(places)
    frame = Frame({}, None, ZERO, 1, here)
    _keep(s.image, "image", tall * width, (Index.of(n) * height + lo) * width, frame)
    if s.last is not None:
        _keep(s.made, "made", across * most, (Index.of(n) * lines + y0) * across, frame)
    window = flat_phase(s.window, here, {s.made.nest.name}, target)
    whole = [x for x in window.splits if x.extent != images * lines]
    if len(whole) + 1 != len(window.splits) or window.locals:
        return None
    (rows,) = (x for x in window.splits if x not in whole)
    begin = Index.of(n) * lines
    over = [Bind(rows.first, begin + y0), Bind(rows.last, begin + y1)]
    over += [Bind(x, e) for w in whole for x, e in ((w.first, ZERO), (w.last, w.extent))]
    tables = [_convolved(s.first, (Index.of(n) * height + start, Index.of(n) * height + hi), tall, frame, target)]
    if s.last is not None:
        tables.append(_convolved(s.last, (begin + y0, begin + y1), Index.of(most), frame, target))
    (image, entries, first_rows), *after = tables
    entries, tallest = max([entries, *(x[1] for x in after)]), max([first_rows, *(x[2] for x in after)])
    frame.local(TABLE, Index.of(entries), F32, "pointers")
    frame.local(C, Index.of(target.panel * tallest))
    body = (*bounds, image, *over, *window.body, *(x[0] for x in after))
    lane, pixel = Axis("k", tall * width * s.image.nest.shape[1]), width * s.image.nest.shape[1]
    ahead = greatest(stride * y1 + low, ZERO)
    moved = Store("image", Index.of(lane), Load("image", ((ahead - lo) * pixel + lane,), F32))
    kept = Loop(lane, ZERO, greatest(Index.of(hi) - ahead, ZERO) * pixel, "vector", (moved,))
    keep = When((Guard(Index.of(u) + 1, Index.of(u1)),), (kept,))
    loop = Loop(u, Index.of(u0), Index.of(u1), "serial", (*body, keep))
    work = window.work + sum((_work(p, target) for p in (s.first, s.last) if p is not None), ZERO)
    return Phase((Split(u0, u1, count),), work, tuple(frame.locals), (loop,), few=True)


def _least(e: Index) -> Index | None:
    """The minimum of an index, which may be negative."""
    shift = next((c for m, c in e.terms if not m), 0)
    low = lower(e - shift)
    return None if low is None else low + shift


def _keep(job: Job, buffer: str, pixels: Index, begin: Index, frame: Frame) -> None:
    """Puts an image in a buffer of the task that holds `pixels` of it, from pixel `begin` on."""
    before, channels = frame.places[job.nest.name], job.nest.shape[1]
    frame.local(buffer, pixels * channels)
    frame.places[job.nest.name] = Place(buffer, F32, lambda index: before.offset(index) - begin * channels)


def _convolved(
    t: AlignedJobs, lines: tuple[Index, Index], most: Index, frame: Frame, target: Cpu
) -> tuple[Stmt, int, int]:
    """A convolution of these lines, `most` at most; also how many row pointers it needs, and the rows of its tiles."""
    (job,), tiled = t.jobs, t.jobs[0].tiled
    tile_rows = _tile_rows(job, target)
    assert tiled is not None
    assert tile_rows is not None
    rows, width = product([a.extent for a in tiled.rows]), tiled.rows[-1].extent
    each = floor_div(width, Index.of(tile_rows))  # tiles of a line
    tiles = floor_div(rows, Index.of(tile_rows))
    m, first = Axis("m", rows), Axis("m0", rows)
    digits = dict(zip(tiled.rows, unflatten(Index.of(m), tuple(a.extent for a in tiled.rows)), strict=True))
    inside = replace(frame, shared=digits, row=m, first=Index.of(first), tile_rows=tile_rows)
    weights = F32.bytes * (tiled.depth * product([a.extent for a in tiled.columns])).constant
    entries = segments_of(job) * max(tile_rows, EVEN_ENTRIES)
    wanted = 1 if weights <= NEAR * target.l1_bytes else most.constant
    block = min((each * wanted).constant, POINTERS // entries)
    blocks = floor_div(each * (lines[1] - lines[0]) + (block - 1), Index.of(block))
    t0, t1 = Axis("t0", tiles), Axis("t1", tiles + 1)
    rb = Axis("rb", floor_div(each * most + (block - 1), Index.of(block)))
    start = each * lines[0] + Index.of(rb) * block
    bounds = (Bind(t0, start), Bind(t1, start + block, each * lines[1]))
    made = stage(job, None, inside, (tiles, t0, t1), first, target)
    return Loop(rb, ZERO, blocks, "serial", (*bounds, *made)), block * entries, tile_rows


def _work(t: AlignedJobs, target: Cpu) -> Index:
    """Serial picoseconds of a convolution."""
    tiled = t.jobs[0].tiled
    assert tiled is not None
    return product([a.extent for a in (*tiled.rows, *tiled.ranges, *tiled.columns)]) * 10
