"""Schedule candidates for the same computation: the least predicted time wins, among near ties the first candidate.

Nobody knows on how many threads a kernel will run. What is best on two cores can have too few tasks for many, so that
times on one, on few and on many count the same: their product is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from onnxfuse.cost import cost_of
from onnxfuse.ir.index import Index, Symbol, symbols_of
from onnxfuse.ir.indexing import evaluate, product
from onnxfuse.ir.kernel import Buffer, Choice, Kernel, Phase
from onnxfuse.schedule.passes.legalize import legalize
from onnxfuse.target import Cpu

USUAL = 128  # rows, where nothing is known of them
SIDE = 32  # of an image, likewise
MORE = 8  # times as many
MOST_DOUBLINGS = 20  # of usual numbers, where they make an extent of nothing
MANY = 8  # times the cores of the machine class
FEW = 1  # of its machines, the number of that with as many as it has
NEAR = 1.045  # times the least product of three times: what is not above it may be the best as well


@dataclass(frozen=True, slots=True)
class Way:
    """Phases, the scratch that they share, and in a few words what is particular about them."""

    name: str
    phases: tuple[Phase, ...]
    scratch: tuple[Buffer, ...] = ()
    usual: bool = True  # else it is worth a look only where it is measured


@dataclass(frozen=True, slots=True)
class Judge:
    """Predicts times of phases in a kernel of which all else is known.

    `weights` are the values that come round once in a run of the model, after `round_bytes` of others.
    """

    kernel: Kernel  # its parameters
    symbols: tuple[Symbol, ...]
    target: Cpu
    weights: Container[str]
    round_bytes: float

    def best(
        self, ways: Sequence[Way], scratch: Sequence[Buffer], rows: Sequence[Index]
    ) -> tuple[Way, tuple[Choice, ...]]:
        """The way that takes least, for as many `rows` as are usual, and what was compared.

        Where it hangs on a symbol how many there are, more count as much as these. `scratch` lies beside that of the
        way itself.
        """
        if len(ways) == 1:
            return ways[0], ()
        usual = {s.name: USUAL for s in self.symbols} | _usual_values(rows)
        open_ = sorted({s.name for e in rows[-1:] for s in symbols_of(e)})
        more = [usual | {name: usual[name] * MORE for name in open_}] if open_ else []
        sizes = [self._enough(values) for values in (usual, *more)]
        times = [self.seconds(way, scratch, sizes[0]) for way in ways]
        assert all(min(each) < inf for each in times), "an extent has a symbol that is none of the kernel's"
        all_ = [prod(each) for each in times]
        for values in sizes[1:]:
            all_ = [a * prod(self.seconds(way, scratch, values)) for a, way in zip(all_, ways, strict=True)]
        order = sorted(range(len(ways)), key=lambda i: all_[i])
        taken = next(i for i in range(len(ways)) if all_[i] <= NEAR * min(all_))
        order = [taken, *(i for i in order if i != taken)]
        return ways[taken], (Choice(tuple((ways[i].name, times[i][FEW]) for i in order)),)

    def best_kernel(self, kernels: Sequence[Kernel]) -> Kernel:
        """Of kernels that compute the same, the one that takes least."""
        if len(kernels) == 1:
            return kernels[0]
        values = self._enough(dict.fromkeys((s.name for s in self.symbols), SIDE))

        def all_(kernel: Kernel) -> float:
            return prod(replace(self, kernel=kernel).seconds(Way("", kernel.phases), kernel.scratch, values))

        return min(kernels, key=all_)

    def _enough(self, values: Mapping[str, int]) -> Mapping[str, int]:
        """Values of symbols for which every extent of a parameter is at least 1, where there are such."""
        shapes = [e for p in (*self.kernel.inputs, *self.kernel.outputs) for e in p.shape]
        for times in (1 << k for k in range(MOST_DOUBLINGS)):
            made = {name: n * times for name, n in values.items()}
            if all(_extent(e, made) >= 1 for e in shapes):
                return made
        return values

    @property
    def machines(self) -> tuple[Cpu, ...]:
        """The machine class with one core, as it is, and with many."""
        counts = (1, self.target.cores, self.target.cores * MANY)
        return tuple(replace(self.target, cores=cores) for cores in counts)

    def seconds(self, way: Way, beside: Sequence[Buffer], values: Mapping[str, int]) -> tuple[float, ...]:
        """The predicted times on each of the machines; infinite where a symbol has no value.

        Buffers `beside` are the scratch of other phases. What is counted is the kernel as it would be rendered.
        """
        kernel = replace(self.kernel, scratch=(*beside, *way.scratch), phases=way.phases)
        kernel = kernel if kernel.legal else legalize(kernel)
        return tuple(self.time(way, kernel, values, machine) for machine in self.machines)

    def time(self, way: Way, kernel: Kernel, values: Mapping[str, int], machine: Cpu) -> float:
        """The predicted time on a machine of a kernel that goes this way."""
        found = cost_of(kernel, machine, self.weights, self.round_bytes, values)
        return found.seconds if found is not None else inf


def _extent(e: Index, values: Mapping[str, int]) -> int:
    """An extent for some values of the symbols; 1 where it has others."""
    known = all(s.name in values for s in symbols_of(e))
    return int(evaluate(e, lambda a: values[a.name] if isinstance(a, Symbol) else 0)) if known else 1


@dataclass(frozen=True, slots=True)
class AsMeasured:
    """Takes a way that was measured: of pairs of names, the second where the first is that of the way predicted best.

    It is given usual ways and others, and tells the predicted times of all, those of the way that it takes first.
    """

    instead: tuple[tuple[str, str], ...] = ()

    def __call__(
        self, judge: Judge, ways: Sequence[Way], scratch: Sequence[Buffer], rows: Sequence[Index]
    ) -> tuple[Way, tuple[Choice, ...]]:
        """The way, and what was compared."""
        first, _ = judge.best([way for way in ways if way.usual], scratch, rows)
        wanted = dict(self.instead).get(first.name)
        taken = next((way for way in ways if way.name == wanted), first)
        _, told = judge.best(ways, scratch, rows)
        names = {taken.name: 0, first.name: 1}
        return taken, tuple(Choice(tuple(sorted(c.ways, key=lambda w: (names.get(w[0], 2), w[1])))) for c in told)


Best = Callable[[Judge, Sequence[Way], Sequence[Buffer], Sequence[Index]], tuple[Way, tuple[Choice, ...]]]


def usual_rows(rows: Sequence[Index]) -> int:
    """The product of some extents: of those that are known, and usual numbers where none is, or of images some are."""
    if _of_image(rows):
        return prod(_usual_extents(rows))
    known = product([e for e in rows if e.constant is not None]).constant or 1
    return known if known > 1 or all(e.constant is not None for e in rows) else USUAL


def _usual_values(rows: Sequence[Index]) -> dict[str, int]:
    """Values of symbols that make the product of some extents as much."""
    if _of_image(rows):
        pairs = zip(rows, _usual_extents(rows), strict=True)
        return {s.name: n for e, n in reversed(list(pairs)) for s in symbols_of(e)}
    names = sorted({s.name for e in rows for s in symbols_of(e)})
    alone = usual_rows(rows) == USUAL and not any((e.constant or 1) > 1 for e in rows)
    return dict.fromkeys(names, 1) | (dict.fromkeys(names[-1:], USUAL) if alone else {})


def _of_image(rows: Sequence[Index]) -> bool:
    """Whether rows are the places of images, not all of whose extents are known."""
    return len(rows) > 2 and any(e.constant is None for e in rows)


def _usual_extents(rows: Sequence[Index]) -> list[int]:
    """One image; where a symbol stands for all of its places, they are counted as the first extent."""
    whole = SIDE ** (len(rows) - 1) if all(e == 1 for e in rows[1:]) else 1
    return [n if (n := e.constant) is not None else SIDE if at else whole for at, e in enumerate(rows)]
