"""Predicted seconds of a scheduled kernel on a machine class, in parts that explain it.

The time of a phase is that of the slowest of computation and each memory level, plus a fraction of the others, which
overlap only in part, plus the wait for the last task. All numbers of the machine come from a `Cpu` row.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from typing import TypeAlias, TypeVar

from onnxfuse.cost.count import Counter, latency_of
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.cost.straight import PhaseFacts, facts_of
from onnxfuse.cost.traffic import Fetched, fetched, spans_of
from onnxfuse.ir.index import Atom, Index, Symbol
from onnxfuse.ir.indexing import evaluate, product
from onnxfuse.ir.kernel import Computed, Kernel
from onnxfuse.ir.tasks import few_parts_of, parts_of
from onnxfuse.target import Cpu

T = TypeVar("T")
Items: TypeAlias = tuple[tuple[str, T], ...]  # of a mapping, to be a key

COMPUTE, L2, L3, MEMORY, WAITING = "compute", "L2", "L3", "memory", "dispatch"
LOCAL = "local"  # of a buffer that belongs to one task
NEAR = "near"  # of a value that cores before and behind hold in their own L2, each a share of it
OVERLAP = 0.3  # share of what is not the slowest that is waited for all the same
REUSABLE = 0.5  # share of a cache that keeps data until it is used again
SMALL = 0.125  # share of L2 within which values go from kernel to kernel on one core
STORED = 2.0  # ways of a line that is stored to memory: it is fetched first
OVERTAKEN = 0.6  # share of L3 that weights of a layer exceed when they drive out what was there: values take some, too
LAYER = 3.0  # times the weights of its largest product that a layer has: those of attention and MLP are 1, 3, 4 and 4
TWICE = 2.0  # times that a byte comes from memory at most: threads that read the same do so at almost the same time
EVEN = 2  # of a core, where it does not matter which of them are short


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """The cost of a phase: seconds of computation of one thread and of each memory level; `seconds` is the total."""

    compute: float
    l2: float
    l3: float
    memory: float
    bytes: int  # from beyond the cores' own caches, of all threads
    tasks: int
    waiting: float  # for the last task
    seconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a kernel: its phases and the seconds of calling it."""

    phases: tuple[PhaseCost, ...]
    dispatch: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(p.seconds for p in self.phases) + self.dispatch

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what they go to, were each alone."""
        return {
            COMPUTE: sum(p.compute for p in self.phases),
            L2: sum(p.l2 for p in self.phases),
            L3: sum(p.l3 for p in self.phases),
            MEMORY: sum(p.memory for p in self.phases),
            WAITING: sum(p.waiting for p in self.phases) + self.dispatch,
        }

    @property
    def bound(self) -> str:
        """The largest part: computation, a memory level, or waiting for tasks."""
        parts = self.parts
        return max(parts, key=lambda name: parts[name])


def cost_of(
    kernel: Kernel,
    target: Cpu,
    constants: Container[str] = (),
    run_weight_bytes: float = 0.0,
    symbols: Mapping[str, int] | None = None,
) -> Cost | None:
    """The predicted cost of one run of a legal kernel; None where it depends on a symbol that has no value.

    `constants` are the graph's weights, which are read once per run of the model; `run_weight_bytes`, their total size,
    decides the cache level they come from. Scratch was used last by such a kernel of the layer before. Other inputs and
    outputs are shared with neighbouring kernels.
    """
    assert kernel.legal, "cost: what a kernel does is counted once it is legalized"
    known = dict(symbols or {})
    try:
        sizes = _sizes(kernel, known)
        weights = {p.name: max(run_weight_bytes, sizes[p.name]) for p in kernel.inputs if p.value in constants}
        dtypes = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)} | {
            b.name: b.dtype for b in kernel.scratch
        }
        machine = (target.lanes, latency_of(target), _items(dtypes))
        around = (_items(sizes), _items(weights), _items(known))
        cold = _cold(kernel, min(run_weight_bytes, LAYER * sum(sizes[name] for name in weights)), target)
        phases = []
        for p in kernel.phases:
            found = facts_of(p, *machine)
            first = found.stored & cold
            phases.append(_phase(found, p.work, target, *around, first, few=p.few))
            cold -= first
    except SymbolUnknown:
        return None
    return Cost(tuple(phases), target.dispatch_us * 1e-6)


def handing_on(size: float, target: Cpu) -> float:
    """Seconds that one kernel less saves at most, where a value of so many bytes goes from one kernel to the next.

    What those kernels touch beside it is taken to be as much again.
    """
    held = 2 * size <= target.l3_bytes * REUSABLE
    reached = target.cores * target.l3_gbps if held else min(target.cores * target.bandwidth, target.memory_gbps)
    ways = 1.0 + (target.stored if held else STORED)
    waiting = target.dispatch_us + (target.barrier_us if target.cores > 1 else 0.0)
    return waiting * 1e-6 + ways * size / reached * 1e-9


def weight_bytes(kernels: Iterable[Kernel], constants: Container[str]) -> int:
    """Bytes of the weights that kernels read, each once. Symbolic sizes count as 0."""
    found = {
        p.value: (product(list(p.storage)).constant or 0) * p.dtype.bytes
        for kernel in kernels
        for p in kernel.inputs
        if p.value in constants
    }
    return sum(found.values())


def symbols_at(kernel: Kernel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The values of a kernel's own symbols where its inputs, by the values of the graph, have these logical shapes."""
    found: dict[str, int] = {}
    for b in kernel.binds:
        if isinstance(b, Computed):
            found[b.symbol.name] = number(b.value, found)
            continue
        p = kernel.inputs[b.input]
        stored = number(p.layout.shape(tuple(map(Index.of, shapes[p.value])))[b.axis], found)
        found[b.symbol.name] = (stored - number(b.rest, found)) // max(number(b.factor, found), 1)
    return found


def number(e: Index, symbols: Mapping[str, int]) -> int:
    """An extent as a number. Raises SymbolUnknown."""

    def of(atom: Atom) -> int:
        name = atom.name if isinstance(atom, Symbol) else ""
        if name not in symbols:
            raise SymbolUnknown(name)
        return symbols[name]

    return int(evaluate(e, of))


def _sizes(kernel: Kernel, symbols: Mapping[str, int]) -> dict[str, float]:
    """Bytes of every buffer."""
    params = (*kernel.inputs, *kernel.outputs)
    buffers = (*kernel.scratch, *(b for phase in kernel.phases for b in phase.locals))
    sizes = {p.name: float(number(product(list(p.storage)), symbols) * p.dtype.bytes) for p in params}
    return sizes | {b.name: 1.0 * number(b.size, symbols) * b.dtype.bytes for b in buffers}


def _cold(kernel: Kernel, between: float, target: Cpu) -> frozenset[str]:
    """The scratch that is no longer in L3 when a phase first stores to it, after so many bytes of weights."""
    scratch = (b.name for b in kernel.scratch if b.space == "global")
    return frozenset(scratch) if between > target.l3_bytes * OVERTAKEN else frozenset()


def _levels(
    touched: Collection[str],
    sizes: Mapping[str, float],
    weights: Mapping[str, float],
    target: Cpu,
    cold: Collection[str],
) -> dict[str, str]:
    """The level in which each buffer that a phase touches lies when the phase begins, or where it will be wanted.

    A value was made or read a phase ago, in this kernel or in the one before, so that what this phase touches tells
    how much came in between. `weights` come once in a run of the model, with so many bytes in between; `cold` buffers
    have been overtaken by them.
    """
    others = [name for name in touched if name not in weights]
    total = sum(sizes[name] for name in others)
    small, near = (total <= target.l2_bytes * share for share in (SMALL, REUSABLE))
    found = dict.fromkeys(
        others, L2 if small else NEAR if near else L3 if total <= target.l3_bytes * REUSABLE else MEMORY
    )
    for name, size in weights.items():
        found[name] = L2 if size <= target.l2_bytes * REUSABLE else L3 if size <= target.l3_bytes * REUSABLE else MEMORY
    return found | dict.fromkeys(cold, MEMORY)


def _items(mapping: Mapping[str, T]) -> Items[T]:
    return tuple(mapping.items())


@lru_cache(1 << 10)
def _phase(
    facts: PhaseFacts,
    work: Index,
    target: Cpu,
    sizes: Items[float],
    weights: Items[float],
    symbols: Items[int],
    cold: frozenset[str],
    *,
    few: bool,
) -> PhaseCost:
    """The cost of a phase of a kernel with these buffers; candidates have phases in common."""
    return _counted(facts, work, target, dict(sizes), dict(weights), dict(symbols), cold, few=few)


def _counted(
    facts: PhaseFacts,
    work: Index,
    target: Cpu,
    sizes: Mapping[str, float],
    weights: Mapping[str, float],
    symbols: Mapping[str, int],
    cold: Collection[str],
    *,
    few: bool,
) -> PhaseCost:
    own = {b.name for b in facts.locals}
    extents = [*(number(s.pieces, symbols) for s in facts.splits), 1, 1]
    divided = few_parts_of if few else parts_of
    outer, inner = divided(target.cores, number(work, symbols), extents[0], extents[1])
    if not outer * inner:
        return PhaseCost(0.0, 0.0, 0.0, 0.0, 0, 0, 0.0, 0.0)
    tasks = max(outer * inner, 1)
    threads = min(target.cores, tasks)
    counter = Counter(facts, target, *_shares(outer, inner, threads), tasks >= EVEN * threads, symbols=symbols)
    compute = counter.cycles() * target.cycle
    accesses = counter.accesses()
    touched = {a.buffer: None for a in accesses if a.buffer not in own}
    levels = _levels(touched, sizes, weights, target, cold)
    near, beyond, once = fetched(accesses, sizes, target.l1_bytes, target.l2_bytes, inf)
    others = 1 - 1 / target.cores  # share of what is in some core's L2 that is in another one's
    ways = target.stored
    moved = _moved(beyond, levels, (L3, MEMORY), ways) + others * _moved(beyond, levels, (NEAR,), ways)
    reached = min(threads * target.bandwidth, target.memory_gbps)
    spans = spans_of(accesses, sizes) if target.reread < inf else {}
    most = {name: target.reread * size for name, size in spans.items()}
    loads = {k: min(x, once.loads[k], most.get(k, inf), TWICE * sizes[k] / threads) for k, x in beyond.loads.items()}
    stores = {name: min(size, sizes[name] / threads) for name, size in beyond.stores.items()}
    l2 = _moved(near, {}, (LOCAL,), ways) / target.l2_gbps * 1e-9
    l3 = moved / target.l3_gbps * 1e-9
    memory = _moved(Fetched(loads, stores), levels, (MEMORY,), STORED) * threads / reached * 1e-9
    parts = (compute, l2, l3, memory)
    waiting = target.barrier_us * 1e-6 if tasks > 1 else 0.0
    seconds = max(parts) + OVERLAP * (sum(parts) - max(parts)) + waiting
    return PhaseCost(compute, l2, l3, memory, int(moved * threads), tasks, waiting, seconds)


def _moved(f: Fetched, levels: Mapping[str, str], wanted: tuple[str, ...], ways: float) -> float:
    """Bytes that move between a cache and buffers that lie in these levels; those that are stored count so often."""
    found = [*f.loads.items(), *((name, ways * size) for name, size in f.stores.items())]
    return sum(size for name, size in found if levels.get(name, LOCAL) in wanted)


def _shares(outer: int, inner: int, threads: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """The longest thread's share of each split, and how many parts that is. Threads take tasks as they get free."""
    mine = max(1, ceil(outer * inner / threads))
    if outer >= threads:
        return (mine / max(outer * inner, 1), 1.0), (mine / max(inner, 1), float(inner))
    return (1.0 / max(outer, 1), mine / max(inner, 1)), (1.0, float(mine))
