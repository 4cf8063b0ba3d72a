"""A convolution, the window that reads its image, and perhaps a convolution after that: one phase, by strips of lines.

A strip is a few lines of the window's result. Its task computes the lines of the image that they read, then these
lines, then the last convolution of them. Both images stay in buffers of the task, in its core's own cache, instead of
being written and read again as a whole. Lines that the next strip reads too are kept for it; only at the borders of
tasks are they computed twice, so that there are as many tasks as cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least, modulo
from onnxfuse.ir.indexing import coefficient, product, reach, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Split, Stmt, Store, When
from onnxfuse.ir.layout import Layout, channels_last
from onnxfuse.ir.scalar import Guard, Load
from onnxfuse.ir.tile import EVEN_ENTRIES
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.candidates import ScheduleCandidate
from onnxfuse.schedule.cpu.chain import segments_of, stage
from onnxfuse.schedule.cpu.flat import flat_phase
from onnxfuse.schedule.cpu.gemm import POINTERS
from onnxfuse.schedule.cpu.tiles import TABLE, C, even_tiles
from onnxfuse.schedule.nests.align import AlignedJobs, goes_by_rows, windows
from onnxfuse.schedule.nests.frame import Frame
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.target import Cpu

IMAGE, BETWEEN = "image", "between"  # buffers: the lines that windows read, and their results
RANK, LINE = 4, 2  # dimensions of an image, and the one that counts lines
ROOM = 0.6  # share of L2 for both images of a strip
LINES = (1, 2, 4, 7, 14, 28)  # lines of a strip that are considered
NEAR = 0.5  # share of L1 within which weights are read again for each line


@dataclass(frozen=True, slots=True)
class Strips:
    """Phases that can be one: a convolution to an image, a window, and the convolution after it, if any."""

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
    def on_task(self) -> tuple[str, ...]:
        """Names of values that are in local buffers of a task only."""
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


def strips_of(parts: Sequence[AlignedJobs], layouts: Mapping[str, Layout], target: Cpu) -> Strips | None:
    """The first two or three of these phases as strips; None if they are something else."""
    if len(parts) < 2 or any(len(p.jobs) != 1 for p in parts[:2]):
        return None
    (image,), (window,) = parts[0].jobs, parts[1].jobs
    last = layouts.get(image.nest.name) == channels_last(RANK) and image.nest.dtype == F32
    if not last or image.nest.output or _tile_rows(image, target) is None or _reads(image, parts[2:]):
        return None
    reads = [x for x in window.reads if x.source == image.nest.name]
    plain = window.tiled is None and windows(window) and window.nest.dtype == F32 and len(window.nest.dims) == RANK
    if not plain or len(reads) != 1 or any(e.constant is None for e in window.nest.shape[1:]):
        return None
    read = reads[0].index[LINE]
    line = next((a for a in window.nest.axes if window.nest.dims[LINE] == Index.of(a)), None)
    stride = coefficient(read, line) if line is not None else None
    if line is None or stride is None or stride.constant is None:
        return None
    three = len(parts) > 2 and not _reads(window, parts[3:]) and _reads_lines(parts[2], window, target)
    return Strips(parts[0], parts[1], parts[2] if three else None, line, read)


def _reads(job: Job, parts: Sequence[AlignedJobs]) -> bool:
    """Whether some of these phases read a value."""
    return any(x.source == job.nest.name for p in parts for j in p.jobs for x in j.reads)


def _tile_rows(job: Job, target: Cpu) -> int | None:
    """Rows of the highest register tile of a line of a convolution; None if such tiles would be low."""
    if not goes_by_rows(job, images=True) or job.tiled is None or len(job.nest.dims) != RANK:
        return None
    place = job.tiled.rows[-1]
    by_lines = job.nest.dims[-1] == Index.of(place)
    return target.rows_of_line(place.extent.constant or 1) if by_lines else None


def _reads_lines(part: AlignedJobs, window: Job, target: Cpu) -> bool:
    """Whether a phase is a convolution that reads each pixel of a window's result by itself."""
    (job, *others) = part.jobs
    tiled = job.tiled
    if others or tiled is None or window.nest.output or _tile_rows(job, target) is None:
        return False
    pixels = product([window.nest.shape[0], *window.nest.shape[LINE:]])
    by_itself = tiled.left.source == window.nest.name and not tiled.left.guards and not tiled.segments
    return by_itself and product([a.extent for a in tiled.rows]) == pixels


def strip_candidates(s: Strips, places: dict[str, Place], target: Cpu) -> Iterator[ScheduleCandidate]:
    """The phase with different numbers of strips, as far as both images of a strip fit in L2."""
    lines = s.line.extent.constant or 1
    for most in sorted({-(-lines // -(-lines // n)) for n in LINES}):
        phase = _phase(s, -(-lines // most), places, target)
        buffers = phase.locals if phase is not None else ()
        local = sum((b.size.constant or 0) * b.dtype.bytes for b in buffers if b.space == "local")
        if phase is not None and local <= ROOM * target.l2_bytes:
            yield ScheduleCandidate(f"strips of {most} lines", (phase,))


@dataclass(frozen=True, slots=True)
class _Image:
    """The extents of images, of which there may be any number."""

    count: Index
    channels: int
    height: int
    width: int


def _image_of(job: Job) -> _Image:
    return _Image(job.nest.shape[0], *(e.constant or 1 for e in job.nest.shape[1:]))


@dataclass(frozen=True, slots=True)
class _Strip:
    """Which lines a strip has: `bounds` bind its axes, for strip `number` of those from `first` on up to `last`."""

    number: Axis
    first: Axis
    last: Axis
    image: Axis
    begin: Axis  # lines of the result
    end: Axis
    low: Axis  # lines of the image that they read
    high: Axis
    new: Axis  # the first of those that the strip before did not read
    following: Index  # the first line of the image that the next strip reads
    lines: int  # of the result, at most
    tall: int  # lines of the image, at most
    bounds: tuple[Bind, ...]


def _strip(s: Strips, parts: int) -> _Strip | None:
    """The lines of `parts` strips per image; None if a strip reads lines of more strips than the one before."""
    image, made = _image_of(s.image), _image_of(s.made)
    stride = (coefficient(s.read, s.line) or ONE).constant or 1
    lines, most = reach(s.read, s.line), -(-made.height // parts)
    if lines is None or stride < 1 or lines[1] - lines[0] + 1 - stride > stride * (made.height // parts):
        return None
    low, high = lines
    strips, extent = made.count * parts, image.height
    u, u0, u1 = (Axis(name, strips + more) for name, more in (("u", 0), ("u0", 0), ("u1", 1)))
    y0, y1 = (Axis(name, Index.of(made.height + more)) for name, more in (("y0", 0), ("y1", 1)))
    h0, h1, h = (Axis(name, Index.of(extent + more)) for name, more in (("h0", 0), ("h1", 1), ("h", 1)))
    n, goes_on = Axis("n", made.count), Axis("goes", Index.of(2))
    each = modulo(Index.of(u), Index.of(parts))
    known = least(stride * Index.of(y0) + (high + 1 - stride), Index.of(extent))
    bounds = (
        Bind(n, floor_div(Index.of(u), Index.of(parts))),
        Bind(y0, floor_div(each * made.height, Index.of(parts))),
        Bind(y1, floor_div((each + 1) * made.height, Index.of(parts))),
        Bind(h0, greatest(stride * Index.of(y0) + low, ZERO)),
        Bind(h1, least(stride * Index.of(y1) + (high + 1 - stride), Index.of(extent))),
        Bind(goes_on, least(Index.of(u) - u0, ONE) * least(each, ONE)),
        Bind(h, Index.of(h0) + goes_on * greatest(known - h0, ZERO)),
    )
    following = greatest(stride * Index.of(y1) + low, ZERO)
    tall = min(stride * (most - 1) + high - low + 1, extent)
    return _Strip(u, u0, u1, n, y0, y1, h0, h1, h, following, most, tall, bounds)


def _phase(s: Strips, parts: int, places: dict[str, Place], target: Cpu) -> Phase | None:
    """The phase of `parts` strips per image; None if the window has other loops than over lines."""
    strip, image, made = _strip(s, parts), _image_of(s.image), _image_of(s.made)
    if strip is None:
        return None
    frame = Frame({}, None, ZERO, 1, dict(places))
    before, start = Index.of(strip.image) * image.height, Index.of(strip.image) * made.height
    _keep(s.image, IMAGE, strip.tall, before + strip.low, frame)
    if s.last is not None:
        _keep(s.made, BETWEEN, strip.lines, start + strip.begin, frame)
    over = _window(s, start + strip.begin, start + strip.end, frame, target)
    if over is None:
        return None
    window, work = over
    stages = [_convolved(s.image, before + strip.new, before + strip.high, strip.tall, frame, target)]
    if s.last is not None:
        (last,) = s.last.jobs
        stages.append(_convolved(last, start + strip.begin, start + strip.end, strip.lines, frame, target))
    frame.local(TABLE, Index.of(max(x.pointers for x in stages)), F32, "pointers")
    frame.local(C, Index.of(target.panel * max(x.tile_rows for x in stages)))
    body = (*strip.bounds, stages[0].loop, *window, *(x.loop for x in stages[1:]), _kept(strip, image))
    loop = Loop(strip.number, Index.of(strip.first), Index.of(strip.last), "serial", body)
    for x in stages:
        work = work + x.work
    return Phase((Split(strip.first, strip.last, strip.number.extent),), work, tuple(frame.locals), (loop,), few=True)


def _keep(job: Job, buffer: str, lines: int, begin: Index, frame: Frame) -> None:
    """Puts an image in a buffer of the task that holds so many lines of it, from line `begin` of all images on."""
    image, whole = _image_of(job), frame.places[job.nest.name]
    line = image.width * image.channels
    frame.local(buffer, Index.of(lines * line))
    frame.places[job.nest.name] = Place(buffer, F32, lambda index: whole.offset(index) - begin * line)


def _kept(strip: _Strip, image: _Image) -> Stmt:
    """Moves the lines that the next strip reads too to the begin of the buffer."""
    line = image.width * image.channels
    k = Axis("k", Index.of(strip.tall * line))
    moved = Store(IMAGE, Index.of(k), Load(IMAGE, ((strip.following - strip.low) * line + k,), F32))
    count = greatest(Index.of(strip.high) - strip.following, ZERO) * line
    return When((Guard(Index.of(strip.number) + 1, Index.of(strip.last)),), (Loop(k, ZERO, count, "vector", (moved,)),))


def _window(s: Strips, begin: Index, end: Index, frame: Frame, target: Cpu) -> tuple[tuple[Stmt, ...], Index] | None:
    """The window's statements for these lines of all images, and picoseconds of all of it; None if there are none."""
    made = _image_of(s.made)
    phase = flat_phase(s.window, frame.places, {s.made.nest.name}, target)
    rows = [x for x in phase.splits if x.extent == made.count * made.height]
    if len(rows) != 1 or phase.locals:
        return None
    ends = {x.first: (ZERO, x.extent) for x in phase.splits} | {rows[0].first: (begin, end)}
    binds = [Bind(a, e) for x in phase.splits for a, e in zip((x.first, x.last), ends[x.first], strict=True)]
    return (*binds, *phase.body), phase.work


@dataclass(frozen=True, slots=True)
class _Stage:
    """A convolution of a strip: its loop, its row pointers, the rows of its tiles, picoseconds for the whole image."""

    loop: Loop
    pointers: int
    tile_rows: int
    work: Index


def _convolved(job: Job, begin: Index, end: Index, lines: int, frame: Frame, target: Cpu) -> _Stage:
    """A convolution of these lines of all images, of which there are at most `lines`."""
    tiled, tile_rows = job.tiled, _tile_rows(job, target)
    assert tiled is not None, "schedule: strips begin and end with convolutions on register tiles"
    assert tile_rows is not None, "schedule: the tiles of a strip are parts of lines"
    rows = product([a.extent for a in tiled.rows])
    width = tiled.rows[-1].extent.constant or 1
    each = -(-width // tile_rows)  # tiles of a line
    tiles = floor_div(rows, Index.of(width)) * each
    m, first = Axis("m", rows), Axis("m0", rows)
    digits = dict(zip(tiled.rows, unflatten(Index.of(m), tuple(a.extent for a in tiled.rows)), strict=True))
    inside = replace(frame, shared=digits, row=m, first=Index.of(first), tile_rows=tile_rows)
    pointers = segments_of(job) * max(tile_rows, EVEN_ENTRIES)
    near = _weight_bytes(tiled) <= NEAR * target.l1_bytes
    block = max(1, min(each * (1 if near else lines), POINTERS // pointers))
    t0, t1, rb = Axis("t0", tiles), Axis("t1", tiles + 1), Axis("rb", Index.of(-(-each * lines // block)))
    at = begin * each + Index.of(rb) * block
    body = stage(job, None, inside, even_tiles(tiles, rows, first, t0, t1), target)
    blocks = floor_div((end - begin) * each + (block - 1), Index.of(block))
    loop = Loop(rb, ZERO, blocks, "serial", (Bind(t0, at), Bind(t1, at + block, end * each), *body))
    steps = product([a.extent for a in (*tiled.rows, *tiled.ranges, *tiled.columns)])
    return _Stage(loop, block * pointers, tile_rows, steps * target.serial.multiply_add)


def _weight_bytes(t: Tiled) -> int:
    return F32.bytes * (product([a.extent for a in (*t.ranges, *t.columns)]).constant or 0)
