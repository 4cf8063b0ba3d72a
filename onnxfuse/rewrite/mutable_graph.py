"""The mutable graph of the rewrite engine, with makers and users of values kept up to date.

A change takes time proportional to the nodes it touches. Made by `MutableGraph(graph)`, turned back by `freeze()`; no
other step sees it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Constant, Decision, Graph, Node, TensorType, sorted_nodes
from onnxfuse.ir.index import Index
from onnxfuse.ir.ranges import Range
from onnxfuse.ir.scalar import Load
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import Definition, View, define
from onnxfuse.ops.traits import keeps_order

Array = np.ndarray[Any, Any]
Definitions = tuple[Definition, ...]

Origin = tuple["str | Origin", ...]

SMALL = 4096  # largest constant, in elements, that is compared by content or tested for being uniform


class Miss(Exception):  # control flow inside one step; `explain` returns the reason
    """A step does not apply at a node; the message says why."""


class NoMatch(Miss):
    """The nodes do not have the form that a step rewrites: nothing could make it apply."""


class MutableGraph:
    """Nodes by number, with their order; values by name. Only `engine` changes it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.opset = graph.opset
        self.types: dict[str, TensorType | None] = dict(graph.types)
        self.constants: dict[str, Constant] = dict(graph.constants)
        self.known: dict[str, tuple[Index, ...]] = dict(graph.known)
        self.outputs = frozenset(graph.outputs)
        self.pinned = self.outputs | {c for n in graph.nodes for c in n.captures}
        self.nodes: dict[int, Node] = {}
        self.place: dict[int, tuple[int, int]] = {}
        self.maker: dict[str, int] = {}
        self.users: dict[str, dict[int, None]] = {}
        self.equal: dict[object, int] = {}
        self.names = {n.name for n in graph.nodes}
        self.origins: dict[int, Origin] = {}  # what the nodes made by rewrites replaced
        self._next = 0
        self._definitions: dict[int, Definitions | Decision] = {}
        self._numbers: dict[str, float | None] = {}
        self.stuck: dict[int, tuple[tuple[Definitions, ...], str]] = {}
        self._contents: dict[bytes, str] = {}
        self.ranges: tuple[dict[str, Range], dict[str, Range]] = ({}, {})  # see proofs.ranges
        self.looked_into = 0  # elements of large constants that range analysis has read
        for at, node in enumerate(graph.nodes):
            self.add(node, (at, 0))
        # outputs that a row can type and the loader left untyped contradict the model, and stay untyped
        self._disputed = {o for at in self.nodes for o in self._untyped(at) if self._typed_by_row(at)}

    # Reading ----------------------------------------------------------------------------------------------------------

    def node(self, value: str) -> Node | None:
        """The node that makes a value; None for inputs and constants."""
        at = self.maker.get(value)
        return None if at is None else self.nodes[at]

    def made_by(self, value: str, *ops: str) -> Node:
        """The node that makes a value, if it is one of these operators. Raises Miss."""
        node = self.node(value)
        if node is None or node.op not in ops or not node.standard:
            raise NoMatch(f"{value} is not the output of {' or '.join(ops)}")
        return node

    def single_use(self, value: str) -> bool:
        """Whether exactly one node reads the value, which is no graph output and not captured by a subgraph."""
        return len(self.users.get(value, ())) == 1 and value not in self.pinned

    def type(self, value: str) -> TensorType:
        """The type of a value. Raises Miss."""
        found = self.types.get(value)
        if found is None:
            raise Miss(f"the type of {value or 'an absent input'} is unknown")
        return found

    def view(self, node: Node) -> View:
        """The view of a node that rows get."""
        return View(node, self.types, self.constants, self.known, self.opset)

    def definitions(self, at: int) -> Definitions:
        """The definitions of a node's outputs. Raises Miss without a row, or where the row refuses the node."""
        found = self._definitions.get(at)
        if found is None:
            found = self._definitions[at] = define(ROWS, self.view(self.nodes[at]))
        if isinstance(found, Decision):
            raise Miss(found.reason)
        return found

    def moves(self, at: int) -> bool:
        """Whether a node only moves elements."""
        try:
            return moves(self.definitions(at))
        except Miss:
            return False

    def is_view(self, at: int) -> bool:
        """Whether a node returns all elements of its input in row-major order, possibly with another shape.

        A trait of the operator, so it is known for symbolic extents too.
        """
        row = ROWS.find(self.nodes[at], self.opset)
        return row is not None and self.moves(at) and keeps_order(row)

    def number(self, value: str) -> float | None:
        """The value of a uniform constant; None if elements differ, or the constant is large."""
        if value not in self._numbers:
            self._numbers[value] = uniform(self.constants.get(value))
        return self._numbers[value]

    def array(self, value: str) -> Array:
        """The elements of a constant of at most 64 * SMALL elements. Raises Miss."""
        constant = self.constants.get(value)
        if constant is None:
            raise Miss(f"{value or 'an absent input'} is not a constant")
        if constant.dtype.kind == "x":
            raise Miss(f"the element type of {value} is not supported")
        if constant.size > 64 * SMALL:
            raise Miss(f"the constant {value} has too many elements to be read")
        return constant.load()

    # Changing ---------------------------------------------------------------------------------------------------------

    def origin(self, at: int) -> Origin:
        """The names of the original nodes that a node replaces, possibly nested."""
        node = self.nodes[at]
        return self.origins.get(at, node.origin or (node.name,))

    def add(self, node: Node, place: tuple[int, int] | None = None, beside: int = 0) -> int:
        """Insert a node at a place, or directly after the node `beside`; its number."""
        at, self._next = self._next, self._next + 1
        self.nodes[at] = node
        self.place[at] = place or (self.place[beside][0], at)
        for o in node.outputs:
            if o:
                self.maker[o] = at
        for i in node.reads:
            self.users.setdefault(i, {})[at] = None
        return at

    def remove(self, at: int) -> Node:
        """Remove a node, and return it."""
        node = self.nodes.pop(at)
        self._definitions.pop(at, None)
        for o in node.outputs:
            if self.maker.get(o) == at:
                del self.maker[o]
        for i in node.reads:
            self.users[i].pop(at, None)
        return node

    def unused_name(self, wanted: str) -> str:
        """A node name like the wanted one that no node has had."""
        name, at = wanted, 1
        while name and name in self.names:
            at += 1
            name = f"{wanted}.{at}"
        self.names.add(name)
        return name

    def _change(self, at: int, node: Node) -> None:
        place = self.place[at]
        self.remove(at)
        self.nodes[at], self.place[at] = node, place
        for o in node.outputs:
            if o:
                self.maker[o] = at
        for i in node.reads:
            self.users.setdefault(i, {})[at] = None

    def redirect(self, old: str, new: str) -> list[int]:
        """Let all readers of `old` read `new`; returns the readers."""
        readers = list(self.users.get(old, ()))
        for at in readers:
            node = self.nodes[at]
            self._change(at, replace(node, inputs=tuple(new if i == old else i for i in node.inputs)))
        return readers

    def rename(self, old: str, new: str) -> list[int]:
        """Rename the value `old` to `new`, which no node makes any more; returns its maker and readers."""
        at = self.maker[old]
        node = self.nodes[at]
        self.types[new] = self.types.get(new) or self.types.get(old)
        if old in self.known:
            self.known[new] = self.known[old]
        self._change(at, replace(node, outputs=tuple(new if o == old else o for o in node.outputs)))
        return [at, *self.redirect(old, new)]

    def forget(self, values: Iterable[str]) -> None:
        """Drop the cached definitions of nodes that read these values."""
        for v in values:
            for at in self.users.get(v, ()):
                self._definitions.pop(at, None)

    def set_constant(self, name: str, constant: Constant) -> None:
        """Turn a value into a constant."""
        self.constants[name] = constant
        self.types[name] = TensorType(constant.dtype, tuple(map(Index.of, constant.shape)))
        self._numbers.pop(name, None)
        elements = integers(constant)
        if elements is not None:
            self.known[name] = elements
        self.forget([name])

    def retype(self, at: int) -> None:
        """Infer missing output types of a node by its row: shapes may become known when constants are folded."""
        untyped = self._untyped(at)
        if not untyped or self._disputed.intersection(untyped):
            return
        self._definitions.pop(at, None)
        self.types.update({o: t for o, t in self._typed_by_row(at).items() if o in untyped})
        self.forget(untyped)

    def _untyped(self, at: int) -> list[str]:
        return [o for o in self.nodes[at].outputs if o and self.types.get(o) is None]

    def _typed_by_row(self, at: int) -> dict[str, TensorType]:
        try:
            return {d.name: d.type for d in self.definitions(at)}
        except Miss:
            return {}

    def same_constant(self, name: str, constant: Constant) -> str:
        """The first small constant with this content; `name` if there is none."""
        key = content(constant)
        if key is None:
            return name
        first = self._contents.get(key, name)
        if first not in self.constants:
            first = name
        self._contents[key] = first
        return first

    def freeze(self) -> Graph:
        """The graph, close to the original order of nodes, without unused constants."""
        order = sorted(self.nodes, key=lambda at: self.place[at])
        nodes = [
            replace(self.nodes[at], origin=names_of(self.origins[at])) if at in self.origins else self.nodes[at]
            for at in order
        ]
        used = {*self.graph.inputs, *self.graph.outputs, *(v for n in nodes for v in (*n.reads, *n.outputs))}
        constants = {v: c for v, c in self.constants.items() if v in used}
        return replace(
            self.graph,
            nodes=sorted_nodes(nodes, {*self.graph.inputs, *constants}),
            types={v: t for v, t in self.types.items() if v in used},
            constants=constants,
            known={v: k for v, k in self.known.items() if v in used},
        )


def names_of(origin: Origin) -> tuple[str, ...]:
    """The names in an origin, each once."""
    found: dict[str, None] = {}
    stack: list[str | Origin] = [origin]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            found.setdefault(part)
        else:
            stack.extend(reversed(part))
    return tuple(name for name in found if name)


def moves(meaning: Definitions) -> bool:
    """Whether all definitions are plain loads, so that elements are only moved."""
    return bool(meaning) and all(isinstance(d.value, Load) for d in meaning)


def content(constant: Constant) -> bytes | None:
    """A digest of a small constant's type and elements; None for large ones and for types that no row supports."""
    if constant.size > SMALL // 4 or constant.dtype.kind not in "fiub":
        return None
    array = np.ascontiguousarray(constant.load())
    return hashlib.sha256(f"{constant.dtype}{constant.shape}".encode() + array.tobytes()).digest()


def uniform(constant: Constant | None) -> float | None:
    """The value of a small uniform constant; None for others."""
    if constant is None or not 0 < constant.size <= SMALL or constant.dtype.kind not in "fiub":
        return None
    array = constant.load().reshape(-1)
    return float(array[0]) if bool((array == array[0]).all()) else None


def integers(constant: Constant) -> tuple[Index, ...] | None:
    """The elements of an integer scalar or short vector; None for other constants."""
    if constant.dtype.kind not in "iu" or len(constant.shape) > 1 or constant.size > 1024:
        return None
    return tuple(Index.of(int(i)) for i in constant.load().reshape(-1))


def static_shape(type_: TensorType) -> tuple[int, ...]:
    """The shape as integers. Raises Miss for symbolic extents."""
    shape = type_.static_shape
    if shape is None:
        raise Miss(f"the shape of {type_!r} is symbolic")
    return shape


def type_of(dtype: DType, shape: Iterable[int]) -> TensorType:
    """A static tensor type."""
    return TensorType(dtype, tuple(map(Index.of, shape)))
