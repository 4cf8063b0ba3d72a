"""Chooses the algorithm of a contraction by predicted time: direct, or Winograd's for 3x3 convolutions.

A kernel for images of any size has both, if the direct one is predicted to be faster on small ones: one of them is
taken when it is launched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import ceil, inf, prod

from onnxfuse.cost import number
from onnxfuse.cost.count import CALL, SEGMENT
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.ir.index import ONE, Index, floor_div, least, symbols_of
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Buffer, Phase, RankedSchedules
from onnxfuse.ir.tasks import few_parts_of
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.candidates import FEW, AsMeasured, Best, CostRanking, ScheduleCandidate
from onnxfuse.schedule.cpu.gemm import gemm_candidates
from onnxfuse.schedule.cpu.schedule_keys import buffers_of, form_of, restricted
from onnxfuse.schedule.cpu.toom import FOUR, TWO, Transform
from onnxfuse.schedule.cpu.winograd import FilterNests, WinogradBlocking, winograd_phase
from onnxfuse.schedule.nests.align import AlignedJobs, align, partition
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.sliding import Windows, windows_of
from onnxfuse.schedule.nests.tiled import PAIR, Tiled, balanced
from onnxfuse.target import Cpu

TRANSFORMS = (TWO, FOUR)
GAIN = 0.9  # fraction of the direct algorithm's time on few cores that another algorithm may take at most
KEPT = 0.6  # fraction of L2 for the transformed filters of all panels
BLOCKS = (0.4, 0.8)  # fractions of L2 for the transformed inputs of a block
WHOLE = 1.25  # the same of a single block, for which filters are transformed once, where L2 is small
MANY = 16  # assumed number of register tiles, where it is not known
LOOPS = 2  # cycles of loop overhead per vector
LINE = 64  # assumed value of symbols, where they are not known; 1 of those that count images
SIDES = (1, 4, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48)  # of smaller images, on which the algorithms are compared again
PARTS = 100  # of a position, in which tiles are compared with positions


@dataclass(frozen=True, slots=True)
class LargeEnough:
    """The images for which Winograd's algorithm is taken: what it takes is less than their positions.

    That is `per_tile` for each tile and `more` for the filters, in hundredths of a position of the direct algorithm.
    """

    per_tile: int
    more: int

    def holds(self, positions: Index, tiles: Index) -> Index:
        """1 for such an image, else 0.

        >>> LargeEnough(750, 3400).holds(Index.of(64), Index.of(4)).constant
        1
        >>> LargeEnough(750, 3401).holds(Index.of(64), Index.of(4)).constant
        0
        """
        needed = tiles * self.per_tile + (self.more + 1)
        return floor_div(least(positions * PARTS + 1, needed), needed)


@dataclass(frozen=True, slots=True)
class Decided:
    """The choice for a contraction: the direct candidate's name, how all are ranked, and a division of Winograd's."""

    direct: str
    choices: tuple[RankedSchedules, ...]
    division: WinogradBlocking | None
    by: ContractionPhase  # the first of those that are alike
    candidate: ScheduleCandidate  # its own
    large: LargeEnough | None = None  # if the direct algorithm is there too, for other images


@dataclass(frozen=True, slots=True)
class Faster:
    """A division of Winograd's algorithm, and the predicted seconds of its candidate and of the direct one."""

    division: WinogradBlocking
    candidate: ScheduleCandidate
    seconds: float
    of_direct: float


@dataclass(frozen=True, slots=True)
class ContractionPhase:
    """A contraction in a phase of its own; equal to those that are alike, for which the choice is the same."""

    form: Hashable
    best: Best
    winograd: bool
    part: AlignedJobs = field(compare=False)
    ranking: CostRanking = field(compare=False)  # of a kernel with its own buffers only
    places: dict[str, Place] = field(compare=False)

    @property
    def job(self) -> Job:
        """The contraction itself."""
        (job,) = self.part.jobs
        return job

    def direct(self, only: str = "") -> tuple[ScheduleCandidate, ...]:
        """The direct candidates, or `only` the one of this name."""
        every = isinstance(self.best, AsMeasured)
        return gemm_candidates(self.part, self.places, self.ranking.target, every=every, only=only)

    @property
    def windows(self) -> Windows:
        """The axes of the convolution."""
        found = windows_of(self.job.tiled, self.places) if self.job.tiled is not None else None
        assert found is not None, "schedule: Winograd's algorithm was chosen for what is no convolution"
        return found

    @property
    def open(self) -> bool:
        """Whether it is of images of any size."""
        return any(a.extent.constant is None for a in self.windows.place)

    def by_winograd(self, division: WinogradBlocking, filters: FilterNests) -> ScheduleCandidate:
        """The candidate of a division of Winograd's algorithm."""
        phase = winograd_phase(self.job, self.windows, division, self.places, self.ranking.target, filters)
        return ScheduleCandidate(f"Winograd {division}", (phase,))

    def by_size(
        self, large: LargeEnough, division: WinogradBlocking, winograd: ScheduleCandidate, direct: ScheduleCandidate
    ) -> ScheduleCandidate:
        """The candidate that has both algorithms: the phases of one of them are divided among no tasks."""
        holds = large.holds(*self._extents(division))
        phases = (*(_if(holds, p) for p in winograd.phases), *(_if(ONE - holds, p) for p in direct.phases))
        return ScheduleCandidate(f"{winograd.name}; small images: {direct.name}", phases, direct.scratch)

    def _extents(self, division: WinogradBlocking) -> tuple[Index, Index]:
        """The numbers of positions and of tiles, of all images."""
        w = self.windows
        images = product([a.extent for a in w.images])
        return images * product([a.extent for a in w.place]), images * product(
            list(w.tiles(division.transform.outputs))
        )

    def decided(self) -> Decided:
        """The candidate with the least predicted time, as `best` ranks the direct ones."""
        direct, choices = self.best(self.ranking, self.direct(), [a.extent for a in self.part.rows])
        found = self._faster(direct) if self.winograd else None
        if found is None:
            return Decided(direct.name, choices, None, self, direct)
        pair = ((found.candidate.name, found.seconds), (direct.name, found.of_direct))
        ranked_ = pair[1:] if self.ranking.symbols or not choices else choices[0].candidates
        choice = RankedSchedules((pair[0], *ranked_), substitutable=False)
        large = self.large_enough(found, direct)
        taken = self.by_size(large, found.division, found.candidate, direct) if large is not None else found.candidate
        return Decided(direct.name, (choice,), found.division, self, taken, large)

    def large_enough(self, found: Faster, direct: ScheduleCandidate) -> LargeEnough | None:
        """The images on which Winograd's algorithm is predicted to be faster; None if it is on the smallest too."""
        extents, ranking = self._extents(found.division), self.ranking
        if not self.open:
            return None
        positions, tiles = (number(e, self._assumed_sizes(LINE)) for e in extents)
        per_tile = ceil(PARTS * found.seconds / found.of_direct * positions / tiles)

        def spare(side: int) -> int:
            positions, tiles = (number(e, self._assumed_sizes(side)) for e in extents)
            return positions * PARTS - per_tile * tiles

        pair = [partial(ranking.cost, each, ranking.complete(each)) for each in (found.candidate, direct)]

        def wins(side: int) -> bool:
            winograd, other = (cost(self._assumed_sizes(side), ranking.machines[FEW]).seconds for cost in pair)
            return winograd < other

        sides = sorted((*SIDES, LINE), key=spare)
        at = bisect_left(sides, True, key=wins)
        return LargeEnough(per_tile, max(0, spare(sides[min(at, len(SIDES))]))) if at else None

    def _faster(self, direct: ScheduleCandidate) -> Faster | None:
        """Winograd's algorithm, if it is predicted to be clearly faster than the direct one; else None.

        All divisions of a transform compute about as much for each tile: how much more than the least, the first tells.
        """
        t = self.job.tiled
        windows = windows_of(t, self.places) if t is not None else None
        if t is None or windows is None:
            return None
        sizes, ranking = self._assumed_sizes(LINE), self.ranking
        machines, times = ranking.machines, ranking.seconds(direct, ranking.complete(direct), sizes)
        order = []
        for at, each in enumerate(divisions_of(t, windows, ranking.target)):
            least = [least_seconds(t, windows, each, machine, sizes) for machine in machines]
            order.append((prod(least), at, least, each))
        best, found = prod(times), None
        taken = -1
        filters: FilterNests = {}
        factors: dict[Transform, float] = {}  # of the time that a transform computes over the least
        for product_, at, least, each in sorted(order, key=lambda x: x[:2]):
            factor = factors.get(each.transform, 1.0)
            if product_ * factor ** len(machines) > best or least[FEW] * factor >= GAIN * times[FEW]:
                continue
            candidate = self.by_winograd(each, filters)
            kernel = ranking.complete(candidate)
            cost = partial(ranking.cost, candidate, kernel, sizes)
            alone, few = cost(machines[0]), cost(machines[FEW])
            computed = sum(p.compute for p in alone.phases) / least[0] if least[0] else 1.0
            factors[each.transform] = max(1.0, min(factors.get(each.transform, inf), computed))
            if few.seconds >= GAIN * times[FEW]:
                continue
            total = prod((alone.seconds, few.seconds, *(cost(machine).seconds for machine in machines[FEW + 1 :])))
            if total < best or (total == best and found is not None and at < taken):
                best, taken, found = total, at, Faster(each, candidate, few.seconds, times[FEW])
        return found

    def _assumed_sizes(self, side: int) -> Mapping[str, int]:
        """A value for each symbol of the kernel: 1 where it counts images, else `side`, also behind the convolution."""
        w = self.windows
        inside, around = ({s for a in axes for s in symbols_of(a.extent)} for axes in (w.place, w.images))
        images = around - inside
        return self.ranking.nonempty_sizes({s.name: 1 if s in images else side for s in self.ranking.symbols})


def _if(holds: Index, phase: Phase) -> Phase:
    """The phase, of which there are no tasks where `holds` is 0."""
    first, *others = phase.splits
    return replace(phase, splits=(replace(first, extent=first.extent * holds), *others))


@lru_cache(1024)
def _decided(of: ContractionPhase) -> Decided:
    """The choice for contractions that are alike."""
    return of.decided()


@dataclass(frozen=True, slots=True)
class Algorithms:
    """The choice of a schedule and an algorithm for contractions, given intermediate values and places of a kernel.

    `best` ranks direct candidates. Without `winograd` everything is direct.
    """

    ranking: CostRanking
    best: Best
    values: tuple[Buffer, ...]
    places: dict[str, Place]
    winograd: bool

    def chosen(self, t: AlignedJobs) -> tuple[ScheduleCandidate, tuple[RankedSchedules, ...], bool]:
        """The candidate for a contraction in a phase of its own, how direct ones are ranked, and whether it is one."""
        (job,) = t.jobs
        own = restricted(self.ranking, self.values, buffers_of(job))
        form = form_of(job, self.places, own)
        of = ContractionPhase(form, self.best, self.winograd, t, own, self.places)
        found = _decided(of) if form is not None else of.decided()
        if found.by is of:
            candidate = found.candidate
        elif found.division is None:
            (candidate,) = of.direct(found.direct)
        else:
            candidate = of.by_winograd(found.division, {})
            if found.large is not None:
                candidate = of.by_size(found.large, found.division, candidate, *of.direct(found.direct))
        return candidate, found.choices, found.division is None

    def separate(self, t: AlignedJobs) -> list[AlignedJobs]:
        """A chain of contractions, split at those that are faster in a phase of their own."""
        for at, job in enumerate(t.jobs if self.winograd else ()):
            alone = align([job])
            if alone is not None and not self.chosen(alone)[2]:
                return [*partition(t.jobs[:at], self.places), alone, *partition(t.jobs[at + 1 :], self.places)]
        return [t]


def divisions_of(t: Tiled, w: Windows, target: Cpu) -> Iterator[WinogradBlocking]:
    """The divisions of the work whose cost is predicted."""
    columns, depth = product([a.extent for a in t.columns]).constant or 0, w.channel.extent.constant or 0
    for transform in TRANSFORMS:
        matrices = 4 * transform.size**2
        rows = product([*(a.extent for a in w.images), *w.tiles(transform.outputs)])
        tile_rows = balanced(rows.constant, target.rows, PAIR)
        if matrices * depth * columns <= KEPT * target.l2_bytes:
            yield WinogradBlocking(transform, 1, by_panels=False, keep=True)
        tile = matrices * tile_rows * depth
        most = -(-(rows.constant or MANY * tile_rows) // tile_rows)
        blocks = {min(most, max(1, int(share * target.l2_bytes) // tile)) for share in BLOCKS}
        whole = target.small_l2 and 0 < matrices * (rows.constant or 0) * depth <= WHOLE * target.l2_bytes
        for block in sorted(blocks | {most} if whole else blocks):
            all_ = block == most  # of equal divisions the first is taken
            ways = (all_,) if 0 < columns <= target.panel else (all_, not all_)  # of one panel they are the same tasks
            yield from (WinogradBlocking(transform, block, by_panels=each, keep=False) for each in ways)


def least_seconds(t: Tiled, w: Windows, d: WinogradBlocking, target: Cpu, sizes: Mapping[str, int]) -> float:
    """A lower bound of the seconds predicted for a division of the work, from extents alone; 0 if one is not known.

    It counts register tiles as the cost model does, and of the transforms their stores.
    """
    try:
        images, tiled = (
            [number(e, sizes) for e in es] for es in ([a.extent for a in w.images], w.tiles(d.transform.outputs))
        )
        groups = number(product([a.extent for a in t.batch]), sizes)
        depth, columns = number(w.channel.extent, sizes), number(product([a.extent for a in t.columns]), sizes)
    except SymbolUnknown:
        return 0.0
    size, outputs, vectors = d.transform.size, d.transform.outputs, target.panel / target.lanes
    rows, panels = prod(images) * prod(tiled), -(-columns // target.panel)
    known = product([*(a.extent for a in (*w.images, *w.place))]).constant
    tiles = -(-rows // balanced(known and rows, target.rows, PAIR))
    blocks = -(-tiles // d.block)
    work = int(groups * rows * columns * (size * size * depth * target.serial.multiply_add))
    whole = blocks == 1 and not d.keep
    by_tiles = int(tiles if whole else blocks)
    splits = (int(panels), by_tiles) if d.by_panels else (by_tiles, int(panels) if whole or not known else 1)
    splits = (int(groups), splits[0]) if t.batch else splits
    outer, inner = few_parts_of(target.cores, work, *splits)
    each, *parts = (groups / outer, inner, 1) if t.batch else (1, outer, inner)
    mine, all_ = (panels / parts[0], rows / parts[1]) if d.by_panels else (panels / parts[1], rows / parts[0])
    products = size**2 * mine * all_ * vectors * (depth / 2 + 2)
    calls = size**2 * mine * (all_ / rows) * tiles * (CALL + SEGMENT)
    image = all_ * ceil(depth / target.lanes) * 2 * size * (size + LOOPS)
    line = max(outputs, size / 2) + LOOPS  # cycles per vector
    stored = ceil(columns / target.lanes) / panels * outputs**2 * 2
    results = all_ * mine * (vectors * (size + outputs) * line + stored)
    times = 1.0 if d.keep else blocks * all_ / rows
    filters = size**2 * depth * vectors * mine * times
    return each * (products + calls + image + results + filters) * target.cycle
