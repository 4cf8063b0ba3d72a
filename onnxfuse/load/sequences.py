"""What sequences hold and optionals may hold: one type for all elements, as far as there is one."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.extents import anonymous, named
from onnxfuse.ir.graph import Constant, Node, TensorType
from onnxfuse.ir.index import ONE, Index, Symbol, symbols_of

Extents = tuple[Index | None, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A type that all of several tensors have; an extent is None where they differ, `shape` while there are none.

    It is not `sure` where it rests on the model's own word.
    """

    dtype: DType | None = None
    shape: Extents | None = None
    sure: bool = True


NOTHING = Item()
Items = Mapping[str, Item]


@dataclass(frozen=True, slots=True)
class Results:
    """What is known of a node's outputs: of tensors, and of what sequences and optionals hold."""

    tensors: Mapping[str, Item] = field(default_factory=dict)
    items: Items = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Around:
    """What is known of a graph where it holds a body: of its values so far, and of what holds in every run."""

    types: Mapping[str, TensorType | None]
    items: Items
    known: Mapping[str, tuple[Index, ...]]
    constants: Mapping[str, Constant]
    opset: int
    facts: Sequence[Index]
    unproven: Container[str]


def item_of(t: TensorType | None, *, sure: bool = True) -> Item | None:
    """A tensor's own type."""
    return Item(t.dtype, t.shape, sure) if t is not None else None


def met(a: Item | None, b: Item | None) -> Item | None:
    """The type of what is one or the other; None where nothing is known of it."""
    if a is None or b is None:
        return None
    if a.shape is None or b.shape is None:
        return b if a.shape is None else a
    if a.dtype != b.dtype or len(a.shape) != len(b.shape):
        return None
    shape = tuple(e if e == f else None for e, f in zip(a.shape, b.shape, strict=True))
    return Item(a.dtype, shape, a.sure and b.sure)


def over(item: Item | None, symbols: Container[Symbol]) -> Item | None:
    """The type with extents that consist of these symbols only; others may be anything."""
    if item is None or item.shape is None:
        return item
    known = (e if e is not None and all(s in symbols for s in symbols_of(e)) else None for e in item.shape)
    return replace(item, shape=tuple(known))


def typed_by(found: Results, typed: Mapping[str, TensorType], symbol: Callable[[str], Index]) -> dict[str, TensorType]:
    """The types of tensors; an extent that may be anything is as in `typed`, or else a `symbol`."""
    out: dict[str, TensorType] = {}
    for o, item in found.tensors.items():
        if item.dtype is None or item.shape is None:
            continue
        had = typed.get(o)
        other: Extents = (
            had.shape if had is not None and len(had.shape) == len(item.shape) else (None,) * len(item.shape)
        )
        pairs = enumerate(zip(item.shape, other, strict=True))
        shape = (e if e is not None else f if f is not None else symbol(anonymous(o, i)) for i, (e, f) in pairs)
        out[o] = TensorType(item.dtype, tuple(map(named, shape)))
    return out


# Operators ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inputs:
    """A node with what is known of its inputs."""

    node: Node
    types: Mapping[str, TensorType | None]
    items: Items

    def tensor(self, i: int) -> Item | None:
        """The type of a tensor."""
        name = self.node.inputs[i] if i < len(self.node.inputs) else ""
        return item_of(self.types.get(name))

    def item(self, i: int) -> Item | None:
        """What a sequence or an optional holds."""
        return self.items.get(self.node.inputs[i]) if i < len(self.node.inputs) else None

    def either(self, i: int) -> Item | None:
        """A tensor's type, or what a sequence or an optional holds."""
        return self.tensor(i) or self.item(i)


def results_of(given: Inputs) -> Results:
    """What the operators on sequences and optionals say of their output."""
    node = given.node
    if len(node.outputs) != 1 or not node.standard:
        return Results()
    (out,) = node.outputs
    if node.op in _MAKERS and (made := _MAKERS[node.op](given)) is not None:
        return Results(items={out: made})
    if node.op in _TAKERS and (made := _TAKERS[node.op](given)) is not None and made.shape is not None:
        return Results(tensors={out: made})
    return Results()


def _joined(given: Inputs) -> Item | None:
    found: Item | None = NOTHING
    for i in range(len(given.node.inputs)):
        found = met(found, given.tensor(i))
    return found


def _passed(given: Inputs) -> Item | None:
    return given.item(0)


def _wrapped(given: Inputs) -> Item | None:
    """Of an Optional: of what it is made of, if that is a tensor; a sequence keeps what it holds."""
    return given.either(0) if given.node.inputs else NOTHING


def _split(given: Inputs) -> Item | None:
    """Parts of a tensor, which differ along the axis; without sizes they are single places, the axis kept or not."""
    whole, axis = given.tensor(0), given.node.attrs.get("axis", 0)
    if whole is None or whole.shape is None or not isinstance(axis, int):
        return None
    if not -len(whole.shape) <= axis < len(whole.shape):
        return None
    at, single = axis % len(whole.shape), len(given.node.inputs) < 2 or not given.node.inputs[1]
    middle: Extents = (None,) if not single else (ONE,) if given.node.attrs.get("keepdims", 1) else ()
    return replace(whole, shape=(*whole.shape[:at], *middle, *whole.shape[at + 1 :]))


def _concatenated(given: Inputs) -> Item | None:
    """All elements of a sequence one behind the other, or along a new axis."""
    each, axis = given.item(0), given.node.attrs.get("axis")
    if each is None or each.shape is None or not isinstance(axis, int):
        return None
    new = bool(given.node.attrs.get("new_axis", 0))
    rank = len(each.shape) + new
    if not -rank <= axis < rank:
        return None
    at = axis % rank
    return replace(each, shape=(*each.shape[:at], None, *each.shape[at + (not new) :]))


_MAKERS: dict[str, Callable[[Inputs], Item | None]] = {
    "Identity": _passed,
    "Optional": _wrapped,
    "SequenceConstruct": _joined,
    "SequenceEmpty": lambda given: NOTHING,
    "SequenceErase": _passed,
    "SequenceInsert": lambda given: met(given.item(0), given.tensor(1)),
    "SplitToSequence": _split,
}
_TAKERS: dict[str, Callable[[Inputs], Item | None]] = {
    "ConcatFromSequence": _concatenated,
    "OptionalGetElement": lambda given: given.either(0),
    "SequenceAt": _passed,
}
