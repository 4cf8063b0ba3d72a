"""What If, Loop and Scan give their bodies, and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from onnxfuse.ir.dtype import BOOL, I64
from onnxfuse.ir.graph import Node, TensorType
from onnxfuse.ir.index import ONE, ZERO, Index, Symbol, greatest
from onnxfuse.ir.unsupported import INVALID
from onnxfuse.load.convert import ConvertedGraph
from onnxfuse.load.dims import declared_dims
from onnxfuse.load.sequences import Around, Extents, Item, Results, item_of, met, over
from onnxfuse.load.setting import Shapes
from onnxfuse.ops.proofs import never_negative_from_zero

_SCAN_WITHOUT_BATCH = 9  # the opset from which on Scan has no batch axis


class NotUnderstood(Exception):  # a control transfer
    """A body that cannot be understood: why, and what would change that."""

    def __init__(self, reason: str, unlock: str) -> None:
        super().__init__(reason)
        self.reason, self.unlock = reason, unlock


@dataclass(frozen=True, slots=True)
class BodySite:
    """A body, and what holds it; `key` tells the attributes and nodes on the way to it."""

    outer: Around
    node: Node
    proto: onnx.GraphProto
    key: tuple[str, ...]

    @property
    def path(self) -> str:
        """What the names of its nodes begin with."""
        return f"{self.node.name}/{self.key[-1]}/"


@dataclass(frozen=True, slots=True)
class Formal:
    """The inputs of a body that its node fills, with what is known of them, and the output of each one's next value."""

    types: dict[str, TensorType | None]
    items: dict[str, Item | None]
    next: dict[str, str]


@dataclass(frozen=True, slots=True)
class Typed:
    """A body with its types; `symbols` are those that are one number in all iterations."""

    proto: onnx.GraphProto
    parts: ConvertedGraph
    shapes: Shapes
    symbols: frozenset[Symbol]

    def tensor(self, name: str) -> Item | None:
        """What is known of a tensor whichever iteration made it."""
        return over(item_of(self.shapes.types.get(name), sure=name not in self.shapes.unproven), self.symbols)

    def item(self, name: str) -> Item | None:
        """The same of what a sequence or an optional holds."""
        return over(self.shapes.items.get(name), self.symbols)


# What a node fills ----------------------------------------------------------------------------------------------------


def _of_if(place: BodySite, listed: Sequence[str]) -> Formal:
    if listed:
        raise NotUnderstood("a branch takes no inputs", INVALID)
    return Formal({}, {}, {})


def _of_loop(place: BodySite, listed: Sequence[str]) -> Formal:
    """The number of the iteration, the condition, and what is carried on."""
    given, outputs = place.node.inputs[2:], [o.name for o in place.proto.output]
    if len(listed) != len(given) + 2 or len(outputs) < len(given) + 1:
        raise NotUnderstood("it has not the inputs and outputs of a Loop's body", INVALID)
    carried = list(zip(listed[2:], given, strict=True))
    types = {name: place.outer.types.get(v) for name, v in carried}
    for info, dtype in zip(place.proto.input[:2], (I64, BOOL), strict=True):
        dims = declared_dims(info.type)[1]  # the runtime gives it the rank that it has here
        types[info.name] = TensorType(dtype, (ONE,) * len(dims)) if dims is not None else None
    items = {name: place.outer.items.get(v) for name, v in carried}
    return Formal(types, items, dict(zip(listed[2:], outputs[1:], strict=False)))


def _of_scan(place: BodySite, listed: Sequence[str]) -> Formal:
    """States, and then one slice of each sequence."""
    node, outputs = place.node, [o.name for o in place.proto.output]
    if place.outer.opset < _SCAN_WITHOUT_BATCH:
        raise NotUnderstood(
            f"before opset {_SCAN_WITHOUT_BATCH} a Scan has a batch axis", f"an opset of {_SCAN_WITHOUT_BATCH} or newer"
        )
    states = _states(node)
    if states is None or len(listed) != len(node.inputs) or states > len(outputs):
        raise NotUnderstood("it has not the inputs and outputs of a Scan's body", INVALID)
    axes = node.attrs.get("scan_input_axes", ())
    types = {name: place.outer.types.get(v) for name, v in zip(listed, node.inputs, strict=True)}
    for k, name in enumerate(listed[states:]):
        t, axis = types[name], _axis(axes, k)
        if t is None or not -len(t.shape) <= axis < len(t.shape):
            types[name] = None
        else:
            at = axis % len(t.shape)
            types[name] = TensorType(t.dtype, (*t.shape[:at], *t.shape[at + 1 :]))
    return Formal(types, {}, dict(zip(listed[:states], outputs, strict=False)))


def _states(node: Node) -> int | None:
    """How many of a Scan's inputs are states."""
    count = node.attrs.get("num_scan_inputs")
    return len(node.inputs) - count if isinstance(count, int) and 0 <= count <= len(node.inputs) else None


def _axis(axes: Any, k: int) -> int:
    """The axis of a Scan's sequence; 0 where none is stated."""
    return axes[k] if isinstance(axes, tuple) and k < len(axes) and isinstance(axes[k], int) else 0


FORMAL = {"If": _of_if, "Loop": _of_loop, "Scan": _of_scan}


# What comes out -------------------------------------------------------------------------------------------------------

Made = Mapping[str, Typed]  # bodies by attribute


def _from_if(node: Node, around: Around, made: Made) -> Results:
    """What both branches give."""
    branches = [made[name] for name in ("then_branch", "else_branch")]
    tensors: dict[str, Item | None] = {}
    items: dict[str, Item | None] = {}
    for k, out in enumerate(node.outputs):
        if out and all(k < len(b.proto.output) for b in branches):
            tensors[out] = met(*(b.tensor(b.proto.output[k].name) for b in branches))
            items[out] = met(*(b.item(b.proto.output[k].name) for b in branches))
    return _known(tensors, items)


def _from_loop(node: Node, around: Around, made: Made) -> Results:
    """What is carried on, as it is in every iteration; and what each iteration gives, one behind the other."""
    body = made["body"]
    listed = [v.name for v in body.proto.input]
    given = [o.name for o in body.proto.output]
    carried = listed[2:]
    names = [*carried, *given[1 + len(carried) :]]
    length = _trips(node, around, body)
    tensors: dict[str, Item | None] = {}
    items: dict[str, Item | None] = {}
    for k, (out, name) in enumerate(zip(node.outputs, names, strict=False)):
        if out and k < len(carried):
            tensors[out], items[out] = body.tensor(name), body.item(name)
        elif out:
            tensors[out] = _stacked(body.tensor(name), length, 0)
    return _known(tensors, items)


def _from_scan(node: Node, around: Around, made: Made) -> Results:
    """The states, and what each step gives, along an axis as long as the sequences."""
    body, states = made["body"], _states(node) or 0
    listed = [v.name for v in body.proto.input]
    given = [o.name for o in body.proto.output]
    whole = around.types.get(node.inputs[states]) if states < len(node.inputs) else None
    axis = _axis(node.attrs.get("scan_input_axes", ()), 0)
    length = whole.shape[axis] if whole is not None and -len(whole.shape) <= axis < len(whole.shape) else None
    axes = node.attrs.get("scan_output_axes", ())
    tensors: dict[str, Item | None] = {}
    for k, (out, name) in enumerate(zip(node.outputs, [*listed[:states], *given[states:]], strict=False)):
        each = body.tensor(name)
        tensors[out] = each if k < states else _stacked(each, length, _axis(axes, k - states))
    return _known(tensors, {})


GIVEN = {"If": _from_if, "Loop": _from_loop, "Scan": _from_scan}


def _known(tensors: Mapping[str, Item | None], items: Mapping[str, Item | None]) -> Results:
    return Results(*({o: item for o, item in part.items() if o and item is not None} for part in (tensors, items)))


def _stacked(each: Item | None, length: Index | None, axis: int) -> Item | None:
    """What all iterations give, along a new axis. Without any iteration the runtime makes up the other extents."""
    if each is None or each.shape is None or not -len(each.shape) - 1 <= axis <= len(each.shape):
        return None
    some = length is not None and (length.constant or 0) > 0
    shape: Extents = each.shape if some else (None,) * len(each.shape)
    at = axis % (len(shape) + 1)
    return replace(each, shape=(*shape[:at], length, *shape[at:]))


def _trips(node: Node, around: Around, body: Typed) -> Index | None:
    """How often a Loop runs its body, if nothing but its count ends it."""
    count = _number(around, node.inputs[0])
    started = not node.inputs[1] or _is_true(_number(around, node.inputs[1]))
    if count is None or not started or not _goes_on(body):
        return None
    return count if (count.constant or 0) > 0 or never_negative_from_zero(count) else greatest(ZERO, count)


def _number(around: Around, name: str) -> Index | None:
    found = around.known.get(name, ())
    return found[0] if len(found) == 1 else None


def _is_true(value: Index | None) -> bool:
    return value is not None and (value.constant or 0) != 0


def _goes_on(body: Typed) -> bool:
    """Whether the condition that a body gives is true, or the one that it was given."""
    name = body.proto.output[0].name
    makers = {o: n for n in body.parts.nodes for o in n.outputs}
    while name in makers and makers[name].op == "Identity" and makers[name].standard:
        name = makers[name].inputs[0]
    known = body.shapes.known.get(name, ())
    return name == body.proto.input[1].name or (len(known) == 1 and _is_true(known[0]))
