"""Data movements that cancel or join: Concat of a Split or a Concat, and inverse movements with work between."""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.compose import walk
from onnxfuse.ir.graph import Node
from onnxfuse.ir.index import ZERO, Index, divides
from onnxfuse.ir.scalar import FromIndex, Load, Reduce
from onnxfuse.ops.element_types import MOST_INPUTS
from onnxfuse.ops.normalization import BY_GROUP
from onnxfuse.rewrite.affine import affine_of
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.folding import load_of
from onnxfuse.rewrite.mutable_graph import Array, Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.steps import StructuralRule

MOST_MOVED = 1 << 16  # elements, at most, of a constant that a Reshape repeats
_LONGEST = 8  # most elementwise nodes between a movement and its inverse


def concat_of_parts(work: MutableGraph, at: int, trust: bool) -> Draft:
    """The Concat of all parts of a value, in order, is replaced by the value."""
    node = work.nodes[at]
    axis, _ = _joined_along(work, at)
    source, offset = "", ZERO
    for part in node.inputs:
        maker = work.maker.get(part)
        own = [d for d in work.definitions(maker) if d.name == part] if maker is not None else []
        load = load_of(own[0]) if own else None
        if load is None or (source and load.source != source):
            raise Miss(f"{part} is not a part of {source or 'another value'}")
        want = [Index.of(a) + (offset if k == axis else 0) for k, a in enumerate(own[0].axes)]
        if list(load.index) != want:
            raise Miss(f"{part} is not the next part of {load.source} along the axis")
        source, offset = load.source, offset + own[0].shape[axis]
    return Draft(work, at).replace(node.outputs[0], source)


def nested_concat(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A Concat reads the operands of a Concat along the same axis itself.

    The inner one remains if it has other readers. These have to be elementwise, or join it too, as in DenseNet: it is
    computed in their kernels then, and not stored.
    """
    node = work.nodes[at]
    axis, rank = _joined_along(work, at)
    if rank < 2:
        raise NoMatch("the values are vectors, as shapes are")
    parts: list[str] = []
    for value in node.inputs:
        inner = work.node(value)
        nested = inner is not None and inner.op == "Concat" and inner.standard and value not in work.pinned
        nested = nested and _joined_along(work, work.maker[value])[0] == axis and _is_recomputed(work, value)
        parts += inner.inputs if inner is not None and nested else [value]
    if len(parts) == len(node.inputs):
        raise NoMatch("no operand is a Concat along the same axis that only elementwise operators read besides")
    if len(parts) > MOST_INPUTS:
        raise Miss(f"{len(parts)} operands are too many for a kernel")
    draft = Draft(work, at)
    return draft.replace(node.outputs[0], draft.node("Concat", parts, node.attrs))


def _joined_along(work: MutableGraph, at: int) -> tuple[int, int]:
    """The axis of a Concat, and its rank. Raises Miss."""
    (whole,) = work.definitions(at)  # which refuses an axis that is none
    view, rank = work.view(work.nodes[at]), len(whole.axes)
    return view.axis(view.attr("axis", 0), rank), rank


def _is_recomputed(work: MutableGraph, value: str) -> bool:
    """Whether all readers of a value are elementwise, or a Concat."""
    readers = [work.nodes[at] for at in work.users.get(value, ())]
    return all(n.standard and (n.op == "Concat" or _is_elementwise(work, n, value)) for n in readers)


def _is_elementwise(work: MutableGraph, node: Node, value: str) -> bool:
    """Whether every element of a node's result is computed from the same element of a value."""
    definitions = work.definitions(work.maker[node.outputs[0]])
    parts = list(walk(definitions[0].value))
    here = tuple(map(Index.of, definitions[0].axes))
    elementwise = all(x.index == here for x in parts if isinstance(x, Load) and x.source == value)
    return len(definitions) == 1 and elementwise and not any(isinstance(x, (Reduce, FromIndex)) for x in parts)


def inverse_movement(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A Transpose or Reshape and its inverse cancel, with elementwise operators of constants in between.

    Constants are moved as the values were before: transposed, or repeated where a Reshape splits or joins their axes.
    """
    inner, chain = _between(work, at)
    draft, value = Draft(work, at), inner.inputs[0]
    for node in reversed(chain):
        before = _only_operand(work, node)
        value = draft.node(
            node.op, [value if i == before else _operand(draft, inner, i) for i in node.inputs], node.attrs
        )
    return draft.replace(work.nodes[at].outputs[0], value)


def normalization_between(work: MutableGraph, at: int, trust: bool) -> Draft:
    """BatchNormalization of parts of an axis, between a Reshape that makes channels of them and one back.

    As a factor and a summand for every channel and part it is elementwise, whatever the layout of the image is.
    """
    normal = work.made_by(work.nodes[at].inputs[0], "BatchNormalization")
    inner, chain = _between(work, at)
    if len(chain) > 1:
        raise NoMatch("there is more than a normalization between")
    affine, dtype, draft = affine_of(work, normal), work.type(normal.outputs[0]).dtype, Draft(work, at)
    scale, shift = (
        draft.array(_moved(work, inner, array), dtype, tag, *affine.sources)
        for array, tag in ((affine.scale, "scale"), (affine.shift, "shift"))
    )
    product = draft.node("Mul", (inner.inputs[0], scale))
    return draft.replace(work.nodes[at].outputs[0], draft.node("Add", (product, shift)))


def _between(work: MutableGraph, at: int) -> tuple[Node, list[Node]]:
    """The movement that a node undoes, and the nodes between both, last first. Raises Miss."""
    outer, chain = work.nodes[at], list[Node]()
    inner = work.node(outer.inputs[0])
    while inner is not None and inner.op != outer.op and len(chain) < _LONGEST:
        if not work.single_use(inner.outputs[0]):
            raise Miss(f"{inner.outputs[0]} has other readers")
        chain.append(inner)
        normal = inner.op == "BatchNormalization" and inner.standard
        inner = work.node(inner.inputs[0] if normal else _only_operand(work, inner))
    if inner is None or inner.op != outer.op or not inner.standard or not chain:
        raise NoMatch(f"there is no {outer.op} above that it could cancel")
    _check_undone(work, inner, outer)
    return inner, chain


def _only_operand(work: MutableGraph, node: Node) -> str:
    """The only operand of an elementwise node that is not a constant. Raises Miss."""
    wide = [i for i in node.reads if i not in work.constants]
    numbers = [i for i in node.reads if i in work.constants]
    if not node.standard or len(set(wide)) != 1:
        raise NoMatch(f"{node.op} has another operand that is no constant")
    if any(len(work.type(i).shape) > len(work.type(wide[0]).shape) for i in numbers):
        raise NoMatch(f"{node.op} changes the rank")
    if not _is_elementwise(work, node, wide[0]) or work.type(node.outputs[0]).shape != work.type(wide[0]).shape:
        raise NoMatch(f"{node.op} is not elementwise")
    (d,) = work.definitions(work.maker[node.outputs[0]])
    for x in walk(d.value):
        if isinstance(x, Load) and x.source in numbers and work.constants[x.source].size != 1:
            last = d.axes[len(d.axes) - len(x.index) :]
            if any(e not in (ZERO, Index.of(a)) for e, a in zip(x.index, last, strict=True)):
                raise NoMatch(f"{node.op} does not broadcast {x.source}")
    return wide[0]


def _operand(draft: Draft, inner: Node, name: str) -> str:
    """A constant behind a movement as one before it; an operand left out, or of one element, is as it was."""
    constant = draft.work.constants.get(name)
    if constant is None or constant.size == 1:
        return name
    if constant.size > MOST_MOVED:
        raise Miss(f"{name} has {constant.size} elements")
    return draft.array(_moved(draft.work, inner, constant.load()), constant.dtype, "moved", name)


def _moved(work: MutableGraph, inner: Node, array: Array) -> Array:
    """What broadcasts to the result of a movement, as what broadcasts to the value that is moved. Raises Miss."""
    before, after = (work.type(v).shape for v in (inner.inputs[0], inner.outputs[0]))
    array = array.reshape((1,) * (len(after) - array.ndim) + array.shape)
    if inner.op == "Transpose":
        perm = work.view(inner).attr("perm", tuple(reversed(range(len(after)))))
        return array.transpose(np.argsort(perm))
    return _spread(array, before, after)


def _spread(array: Array, before: tuple[Index, ...], after: tuple[Index, ...]) -> Array:
    """What broadcasts to a shape, as what broadcasts to the shape that a Reshape made it from. Raises Miss."""
    least = min(len(before), len(after))
    front = next((k for k in range(least) if before[k] != after[k]), least)
    back = next((k for k in range(least - front) if before[-1 - k] != after[-1 - k]), least - front)
    old, new = before[front : len(before) - back], after[front : len(after) - back]
    ends = len(after) - back
    lead, middle, rest = array.shape[:front], array.shape[front:ends], array.shape[ends:]
    if all(n == 1 for n in middle):
        return array.reshape((*lead, *(1,) * len(old), *rest))
    sizes = [[e.constant for e in part] for part in (old, new)]
    if None in sizes[0] or None in sizes[1]:
        raise Miss("the axes along which a constant varies have unknown sizes")
    made = np.broadcast_to(array, (*lead, *(e.constant or 0 for e in new), *rest))
    if made.size > MOST_MOVED:
        raise Miss(f"a moved constant would have {made.size} elements")
    return made.reshape((*lead, *(e.constant or 0 for e in old), *rest))


def _check_undone(work: MutableGraph, inner: Node, outer: Node) -> None:
    if outer.op == "Reshape":
        if work.type(inner.inputs[0]).shape != work.type(outer.outputs[0]).shape:
            raise Miss("the Reshape does not restore the original shape")
        return
    (first,), (second,) = (work.definitions(work.maker[n.outputs[0]]) for n in (inner, outer))
    perms = [
        work.view(n).attr("perm", tuple(reversed(range(len(d.axes))))) for n, d in ((inner, first), (outer, second))
    ]
    if [perms[0][p] for p in perms[1]] != list(range(len(perms[0]))):
        raise Miss("the Transpose does not restore the original order of axes")


def grouped_normalization(work: MutableGraph, at: int, trust: bool) -> Draft:
    """InstanceNormalization of an image whose channels a Reshape puts into groups, and a Reshape back.

    As one operator from image to image it keeps the layout of the kernels around it. With a group for each channel it
    is InstanceNormalization of the image itself.
    """
    back = work.nodes[at]
    normal = work.made_by(back.inputs[0], "InstanceNormalization")
    x = work.made_by(normal.inputs[0], "Reshape").inputs[0]
    if work.opset > BY_GROUP:
        raise Miss("GroupNormalization has scales and biases by channel in this opset")
    have, grouped = work.type(x).shape, work.type(normal.inputs[0]).shape
    if len(have) < 3 or work.type(back.outputs[0]).shape != have:
        raise Miss("the second Reshape does not restore the image")
    groups = grouped[1].constant
    if groups is None or grouped[0] != have[0] or divides(Index.of(groups), have[1]) is None:
        raise Miss("the first Reshape does not put the channels of each image into groups")
    draft, attrs = Draft(work, at), dict(normal.attrs)
    operands = (x, *normal.inputs[1:])
    if have[1] == Index.of(groups):
        return draft.replace(back.outputs[0], draft.node("InstanceNormalization", operands, attrs))
    return draft.replace(back.outputs[0], draft.node("GroupNormalization", operands, attrs | {"num_groups": groups}))


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "concat-of-parts",
        "Concat(all parts of x) => x",
        "exact",
        concat_of_parts,
        frozenset({"Concat"}),
        ("the parts are consecutive along the axis",),
    ),
    StructuralRule(
        "nested-concat",
        "Concat(Concat(x, ...), y, ...) => Concat(x, ..., y, ...)",
        "exact",
        nested_concat,
        frozenset({"Concat"}),
        (
            "both are along the same axis",
            "only elementwise operators and Concat read the inner one",
            f"at most {MOST_INPUTS} operands",
        ),
    ),
    StructuralRule(
        "inverse-movement",
        "inverse_move(f(move(x))) => f(x)",
        "exact",
        inverse_movement,
        frozenset({"Transpose", "Reshape"}),
        ("f is elementwise, its other operands are constants", "only f reads move(x)"),
    ),
    StructuralRule(
        "normalization-between",
        "Reshape(BatchNormalization(Reshape(x))) => x*s + t",
        "reassociates",
        normalization_between,
        frozenset({"Reshape"}),
        ("the second Reshape restores the shape of x", "channels are parts of axes of known sizes"),
    ),
    StructuralRule(
        "grouped-normalization",
        "Reshape(InstanceNormalization(Reshape(x, [n, g, ...]), s, b), shape of x) => GroupNormalization(x, s, b)",
        "exact",
        grouped_normalization,
        frozenset({"Reshape"}),
        ("x is n images of c channels", "g divides c", "the opset is below 21, where s and b are by group"),
    ),
)
