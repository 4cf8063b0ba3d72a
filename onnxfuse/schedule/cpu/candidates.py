"""Ranks schedule candidates of the same computation by predicted time; among near ties the first candidate wins.

The number of threads is not known at build time, and the best schedule for two cores can have too few tasks for many.
So candidates are ranked by the product of their times on one core, on a few and on many.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from onnxfuse.cost import Cost, cost_of
from onnxfuse.ir.index import Index, Symbol, symbols_of
from onnxfuse.ir.indexing import evaluate, product
from onnxfuse.ir.kernel import Buffer, Kernel, Phase, RankedSchedules
from onnxfuse.schedule.passes.legalize import legalize
from onnxfuse.target import Cpu

USUAL_ROWS = 128  # assumed number of rows, where it is not known
IMAGE_SIDE = 24  # assumed extent of an image, likewise: lines that fill no panel have their price
LONE_SIDE = 56  # the same of an image that comes alone
LARGER = 8  # factor of the larger size at which open sizes are ranked too
MOST_DOUBLINGS = 20  # of assumed sizes that make an extent 0
LARGEST_STRIDE = 32  # factor at most from an assumed extent to that of an image which it is computed from
MANY = 8  # factor from the cores of the machine class to many cores
FEW = 1  # index, in `machines`, of the machine class as it is
NEAR = 1.045  # factor up to which a product of times counts as a tie with the least one
NEAR_ON_EACH = NEAR**3  # the same of the time on each of three machines
DEARER = 1.5  # factor of a product of times on one core and on the machine class that is not paid for many cores


@dataclass(frozen=True, slots=True)
class ScheduleCandidate:
    """Phases, the scratch that they share, and a name that describes the schedule."""

    name: str
    phases: tuple[Phase, ...]
    scratch: tuple[Buffer, ...] = ()
    usual: bool = True  # False: considered only where candidates are measured


@dataclass(frozen=True, slots=True)
class CostRanking:
    """Predicts the times of phases as parts of a kernel, and ranks candidates by them.

    `weights` are values that are read once per run of the model; `run_weight_bytes` is the size of all of them, which
    decides the cache level they come from. `by_strips` are the numbers of kernels with phases by strips. `computed`
    symbols are expressions of others, in the order in which they are bound.
    """

    kernel: Kernel  # its parameters, and scratch of other phases
    symbols: tuple[Symbol, ...]
    target: Cpu
    weights: Container[str]
    run_weight_bytes: float
    by_strips: Container[int] = ()
    computed: tuple[tuple[Symbol, Index], ...] = ()

    def best(
        self, candidates: Sequence[ScheduleCandidate], rows: Sequence[Index]
    ) -> tuple[ScheduleCandidate, tuple[RankedSchedules, ...]]:
        """The candidate with the least predicted time at the usual number of `rows`, and the ranking.

        If the number of rows is symbolic, a larger number counts as much.
        """
        if len(candidates) == 1:
            return candidates[0], ()
        return ranked(candidates, self.predicted(candidates, rows))

    def predicted(self, candidates: Sequence[ScheduleCandidate], rows: Sequence[Index]) -> list[tuple[float, float]]:
        """Of each candidate the product of its seconds on all machines and sizes, and its seconds on the target."""
        side = IMAGE_SIDE if _of_image(rows) else USUAL_ROWS
        usual = {s.name: side for s in self.symbols} | _usual_values(rows)
        open_ = sorted({s.name for e in rows[-1:] for s in symbols_of(e)})
        more = [usual | {name: usual[name] * LARGER for name in open_}] if open_ else []
        sizes = [self.nonempty_sizes(values) for values in (usual, *more)]
        pairs = [(candidate, self.complete(candidate)) for candidate in candidates]
        times = [self.seconds(*pair, sizes[0]) for pair in pairs]
        total = [prod(each) for each in times]
        for values in sizes[1:]:
            total = [a * prod(self.seconds(*pair, values)) for a, pair in zip(total, pairs, strict=True)]
        return [(product_, each[FEW]) for product_, each in zip(total, times, strict=True)]

    def best_kernel(self, kernels: Sequence[Kernel]) -> Kernel:
        """Of kernels that compute the same, the one with the least predicted time.

        None is taken that is clearly slower than another on few cores, whatever it saves on many. Where L2 is small,
        one `by_strips` if it is nearly as good: what phases of others hand on is beyond L2.
        """
        if len(kernels) == 1:
            return kernels[0]
        values = self.nonempty_sizes(self._usual_images())
        favour = NEAR_ON_EACH if self.target.small_l2 else 1.0

        def seconds(kernel: Kernel) -> tuple[float, ...]:
            candidate, whole = ScheduleCandidate("", kernel.phases), replace(self, kernel=kernel)
            return whole.seconds(candidate, whole.complete(candidate), values)

        times = [seconds(kernel) for kernel in kernels]
        few = [prod(each[: FEW + 1]) for each in times]
        fast = [at for at, product_ in enumerate(few) if product_ <= DEARER * min(few)]
        return kernels[min(fast, key=lambda at: prod(times[at]) / (favour if at in self.by_strips else 1.0))]

    def nonempty_sizes(self, values: Mapping[str, int]) -> Mapping[str, int]:
        """Values of symbols, doubled until every extent of a parameter is at least 1, if that is possible.

        Computed ones are what the others make them: at least what is asked, if those can be so large.
        """
        shapes = [e for p in (*self.kernel.inputs, *self.kernel.outputs) for e in p.shape]
        values = self._large_enough(values)
        for times in (1 << k for k in range(MOST_DOUBLINGS)):
            made = self._with_computed({name: n * times for name, n in values.items()})
            if all(_extent(e, made) >= 1 for e in shapes):
                return made
        return self._with_computed(values)

    def _usual_images(self) -> Mapping[str, int]:
        """A value for each symbol: images of open height and width come alone, and are larger than other extents."""
        shapes = [p.shape for p in (*self.kernel.inputs, *self.kernel.outputs)]
        behind = [{s for e in shape[1:] for s in symbols_of(e)} for shape in shapes]
        images = [shape for shape, inside in zip(shapes, behind, strict=True) if len(inside) > 1]
        counts = {s for shape in images for s in symbols_of(shape[0])}.difference(*behind)
        values = dict.fromkeys((s.name for s in self.symbols), LONE_SIDE if images else IMAGE_SIDE)
        return values | {s.name: 1 for s in counts}

    def _large_enough(self, values: Mapping[str, int]) -> Mapping[str, int]:
        """The values with those doubled that computed symbols are made of, until these are what is asked of them."""
        for s, e in self.computed:
            made, stride = values, 1
            while stride < LARGEST_STRIDE and _extent(e, self._with_computed(made)) < values[s.name]:
                made, stride = {**made, **{b.name: 2 * made[b.name] for b in symbols_of(e)}}, 2 * stride
            values = made if _extent(e, self._with_computed(made)) >= values[s.name] else values
        return values

    def _with_computed(self, values: Mapping[str, int]) -> Mapping[str, int]:
        """The values with those of computed symbols, which follow from the others."""
        made = dict(values)
        for s, e in self.computed:
            made[s.name] = _extent(e, made)
        return made

    @property
    def machines(self) -> tuple[Cpu, ...]:
        """The machine class with one core, as it is, and with many."""
        counts = (1, self.target.cores, self.target.cores * MANY)
        return tuple(replace(self.target, cores=cores) for cores in counts)

    def seconds(self, candidate: ScheduleCandidate, complete: Kernel, values: Mapping[str, int]) -> tuple[float, ...]:
        """The predicted seconds of a candidate, in its `complete` kernel, on each machine at values of symbols."""
        return tuple(self.cost(candidate, complete, values, machine).seconds for machine in self.machines)

    def complete(self, candidate: ScheduleCandidate) -> Kernel:
        """The legalized kernel with this candidate, whose cost it has."""
        kernel = replace(self.kernel, scratch=(*self.kernel.scratch, *candidate.scratch), phases=candidate.phases)
        return kernel if kernel.legal else legalize(kernel)

    def cost(self, candidate: ScheduleCandidate, kernel: Kernel, values: Mapping[str, int], machine: Cpu) -> Cost:
        """The predicted cost of a kernel with this candidate on a machine.

        AssertionError where a symbol has no value: a candidate without a price would lose in silence.
        """
        found = cost_of(kernel, machine, self.weights, self.run_weight_bytes, values)
        assert found is not None, f"schedule: no size is assumed for a symbol: {candidate.name or 'kernel'}"
        return found


def ranked(
    candidates: Sequence[ScheduleCandidate], predicted: Sequence[tuple[float, float]]
) -> tuple[ScheduleCandidate, tuple[RankedSchedules, ...]]:
    """The first candidate that is as good as the best, and all of them by what is predicted, that one first."""
    least = min(predicted)[0]
    order = sorted(range(len(candidates)), key=lambda i: predicted[i][0])
    taken = next(i for i, (total, _) in enumerate(predicted) if total <= NEAR * least)
    order = [taken, *(i for i in order if i != taken)]
    return candidates[taken], (RankedSchedules(tuple((candidates[i].name, predicted[i][1]) for i in order)),)


def _extent(e: Index, values: Mapping[str, int]) -> int:
    """An extent at these values of symbols; 1 if it has others."""
    known = all(s.name in values for s in symbols_of(e))
    return int(evaluate(e, lambda a: values[a.name] if isinstance(a, Symbol) else 0)) if known else 1


@dataclass(frozen=True, slots=True)
class AsMeasured:
    """Takes measured candidates: `instead` has pairs of names, that of the predicted best and that to take instead.

    It is given the usual candidates and others, and returns the predicted times of all, the one taken first.
    """

    instead: tuple[tuple[str, str], ...] = ()

    def __call__(
        self,
        ranking: CostRanking,
        candidates: Sequence[ScheduleCandidate],
        rows: Sequence[Index],
    ) -> tuple[ScheduleCandidate, tuple[RankedSchedules, ...]]:
        """The candidate, and the ranking."""
        if len(candidates) == 1:
            return candidates[0], ()
        predicted = ranking.predicted(candidates, rows)
        usual = [i for i, candidate in enumerate(candidates) if candidate.usual]
        first, _ = ranked([candidates[i] for i in usual], [predicted[i] for i in usual])
        wanted = dict(self.instead).get(first.name)
        taken = next((candidate for candidate in candidates if candidate.name == wanted), first)
        _, choices = ranked(candidates, predicted)
        names = {taken.name: 0, first.name: 1}
        order = partial(sorted, key=lambda w: (names.get(w[0], 2), w[1]))
        return taken, tuple(replace(c, candidates=tuple(order(c.candidates))) for c in choices)


Best = Callable[
    [CostRanking, Sequence[ScheduleCandidate], Sequence[Index]],
    tuple[ScheduleCandidate, tuple[RankedSchedules, ...]],
]


def usual_rows(rows: Sequence[Index]) -> int:
    """The product of the known extents; an assumed number if none is known, or for images of symbolic extents."""
    if _of_image(rows):
        return prod(_usual_extents(rows))
    known = product([e for e in rows if e.constant is not None]).constant or 1
    return known if known > 1 or all(e.constant is not None for e in rows) else USUAL_ROWS


def _usual_values(rows: Sequence[Index]) -> dict[str, int]:
    """Values of symbols for which the product of the extents is `usual_rows`."""
    if _of_image(rows):
        pairs = zip(rows, _usual_extents(rows), strict=True)
        return {s.name: n for e, n in reversed(list(pairs)) for s in symbols_of(e)}
    names = sorted({s.name for e in rows for s in symbols_of(e)})
    alone = usual_rows(rows) == USUAL_ROWS and not any((e.constant or 1) > 1 for e in rows)
    return dict.fromkeys(names, 1) | (dict.fromkeys(names[-1:], USUAL_ROWS) if alone else {})


def _of_image(rows: Sequence[Index]) -> bool:
    """Whether rows are the positions of images with symbolic extents."""
    return len(rows) > 2 and any(e.constant is None for e in rows)


def _usual_extents(rows: Sequence[Index]) -> list[int]:
    """The extents of one image; if one symbol stands for all of its positions, they count as the first extent."""
    whole = IMAGE_SIDE ** (len(rows) - 1) if all(e == 1 for e in rows[1:]) else 1
    return [n if (n := e.constant) is not None else IMAGE_SIDE if at else whole for at, e in enumerate(rows)]
