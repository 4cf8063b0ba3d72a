"""The model as an immutable SSA graph: tensors by name, nodes in topological order; and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any, TypeVar

import numpy as np

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import Index
from onnxfuse.ir.layout import Layout

T = TypeVar("T")

CODES: dict[str, str] = {
    "E-TYPE": "the operators cannot be combined in one kernel",
    "E-SHAPE-UNKNOWN": "a shape is unknown",
    "E-NUMEL": "the iteration spaces differ",
    "E-BROADCAST": "the shapes cannot be broadcast together",
    "E-LAYOUT": "the instruction sets of one library need different data layouts",
    "E-FANOUT": "the value has other readers",
    "E-CYCLE": "the group would depend on itself",
    "E-DTYPE": "the element type has no kernel",
    "E-RESOURCE": "a limit of the code generator is exceeded",
    "E-COST": "ONNX Runtime's own kernels are expected to be faster",
    "E-SUBGRAPH": "the node contains or feeds a subgraph",
    "E-RANDOM": "the node draws random numbers",
    "E-OPAQUE": "the operator belongs to another domain",
    "E-KEEP": "the user excluded the node",
    "E-NO-KERNEL": "no kernel can be generated for this operator with these attributes",
    "E-NUMERICS": "the kernel's results differ from those of its function body",
    "E-INVALID": "the node is not a valid use of its operator",
    "E-INTERNAL": "a bug of onnxfuse",
    "E-OPSET": "the fallback body cannot be expressed in the model's opset",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """A refusal: a stable code, the nodes it is about, the reason in a sentence, and an unlock (what would lift it)."""

    code: str
    nodes: tuple[str, ...]
    reason: str
    unlock: str = ""

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code


class Refused(Exception):
    """Carries a `Decision` out of nested calls."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape; extents are integers or polynomials over symbols."""

    dtype: DType
    shape: tuple[Index, ...]

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(repr, self.shape))}]"

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as integers when no symbol is in it."""
        shape = tuple(n for e in self.shape if (n := e.constant) is not None)
        return shape if len(shape) == len(self.shape) else None


SPARE = 64  # nodes that are no nodes of a graph of which it keeps something, such as transpositions that are priced
LIMIT = 1024  # maximum bytes of a constant in a function body: each inlined call would copy larger ones


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A compile-time constant tensor. `load` maps or computes its array, or gives the one that is `in_memory`;

    `raw` is what the loader had. A copy knows what it has the elements of, and in which layout they are its own.
    """

    dtype: DType
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray[Any, Any]]
    raw: Any = None
    in_memory: bool = False
    copied: tuple[Constant, Layout] | None = None

    @staticmethod
    def of(array: np.ndarray[Any, Any], dtype: DType) -> Constant:
        """A constant that holds its array."""
        return Constant(dtype, tuple(array.shape), lambda: array, in_memory=True)

    def stored(self, layout: Layout) -> tuple[Constant, Layout]:
        """A layout of this constant, as one of what it is a copy of."""
        return (self, layout) if self.copied is None else self.copied[0].stored(self.copied[1].then(*layout.steps))

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Storage."""
        return self.size * self.dtype.bytes


Attribute = int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Constant


@dataclass(frozen=True, slots=True)
class Node:
    """An operator call. "" marks an absent optional input; `captures` are outer values that its subgraphs read.

    `origin` names the nodes of the loaded model that it stands for; `raw` is the loader's node for opaque ones.
    `invalid` says what is wrong with a call that its operator does not allow, which is as opaque. `body` is what an
    operator without a row computes: its inputs stand for those of the node, and are no values of the graph.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute] = field(default_factory=dict, hash=False)
    name: str = ""
    domain: str = ""
    origin: tuple[str, ...] = ()
    captures: tuple[str, ...] = ()
    raw: Any = field(default=None, compare=False, repr=False)
    body: Graph | None = field(default=None, compare=False, repr=False)
    invalid: str = field(default="", compare=False, repr=False)

    @property
    def standard(self) -> bool:
        """Whether it calls an operator of the default domain and is not opaque."""
        return self.domain in ("", "ai.onnx") and not self.invalid

    @property
    def key(self) -> str:
        """Its operator: OP of the default domain, DOMAIN::OP of another."""
        return self.op if self.standard else f"{self.domain}::{self.op}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Every value it depends on: inputs and captures."""
        return tuple(i for i in self.inputs if i) + self.captures


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A model: every value has an entry in `types` (None: not known). `known` holds integer tensors of at most one axis

    whose elements are integers or polynomials over symbols. `source` is the loader's own handle, for emit.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType | None]
    constants: Mapping[str, Constant]
    known: Mapping[str, tuple[Index, ...]]
    opset: int
    source: object = None
    kept: dict[int, tuple[Node, object, Any]] = field(default_factory=dict, init=False, repr=False)  # see `once`

    def producers(self) -> dict[str, Node]:
        """The node that produces each value."""
        return {o: n for n in self.nodes for o in n.outputs if o}

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value, each once, in order."""
        found: dict[str, list[Node]] = {}
        for n in self.nodes:
            for i in dict.fromkeys(n.reads):
                found.setdefault(i, []).append(n)
        return found

    def once(self, node: Node, by: object, make: Callable[[], T]) -> T:
        """What `make` makes of a node by some table: it is made once, and forgotten with the graph."""
        known = self.kept.get(id(node))
        if known is not None and known[0] is node and known[1] is by:
            found: T = known[2]
            return found
        if len(self.kept) >= len(self.nodes) + SPARE:
            self.kept.clear()
        made = make()
        self.kept[id(node)] = (node, by, made)  # with the node, so that no other one gets its number
        return made

    def with_nodes(self, nodes: Iterable[Node], **changes: Any) -> Graph:
        """The same graph with other nodes."""
        return replace(self, nodes=tuple(nodes), **changes)

    def verify(self) -> None:
        """Assert the invariants of a graph: topological order, single assignment, a type entry for every value."""
        seen = {*self.inputs, *self.constants, ""}
        for n in self.nodes:
            missing = [i for i in n.reads if i not in seen]
            assert not missing, f"graph: {n.op} {n.name} reads {missing[0]} before its definition"
            for o in n.outputs:
                assert o not in seen or not o, f"graph: {o} is defined twice"
                assert not o or o in self.types, f"graph: {o} has no type entry"
            seen.update(n.outputs)
        absent = [o for o in self.outputs if o not in seen]
        assert not absent, f"graph: output {absent[0]} is not defined"


def sorted_nodes(nodes: Iterable[Node], available: Iterable[str]) -> tuple[Node, ...]:
    """Nodes in a topological order close to the given one. Raises ValueError for a cycle."""
    pending = list(nodes)
    made = {o for n in pending for o in n.outputs if o}
    have = set(available)
    waiting: dict[str, list[int]] = {}
    missing = [0] * len(pending)
    ready: list[int] = []
    for at, n in enumerate(pending):
        needs = {i for i in n.reads if i in made and i not in have}
        missing[at] = len(needs)
        for i in needs:
            waiting.setdefault(i, []).append(at)
        if not needs:
            ready.append(at)
    return _drain(pending, ready, waiting, missing)


def _drain(
    pending: list[Node], ready: list[int], waiting: dict[str, list[int]], missing: list[int]
) -> tuple[Node, ...]:
    heapify(ready)
    out: list[Node] = []
    while ready:
        at = heappop(ready)
        out.append(pending[at])
        for o in pending[at].outputs:
            for user in waiting.get(o, ()):
                missing[user] -= 1
                if not missing[user]:
                    heappush(ready, user)
    if len(out) != len(pending):
        raise ValueError("the graph has a cycle")
    return tuple(out)


def edges_of(graph: Graph) -> tuple[dict[str, int], dict[str, list[int]]]:
    """The maker of each value, and its readers in their order; a node that reads a value twice is there once."""
    makers: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for i, n in enumerate(graph.nodes):
        makers |= dict.fromkeys((o for o in n.outputs if o), i)
        for v in dict.fromkeys(n.reads):
            readers.setdefault(v, []).append(i)
    return makers, readers
