"""Chains of data movement, composed as index maps and replaced by one Reshape or Transpose, or by nothing."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfuse.ir.compose import walk
from onnxfuse.ir.graph import Node
from onnxfuse.ir.index import ONE, Index
from onnxfuse.ir.indexing import flatten, product, substitute
from onnxfuse.ir.scalar import FromIndex, Load, Reduce
from onnxfuse.ops.spec import Definition
from onnxfuse.rewrite.cleanup import spelled
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.folding import load_of, permutation, plain
from onnxfuse.rewrite.mutable_graph import Definitions, Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.proofs.positions import located
from onnxfuse.rewrite.steps import StructuralRule

_LONGEST = 16  # most nodes of a chain that are composed

Shape = tuple[Index, ...]


def movement_chain(work: MutableGraph, at: int, trust: bool) -> Draft:
    """The longest chain of data movement above a node that is equal to one operator becomes that operator."""
    chain = _chain(work, at)
    seen, reason = work.stuck.get(at, ((), ""))
    if len(seen) == len(chain) and all(a is b for a, b in zip(seen, chain, strict=True)):
        raise Miss(reason)  # composing index maps is expensive, and the chain has not changed since
    for depth, (source, index) in reversed(list(enumerate(_ancestors(work, chain)))):
        try:
            return recognised(work, at, chain[0][0], source, index, alone=depth == 0)
        except Miss as miss:
            reason = str(miss)
    work.stuck[at] = chain, reason
    raise Miss(reason)


def _chain(work: MutableGraph, at: int) -> tuple[Definitions, ...]:
    """The definitions of a node and its producers, as far up as each only moves elements of one value. Raises Miss."""
    if load_of(work.definitions(at)[-1]) is None or len(work.definitions(at)) != 1:
        raise NoMatch(f"{work.nodes[at].op} is not pure data movement")
    chain: list[Definitions] = []
    above: int | None = at
    while above is not None and len(chain) < _LONGEST:
        try:
            meaning = work.definitions(above)
        except Miss:
            break
        load = load_of(meaning[-1])
        if load is None or len(meaning) != 1:
            break
        chain.append(meaning)
        above = work.maker.get(load.source)
    return tuple(chain)


def _ancestors(work: MutableGraph, chain: tuple[Definitions, ...]) -> Iterator[tuple[str, Shape]]:
    """The inputs along a chain, nearest first, each with the composed index map by which the chain reads it."""
    index: Shape | None = None
    for (d,) in chain:
        load = load_of(d)
        assert load is not None
        index = located(work, load.index if index is None else _through(d, load, index))
        yield load.source, index


def _through(d: Definition, load: Load, index: Shape) -> Shape:
    values = dict(zip(d.axes, index, strict=True))
    return tuple(substitute(i, values) for i in load.index)


def recognised(work: MutableGraph, at: int, d: Definition, source: str, index: Shape, *, alone: bool) -> Draft:
    """The Reshape or Transpose that reads `source` at `index`; with `alone`, unless the node is one. Raises Miss."""
    draft, have = Draft(work, at), work.type(source).shape
    here = plain(tuple(map(Index.of, d.axes)), d)
    there = plain(index, d)
    if d.shape == have and there == here:
        return draft.replace(d.name, source)
    if not alone or not work.is_view(at):
        try:
            same_order = product(have) == product(d.shape) and flatten(there, have) == flatten(here, d.shape)
        except ZeroDivisionError:
            same_order = False
        if same_order:
            return draft.replace(d.name, reshaped(draft, source, d.shape))
    perm = permutation(index, have, d)
    if perm is not None and not alone:
        return draft.replace(d.name, draft.node("Transpose", (source,), {"perm": perm}))
    raise Miss("the movements together are neither a Reshape nor a Transpose")


def reshaped(draft: Draft, source: str, want: Shape) -> str:
    """source reshaped: by Reshape to a constant, Squeeze, Unsqueeze, or Reshape to the root's target. Raises Miss."""
    have = draft.type(source).shape
    target = spelled(have, want)
    if target is not None:
        return draft.node("Reshape", (source, draft.ints(target)))
    for op, longer, shorter in (("Squeeze", have, want), ("Unsqueeze", want, have)):
        axes = units_between(longer, shorter)
        if axes:
            if draft.work.opset >= 13:
                return draft.node(op, (source, draft.ints(axes)))
            return draft.node(op, (source,), {"axes": axes})
    root = draft.work.nodes[draft.root]
    if root.op == "Reshape" and all(e != 0 for e in draft.work.known.get(root.inputs[1], (Index.of(0),))):
        return draft.node("Reshape", (source, root.inputs[1]))
    raise Miss(f"the target shape {want!r} cannot be written as a constant")


def squeeze_last(work: MutableGraph, at: int, trust: bool) -> Draft:
    """An elementwise node whose other operands are scalars moves before a Squeeze without axes.

    The axes that such a Squeeze removes, and so the rank of its result, are known only at run time.
    """
    node = work.nodes[at]
    wide = [i for i in node.inputs if i not in work.constants]
    if len(wide) != 1 or len(node.outputs) != 1 or any(work.type(i).shape for i in node.inputs if i != wide[0]):
        raise NoMatch(f"{node.op} has another operand that is no constant scalar")
    squeeze = work.made_by(wide[0], "Squeeze")
    if work.types.get(wide[0]) is not None or any(squeeze.inputs[1:]) or "axes" in squeeze.attrs:
        raise Miss("the rank of its input is known")
    draft, source = Draft(work, at), squeeze.inputs[0]
    out = draft.node(node.op, [source if i == wide[0] else i for i in node.inputs], node.attrs)
    (meaning,) = draft.meanings[out]
    here = tuple(map(Index.of, meaning.axes))
    found = list(walk(meaning.value))
    if any(isinstance(x, (Reduce, FromIndex)) or (isinstance(x, Load) and x.index != here) for x in found):
        raise NoMatch(f"{node.op} is not elementwise")
    last = draft.fresh("Squeeze")
    draft.nodes.append(Node("Squeeze", (out,), (last,), {}, node.name))
    draft.types[last] = work.types.get(node.outputs[0])
    return draft.replace(node.outputs[0], last, typed=False)


def whole_axis(have: Shape, want: Shape, axis: int) -> int:
    """The axis of the shape `have` that a reshape to `want` leaves unchanged as `axis`.

    Of several axes of extent 1, the last. Raises Miss where there is none.
    """
    for k in reversed(range(len(have))):
        if have[k] == want[axis] and product(have[:k]) == product(want[:axis]):
            return k
    raise Miss("the reshape merges or splits the axis")


def units_between(longer: Shape, shorter: Shape) -> tuple[int, ...]:
    """The axes of extent 1 that `longer` has in addition to `shorter`; () if they differ otherwise."""
    axes: list[int] = []
    for at, e in enumerate(longer):
        if at - len(axes) < len(shorter) and shorter[at - len(axes)] == e:
            continue
        if e != ONE:
            return ()
        axes.append(at)
    return tuple(axes) if len(longer) - len(axes) == len(shorter) else ()


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule("movement-chain", "move(...move(x)) => x, Reshape(x) or Transpose(x)", "exact", movement_chain),
    StructuralRule(
        "squeeze-last", "f(Squeeze(x), n) => Squeeze(f(x, n))", "exact", squeeze_last, when=("n is a scalar",)
    ),
)
