"""A proposed rewrite: new nodes and constants, and the values they replace. `commit` applies it."""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxfuse.ir.dtype import I64, DType
from onnxfuse.ir.graph import Attribute, Constant, Decision, Node, TensorType
from onnxfuse.ir.scalar import Load, uncast
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import View, define
from onnxfuse.ops.traits import takes_a_part
from onnxfuse.rewrite.folding import folded
from onnxfuse.rewrite.measure import Measure, cost
from onnxfuse.rewrite.mutable_graph import (
    SMALL,
    Array,
    Definitions,
    Miss,
    MutableGraph,
    Origin,
    integers,
    moves,
    type_of,
)

Attributes = Mapping[str, Attribute]


class Draft:
    """New nodes get their types from their rows as they are added; a node without a row in this opset raises Miss.

    `root` is the place of the node at which a step looked; names of new values derive from its first output.
    """

    def __init__(self, work: MutableGraph, root: int) -> None:
        self.work = work
        self.root = root
        self.nodes: list[Node] = []
        self.meanings: dict[str, Definitions] = {}
        self.types: dict[str, TensorType | None] = {}
        self.constants: dict[str, Constant] = {}
        self.swaps: list[tuple[str, str]] = []
        self.becomes: dict[str, Constant] = {}
        self.name = next((o for o in work.nodes[root].outputs if o), "value")

    # Building ---------------------------------------------------------------------------------------------------------

    def type(self, value: str) -> TensorType:
        """The type of an old or a new value."""
        return self.types.get(value) or self.work.type(value)

    def constant_of(self, value: str) -> Constant | None:
        """An old or a new constant."""
        return self.constants.get(value) or self.work.constants.get(value)

    def fresh(self, tag: str) -> str:
        """A name that nothing has yet."""
        name, at = f"{self.name}/{tag}", 1
        while name in self.types or name in self.work.types or name in self.work.constants:
            at += 1
            name = f"{self.name}/{tag}{at}"
        return name

    def node(
        self, op: str, inputs: Sequence[str], attrs: Attributes | None = None, pieces: int = 0, domain: str = ""
    ) -> str:
        """The output of a new node, or the constant that it is; with `pieces`, the first of that many outputs."""
        outputs = [self.fresh(op)]
        for k in range(1, pieces):
            outputs.append(self.fresh(f"{op}.{k}"))
        name = self.work.nodes[self.root].name
        node = Node(op, tuple(inputs), tuple(outputs), dict(attrs or {}), name, domain)
        own = {v: elements for v, c in self.constants.items() if (elements := integers(c)) is not None}
        known = ChainMap(own, self.work.known)
        types = ChainMap(self.types, self.work.types)
        constants = ChainMap(self.constants, self.work.constants)
        meaning = define(ROWS, View(node, types, constants, known, self.work.opset))
        if isinstance(meaning, Decision):
            raise Miss(meaning.reason)
        if not pieces and all(not i or i in constants for i in inputs):
            return self._folded(node, meaning, constants)
        made = {d.name: d.type for d in meaning}
        self.types.update({o: made[o] for o in outputs})
        self.meanings[outputs[0]] = meaning
        self.nodes.append(node)
        return outputs[0]

    def _folded(self, node: Node, meaning: Definitions, constants: Mapping[str, Constant]) -> str:
        values = folded(meaning, node.outputs, constants)
        result = values[node.outputs[0]]
        ordinary(node.op, [constants[i] for i in node.inputs if i], result)
        return self.constant(result, node.op.lower(), *(i for i in node.inputs if i))

    def pieces(self, first: str) -> tuple[str, ...]:
        """All outputs of the new node that makes `first`."""
        return next(n.outputs for n in self.nodes if n.outputs[0] == first)

    def constant(self, constant: Constant, tag: str, *sources: str) -> str:
        """Add a constant whose name is made of the first source, a tag, and a digest of all sources; that name."""
        digest = hashlib.sha256("\0".join((tag, *sources)).encode()).hexdigest()
        name = f"{sources[0]}.{tag}.{digest[:8]}"
        while self._of_the_model(name):
            name += "_"
        if name not in self.work.constants:
            self.constants[name] = constant
            self.types[name] = type_of(constant.dtype, constant.shape)
        return name

    def _of_the_model(self, name: str) -> bool:
        """Whether a value of the model has this name; constants made by rewrites have equal content, and are reused."""
        given = self.work.constants.get(name)
        return name in self.work.types if given is None else given.raw is not None

    def array(self, array: Array, dtype: DType, tag: str, *sources: str) -> str:
        """Add an array, rounded to dtype, as a constant; its name."""
        held = np.asarray(array.astype(dtype.numpy), order="C")
        digest = hashlib.sha256(held.tobytes()).hexdigest()
        return self.constant(Constant.of(held, dtype), tag, *sources, digest)

    def lazily(self, dtype: DType, shape: tuple[int, ...], load: Callable[[], Array], tag: str, *sources: str) -> str:
        """Add a constant that is computed whenever it is loaded; its name."""
        return self.constant(Constant(dtype, shape, load), tag, *sources)

    def number(self, value: float, dtype: DType) -> str:
        """A scalar constant."""
        return self._shared(np.asarray(value, dtype.numpy), dtype, f"number.{dtype}.{value!r}")

    def ints(self, values: Sequence[int]) -> str:
        """A constant int64 vector."""
        return self._shared(np.asarray(values, np.int64), I64, "ints." + ".".join(map(str, values)))

    def _shared(self, array: Array, dtype: DType, name: str) -> str:
        there = self.work.constants.get(name)
        if there is not None and there.dtype == dtype and there.shape == array.shape and (there.load() == array).all():
            return name
        while name in self.work.types:  # the model has another value of this name
            name += "_"
        self.constants[name] = Constant.of(array, dtype)
        self.types[name] = type_of(dtype, array.shape)
        return name

    def replace(self, old: str, new: str, *, typed: bool = True) -> Draft:
        """Replace the value `old` by `new` in all readers. The types must be equal; unless `typed`, one may be unknown.

        For outputs of operators without a row, only element type and rank must agree, not extents: ONNX's shape
        inference assumes that every STFT is two-sided. Raises Miss.
        """
        have, want = self.types.get(new) or self.work.types.get(new), self.work.types.get(old)
        if have is None or want is None:
            if typed:
                raise Miss(f"the type of {old} or of its replacement is unknown")
        elif have != want and not (self.opaque and have.dtype == want.dtype and len(have.shape) == len(want.shape)):
            raise Miss(f"{old} has type {want!r}, its replacement {have!r}")
        self.swaps.append((old, new))
        return self

    @property
    def opaque(self) -> bool:
        """Whether the operator of the node at which the step looked has no row."""
        return ROWS.find(self.work.nodes[self.root], self.work.opset) is None

    def become(self, old: str, constant: Constant) -> Draft:
        """Replace a value by a constant. Raises Miss for graph outputs."""
        if old in self.work.outputs:
            raise Miss(f"{old} is a graph output")
        first = self.work.same_constant(old, constant) if old not in self.work.pinned else old
        if first != old:
            return self.replace(old, first)
        self.becomes[old] = constant
        return self

    def moves(self, node: Node) -> bool:
        """Whether a new node only moves elements."""
        return moves(self.meanings.get(node.outputs[0], ()))

    # Deciding ---------------------------------------------------------------------------------------------------------

    def dead(self) -> list[int]:
        """The nodes without readers once the rewrite is applied, in the order of the graph."""
        taken = {old for old, _ in self.swaps} | self.becomes.keys()
        held = {i for n in self.nodes for i in n.reads} | {new for _, new in self.swaps}
        gone: dict[int, None] = {}
        queue = [self.work.maker[v] for v in taken]
        while queue:
            at = queue.pop()
            if at in gone or not all(self._unneeded(o, taken, held, gone) for o in self.work.nodes[at].outputs if o):
                continue
            gone[at] = None
            queue.extend(self.work.maker[i] for i in self.work.nodes[at].reads if i in self.work.maker)
        return sorted(gone, key=lambda at: self.work.place[at])

    def _unneeded(self, value: str, taken: set[str], held: set[str], gone: dict[int, None]) -> bool:
        if value in taken:
            return True
        if value in held or value in self.work.pinned:
            return False
        return self.work.users.get(value, {}).keys() <= gone.keys()

    def gain(self) -> Measure:
        """Measure of the nodes removed minus that of the nodes added; a rewrite fires where it is above zero."""
        dead = self.dead()
        if any(self.work.maker[old] not in dead for old in [*(o for o, _ in self.swaps), *self.becomes]):
            raise Miss("another output of a replaced node has readers")
        before, after = Measure(), Measure()
        for at in dead:
            before += self._measure(self.work.nodes[at], self._meaning(at))
        for n in self.nodes:
            after += self._measure(n, self.meanings.get(n.outputs[0], ()))
        return before - after

    def _meaning(self, at: int) -> Definitions:
        try:
            return self.work.definitions(at)
        except Miss:
            return ()

    def _measure(self, node: Node, meaning: Definitions) -> Measure:
        spent = cost(node, meaning, lambda v: self.types.get(v) or self.work.types.get(v), self.work.opset)
        dynamic = sum(self.constant_of(i) is None for i in node.inputs if i)
        named = sum(map(bool, node.outputs))
        return Measure(spent, 1, dynamic + named + self._depth(node, meaning) + self._nested(node))

    def _nested(self, node: Node) -> int:
        """Operands of the Concats that a Concat reads, and one for each of them."""
        own = {o: n for n in self.nodes for o in n.outputs}
        inner = [own.get(v) or self.work.node(v) for v in node.inputs] if node.op == "Concat" else []
        return sum(len(n.inputs) + 1 for n in inner if n is not None and n.op == "Concat")

    def _depth(self, node: Node, meaning: Definitions) -> int:
        """The length of the chain of movements and casts that ends in this node."""
        own = {o: n for n in self.nodes for o in n.outputs}
        depth = 0
        while node.inputs and depth < 64 and self._carries(node, meaning):
            depth += 1
            above = node.inputs[0]
            if above in own:
                node = own[above]
                meaning = self.meanings.get(node.outputs[0], ())
            elif above in self.work.maker:
                at = self.work.maker[above]
                node, meaning = self.work.nodes[at], self._meaning(at)
            else:
                break
        return depth

    def _carries(self, node: Node, meaning: Definitions) -> bool:
        """Whether a node only moves or casts elements; without definitions, as its operator's row says."""
        if meaning:
            return all(isinstance(uncast(d.value), Load) for d in meaning)
        row = ROWS.find(node, self.work.opset)
        return row is not None and takes_a_part(row)

    # Naming -----------------------------------------------------------------------------------------------------------

    def settled(self) -> Draft:
        """The same rewrite, with the replaced values' names for the new ones; names of graph outputs are kept."""
        given: dict[str, str] = {}
        swaps: list[tuple[str, str]] = []
        made = {o for n in self.nodes for o in n.outputs}
        for old, new in self.swaps:
            if new in made and new not in given:
                given[new] = old
            else:
                swaps.append((old, given.get(new, new)))
        self.nodes = [_renamed(n, given) for n in self.nodes]
        self.meanings = {given.get(o, o): m for o, m in self.meanings.items()}
        self.types = {given.get(v, v): t for v, t in self.types.items()}
        self.swaps = swaps + [(old, old) for old in given.values()]
        renamed: dict[str, str] = {}
        for old, new in swaps:
            if old not in self.work.pinned:
                continue
            if new in self.work.maker and new not in self.work.pinned and new not in renamed:
                renamed[new] = old
            else:
                self._keep_by_identity(old, renamed.get(new, new))
        return self

    def _keep_by_identity(self, old: str, new: str) -> None:
        maker = self.work.node(old)
        if maker is not None and maker.op == "Identity":
            raise Miss(f"{old} is a graph output whose name {new} cannot take")
        self.swaps = [(o, o if o == old else n) for o, n in self.swaps]
        self.nodes.append(Node("Identity", (new,), (old,), {}, self.work.nodes[self.root].name))
        self.types[old] = self.work.types.get(old)


# Origins of new nodes ------------------------------------------------------------------------------------------------


def origins(work: MutableGraph, draft: Draft, dead: Sequence[int]) -> list[Origin]:
    """For each new node the original nodes that it replaces, so that no kernel reports nodes whose work another does.

    A removed node is attributed to new nodes with its operator: pairwise in order where both are as many. Otherwise to
    new nodes of its kind (computing, or only moving elements) that replace none yet, else to those that read a constant
    made by this rewrite, else to all that compute. New nodes that get none, such as the slices of a merged product,
    have no origin.
    """
    new = draft.nodes
    found: list[list[Origin]] = [[] for _ in new]
    rest: list[int] = []
    for at in dead:
        node = work.nodes[at]
        mine = [k for k, n in enumerate(new) if n.key == node.key]
        like = [k for k in dead if work.nodes[k].key == node.key]
        takers = mine if len(mine) != len(like) else [mine[like.index(at)]]
        _give(found, takers, work.origin(at))
        if not takers:
            rest.append(at)
    free = {k for k, parts in enumerate(found) if not parts}
    computing = [k for k, n in enumerate(new) if not draft.moves(n)]
    fresh = [k for k in computing if draft.constants.keys() & set(new[k].reads)]
    for at in rest:
        moves = work.moves(at)
        alike = [k for k in sorted(free) if (k not in computing) == moves]
        _give(found, alike or fresh or computing or range(len(new)), work.origin(at))
    return [tuple(parts) for parts in found]


def _give(found: list[list[Origin]], takers: Iterable[int], origin: Origin) -> None:
    for k in takers:
        found[k].append(origin)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(names.get(i, i) for i in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(o, o) for o in node.outputs))


def ordinary(op: str, operands: Sequence[Constant], result: Constant) -> None:
    """Raise Miss where a small folded constant overflowed or underflowed and its operands did not."""
    if not result.dtype.floating or result.size > SMALL or any(o.size > SMALL for o in operands):
        return
    values = np.abs(np.asarray(result.load(), np.float64))
    inputs = [np.asarray(o.load(), np.float64) for o in operands if o.dtype.floating]
    if not np.isfinite(values).all() and all(np.isfinite(i).all() for i in inputs):
        raise Miss("the folded constant overflows")
    tiny = float(np.finfo(np.float32 if result.dtype.name == "bfloat16" else result.dtype.numpy).tiny)
    small = (values < tiny) & (values > 0)
    lost = op in ("Mul", "Div", "Reciprocal") and (values == 0).any() and all((i != 0).all() for i in inputs)
    if small.any() or lost:
        raise Miss("the folded constant underflows")


__all__ = ["Draft", "ordinary", "origins"]
