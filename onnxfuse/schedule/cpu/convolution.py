"""Which algorithm a contraction goes by: the direct one, or for 3x3 convolutions Winograd's, by predicted times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, prod

from onnxfuse.ir.index import Index, floor_div, symbols_of
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Buffer
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.candidates import FEW, Judge, Way
from onnxfuse.schedule.cpu.lower_bound import least_seconds
from onnxfuse.schedule.cpu.toom import FOUR, TWO, Transform
from onnxfuse.schedule.cpu.winograd import Division, Windows, windows_of, winograd_phase
from onnxfuse.schedule.nests.align import Together, partition, together
from onnxfuse.schedule.nests.tiled import Tiled, balanced
from onnxfuse.target import Cpu

TRANSFORMS = (TWO, FOUR)
GAIN = 0.9  # share of the direct algorithm's predicted time on few cores that another one may take at most
KEPT = 0.6  # share of L2 that the right sides of all panels may take
BLOCKS = (0.4, 0.8)  # shares of L2 that the left sides of a block may take
MANY = 16  # register tiles, where their number is not known
LINE = 64  # elements of a line of an image, and lines, where nothing is known of them


@dataclass(frozen=True, slots=True)
class Algorithms:
    """What decides: who predicts times, the kernel's values besides its parameters, and where all of them lie.

    Without `winograd` there is nothing to decide.
    """

    judge: Judge
    values: tuple[Buffer, ...]
    places: dict[str, Place]
    winograd: bool

    def faster(self, t: Together, direct: Way) -> Way | None:
        """Winograd's algorithm where it is predicted to be faster than the direct one by enough."""
        (job,) = t.jobs
        windows = windows_of(job.tiled, self.places) if job.tiled is not None and self.winograd else None
        if job.tiled is None or windows is None:
            return None
        sizes, target = _guesses(job.tiled, windows), self.judge.target
        times = self.judge.seconds(direct, self.values, sizes)
        order = []
        for at, each in enumerate(divisions_of(job.tiled, windows, target)):
            least = [least_seconds(job.tiled, windows, each, machine, sizes) for machine in self.judge.machines]
            order.append((prod(least), at, least[FEW], each))
        best, found = prod(times), None
        for least_, at, here, each in sorted(order, key=lambda x: x[:2]):
            if least_ > best or here >= GAIN * times[FEW]:
                continue
            way = Way(f"Winograd {each}", (winograd_phase(job, windows, each, self.places, target),))
            made = self.judge.seconds(way, self.values, sizes)
            all_ = prod(made) if made[FEW] < GAIN * times[FEW] else inf
            if all_ < best or (all_ == best and found is not None and at < found[0]):
                best, found = all_, (at, way)
        return found[1] if found is not None else None

    def apart(self, t: Together, direct: Callable[[Together], tuple[Way, object]]) -> list[Together]:
        """Contractions that follow each other in one phase, less those that are faster by themselves."""
        for at, job in enumerate(t.jobs if self.winograd else ()):
            alone = together([job])
            if alone is not None and self.faster(alone, direct(alone)[0]):
                return [*partition(t.jobs[:at], self.places), alone, *partition(t.jobs[at + 1 :], self.places)]
        return [t]


def _guesses(t: Tiled, w: Windows) -> dict[str, int]:
    """Values of the symbols in a convolution's extents: images are of a usual size, and everything else is 1."""
    images = {s for a in w.place for s in symbols_of(a.extent)}
    others = {s for a in t.rows for s in symbols_of(a.extent)}
    return {s.name: LINE if s in images else 1 for s in others | images}


def divisions_of(t: Tiled, w: Windows, target: Cpu) -> Iterator[Division]:
    """The divisions of the work that are worth a prediction."""
    columns, depth = product([a.extent for a in t.columns]).constant or 0, w.channel.extent.constant or 0
    for transform in TRANSFORMS:
        matrices = 4 * transform.size**2
        rows = product([*(a.extent for a in w.images), *(_tiles(a.extent, transform) for a in w.place)])
        tall = balanced(rows.constant, target.rows)
        if matrices * depth * columns <= KEPT * target.l2_bytes:
            yield Division(transform, 1, by_panels=False, keep=True)
        tile = matrices * tall * depth
        most = -(-(rows.constant or MANY * tall) // tall)
        for block in sorted({min(most, max(1, int(share * target.l2_bytes) // tile)) for share in BLOCKS}):
            yield Division(transform, block, by_panels=False, keep=False)
            yield Division(transform, block, by_panels=True, keep=False)


def _tiles(extent: Index, transform: Transform) -> Index:
    return floor_div(extent + (transform.outputs - 1), Index.of(transform.outputs))
