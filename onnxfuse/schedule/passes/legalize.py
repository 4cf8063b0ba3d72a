"""The last pass: code-generation decisions that need no search (load forms, vector accumulators, stack or scratch).

The renderer only prints what it finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.index import ONE, Axis
from onnxfuse.ir.indexing import WIDEST, coefficient
from onnxfuse.ir.kernel import (
    Accumulate,
    Buffer,
    Kernel,
    Let,
    Loop,
    Phase,
    ReduceLoop,
    Stmt,
    Store,
    When,
    in_slots,
    statements,
)
from onnxfuse.ir.lanes import TOGETHER, copies, matrix_load, runs_again, stores_codes, wide_accesses
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.products import Unit
from onnxfuse.ir.scalar import Apply, Scalar, variable
from onnxfuse.ir.tile import Tile
from onnxfuse.schedule.passes.legal_scalars import LegalScalars


def legalize(kernel: Kernel) -> Kernel:
    """The kernel annotated with all decisions that a renderer would have to make; they are the same for all targets."""
    shared = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)} | {b.name: b.dtype for b in kernel.scratch}
    return replace(kernel, phases=tuple(_phase(p, shared) for p in kernel.phases), legal=True)


def _phase(phase: Phase, shared: Mapping[str, DType]) -> Phase:
    """A phase with legal statements, memory chosen for its buffers, and the setup that its tasks need."""
    of_threads = {b.name: b for b in phase.locals} if phase.launch is not None else None
    body = _Body({**shared, **{b.name: b.dtype for b in phase.locals}}, of_threads).body(phase.body)
    streams = any(isinstance(s, Store) and s.stream for s in statements(body))
    return replace(phase, slots=in_slots(phase), body=body, matrix_unit=_unit(phase), streams=streams)


def _unit(phase: Phase) -> tuple[Unit, int] | None:
    """The matrix unit that a phase uses, and the rows of its largest tiles; None if it uses none."""
    cores = [s.core for s in statements(phase.body) if isinstance(s, Tile)]
    units = {(unit, core.most) for core in cores if (unit := core.product.unit) is not None}
    assert len(units) < 2, "schedule: a phase sets a matrix unit up once"
    return next(iter(units), None)


@dataclass(slots=True)
class _Body:
    """Rewrites the statements of a phase, given the dtypes of buffers and the reductions with vector accumulators."""

    buffers: Mapping[str, DType]
    of_threads: Mapping[str, Buffer] | None = None  # buffers of a phase, if threads run it
    scalar: LegalScalars = field(default_factory=LegalScalars)
    around: Loop | None = None  # the vector loop
    carried: dict[str, int] = field(default_factory=dict)  # variables, and the number of vector accumulators of each
    vectors: dict[tuple[Axis, bool], LegalScalars] = field(default_factory=dict)

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The statements of a block."""
        return tuple(map(self.statement, body))

    def statement(self, s: Stmt) -> Stmt:
        """One statement."""
        match s:
            case Loop():
                return self.vector_loop(s) if s.kind == "vector" else self.serial_loop(s)
            case When():
                return replace(s, body=self.body(s.body))
            case ReduceLoop():
                return self.reduce_loop(s)
            case Let():
                return replace(s, value=self.scalar(s.value))
            case Accumulate():
                return self.accumulate(s)
            case Store():
                return self.store(s)
            case _:
                return s

    def serial_loop(self, s: Loop) -> Loop:
        """Another loop; of one in a vector loop, whether what it stores is narrowed together.

        Of one over lanes, whether it loads matrices.
        """
        made = replace(s, body=self.body(s.body))
        if s.kind == "lane" and self.of_threads is not None:
            return replace(made, matrices=matrix_load(made, self.of_threads))
        together = self.around is not None and s.kind == "serial" and stores_codes(made, self.around)
        return replace(made, together=TOGETHER) if together else made

    def vector_loop(self, s: Loop) -> Loop:
        """A vector loop: whether it begins at a multiple of any vector length, and its number of accumulators.

        On a CPU, whether the vectors that it stores are narrowed together.
        """
        aligned = all(c % WIDEST == 0 for _, c in s.begin.terms)
        outer, self.around = (self.scalar, self.around), s
        self.scalar = self.vectors.setdefault((s.axis, aligned), LegalScalars(s.axis, aligned))
        body = self.body(s.body)
        self.scalar, self.around = outer
        targets = [t for x in statements(body) if isinstance(x, Accumulate) and x.carried for t in x.targets]
        made = replace(s, body=body, aligned=aligned, carries=max((self.carried.get(t, 0) for t in targets), default=0))
        if self.of_threads is None:
            together = stores_codes(made, made)
            return replace(made, together=TOGETHER) if together else replace(made, again=runs_again(made))
        loads, stores = wide_accesses(made, self.of_threads)
        return replace(made, loads=loads, stores=stores)

    def reduce_loop(self, s: ReduceLoop) -> ReduceLoop:
        """A reduction; its loops see whether it has vector accumulators."""
        if s.scope != "lane":
            return replace(s, body=self.body(s.body))
        (target,) = s.targets
        self.carried[target] = s.accumulators
        body = self.body(s.body)
        del self.carried[target]
        return replace(s, body=body)

    def accumulate(self, s: Accumulate) -> Accumulate:
        """An update of accumulators."""
        values = tuple(map(self.scalar, s.values))
        merged: tuple[Scalar, ...] = ()
        if len(s.targets) > 1:
            left = tuple(variable(t, v.dtype) for t, v in zip(s.targets, values, strict=True))
            merged = tuple(map(self.scalar, MONOIDS[s.combine].merge(left, values)))
        return replace(s, values=values, carried=s.targets[0] in self.carried, merged=merged)

    def store(self, s: Store) -> Store:
        """A store, without the conversion that the store itself implies."""
        value, behind = self.scalar(_unrounded(s.value, self.buffers[s.buffer])), tuple(map(self.scalar, s.behind))
        axis = self.scalar.axis
        scattered = axis is not None and not behind and coefficient(s.offset, axis) != ONE
        made = replace(s, value=value, behind=behind, scattered=scattered)
        return replace(made, copied=self.of_threads is not None and copies(made, self.buffers[s.buffer]))


def _unrounded(x: Scalar, dtype: DType) -> Scalar:
    """A value stored as `dtype`, without its conversion to that dtype."""
    if isinstance(x, Apply) and x.fn == "cast" and x.dtype == dtype != dtype.accumulator and x.args[0].dtype == F32:
        return x.args[0]
    return x
