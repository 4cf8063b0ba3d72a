"""Rows of the operator table, the definitions that they give, and their view of a node.

A row's `define` states each output element as an expression over the inputs' elements, like a `linalg.generic` of MLIR.
Shape, type, mapping type, flops, loops, the reference interpretation and the docs are derived from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from onnxfuse.errors import counted
from onnxfuse.ir.compose import folded, is_static, runs, sources, with_extents, with_sources
from onnxfuse.ir.dtype import I64, DType
from onnxfuse.ir.extents import named, parts_named, sizing
from onnxfuse.ir.graph import Attribute, Constant, Decision, Graph, Node, Refused, TensorType
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.scalar import Const, FromIndex, Load, Scalar, cast
from onnxfuse.ir.unsupported import INVALID, absent
from onnxfuse.ops.element_types import misfit
from onnxfuse.ops.speller import Speller

Images = Literal["", "pool", "convolution"]
Relation = Literal["equals", "equals or is 1", "is at least"]


@dataclass(frozen=True, slots=True)
class Demand:
    """A constraint between two extents that holds in every valid call of an operator."""

    extent: Index
    relation: Relation
    other: Index

    @property
    def conditions(self) -> tuple[Index, ...]:
        """Polynomials that are all nonnegative if and only if the demand is met."""
        less = self.extent - self.other
        if self.relation == "is at least":
            return (less,)
        zero = less if self.relation == "equals" else less * (self.extent - 1)
        return (zero, -zero)

    def over(self, change: Callable[[Index], Index]) -> Demand:
        """The demand with `change` applied to both extents."""
        return Demand(change(self.extent), self.relation, change(self.other))


@dataclass(frozen=True, slots=True)
class Definition:
    """name[axes] = value, with one axis per dimension, in every call that meets the demands.

    `recurrent`: it belongs to a recurrence, whose definitions have the same axes but the last, the first being steps,
    and load each other at the same place of these, or at earlier steps.
    """

    name: str
    axes: tuple[Axis, ...]
    value: Scalar
    demands: tuple[Demand, ...] = ()
    recurrent: bool = False

    @property
    def shape(self) -> tuple[Index, ...]:
        """Extents of the axes."""
        return tuple(a.extent for a in self.axes)

    @property
    def type(self) -> TensorType:
        """The tensor type of the value."""
        return TensorType(self.value.dtype, self.shape)

    def over(self, change: Callable[[Index], Index], places: Callable[[Index], Index]) -> Definition:
        """With `change` applied to extents (of axes and ranges too), `places` to possibly negative indices."""
        axes, value = with_extents(self.axes, self.value, change, places)
        return replace(self, axes=axes, value=value)

    def __repr__(self) -> str:
        return f"{self.name}[{', '.join(map(repr, self.axes))}] = {self.value!r}"


@dataclass(frozen=True, slots=True)
class View:
    """What a row may read of a node: input types, known integers, small constants and attributes.

    `demands` collects the row's constraints on symbolic extents.
    """

    node: Node
    types: Mapping[str, TensorType | None]
    constants: Mapping[str, Constant]
    known: Mapping[str, tuple[Index, ...]]
    opset: int
    demands: dict[Demand, None] = field(default_factory=dict, compare=False)

    def has(self, i: int) -> bool:
        """Whether optional input i is given."""
        return i < len(self.node.inputs) and bool(self.node.inputs[i])

    def type(self, i: int) -> TensorType:
        """Type of input i. Raises Refused where it is not known."""
        name = self.node.inputs[i] if self.has(i) else ""
        found = self.types.get(name)
        if found is None:
            said = f"the shape of {name or 'an input'} is not known"
            raise self.refuse("E-SHAPE-UNKNOWN", said, "give --input-shape")
        return found

    def dtype(self, i: int = 0) -> DType:
        """Element type of input i."""
        return self.type(i).dtype

    def shape(self, i: int = 0) -> tuple[Index, ...]:
        """Extents of input i."""
        return self.type(i).shape

    def ranked(self, i: int, least: int, most: int | None = None) -> tuple[Index, ...]:
        """Extents of input i, at least `least` and at most `most`. Raises Refused where it has more or fewer."""
        shape = self.shape(i)
        if not least <= len(shape) <= (len(shape) if most is None else most):
            wanted = f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
            raise self.refuse("E-INVALID", f"{self.node.inputs[i]} has rank {len(shape)}, not {wanted}")
        return shape

    def load(self, i: int, index: tuple[Index, ...]) -> Scalar:
        """Element `index` of input i; a constant of one element becomes a literal."""
        constant = self.constants.get(self.node.inputs[i])
        if constant is not None and constant.size == 1:
            return Const(constant.load().reshape(()).item(), constant.dtype)
        if len(index) != len(self.shape(i)):
            raise self.refuse("E-INVALID", f"{self.node.inputs[i]} is not of rank {len(index)}")
        return Load(self.node.inputs[i], index, self.dtype(i))

    def lengths(self, name: str, values: Sequence[object], wanted: int) -> None:
        """Raise Refused unless a list has the wanted length."""
        if len(values) != wanted:
            raise self.refuse("E-INVALID", f"{name} has {counted(len(values), 'entry')}, not {wanted}")

    def positive(self, names: str, values: Iterable[int]) -> None:
        """Raise Refused unless all values of some attributes are at least 1."""
        if min(values, default=1) < 1:
            raise self.refuse("E-INVALID", f"{names} must be at least 1")

    def nonempty(self, extents: Iterable[Index]) -> None:
        """Raise Refused where an extent is 0, or less where nothing is left of it."""
        if any(n is not None and n < 1 for n in (e.constant for e in extents)):
            raise self.refuse("E-NO-KERNEL", "a tensor is empty", "none: it has no elements to choose from")

    def ints(self, i: int) -> tuple[Index, ...]:
        """Elements of integer input i as constants or functions of extents. Raises Refused where they are not known."""
        found = self.known.get(self.node.inputs[i])
        if found is None:
            raise self.computed(i)
        return found

    def single(self, i: int) -> Index:
        """The only element of integer input i. Raises Refused as `ints` does, and where there is another number."""
        self.lengths(self.node.inputs[i], self.ints(i), 1)
        return self.ints(i)[0]

    def extents(self, i: int) -> tuple[Index, ...]:
        """Elements of integer input i as extents in canonical form. Raises Refused as `ints` does."""
        return tuple(map(named, self.ints(i)))

    def static_ints(self, i: int) -> tuple[int, ...]:
        """Elements of integer input i as constants. Raises Refused where one is symbolic."""
        values = [e.constant for e in self.ints(i)]
        if any(v is None for v in values):
            raise self.unsized(f"{self.node.inputs[i]} depends on a symbol", self.ints(i))
        return tuple(v for v in values if v is not None)

    def array(self, i: int) -> np.ndarray[Any, Any] | None:
        """Input i as an array when it is a constant."""
        found = self.constants.get(self.node.inputs[i]) if self.has(i) else None
        return found.load() if found is not None else None

    def numbers(self, i: int) -> tuple[float, ...]:
        """Elements of constant input i. Raises Refused where it is not constant."""
        found = self.array(i)
        if found is None:
            raise self.computed(i)
        return tuple(found.reshape(-1).tolist())

    def attr(self, name: str, default: Any) -> Any:
        """An attribute or its default; floats are rounded to float32, as ONNX stores them."""
        value: Attribute | Any = self.node.attrs.get(name, default)
        if isinstance(value, float):
            return float(np.float32(value))
        return value.decode() if isinstance(value, bytes) else value

    def axis(self, value: int, rank: int) -> int:
        """An axis number, negative ones counted from the end. Raises Refused outside the rank."""
        at = value + rank if value < 0 else value
        if not 0 <= at < rank:
            raise self.refuse("E-INVALID", f"axis {value} is outside rank {rank}")
        return at

    def demand(self, extent: Index, relation: Relation, other: Index) -> None:
        """State a constraint on extents. Raises Refused where it never holds."""
        demand = Demand(extent, relation, other)
        known = [e.constant for e in demand.conditions]
        if any(n is not None and n < 0 for n in known):
            words = "differ" if relation != "is at least" else "do not fit"
            raise self.refuse("E-BROADCAST", f"{extent!r} and {other!r} {words}")
        if None in known:
            self.demands[demand] = None

    def axes(self, shape: tuple[Index, ...], tag: str = "", output: int = 0) -> tuple[Axis, ...]:
        """Fresh axes, one per extent. Raises Refused where one is negative, or no 64-bit integer."""
        if any(n is not None and n < 0 for n in (e.constant for e in shape)):
            raise self.refuse("E-INVALID", f"the result has the shape {shape!r}")
        if any(n is not None and n >= 1 << 63 for n in (e.constant for e in shape)):
            raise self.refuse("E-RESOURCE", f"the result has the shape {shape!r}", "check the sizes of the model")
        return tuple(Axis(f"{self.node.outputs[output]}{tag}:{i}", e) for i, e in enumerate(shape))

    def out(self, k: int = 0) -> str:
        """Name of output k."""
        return self.node.outputs[k]

    def refuse(self, code: str, reason: str, unlock: str = "") -> Refused:
        """A refusal about this node, to be raised."""
        return Refused(Decision(code, (self.node.name,), f"{self.node.op}: {reason}", unlock))

    def computed(self, i: int) -> Refused:
        """A refusal about an input that has to be a compile-time constant, to be raised."""
        name = self.node.inputs[i]
        return self.refuse("E-SHAPE-UNKNOWN", f"{name} is only known when the model runs", f"make {name} a constant")

    def unsized(self, reason: str, extents: Iterable[Index]) -> Refused:
        """A refusal about extents that have to be static, to be raised; users can fix those with names."""
        return self.refuse("E-SHAPE-UNKNOWN", reason, sizing(extents))


Define = Callable[[View], tuple[Definition, ...]]
# Of a node's inputs as named in a body, its outputs.
Spell = Callable[[View, Speller, tuple[str, ...]], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """An operator, by its `Node.key`, in opsets `since` to `until` of the default domain.

    `shape_inputs` are inputs whose *values* only determine the result's shape; of `type_inputs` only the type is used.
    `spell` decomposes a call that the runtime accepts in a model but not in a function body: its own operators of the
    default domain, and calls whose types it does not infer there.
    `images`: it is a convolution or a pooling; channels are dimension 1 of operands and results.
    `codes`: it quantizes or dequantizes; constants are not folded through it, since the runtime multiplies integers.
    """

    op: str
    define: Define
    since: int = 1
    until: int = 10_000
    shape_inputs: tuple[int, ...] = ()
    spell: Spell | None = None
    codes: bool = False
    type_inputs: tuple[int, ...] = ()
    images: Images = ""

    @property
    def quiet_inputs(self) -> tuple[int, ...]:
        """Inputs whose elements no definition loads."""
        return (*self.shape_inputs, *self.type_inputs)


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """All rows by the key of their operator."""

    rows: Mapping[str, tuple[Row, ...]]

    def find(self, node: Node, opset: int) -> Row | None:
        """The row that serves a node in this opset."""
        return next((r for r in self.rows.get(node.key, ()) if r.since <= opset <= r.until), None)


def table(*families: tuple[Row, ...]) -> OperatorTable:
    """The table of some families of rows; at most one row serves an operator in an opset."""
    rows: dict[str, tuple[Row, ...]] = {}
    for family in families:
        for row in family:
            others = rows.get(row.op, ())
            assert all(row.until < r.since or r.until < row.since for r in others), f"{row.op} has two rows"
            rows[row.op] = (*rows.get(row.op, ()), row)
    return OperatorTable(rows)


def view_of(graph: Graph, node: Node) -> View:
    """A node of a graph as its row sees it."""
    return View(node, graph.types, graph.constants, graph.known, graph.opset)


REPORT = "report it, with the model if you can: a bug of onnxfuse"
# Exceptions that a bug in a row raises: the node is left to the runtime (E-INTERNAL), the build goes on.
UNFORESEEN = (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)


def define(rows: OperatorTable, view: View) -> tuple[Definition, ...] | Decision:
    """The definitions of a node's outputs, or why there are none (E-NO-KERNEL, E-OPAQUE, E-INVALID, ...)."""
    node = view.node
    if node.invalid:
        return Decision("E-INVALID", (node.name,), f"{node.op}: {node.invalid}", INVALID)
    row = rows.find(node, view.opset)
    if row is None and node.body is not None:
        return _by_body(rows, node, node.body)
    if row is None and not node.standard:
        said = f"{node.key} belongs to another domain"
        return Decision("E-OPAQUE", (node.name,), said, f"a function {node.key} in the model, of operators of ONNX")
    if row is None:
        versions = [(r.since, r.until) for r in rows.rows.get(node.op, ())]
        return absent(node, view.opset, versions, rows.rows)
    try:
        view.demands.clear()
        made = row.define(view)
        wrong = misfit(node, (d.value for d in made), view.types)
        return _settled(made, tuple(view.demands)) if wrong is None else view.refuse(*wrong).decision
    except Refused as refused:
        return refused.decision
    except UNFORESEEN as e:
        return Decision("E-INTERNAL", (node.name,), f"{node.op}: {e!r}", REPORT)


def defined(rows: OperatorTable, graph: Graph, node: Node) -> tuple[Definition, ...] | Decision:
    """The same of a node of a graph, made once."""
    return graph.once(node, rows, lambda: define(rows, view_of(graph, node)))


def _settled(made: tuple[Definition, ...], demands: tuple[Demand, ...]) -> tuple[Definition, ...]:
    """Definitions over named extents; the row's demands are attached to the first of them."""
    made = tuple(d if is_static(d.axes, d.value) else d.over(named, parts_named) for d in made)
    return (replace(made[0], demands=tuple(d.over(named) for d in demands)), *made[1:]) if demands else made


def _by_body(rows: OperatorTable, node: Node, body: Graph) -> tuple[Definition, ...] | Decision:
    """The definitions of a node without a row by its function body, over the node's own inputs and outputs."""
    needed = set(body.outputs)
    found: list[tuple[Definition, ...]] = []
    for inner in reversed(body.nodes):
        if not needed.intersection(inner.outputs):
            continue
        view = view_of(body, inner)
        made = extent_of(view) or define(rows, view)
        if isinstance(made, Decision):
            return Decision(made.code, (node.name,), f"{node.op}: {made.reason}", made.unlock)
        needed.update(s for d in made for s in sources(d.value))
        found.append(made)
    inputs = dict(zip(body.inputs, node.inputs, strict=False))
    outputs = dict(zip(body.outputs, filter(None, node.outputs), strict=True))
    return renamed(shallow_first([d for made in reversed(found) for d in made], body.outputs), inputs | outputs)


def in_order(definitions: Sequence[Definition]) -> list[tuple[Definition, ...]]:
    """Definitions in order, those of a recurrence together."""
    spans = runs([d.name for d in definitions], [sources(d.value) if d.recurrent else () for d in definitions])
    return [tuple(definitions[begin:end]) for begin, end in spans]


def shallow_first(definitions: Sequence[Definition], outputs: Iterable[str]) -> list[Definition]:
    """The definitions that outputs depend on, in order: operands of short chains first, so none parts a long one."""
    made = {d.name: part for part in in_order(definitions) for d in part}  # a recurrence stays together
    reads, depth = dict[str, list[str]](), dict[str, int]()
    for name, part in made.items():
        reads[name] = sorted({s for d in part for s in sources(d.value) if s in made} - {d.name for d in part})
        depth[name] = 1 + max((depth[s] for s in reads[name]), default=0)
    out: dict[str, Definition] = {}

    def visit(name: str) -> None:
        if name not in out:
            for s in sorted(reads[name], key=lambda s: depth[s]):
                visit(s)
            out.update((d.name, d) for d in made[name])

    for name in outputs:
        visit(name)
    return list(out.values())


def extent_of(view: View) -> tuple[Definition, ...]:
    """The definition of a scalar whose value is a known extent."""
    name = view.out()
    known, type_ = view.known.get(name), view.types.get(name)
    if known is None or len(known) != 1 or type_ is None:
        return ()
    return (Definition(name, view.axes(type_.shape), cast(FromIndex(known[0], I64), type_.dtype)),)


def renamed(definitions: Iterable[Definition], names: Mapping[str, str]) -> tuple[Definition, ...]:
    """Definitions with values renamed; scalar constants are inlined."""
    numbers: dict[str, Const] = {}
    out: list[Definition] = []
    for d in definitions:
        value = folded(with_sources(d.value, names, numbers))
        if isinstance(value, Const) and d.name not in names:
            numbers[d.name] = value
        else:
            out.append(replace(d, name=names.get(d.name, d.name), value=value))
    return tuple(out)
