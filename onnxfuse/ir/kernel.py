"""The kernel IR: loop nests over buffers with flat offsets, as they are printed.

A kernel is a list of phases, with a barrier between two of them. A phase is one parallel loop: its `splits` are divided
into contiguous ranges, one per task, and `body` runs once per task, or once per thread of its `launch`. There are
twelve kinds of statement, and five more for cooperating threads (`ir/launch.py`). The IR makes no choices: vector
widths, loop orders, tiles and buffers were decided by `schedule`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ONE, ZERO, Axis, Entry, Index, IndexTable, Symbol, atoms, floor_div, greatest, least
from onnxfuse.ir.indexing import looked_up
from onnxfuse.ir.launch import Launch, LibraryCall, MatrixLoad, Threaded, WideAccess
from onnxfuse.ir.layout import Layout
from onnxfuse.ir.products import PRODUCTS, ProductKind, Unit
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.ir.tile import Tile

# Memory of all threads (global), of a block (shared), and of one task or thread (the last four). Offsets of registers
# are constant after unrolling; a fragment holds a part of a matrix; pointers are a table of addresses.
Space = Literal["global", "shared", "local", "register", "fragment", "pointers"]
LoopKind = Literal["serial", "vector", "unroll", "seldom", "block", "warp", "thread", "lane"]
ReduceScope = Literal["serial", "lane", "warp", "block"]

STACK_BYTES = 64 << 10  # local buffers up to this size are arrays of the task's own stack
ELEMENT = 8  # bytes of the widest element


@dataclass(frozen=True, slots=True)
class Param:
    """An input or output tensor: its value in the graph, logical type and layout in memory."""

    name: str  # in the kernel: in0, in1, ..., out0, ...
    value: str  # in the graph
    dtype: DType
    shape: tuple[Index, ...]  # logical
    layout: Layout

    @property
    def storage(self) -> tuple[Index, ...]:
        """The shape in memory, which the runtime sees."""
        return self.layout.shape(self.shape)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Temporary memory: `global` is shared by all tasks of a run, `local` is private to one task or thread.

    `shared` belongs to a block of threads, at byte `at` of the block's shared memory. Where it is `swizzled`, pieces of
    16 bytes trade places within lines of 128, as wgmma and the copy engine have them; only stores and these know of it.
    """

    name: str
    dtype: DType
    size: Index  # elements
    space: Space
    at: int | None = None
    swizzled: bool = False


@dataclass(frozen=True, slots=True)
class Bind:
    """axis = min(value, most); 0, without evaluating the value, where a guard fails."""

    axis: Axis
    value: Index
    most: Index | None = None
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """For axis in [begin, end).

    Kinds: serial, vector (masked tails; in a thread: one wide access of constant extent), unroll (fully), seldom
    (serial, and rarely executed). In a phase with a launch also: block, warp (of a block), thread (of a block) and lane
    (of a warp), which distribute iterations over those cyclically. `legalize` sets, for vector loops, `aligned`, and
    `carries`: the number of vector accumulators per reduction (0: no vector accumulators), and `again`: iterations may
    run twice, so that the last vector need not have fewer lanes; and for these and for serial
    loops in them `together`: the iterations whose 8-bit integers are narrowed and stored together (0: one by one); and
    for loops over lanes `matrices`: one instruction of the warp that does the same; and for vector loops in a thread
    `loads` and `stores`: the accesses that are wide, the others being element by element.
    """

    axis: Axis
    begin: Index
    end: Index
    kind: LoopKind
    body: tuple[Stmt, ...]
    aligned: bool = False  # begins at a multiple of WIDEST lanes
    carries: int = 0
    again: bool = False
    together: int = 0
    matrices: MatrixLoad | None = None
    loads: tuple[WideAccess, ...] = ()
    stores: tuple[WideAccess, ...] = ()


@dataclass(frozen=True, slots=True)
class ReduceLoop:
    """A reduction: accumulators `targets` start at the monoid's identity, and `body` accumulates into them.

    `scope` says whose partial results are combined at the end: serial (none: one accumulator), lane (of the lanes of
    vector accumulators), warp or block (of its threads, all of which get the result).
    """

    targets: tuple[str, ...]
    combine: str
    dtype: DType
    body: tuple[Stmt, ...]
    accumulators: int = 1  # independent vector accumulators, where there are any
    part: tuple[str, Index] | None = (
        None  # (buffer, offset) to which the vector accumulator is stored, instead of a horizontal reduction
    )
    scope: ReduceScope = "serial"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Combine values into the accumulators of the enclosing reduction.

    `legalize` sets `carried`: the target is the enclosing loop's vector accumulator; and, for monoids over tuples,
    `merged`: the new values of all accumulators, which are assigned simultaneously.
    """

    targets: tuple[str, ...]
    combine: str
    values: tuple[Scalar, ...]
    carried: bool = False
    merged: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class Let:
    """A variable "%name" for the rest of the block; `kept` in a register, since it has several uses."""

    name: str
    value: Scalar
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[offset] = value, converted to the type of the buffer; `stream`: a non-temporal store.

    `behind` are more values per lane, stored interleaved. In a vector loop lanes are contiguous unless `scattered`. In
    a thread `copied` says that the bits of a 16-bit float are copied, without a conversion to float32 and back.
    """

    buffer: str
    offset: Index
    value: Scalar
    stream: bool = False
    behind: tuple[Scalar, ...] = ()
    scattered: bool = False
    copied: bool = False

    @property
    def values(self) -> tuple[Scalar, ...]:
        """All stored values, in the order of their elements."""
        return (self.value, *self.behind)


@dataclass(frozen=True, slots=True)
class When:
    """`body` if all guards hold."""

    guards: tuple[Guard, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class RowPointer:
    """Row pointers: table[segment * pitch + row - begin] = address of `load`'s segment, or of zeros if a guard fails.

    `segments` are the ranges that enumerate contiguous segments of `length` elements. Where rows are `even`
    (equidistant), only four entries are written: those of the first three rows and of the last.
    """

    table: str
    row: Axis
    begin: Index
    end: Index
    pitch: int
    segments: tuple[Axis, ...]
    load: Load
    length: Index
    at: Index = ZERO  # index of the first entry
    even: bool = False
    padding: str = ""  # a buffer of `length` elements to address for padding that is not zero


@dataclass(frozen=True, slots=True)
class Pack:
    """Packs rows k-major: out[at + k * pitch + row - begin] = load(row, k), zeros after the last row.

    The source is contiguous in k and is converted to the element type of `out`, where 16-bit elements are interleaved
    in pairs of k. A pitch of 0 means the number of rows. `apart`: gaps between the rows of one k and the next are not
    written. For a matrix `unit` rows are in its pieces instead (see `Unit`), and `skip` elements of k precede these.
    """

    out: str
    at: Index
    row: Axis
    begin: Index
    end: Index
    k: Axis
    load: Load
    pitch: Index = ZERO
    apart: bool = False
    unit: Unit | None = None
    skip: Index = ZERO


@dataclass(frozen=True, slots=True)
class HorizontalReduce:
    """target[i] = reduction across the lanes of the vector source[i * lanes ..], for i < rows <= lanes.

    `source` has vector accumulators (`ReduceLoop.part`). A vector is stored: elements of `target` after the last row
    are undefined.
    """

    target: str
    source: str
    combine: str
    rows: Index
    lanes: int

    @property
    def read(self) -> Index:
        """How many elements of `source` are read."""
        return self.rows * self.lanes


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A software prefetch of `count` elements, to L2 or the `near` L1, that are used later; it has no semantics."""

    buffer: str
    offset: Index
    count: int
    near: bool = False


Call = RowPointer | Tile | Pack | HorizontalReduce | Prefetch  # calls of functions in the CPU's headers
Stmt = Bind | Loop | ReduceLoop | Accumulate | Let | Store | When | Call | Threaded


@dataclass(frozen=True, slots=True)
class Split:
    """A parallel axis that is partitioned among tasks at multiples of `step`; a task runs [first, last) of it."""

    first: Axis
    last: Axis
    extent: Index
    step: int = 1
    least: int = 1  # of it that a task has, if there is so much and the step is 1

    @property
    def pieces(self) -> Index:
        """How many tasks it is divided among at most."""
        if self.least == 1:
            return floor_div(self.extent + (self.step - 1), Index.of(self.step))
        return least(self.extent, greatest(floor_div(self.extent, Index.of(self.least)), ONE))


@dataclass(frozen=True, slots=True)
class Phase:
    """One parallel loop. `work` estimates its serial time in picoseconds; `locals` live as long as one task.

    `few`: every task reads all weights, so that there is one task per core. With a `launch` there are no splits, and
    each thread runs the body; `library` is a call that may do the same instead. `rows`: (axis, n), all statements of
    the phase run over blocks of n rows of this axis.
    `legalize` sets `slots`: local buffers are in scratch memory, one slot per concurrent task, not on the stack;
    `matrix_unit`: (unit, rows), which tasks configure; and `streams`: tasks end with a fence for non-temporal stores.
    """

    splits: tuple[Split, ...]
    work: Index
    locals: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    few: bool = False
    launch: Launch | None = None
    library: LibraryCall | None = None
    rows: tuple[Axis, int] | None = None
    slots: bool = False
    matrix_unit: tuple[Unit, int] | None = None
    streams: bool = False


@dataclass(frozen=True, slots=True)
class ExtentBind:
    """A symbol bound at launch to (dimension `axis` of an input in storage - rest) / factor.

    Rest and factor are over symbols that are bound earlier.
    """

    symbol: Symbol
    input: int
    axis: int
    rest: Index = ZERO
    factor: Index = ONE


@dataclass(frozen=True, slots=True)
class Computed:
    """A symbol that is computed at launch from symbols that are bound earlier."""

    symbol: Symbol
    value: Index


Substitutions: TypeAlias = tuple[tuple[str, str], ...]  # names of schedule candidates: predicted best, replacement


@dataclass(frozen=True, slots=True)
class RankedSchedules:
    """Candidate schedules of the same computation with their predicted seconds; the first was chosen."""

    candidates: tuple[tuple[str, float], ...]
    substitutable: bool = True  # whether another candidate can be scheduled in place of the first, to be measured


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with canonical, positional names: equal computations are equal kernels.

    Symbols are bound in the order of `binds`.
    """

    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    scratch: tuple[Buffer, ...]
    binds: tuple[ExtentBind | Computed, ...]
    phases: tuple[Phase, ...]
    requires: tuple[Index, ...] = ()  # have to be nonnegative: checked at launch, before anything is read
    legal: bool = False  # whether `legalize` has run
    choices: tuple[RankedSchedules, ...] = field(default=(), compare=False)  # candidates compared for its phases


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement in a body, nested ones included, in pre-order."""
    for s in body:
        yield s
        if isinstance(s, (Loop, ReduceLoop, When)):
            yield from statements(s.body)


def all_statements(kernel: Kernel) -> Iterator[Stmt]:
    """Every statement of a kernel."""
    return (s for phase in kernel.phases for s in statements(phase.body))


def in_slots(phase: Phase) -> bool:
    """Whether a phase's local buffers are in scratch memory: too large for a task's stack, or of unknown size."""
    if phase.launch is not None:
        return False
    sizes = [b.size.constant for b in phase.locals]
    return any(s is None for s in sizes) or sum((s or 0) * ELEMENT for s in sizes) > STACK_BYTES


def products_of(kernels: Iterable[Kernel]) -> tuple[ProductKind, ...]:
    """The kinds of register tiles that kernels use, in the order of their table."""
    found = {s.core.product for k in kernels for s in all_statements(k) if isinstance(s, Tile)}
    return tuple(p for p in PRODUCTS if p in found)


def tables(kernel: Kernel) -> tuple[IndexTable, ...]:
    """The constant tables that a kernel uses, without duplicates, sorted by name."""
    entries = (a for e in _parts(kernel.phases) if isinstance(e, Index) for a in atoms(e) if isinstance(a, Entry))
    found = {a.table.name: a.table for a in entries}
    return tuple(found[name] for name in sorted(found))


def names_in(phase: Phase) -> frozenset[str]:
    """The names in the body of a phase: of buffers, inputs, outputs and variables."""
    parts = list(_parts(phase.body))
    looked = (name for part in parts if isinstance(part, Index) for name in looked_up(part))
    return frozenset((*(part for part in parts if isinstance(part, str)), *looked))


def _parts(x: object) -> Iterator[object]:
    """All nodes of statements and scalars, each once; indices are leaves."""
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
        elif not isinstance(here, Index):  # of dataclasses what they are made of, without what is derived from it
            waiting.extend(getattr(here, name) for name in getattr(here, "__match_args__", ()))
