"""Types of all values and the integers among them, propagated from rows; ONNX inference and the model fill the gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import I64, DType, dtype_of
from onnxfuse.ir.extents import anonymous, expanded, named, over, parts_named
from onnxfuse.ir.graph import Decision, Node, Refused, TensorType
from onnxfuse.ir.index import ONE, ZERO, Index, Symbol, nonnegative
from onnxfuse.ir.indexing import product
from onnxfuse.load.arithmetic import LIMIT, Array, Element, Prover, Undecided, elements, evaluate, integers, of_indices
from onnxfuse.load.equal_dims import at_one_size, columns, meeting, put, symbol_of
from onnxfuse.load.extent_fractions import whole_numbers
from onnxfuse.load.fallback_types import guessed
from onnxfuse.load.infer import claim_text, contradict, numbers
from onnxfuse.load.legal import ill_typed
from onnxfuse.load.sequences import Around, Inputs, Item, results_of, typed_by
from onnxfuse.load.setting import Setting, Shapes
from onnxfuse.ops.movement import Piece, between, slices, within
from onnxfuse.ops.proofs import never_negative
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import UNFORESEEN, Definition, View, define

MOST = 1 << 63  # integers that are known are as far as they come to, while tensors hold 64 bits
_PASSES = 8  # rounds after which equalities are looked for no more; each needs another slice that meets its bound


def propagate(setting: Setting) -> Shapes:
    """Types and integers of all values, in passes: each uses what the last one found to hold in every run."""
    facts: dict[Index, None] = {}
    for _ in range(_PASSES):
        done = _Pass(setting, tuple(facts))
        while done.run():
            done = _Pass(setting, tuple(facts))
        new = [f for f in done.found if f not in facts] if done.undecided else []
        if not done.equal and not done.minima and not new:
            break
        facts |= dict.fromkeys(new)
        for symbol, (limit, extent) in done.equal.items():
            setting.names.same[symbol] = extent
            facts[limit - extent] = None
        if not done.equal:  # what no operator says to be the extent is the smaller one
            found = {s: expanded(within(limit, extent)) for s, (limit, extent) in done.minima.items()}
            setting.names.same.update(found)
    return Shapes(
        done.types,
        done.items,
        done.known,
        tuple(facts),
        tuple(done.unproven),
        tuple(dict.fromkeys(done.warnings)),
        done.contradicted,
        done.invalid,
    )


@dataclass(slots=True)
class _Pass:
    """One walk over the nodes."""

    setting: Setting
    facts: Sequence[Index]
    types: dict[str, TensorType | None] = field(default_factory=dict)
    items: dict[str, Item] = field(default_factory=dict)
    known: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)  # known small tensors of any rank, floating ones too
    aliases: dict[str, Index] = field(default_factory=dict)  # what names of whole-model inference stand for
    minima: dict[Symbol, tuple[Index, Index]] = field(default_factory=dict)  # symbol = min(number above 1, extent)
    equal: dict[Symbol, tuple[Index, Index]] = field(default_factory=dict)  # minima that must be their extent
    found: dict[Index, None] = field(default_factory=dict)  # what operators that run demand to be at least 0
    united: Mapping[Symbol, Index] = field(default_factory=dict)  # dimensions that are not the first of their names
    steps: int = 0  # how often some of them became equal to others on the way
    renewed: dict[str, int] = field(default_factory=dict)  # the step up to which a value is known
    again: bool = False  # whether extents became equal behind the back of a body or a sequence
    undecided: bool = False  # whether something hangs on what a symbol is
    unproven: dict[str, None] = field(default_factory=dict)  # types that rest on the model's own word
    warnings: list[str] = field(default_factory=list)
    contradicted: bool = False  # whether extents that have to be equal are so at one size of a symbol at most
    invalid: dict[str, str] = field(default_factory=dict)  # by names of nodes what their operators do not allow

    def run(self) -> bool:
        """Walk; whether extents of equal names turned out to be equal on the way and it has to be done again."""
        self.united, self.items = self.setting.names.united, {**self.setting.items}
        self.aliases |= {s.name: e for s, e in self.united.items()}
        for name, t in self.setting.inputs.items():
            self.types[name] = t = t and replace(t, shape=tuple(over(e, self.united) for e in t.shape))
            self.aliases.update((repr(e), e) for e in (t.shape if t else ()))
            if name in self.setting.known and t is not None and t.static_shape is not None:
                self._learn(name, of_indices(self.setting.known[name]).reshape(t.static_shape))
        for name, c in self.setting.constants.items():
            self.types[name] = TensorType(c.dtype, tuple(map(Index.of, c.shape))) if c.dtype.kind != "x" else None
            if c.size <= LIMIT and c.dtype.kind in "iubf":
                self._learn(name, elements(c.load()))
        for node in self.setting.nodes:
            self._visit(node)
        if self.steps and not self.again:
            self._renew(list(self.types))
            self.found = {over(e, self.united): None for e in self.found}
        return self.again

    def _visit(self, node: Node) -> None:
        self._renew(node.reads)
        view, found = self._defined(node)
        definitions = () if isinstance(found, Decision) else found
        while self.setting.names.separate and self._unite(node, definitions):
            view, found = self._defined(node)
            definitions = () if isinstance(found, Decision) else found
        if any(d.demands for d in definitions) and node.name in self.setting.live:
            self._meet(node)
        if isinstance(found, Decision):
            self._refused(view, found)
        for d in definitions:
            if d.name in node.outputs:
                self.types[d.name] = self._checked(node, d)
        if node.name in self.setting.live:
            self._note(definitions)
        try:
            self._compute(node, definitions)
        except Undecided:
            self.undecided = True
        except UNFORESEEN:
            pass  # not known before the model runs

    def _refused(self, view: View, why: Decision) -> None:
        """Types of the outputs of a node that its row does not serve; whether its operator allows the call."""
        node, typed = view.node, self._guess(view.node)
        if why.code == "E-INVALID":
            self.invalid[node.name] = why.reason.removeprefix(f"{node.op}: ")
        for name, mine in zip(node.outputs, guessed(view), strict=False):
            if name and mine is not None:
                typed[name] = mine
                self.unproven.pop(name, None)
        if node.op == "Slice" and node.standard:
            typed = self._sliced(view, typed)
        self.types.update(typed | self._held(node, typed))

    def _defined(self, node: Node) -> tuple[View, tuple[Definition, ...] | Decision]:
        """A node as its row sees it, and what the row says; its outputs have no types before."""
        view = View(node, self.types, self.setting.constants, self.known, self.setting.opset)
        untyped = dict.fromkeys(filter(None, node.outputs))
        self.types |= untyped | (self._sliced(view, {}) if node.op == "Slice" and node.standard else {})
        wrong = ill_typed(view)
        found = define(ROWS, view) if wrong is None else view.refuse("E-INVALID", wrong).decision
        self.types |= untyped
        return view, found

    def _unite(self, node: Node, definitions: Sequence[Definition]) -> bool:
        """Let dimensions of equal names be equal that meet in a node, in all that is known so far; whether any do."""
        sizes = {s: extent for s, (_, extent) in self.minima.items()}
        together = meeting(node, definitions, self.types, self.known)
        if not self.setting.names.unite([(*each, *(over(e, sizes) for e in each)) for each in together]):
            return False
        self.again |= bool(self.items) or any(n.raw is not None for n in self.setting.nodes)
        self.united = self.setting.names.united
        self.steps += 1
        for known in (self.minima, self.equal):
            put(self.united, known, list(known))
        self._renew(node.reads)
        return True

    def _renew(self, values: Iterable[str]) -> None:
        """Replace symbols that are equal to others by now in what is known of some values."""
        old = [v for v in values if self.renewed.get(v, 0) < self.steps]
        for known in (self.types, self.known, self.values):
            put(self.united, known, old)
        self.renewed |= dict.fromkeys(old, self.steps)

    def _note(self, definitions: Sequence[Definition]) -> None:
        """Note what holds wherever a node runs: its results have sizes, and what it demands is so."""
        demands = [d for each in definitions for d in each.demands if d.relation != "is at least"]
        self.contradicted |= any(nonnegative(d.extent - 2) and at_one_size(d.extent - d.other) for d in demands)
        sizes = [e for d in definitions for e in d.shape]
        sizes += [d.extent - d.other for each in definitions for d in each.demands if d.relation == "is at least"]
        for e in map(expanded, sizes):
            if e.constant is None and not Prover().nonnegative(e) and not never_negative(e):
                self.found[e] = None

    # Types --------------------------------------------------------------------------------------------------------

    def _checked(self, node: Node, d: Definition) -> TensorType | None:
        """The type of a row; None where ONNX inference knows another, or the model another element type."""
        mine = d.type
        claim = self.setting.claimed.get(d.name)
        if claim is not None and contradict(mine, claim):
            self.warnings.append(f"{node.op} {node.name}: {d.name} is {mine!r} here, {claim_text(claim)} for ONNX")
            return None
        said = self.setting.declared.get(d.name)
        if said is not None and contradict(mine, said):
            self.warnings.append(f"{node.op} {node.name}: {d.name} is {mine!r}, the model declares {claim_text(said)}")
            if said[0] != mine.dtype.onnx:  # the runtime checks what the model declares of these
                return None
        for dim, e in zip(claim[1] if claim else (), mine.shape, strict=False):
            if isinstance(dim, str):
                self.aliases.setdefault(dim, e)
        return mine

    def _guess(self, node: Node) -> dict[str, TensorType]:
        """Types of a node's outputs that no row gives: from ONNX inference of the node or the model, or as declared."""
        if self.setting.opset and all(self._settled(o) for o in node.outputs):
            own: Mapping[str, tuple[int, tuple[Index | None, ...]]] = {}
        else:
            own = self.setting.inference.infer(node, self.types, self._array)
            if any(o and None in own.get(o, (0, (None,)))[1] for o in node.outputs):
                inside = self.setting.inside(node, self._around())
                own = {**own, **{o: (t.dtype.onnx, t.shape) for o, t in inside.items()}}
        out: dict[str, TensorType] = {}
        for o in filter(None, node.outputs):
            whole, said = self.setting.claimed.get(o), self.setting.declared.get(o)
            numbers_ = [c[0] for c in (own.get(o), whole, said) if c is not None]
            dtype = dtype_of(numbers_[0]) if numbers_ else None
            ranks = [len(c[1]) for c in (own.get(o), whole, said) if c is not None]
            if dtype is None or not ranks:
                continue
            out[o] = TensorType(dtype, tuple(named(self._extent(o, i, ranks[0], own)) for i in range(ranks[0])))
        return out

    def _held(self, node: Node, typed: Mapping[str, TensorType]) -> dict[str, TensorType]:
        """Types of what comes out of bodies, sequences and optionals; what is known of those is kept."""
        setting = self.setting
        if node.raw is None or not setting.opset:
            found = results_of(Inputs(node, self.types, self.items))
        elif all(not o or (self._settled(o) and o not in self.unproven) for o in node.outputs):
            return {}
        else:
            found = setting.through(node, self._around())
        self.items |= found.items
        for o, item in found.tensors.items():
            if not item.sure:
                self.unproven[o] = None
            elif item.shape is not None and None not in item.shape:
                self.unproven.pop(o, None)
        return typed_by(found, typed, setting.names.symbol)

    def _around(self) -> Around:
        """What is known so far."""
        known = (self.types, self.items, self.known, self.setting.constants)
        return Around(*known, self.setting.opset, self.facts, self.unproven)

    def _settled(self, o: str) -> bool:
        """Whether whole-model inference leaves nothing to ask about a value."""
        claim = self.setting.claimed.get(o)
        return not o or (claim is not None and all(isinstance(d, int) for d in claim[1]))

    def _extent(self, o: str, i: int, rank: int, own: Mapping[str, tuple[int, tuple[Index | None, ...]]]) -> Index:
        """Extent i of a value: a number if anybody knows one, else a name that stands for it, else a fresh name."""
        claims = [self.setting.claimed.get(o), self.setting.declared.get(o)]
        dims = [c[1][i] if c is not None and len(c[1]) == rank else None for c in claims]
        mine = own[o][1][i] if o in own and len(own[o][1]) == rank else None
        if mine is not None and mine.constant is not None:
            return mine
        whole, said = dims
        if isinstance(whole, int):
            return Index.of(whole)
        if mine is not None:
            return mine
        if isinstance(whole, str) and whole in self.aliases:
            return over(self.aliases[whole], self.united)
        if said is not None:
            self.unproven[o] = None
        result = self.setting.names.extent(said if isinstance(said, int) else None, anonymous(o, i))
        if isinstance(whole, str):
            self.aliases[whole] = result
        return result

    def _array(self, name: str) -> np.ndarray[Any, Any] | None:
        """A value as a small numeric array, for ONNX inference."""
        t = self.types.get(name)
        have = integers(self.values[name]) if name in self.values else None
        if have is not None and t is not None and t.static_shape is not None and max(map(abs, have), default=0) < MOST:
            return np.array(have, t.dtype.numpy).reshape(t.static_shape)
        return numbers(self.setting.constants.get(name))

    # Slices that end at the smaller of two extents ----------------------------------------------------------------

    def _sliced(self, view: View, typed: dict[str, TensorType]) -> dict[str, TensorType]:
        """The type of a Slice whose row refuses: exact where the facts allow; a symbol that is a minimum is noted."""
        try:
            have, places, out = view.type(0), slices(view), view.out()
        except (Refused, *UNFORESEEN):
            return typed
        guess = typed[out].shape if out in typed and len(typed[out].shape) == len(have.shape) else None
        shape, believed = list(have.shape), False
        for piece in places:
            at = piece[0]
            known = self._cut(have.shape[at], piece, anonymous(out, at))
            believed = believed or known is None
            shape[at] = (
                named(known)
                if known is not None
                else (guess[at] if guess else self.setting.names.symbol(anonymous(out, at)))
            )
        if not believed:
            self.unproven.pop(out, None)
        return {out: TensorType(have.dtype, tuple(shape))}

    def _cut(self, n: Index, piece: Piece, fresh: str) -> Index | None:
        """The extent of a slice of n: what the facts make of it, or the symbol `fresh` where that is a minimum.

        Where nothing is known of its bounds, it is what they say.
        """
        _, start, end, step = piece
        prove = Prover(self.facts)
        if step != 1:
            return None
        if not prove.nonnegative(start):
            return between(within(start, n), within(end, n))
        if prove.nonnegative(n - end) and prove.nonnegative(end - start):
            return end - start
        if prove.nonnegative(end - n) and prove.nonnegative(n - start):
            return n - start
        limit, extent = (n, end) if n.constant is not None else (end, n)
        if start == ZERO and (limit.constant or 0) > 1 and prove.nonnegative(extent):
            if Symbol(fresh) not in self.setting.names.same:
                self.minima[Symbol(fresh)] = (limit, extent)
            return self.setting.names.symbol(fresh)
        return between(within(start, n), within(end, n))

    def _meet(self, node: Node) -> None:
        """Note minima that must be their own extent, since an operator that refused them takes no others.

        m = min(c, s) with c > 1 is broadcast against s only where m = s: were m smaller, it would be c, neither 1 nor
        s, and the original model would fail. (Where s = 1, m = 1 too.) So in every run that succeeds m is s. The inner
        extents of a product must be equal anyway.
        """
        for extents in columns(node, self.types, self.known):
            for m in filter(None, map(symbol_of, extents)):
                limit, extent = self.minima.get(m, (ONE, ONE))
                if limit != ONE and extent in extents:
                    self.equal[m] = (limit, extent)

    # Values -------------------------------------------------------------------------------------------------------

    def _compute(self, node: Node, found: Sequence[Definition]) -> None:
        """Learn the elements of a node's outputs where they follow from what is known."""
        if not node.standard or not self.setting.opset:
            return
        if node.op in ("Shape", "Size"):
            self._shape_of(node)
        elif node.op == "NonZero":
            self._nonzero(node)
        elif found and all(i in self.values for i in node.inputs if i):
            inputs = {i: self.values[i] for i in node.inputs if i}
            made = evaluate(found, inputs, self.facts)
            for o in (o for o in node.outputs if o in made):
                self._learn(o, made[o])
                self.known |= whole_numbers(o, made[o])

    def _shape_of(self, node: Node) -> None:
        t = self.types.get(node.inputs[0])
        if t is None:
            return
        if node.op == "Size":
            self._learn_typed(node.outputs[0], np.array(product(t.shape), object), I64)
            return
        start, end = node.attrs.get("start", 0), node.attrs.get("end", len(t.shape))
        if isinstance(start, int) and isinstance(end, int):
            self._learn_typed(node.outputs[0], of_indices(t.shape[slice(start, end)]), I64)

    def _nonzero(self, node: Node) -> None:
        have = self.values.get(node.inputs[0])
        numbers_ = integers(have) if have is not None else None
        if have is not None and numbers_ is not None and have.ndim:
            places = np.stack(np.nonzero(np.array(numbers_).reshape(have.shape)))
            self._learn_typed(node.outputs[0], elements(places), I64)

    def _learn_typed(self, name: str, value: Array, dtype: DType) -> None:
        self.types[name] = TensorType(dtype, tuple(map(Index.of, value.shape)))
        self._learn(name, value)

    def _learn(self, name: str, value: Array) -> None:
        made = np.empty(value.shape, object)
        for at in np.ndindex(value.shape):
            element: Element = value[at]
            if isinstance(element, Index):
                sure = never_negative(element) or Prover(self.facts).nonnegative(element)
                self.undecided = self.undecided or not sure
                element = named(element) if sure else parts_named(element)
            made[at] = element
        self.values[name] = value = made
        if value.ndim <= 1 and all(isinstance(e, Index) for e in value.reshape(-1)):
            self.known[name] = tuple(value.reshape(-1))
