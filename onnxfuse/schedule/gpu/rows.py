"""A phase of row reductions and what is computed from them, stitched together: a thread, a warp or a block per row.

What several steps of a row read is loaded once and kept in registers, as are values between the steps where every
thread reads what it has made itself. Others go through shared memory, or through that of the run. Threads that share a
row load all of it before the first step, also what only the last one reads, as far as registers suffice: a thread then
waits for memory once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onnxfuse.ir.compose import loads, rebuild
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ONE, Axis, Index, axes_of
from onnxfuse.ir.indexing import product, substitute, unflatten
from onnxfuse.ir.kernel import Buffer, Phase, ReduceScope, Store
from onnxfuse.ir.launch import ALIGNED, MOST_BLOCKS, MOST_THREADS, Scope, Sync
from onnxfuse.ir.scalar import Load, Reduce, Scalar, variable
from onnxfuse.schedule.analysis.memory import Place, dense
from onnxfuse.schedule.gpu.row_steps import Made, RowStep, common_value, reads_of, recomputed, slot_of, steps_of
from onnxfuse.schedule.gpu.thread_mapping import Columns, ThreadMapping, around, once, over_rows
from onnxfuse.schedule.gpu.writer import ThreadWriter, resolved
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.nest import Level
from onnxfuse.target import Gpu, block_shared

REGISTERS = 64  # of a thread, of 32 bits, that hold elements of a row at most
OTHERS = 32  # registers of a thread for all else
OF_BLOCK = 1 << 16  # registers that the threads of a block have together
LEFT = 8 << 10  # bytes of the shared memory that a block may ask for that are left to its reductions
TEAMS: dict[str, Scope] = {"warp": "warp", "block": "block"}


@dataclass(frozen=True, slots=True)
class Phased:
    """A phase and what of the run's memory it needs for itself."""

    phase: Phase
    scratch: tuple[Buffer, ...]


def row_phase(
    t: AlignedJobs, d: ThreadMapping, places: Mapping[str, Place], kept: set[str], target: Gpu
) -> Phased | None:
    """The phase in a division; None where registers do not suffice for it."""
    row, launch = over_rows(d, product([a.extent for a in t.shared]), MOST_BLOCKS)
    digits = dict(zip(t.shared, unflatten(Index.of(row), tuple(a.extent for a in t.shared)), strict=True))
    steps, values = steps_of(t, d, digits, kept)
    storage = _Storage(d, places, digits, target)
    if d.near or (not d.kept and d.team == "block"):
        steps = recomputed(steps, values, kept)
    if d.near and (found := common_value(steps, values)) is not None:
        common, rest = found
        assert common.columns is not None
        steps = [common, *rest]
        storage.by_value[common.name] = storage.register_buffer(common.columns, common.value.dtype)
    for number, step in enumerate(steps):
        if step.name in values and step.columns is not None:
            storage.hold(values[step.name], steps[number + 1 :], kept)
    storage.load_once(steps, values)
    if storage.elements > REGISTERS or storage.bytes > storage.most:
        return None
    if d.near and any(step.name in storage.by_value and step.name in storage.places for step in steps):
        return None
    body = _Body(d, values, storage, kept)
    body.load_early()
    for step in steps:
        body.step(step)
    if storage.shared:
        body.writer.at[0].append(Sync("block"))
    phase = Phase(
        (), ONE, (*storage.registers, *storage.shared, *storage.beside.values()),
        around(d, row, tuple(body.writer.at[0])),
        launch=replace(launch, shared=Index.of(storage.bytes), resident=MOST_THREADS // d.block if d.near else 0),
    )  # fmt: skip
    return Phased(phase, tuple(storage.scratch))


class _Storage:
    """Storage of values between the steps of a phase (registers, shared memory or scratch), and loads done once."""

    def __init__(
        self, d: ThreadMapping, places: Mapping[str, Place], digits: Mapping[Axis, Index], target: Gpu
    ) -> None:
        self.most = block_shared(target) - LEFT  # bytes of rows in shared memory
        self.division, self.places, self.digits = d, dict(places), digits
        self.by_value: dict[str, Buffer] = {}  # registers
        self.by_load: dict[tuple[Load, Columns], Buffer] = {}
        self.shared: list[Buffer] = []
        self.beside: dict[str, Buffer] = {}  # shared memory for what a thread has beyond that in registers of a name
        self.scratch: list[Buffer] = []
        self.met: set[str] = set()  # values that threads read of each other
        self.bytes = 0

    @property
    def registers(self) -> list[Buffer]:
        """All buffers in registers."""
        return [*self.by_value.values(), *self.by_load.values()]

    def hold(self, made: Made, later: Sequence[RowStep], kept: set[str]) -> None:
        """Registers where threads read what they have made, else memory; none where nobody of the phase reads it."""
        name, across = made.nest.name, made.columns
        assert across is not None
        reads = [(load, step) for step in later for load in reads_of(step, name)]
        own = all(made.is_own(load, step.columns) for load, step in reads)
        if not reads:
            return
        if own and across.register is not None:
            self.by_value[name] = self.register_buffer(across, made.nest.dtype)
            return
        if not own and self.division.team != "thread":
            self.met.add(name)
        if name in kept or made.nest.output:
            return
        size = across.total.constant
        dtype = made.nest.dtype
        at = -(-self.bytes // ALIGNED) * ALIGNED
        if self.division.team == "block" and size is not None and at + size * dtype.bytes <= self.most:
            self.shared.append(self.shared_buffer(f"{name} of a row", dtype, size))
            self.places[name] = Place(
                self.shared[-1].name, dtype, lambda index: made.position(Load(name, index, dtype))
            )
            return
        self.scratch.append(Buffer(name, dtype, product(made.nest.shape), "global"))
        self.places[name] = dense(name, dtype, made.nest.shape)

    def register_buffer(self, across: Columns, dtype: DType) -> Buffer:
        """A new buffer for what a thread has of the elements of a row."""
        made = Buffer(f"x{len(self.registers)}", dtype, Index.of(across.registers), "register")
        if across.others:
            self.beside[made.name] = self.shared_buffer(f"{made.name} beyond", dtype, across.others)
        return made

    def shared_buffer(self, name: str, dtype: DType, size: int) -> Buffer:
        """A new buffer in shared memory."""
        at = -(-self.bytes // ALIGNED) * ALIGNED
        self.bytes = at + size * dtype.bytes
        return Buffer(name, dtype, Index.of(size), "shared", at)

    def load_once(self, steps: Sequence[RowStep], values: Mapping[str, Made]) -> None:
        """Registers for what several steps load at the same place in a row, and for what is loaded early."""
        found = Counter[tuple[Load, Columns]]()
        late: set[tuple[Load, Columns]] = set()
        for number, step in enumerate(steps):
            across = step.columns
            if across is None or across.register is None:
                continue
            mine = frozenset(level.axis for level in across.loops)
            read = dict.fromkeys(load for x in step.scalars for load in loads(x))
            inside = {*values, *self.by_value}
            outside = [load for load in read if load.source not in inside and not load.guards]
            within = mine | {axis for e in self.digits.values() for axis in axes_of(e)}
            pairs = [(load, across) for load in outside if mine & (axes := _axes(load)) and axes <= within]
            found.update(pairs)
            late.update(pair for pair in pairs if number or across.turns > 1)
        for (load, across), count in found.items():
            if count > 1:
                self.by_load[load, across] = self.register_buffer(across, load.dtype)
        most = min(REGISTERS, OF_BLOCK // self.division.block - OTHERS) if self.division.team != "thread" else 0
        most = 0 if self.division.near else most
        for load, across in found:
            early = (load, across) in late and (load, across) not in self.by_load
            if early and self.elements + across.registers <= most:
                self.by_load[load, across] = self.register_buffer(across, load.dtype)

    @property
    def elements(self) -> int:
        """Registers of 32 bits that hold elements."""
        return sum((b.size.constant or 0) * max(b.dtype.bits, 32) for b in self.registers) // 32


class _Body:
    """The statements about a row, written step by step."""

    def __init__(self, d: ThreadMapping, values: Mapping[str, Made], storage: _Storage, kept: set[str]) -> None:
        self.division, self.values, self.storage, self.kept = d, values, storage, kept
        self.writer = ThreadWriter([], at=[[]])
        self.results: dict[str, Scalar] = {}  # of rows: values and reductions
        self.loaded: set[tuple[Load, Columns]] = set()
        self.beyond = False  # whether what is written is of elements in shared memory

    def parts(self, across: Columns) -> Iterator[tuple[Level, ...]]:
        """The loops over the elements, those in registers first, then those in shared memory."""
        for number, loops in enumerate(across.parts):
            self.beyond = number > 0
            yield loops
        self.beyond = False

    def load_early(self) -> None:
        """All that is kept in registers, where several threads share a row."""
        if self.division.team == "thread":
            return
        for across in dict.fromkeys(across for _, across in self.storage.by_load):
            mine = [(load, self.placed(load)) for load, at in self.storage.by_load if at == across]
            for loops in self.parts(across):
                self.writer.loop(loops, across.guards, partial(self.keep, mine, across, copied=True))

    def step(self, step: RowStep) -> None:
        """One step."""
        if step.reduce is not None:
            self.reduce(step, step.reduce)
        elif step.columns is None:
            self.of_row(step)
        else:
            self.of_elements(step, step.columns)

    def reduce(self, step: RowStep, x: Reduce) -> None:
        """A reduction over the row, by all that are at it."""
        across = step.columns
        assert across is not None
        fresh = self.fresh(step)
        scope: ReduceScope = "serial" if self.division.team == "thread" else self.division.team
        made: tuple[str, ...] = ()
        for loops in self.parts(across):
            body = tuple(self.scalar(b, step) for b in x.body)
            self.writer.before = lambda: self.keep(fresh, across)
            made = self.writer.reduction(replace(x, body=body, ranges=()), 0, loops, across.guards, scope, made)
            self.writer.before = None
        for slot, name in enumerate(made):
            self.results[slot_of(step.name, slot)] = variable(name, x.body[slot].dtype)

    def of_row(self, step: RowStep) -> None:
        """A value of the whole row, which everybody at it computes."""
        made = self.writer.value(self.scalar(step.value, step))
        self.results[step.name] = made
        nest = self.values[step.name].nest
        if nest.output or step.name in self.kept:
            self.writer.at[0].append(once(self.division, self.stored(step, made)))

    def of_elements(self, step: RowStep, across: Columns) -> None:
        """A value of each element of the row."""
        register = self.storage.by_value.get(step.name)

        def fill(fresh: Sequence[tuple[Load, Load]], value: Scalar) -> None:
            self.keep(fresh, across)
            made = self.writer.value(value)
            if register is not None:
                at = self.element(register, across)
                self.writer.store(Store(at.source, at.index[0], made))
                made = at
            if step.name in self.storage.places:
                self.writer.store(self.stored(step, made))

        for loops in self.parts(across):
            self.writer.loop(loops, across.guards, partial(fill, self.fresh(step), self.scalar(step.value, step)))
        if step.name in self.storage.met:
            self.writer.at[0].append(Sync(TEAMS[self.division.team]))

    def fresh(self, step: RowStep) -> list[tuple[Load, Load]]:
        """Loads of a step that others will read from registers: as they stand there, and as they are read."""
        mine = {load for x in step.scalars for load in loads(x)}
        pairs = [(load, at) for load, at in self.storage.by_load if load in mine and at == step.columns]
        return [(load, self.placed(load)) for load, at in pairs if (load, at) not in self.loaded]

    def placed(self, load: Load) -> Load:
        """A load as it is read."""
        made = resolved(load, lambda node: None, self.storage.places)
        assert isinstance(made, Load)
        return made

    def keep(self, fresh: Sequence[tuple[Load, Load]], across: Columns, *, copied: bool = False) -> None:
        """What is loaded for later steps goes into registers, as it lies in memory or by way of a variable."""
        for load, read in fresh:
            at = self.element(self.storage.by_load[load, across], across)
            value = read if copied else self.writer.value(read)
            self.writer.store(Store(at.source, at.index[0], value))
            self.loaded.add((load, across))

    def scalar(self, x: Scalar, step: RowStep) -> Scalar:
        """A value of a step with what the phase made before, and all else read from where it lies."""
        named = rebuild(x, lambda n: self.results.get(n.source) if isinstance(n, Load) and not n.index else None, _same)
        return resolved(named, lambda load: self.read(load, step), self.storage.places)

    def read(self, load: Load, step: RowStep) -> Scalar | None:
        """What stands for an element in registers, or for a value of the row."""
        across = step.columns
        buffer = self.storage.by_value.get(load.source)
        if across is not None and (load, across) in self.loaded:
            buffer = self.storage.by_load[load, across]
        if buffer is not None:
            assert across is not None
            return self.element(buffer, across)
        return self.results.get(load.source)

    def element(self, buffer: Buffer, across: Columns) -> Load:
        """What a thread has of a row in registers, or in shared memory beyond them."""
        if self.beyond:
            assert across.other is not None
            return Load(self.storage.beside[buffer.name].name, (across.other,), buffer.dtype)
        assert across.register is not None
        return Load(buffer.name, (across.register,), buffer.dtype)

    def stored(self, step: RowStep, value: Scalar) -> Store:
        """The store of a value where it lies."""
        made, place = self.values[step.name], self.storage.places[step.name]
        digits = dict(self.storage.digits)
        if made.columns is not None:
            digits |= made.columns.digits(made.inner)
        return Store(place.buffer, place.offset(tuple(substitute(e, digits) for e in made.nest.dims)), value)


def _axes(x: Load) -> frozenset[Axis]:
    """Axes that a load depends on."""
    return frozenset(axis for e in x.index for axis in axes_of(e))


def _same(e: Index) -> Index:
    return e
