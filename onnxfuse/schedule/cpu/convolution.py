"""Chooses the algorithm of a contraction by predicted time: direct, or Winograd's for 3x3 convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, prod

from onnxfuse.ir.index import symbols_of
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Buffer
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.candidates import FEW, CostRanking, ScheduleCandidate
from onnxfuse.schedule.cpu.lower_bound import least_seconds
from onnxfuse.schedule.cpu.toom import FOUR, TWO
from onnxfuse.schedule.cpu.winograd import Division, FilterNests, Windows, windows_of, winograd_phase
from onnxfuse.schedule.nests.align import AlignedJobs, align, partition
from onnxfuse.schedule.nests.tiled import Tiled, balanced
from onnxfuse.target import Cpu

TRANSFORMS = (TWO, FOUR)
GAIN = 0.9  # fraction of the direct algorithm's time on few cores that another algorithm may take at most
KEPT = 0.6  # fraction of L2 for the transformed filters of all panels
BLOCKS = (0.4, 0.8)  # fractions of L2 for the transformed inputs of a block
MANY = 16  # assumed number of register tiles, where it is not known
LINE = 64  # assumed value of symbols, where they are not known; 1 of those that count images


@dataclass(frozen=True, slots=True)
class Algorithms:
    """The choice of algorithm: cost ranking, intermediate values of the kernel, and the places of all values.

    Without `winograd` everything is direct.
    """

    ranking: CostRanking
    values: tuple[Buffer, ...]
    places: dict[str, Place]
    winograd: bool

    def faster(self, t: AlignedJobs, direct: ScheduleCandidate) -> ScheduleCandidate | None:
        """Winograd's algorithm, if it is predicted to be clearly faster than the direct one; else None."""
        (job,) = t.jobs
        windows = windows_of(job.tiled, self.places) if job.tiled is not None and self.winograd else None
        if job.tiled is None or windows is None:
            return None
        sizes, target = self._assumed_sizes(job.tiled, windows), self.ranking.target
        times = self.ranking.seconds(direct, self.values, sizes)
        order = []
        for at, each in enumerate(divisions_of(job.tiled, windows, target)):
            least = [least_seconds(job.tiled, windows, each, machine, sizes) for machine in self.ranking.machines]
            order.append((prod(least), at, least[FEW], each))
        best, found = prod(times), None
        filters: FilterNests = {}
        for least_, at, here, each in sorted(order, key=lambda x: x[:2]):
            if least_ > best or here >= GAIN * times[FEW]:
                continue
            candidate = ScheduleCandidate(
                f"Winograd {each}", (winograd_phase(job, windows, each, self.places, target, filters),)
            )
            made = self.ranking.seconds(candidate, self.values, sizes)
            total = prod(made) if made[FEW] < GAIN * times[FEW] else inf
            if total < best or (total == best and found is not None and at < found[0]):
                best, found = total, (at, candidate)
        return found[1] if found is not None else None

    def _assumed_sizes(self, t: Tiled, w: Windows) -> Mapping[str, int]:
        """A value for each symbol of the kernel: 1 where it counts images, else `LINE`, also behind the convolution."""
        inside = {s for a in w.place for s in symbols_of(a.extent)}
        images = {s for a in t.rows for s in symbols_of(a.extent)} - inside
        return self.ranking.nonempty_sizes({s.name: 1 if s in images else LINE for s in self.ranking.symbols})

    def separate(
        self, t: AlignedJobs, direct: Callable[[AlignedJobs], tuple[ScheduleCandidate, object]]
    ) -> list[AlignedJobs]:
        """A chain of contractions, split at those that are faster in a phase of their own."""
        for at, job in enumerate(t.jobs if self.winograd else ()):
            alone = align([job])
            if alone is not None and self.faster(alone, direct(alone)[0]):
                return [*partition(t.jobs[:at], self.places), alone, *partition(t.jobs[at + 1 :], self.places)]
        return [t]


def divisions_of(t: Tiled, w: Windows, target: Cpu) -> Iterator[Division]:
    """The divisions of the work whose cost is predicted."""
    columns, depth = product([a.extent for a in t.columns]).constant or 0, w.channel.extent.constant or 0
    for transform in TRANSFORMS:
        matrices = 4 * transform.size**2
        rows = product([*(a.extent for a in w.images), *w.tiles(transform)])
        tile_rows = balanced(rows.constant, target.rows)
        if matrices * depth * columns <= KEPT * target.l2_bytes:
            yield Division(transform, 1, by_panels=False, keep=True)
        tile = matrices * tile_rows * depth
        most = -(-(rows.constant or MANY * tile_rows) // tile_rows)
        for block in sorted({min(most, max(1, int(share * target.l2_bytes) // tile)) for share in BLOCKS}):
            yield Division(transform, block, by_panels=False, keep=False)
            yield Division(transform, block, by_panels=True, keep=False)
