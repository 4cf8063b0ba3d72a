"""The loop nest that is printed: phases of parallel tasks over buffers, with every access a flat offset.

A kernel is a list of phases. A phase is one parallel loop: its `splits` are divided into contiguous ranges among tasks,
and `body` runs once per task, or once per thread of its `launch`. Between phases stands a barrier. Twelve kinds of
statement exist, and five more for threads that work together (`ir/launch.py`); nothing here chooses anything: widths,
orders, tiles and buffers were decided by `schedule`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Literal

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ONE, ZERO, Axis, Entry, Index, Loaded, Symbol, Table, atoms
from onnxfuse.ir.launch import Commit, CopyAsync, Launch, Mma, Sync, Wait
from onnxfuse.ir.layout import Layout
from onnxfuse.ir.products import PRODUCTS, Product, Unit
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.ir.tile import Tile

# Memory of all threads, of those of a block, and of one: the last four. Registers have constant offsets once loops are
# unrolled, those of a fragment hold a part of a matrix; pointers are a table of addresses.
Space = Literal["global", "shared", "local", "register", "fragment", "pointers"]
LoopKind = Literal["serial", "vector", "unroll", "seldom", "block", "warp", "thread", "lane"]
ReduceScope = Literal["serial", "lane", "warp", "block"]


@dataclass(frozen=True, slots=True)
class Param:
    """A tensor that the kernel reads or writes: its value in the graph, logical type and layout in memory."""

    name: str  # in the kernel: in0, in1, ..., out0, ...
    value: str  # in the graph
    dtype: DType
    shape: tuple[Index, ...]  # logical
    layout: Layout

    @property
    def storage(self) -> tuple[Index, ...]:
        """The shape that the runtime sees."""
        return self.layout.shape(self.shape)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory inside the kernel: `global` is that of all tasks of a run, `local` belongs to one running task or thread.

    `shared` belongs to a block of threads, and lies `at` an offset in bytes of the memory that a block is given.
    """

    name: str
    dtype: DType
    size: Index  # elements
    space: Space
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """axis = value, at most `most`; 0, and the value not looked at, where a guard fails."""

    axis: Axis
    value: Index
    most: Index | None = None
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """For axis from begin up to end.

    Kinds: serial, vector (masked tails; in a thread, of constant extent: one wide access), unroll (all spelled out),
    seldom (serial, and hardly ever run at all). In a phase with a launch besides: block, warp (of a block), thread (of
    a block) and lane (of a warp), which divide their iterations among those, in turns where there are more. What
    `legalize` says of a vector loop: whether it is `aligned`, and how many vectors it carries of each reduction that is
    accumulated in its lanes (0: there is none).
    """

    axis: Axis
    begin: Index
    end: Index
    kind: LoopKind
    body: tuple[Stmt, ...]
    aligned: bool = False  # begins at a multiple of the lanes of any machine
    carries: int = 0


@dataclass(frozen=True, slots=True)
class ReduceLoop:
    """Variables `targets` start at the monoid's start values, `body` accumulates into them, then they are final.

    `scope` says whose partial results are then combined: one thread has but one (serial), a vector loop carries one in
    each lane of its vectors (lane), and each thread of a warp or a block has its own, and the result in the end.
    """

    targets: tuple[str, ...]
    combine: str
    dtype: DType
    body: tuple[Stmt, ...]
    ways: int = 1  # partial results side by side, where a vector loop carries them
    part: tuple[str, Index] | None = None  # where the vector that a vector loop carried is stored, instead of its sum
    scope: ReduceScope = "serial"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Merge values into the variables of the enclosing fold.

    What `legalize` says: whether it is the vector that the loop around carries, lane by lane (`carried`), and, where a
    monoid has several slots, what all variables become, at the same time (`merged`).
    """

    targets: tuple[str, ...]
    combine: str
    values: tuple[Scalar, ...]
    carried: bool = False
    merged: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class Let:
    """A variable "%name" for the rest of the block; `kept` in a register, since several statements read it."""

    name: str
    value: Scalar
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[offset] = value, and `behind` it more for each lane; past the caches where it is streamed.

    A value is rounded to the type of the buffer. In a vector loop lanes lie side by side, or are `scattered`.
    """

    buffer: str
    offset: Index
    value: Scalar
    stream: bool = False
    behind: tuple[Scalar, ...] = ()
    scattered: bool = False

    @property
    def values(self) -> tuple[Scalar, ...]:
        """All that is stored, in the order of the elements."""
        return (self.value, *self.behind)


@dataclass(frozen=True, slots=True)
class When:
    """body where all guards hold."""

    guards: tuple[Guard, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class RowPointer:
    """Row pointers: table[segment * pitch + row - begin] is where `load` finds its segment, zeros where a guard fails.

    `segments` are the ranges that lead from one contiguous piece of `length` elements to the next. Where rows are
    `even`, only four entries are made: of the first three rows and of the last.
    """

    table: str
    row: Axis
    begin: Index
    end: Index
    pitch: int
    segments: tuple[Axis, ...]
    load: Load
    length: Index
    at: Index = ZERO  # first entry of the table
    even: bool = False
    padding: str = ""  # a buffer of `length` elements that stands for the padding, where that is not zeros


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows of a matrix side by side: out[at + k * pitch + row - begin] = load(row, k), zeros behind the last row.

    The source is contiguous in k, and rounded or widened to the element type of `out`, of which short ones lie in pairs
    of steps. A pitch of 0 means as many as there are rows. `apart`: the pitch is larger than a step, and what lies
    between the rows of one step and the next is left alone. For a matrix `unit` rows lie in its pieces, one after the
    other up to the pitch, and these are the steps behind the first `skip`.
    """

    out: str
    at: Index
    row: Axis
    begin: Index
    end: Index
    k: Axis
    load: Load
    pitch: int = 0
    apart: bool = False
    unit: Unit | None = None
    skip: Index = ZERO


@dataclass(frozen=True, slots=True)
class HorizontalReduce:
    """target[i] = all lanes of the vector source[i * lanes ..] combined, for i < rows (at most one row per lane)."""

    target: str
    source: str
    combine: str
    rows: Index


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Elements of a buffer that a later iteration reads are brought near: nothing depends on it."""

    buffer: str
    offset: Index
    count: int


Call = RowPointer | Tile | Pack | HorizontalReduce | Prefetch  # of a function of the CPU's headers
Threaded = Sync | CopyAsync | Commit | Wait | Mma  # in phases with a launch
Stmt = Bind | Loop | ReduceLoop | Accumulate | Let | Store | When | Call | Threaded


@dataclass(frozen=True, slots=True)
class Split:
    """A parallel axis that is divided among tasks, at multiples of `step`; a task runs [first, last) of it."""

    first: Axis
    last: Axis
    extent: Index
    step: int = 1


@dataclass(frozen=True, slots=True)
class Phase:
    """One parallel loop. `work` estimates its serial time in picoseconds; `locals` live as long as one task.

    `few`: every task reads all weights, so that there is only one for each core. With a `launch` there are no splits,
    and the body is what each thread runs. `rows`: all jobs of the phase run over this axis, so many of it at a time.
    What `legalize` says: local buffers of tasks lie on the stack, or in `slots` of the run's memory, one for each task
    that runs; tasks set a `matrix_unit` up for tiles of so many rows; they wait for what they `stream` past the caches.
    """

    splits: tuple[Split, ...]
    work: Index
    locals: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    few: bool = False
    launch: Launch | None = None
    rows: tuple[Axis, int] | None = None
    slots: bool = False
    matrix_unit: tuple[Unit, int] | None = None
    streams: bool = False


@dataclass(frozen=True, slots=True)
class ExtentBind:
    """A symbol that is read off dimension `axis` of the storage of an input at launch: (it - rest) / factor.

    Rest and factor are over symbols that are bound before.
    """

    symbol: Symbol
    input: int
    axis: int
    rest: Index = ZERO
    factor: Index = ONE


@dataclass(frozen=True, slots=True)
class Computed:
    """A symbol that is computed at launch from symbols that are bound before."""

    symbol: Symbol
    value: Index


@dataclass(frozen=True, slots=True)
class Choice:
    """Ways to compute the same with their predicted seconds on few cores, best first: that one was taken."""

    ways: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with positional names: equal computations are equal kernels.

    Symbols are bound in the order of `binds`.
    """

    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    scratch: tuple[Buffer, ...]
    binds: tuple[ExtentBind | Computed, ...]
    phases: tuple[Phase, ...]
    requires: tuple[Index, ...] = ()  # not negative when the kernel is launched: checked before anything is read
    legal: bool = False  # whether `legalize` wrote into it what a renderer has to know
    choices: tuple[Choice, ...] = field(default=(), compare=False)  # why its phases are as they are


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement in a body, outer ones first."""
    for s in body:
        yield s
        if isinstance(s, (Loop, ReduceLoop, When)):
            yield from statements(s.body)


def all_statements(kernel: Kernel) -> Iterator[Stmt]:
    """Every statement of a kernel."""
    return (s for phase in kernel.phases for s in statements(phase.body))


def products_of(kernels: Iterable[Kernel]) -> tuple[Product, ...]:
    """The kinds of register tiles that kernels use, in the order of their table."""
    found = {s.core.product for k in kernels for s in all_statements(k) if isinstance(s, Tile)}
    return tuple(p for p in PRODUCTS if p in found)


def tables(kernel: Kernel) -> tuple[Table, ...]:
    """The constant tables that a kernel looks up, each once, in the order of their names."""
    entries = (a for e in _parts(kernel.phases) if isinstance(e, Index) for a in atoms(e) if isinstance(a, Entry))
    found = {a.table.name: a.table for a in entries}
    return tuple(found[name] for name in sorted(found))


def names_in(phase: Phase) -> frozenset[str]:
    """The names that the body of a phase mentions: those of buffers, inputs and outputs, and of its variables."""
    found: set[str] = set()
    for part in _parts(phase.body):
        if isinstance(part, str):
            found.add(part)
        elif isinstance(part, Index):
            found |= {a.source for a in atoms(part) if isinstance(a, Loaded)}
    return frozenset(found)


def _parts(x: object) -> Iterator[object]:
    """All that statements are made of, each once; indices as a whole."""
    seen: set[int] = set()
    waiting = [x]
    while waiting:
        here = waiting.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        yield here
        if isinstance(here, tuple):
            waiting.extend(here)
        elif is_dataclass(here) and not isinstance(here, Index):
            waiting.extend(getattr(here, f.name) for f in fields(here))
