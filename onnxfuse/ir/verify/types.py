"""Verification of element types: of values, variables, buffers and the operands of matrix products.

A buffer has one element type. Loads give values of that type; only stores and packs convert (see `converts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfuse.ir.compose import walk
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.functions import FUNCTIONS, converts, fits
from onnxfuse.ir.index import Index
from onnxfuse.ir.indexing import looked_up
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    HorizontalReduce,
    Kernel,
    Let,
    Loop,
    Pack,
    Phase,
    ReduceLoop,
    RowPointer,
    Stmt,
    Store,
    When,
    statements,
)
from onnxfuse.ir.launch import CopyAsync
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.products import SINGLE
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Reduce, Scalar
from onnxfuse.ir.tile import Packed, Quantized, Tile
from onnxfuse.ir.verify.closed import outside

KINDS: dict[type, str] = {bool: "b", int: "iu", float: "f"}  # of element types that have constants of a Python type


def type_faults(kernel: Kernel) -> Iterator[str]:
    """Values, variables, buffers and operands whose element types do not agree."""
    for number, phase in enumerate(kernel.phases):
        yield from (f"phase {number}: {what}" for what in _Types(kernel, phase).found)


class _Types:
    """The types of a phase's buffers and variables, and findings."""

    def __init__(self, kernel: Kernel, phase: Phase) -> None:
        self.buffers = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)}
        self.buffers |= {b.name: b.dtype for b in (*kernel.scratch, *phase.locals)}
        self.pointers = {b.name for b in phase.locals if b.space == "pointers"}
        self.variables: dict[str, DType] = {}
        self.found: dict[str, None] = {}
        for s in statements(phase.body):
            self.statement(s)

    def expect(self, what: str, found: DType, expected: DType) -> None:
        """A finding if two types differ."""
        if found != expected:
            self.found[f"{what} is {found}, expected {expected}"] = None

    # Values -----------------------------------------------------------------------------------------------------------

    def value(self, x: Scalar) -> DType:
        """Check a value; its type."""
        for n in walk(x):
            match n:
                case Load():
                    self.load(n)
                case Apply():
                    self.apply(n)
                case FromIndex():
                    self.index(n.index, *_of_guards(n.guards))
                    self.found.update(dict.fromkeys(outside(n.lanes) if n.lanes is not None else ()))
                case Const():
                    if n.dtype.kind not in KINDS.get(type(n.value), ""):
                        self.found[f"the constant {n.value!r} is {n.dtype}"] = None
                case Reduce():
                    self.found[f"{n!r} is a reduction, expected a ReduceLoop"] = None
        return x.dtype

    def load(self, x: Load) -> None:
        """A load of a variable, or from a buffer that is no table of pointers."""
        if not x.index:
            self.expect(f"the variable {x.source}", x.dtype, self.variables.get(x.source, x.dtype))
            return
        self.element(f"a load from {x.source}", x.source, x.dtype)
        self.index(*x.index, *_of_guards(x.guards))
        if x.otherwise is not None:
            self.expect(f"the padding of {x.source}", x.otherwise.dtype, x.dtype)
        if x.lanes is not None:
            self.found.update(dict.fromkeys(outside(x.lanes)))

    def element(self, what: str, buffer: str, t: DType) -> None:
        """An element of a buffer, taken as this type."""
        if buffer in self.pointers:
            self.found[f"{what} is {t}, expected the pointers of this buffer"] = None
        else:
            self.expect(what, t, self.buffers[buffer])

    def apply(self, x: Apply) -> None:
        """A function: its number of operands, their types and that of its result."""
        row = FUNCTIONS.get(x.fn)
        if row is None or len(x.args) != row.arity:
            wanted = "a function of the table" if row is None else f"{row.arity}"
            self.found[f"{x.fn} has {len(x.args)} operands, expected {wanted}"] = None
        elif not fits(x.fn, [a.dtype for a in x.args], x.dtype):
            taken = ", ".join(str(a.dtype) for a in x.args)
            self.found[f"{x.fn} of ({taken}) gives {x.dtype}, expected operands and result of matching types"] = None

    def index(self, *indices: Index) -> None:
        """Indices: what is looked up in tensors has to be integers."""
        for e in indices:
            for source in looked_up(e):
                if self.buffers[source].kind not in "iu":
                    self.found[f"an index from {source} is {self.buffers[source]}, expected integers"] = None

    # Statements -------------------------------------------------------------------------------------------------------

    def statement(self, s: Stmt) -> None:
        """One statement, without those in its body."""
        match s:
            case Bind() | When():
                self.index(*_of_guards(s.guards), *((s.value,) if isinstance(s, Bind) else ()))
            case Let():
                self.variables[s.name] = self.value(s.value)
            case ReduceLoop():
                self.reduction(s)
            case Accumulate():
                for target, v in zip(s.targets * 2, (*s.values, *s.merged), strict=False):
                    self.expect(f"a value accumulated into {target}", self.value(v), self.variables[target])
            case Store():
                for v in s.values:
                    self.store(s.buffer, self.value(v))
            case RowPointer() | Tile() | Pack() | HorizontalReduce():
                self.call(s)
            case CopyAsync():
                self.element(f"a copy from {s.source}", s.source, self.buffers[s.target])
            case Loop():
                self.index(s.begin, s.end)
            case _:
                pass

    def store(self, buffer: str, t: DType) -> None:
        """A value stored into a buffer."""
        if buffer in self.pointers or not converts(t, self.buffers[buffer]):
            of = "pointers" if buffer in self.pointers else self.buffers[buffer]
            self.found[f"a value stored into {buffer} is {t}, expected {of}"] = None

    def reduction(self, s: ReduceLoop) -> None:
        """The accumulators of a reduction, which have the types of the monoid's identities."""
        start = [x.dtype for x in MONOIDS[s.combine].init(s.dtype)]
        if len(start) not in (1, len(s.targets)):  # several accumulators of one number are independent of each other
            self.found[f"{s.combine} has {len(s.targets)} accumulators, expected {len(start)}"] = None
        self.variables |= {t: start[min(at, len(start) - 1)] for at, t in enumerate(s.targets)}
        if s.part is not None:
            self.element(f"an accumulator stored into {s.part[0]}", s.part[0], s.dtype)

    def call(self, s: RowPointer | Tile | Pack | HorizontalReduce) -> None:
        """A call: what is behind pointers, packed, multiplied, and reduced across lanes."""
        match s:
            case RowPointer():
                self.value(s.load)
                self.expect(f"rows of {s.load.source} behind {s.table}", s.load.dtype, self.buffers[s.table])
                if s.table not in self.pointers:
                    self.found[f"row pointers are stored into {s.table}, expected a buffer of pointers"] = None
                if s.padding:
                    self.element(f"the padding in {s.padding}", s.padding, s.load.dtype)
            case Pack():
                self.value(s.load)
                self.store(s.out, s.load.dtype)
            case HorizontalReduce():
                self.element(f"a vector of {s.source}, reduced across lanes,", s.source, F32)
                self.element(f"what is reduced across lanes into {s.target}", s.target, F32)
            case Tile():
                self.tile(s)

    def tile(self, s: Tile) -> None:
        """A tile: rows, panel and sums have the types of its product, and so do zero points."""
        p, left = s.core.product, s.left
        if isinstance(left, Packed):
            self.operand(f"rows packed in {left.buffer}", left.buffer, p.left)
        elif left.buffer not in self.pointers:
            self.found[f"the rows of a tile are behind {left.buffer}, expected a buffer of pointers"] = None
        else:
            self.expect(f"rows behind {left.buffer}, of a tile as {p!r},", self.buffers[left.buffer], p.left)
        self.operand(f"the panel in {s.right.buffer}", s.right.buffer, p.right)
        if s.right.source is not None:
            self.source(s.right.source.buffer, s)
        self.operand(f"sums in {s.out}", s.out, p.sums)
        if p.exact != isinstance(left, Quantized):
            self.found[f"a tile of {type(left).__name__} rows has the product {p!r}"] = None
        if isinstance(left, Quantized):
            self.coding(left, p.left, p.right)

    def source(self, table: str, s: Tile) -> None:
        """Where the panel of a tile comes from: pointers to rows of its type, for packed rows of floats."""
        if table not in self.pointers:
            self.found[f"a panel comes from {table}, expected a buffer of pointers"] = None
        else:
            self.expect(f"rows of a panel behind {table}", self.buffers[table], s.core.product.right)
        if not isinstance(s.left, Packed) or s.core.product != SINGLE:
            self.found[f"a tile of {type(s.left).__name__} rows as {s.core.product!r} makes its panel"] = None

    def operand(self, what: str, buffer: str, t: DType) -> None:
        """A buffer that a tile reads or stores."""
        if buffer in self.pointers:
            self.found[f"{what} are pointers, expected {t}"] = None
        else:
            self.expect(what, self.buffers[buffer], t)

    def coding(self, left: Quantized, rows: DType, panel: DType) -> None:
        """The types and zero points of a quantized tile."""
        c = left.coding
        self.expect("the type of quantized rows", c.left, rows)
        self.expect("the type of a quantized panel", c.right, panel)
        self.expect("the zero point of quantized rows", self.value(c.left_zero), rows)
        zero = c.right_zero
        if isinstance(zero, tuple):
            self.element(f"zero points in {zero[0]}", zero[0], panel)
        else:
            self.expect("the zero point of a quantized panel", self.value(zero), panel)


def _of_guards(guards: Sequence[Guard]) -> Iterator[Index]:
    for g in guards:
        yield g.index
        yield g.extent
