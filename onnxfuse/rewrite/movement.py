"""Chains of operators that only move elements, composed as index maps and recognised as one operator, or none."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfuse.ir.index import ONE, Index, flatten, product, substitute
from onnxfuse.ir.scalar import Load
from onnxfuse.ops.spec import Definition
from onnxfuse.rewrite.cleanup import spelled
from onnxfuse.rewrite.draft import MOVES, Draft
from onnxfuse.rewrite.folding import load_of, permutation, plain
from onnxfuse.rewrite.steps import Step
from onnxfuse.rewrite.work import Miss, Work

_OPS = MOVES | {"Gather", "Concat", "Tile"}
_LONGEST = 16  # nodes of one chain that are composed

Shape = tuple[Index, ...]


def moves(work: Work, at: int, trust: bool) -> Draft:
    """The node reads from as far up its chain as one operator says what the chain does."""
    meaning = _move(work, at)
    reason = f"{work.nodes[at].op} stands alone"
    for depth, (source, index) in reversed(list(enumerate(_ancestors(work, *meaning)))):
        try:
            return recognised(work, at, meaning[0], source, index, alone=depth == 0)
        except Miss as miss:
            reason = str(miss)
    raise Miss(reason)


def _move(work: Work, at: int) -> tuple[Definition, Load]:
    """What a node that only moves elements of one value computes, and the element that it loads."""
    meaning = work.definitions(at)
    load = load_of(meaning[-1])
    if len(meaning) != 1 or load is None:
        raise Miss(f"{work.nodes[at].op} does not only move elements")
    return meaning[0], load


def _ancestors(work: Work, d: Definition, load: Load) -> Iterator[tuple[str, Shape]]:
    """Values that the node's value is a rearrangement of, nearest first, and where it reads them."""
    source, index = load.source, load.index
    yield source, index
    for _ in range(_LONGEST):
        if source not in work.maker:
            return
        try:
            above, load = _move(work, work.maker[source])
        except Miss:
            return
        values = dict(zip(above.axes, index, strict=True))
        source, index = load.source, tuple(substitute(i, values) for i in load.index)
        yield source, index


def recognised(work: Work, at: int, d: Definition, source: str, index: Shape, *, alone: bool) -> Draft:
    """The operator that reads `source` at `index`; with `alone`, only where a Transpose is a Reshape."""
    draft, have = Draft(work, at), work.type(source).shape
    here = plain(tuple(map(Index.of, d.axes)), d)
    there = plain(index, d)
    if not alone and d.shape == have and there == here:
        return draft.replace(d.name, source)
    if not alone or work.nodes[at].op == "Transpose":
        try:
            same_order = product(have) == product(d.shape) and flatten(there, have) == flatten(here, d.shape)
        except ZeroDivisionError:
            same_order = False
        if same_order:
            return draft.replace(d.name, reshaped(draft, source, d.shape))
    perm = permutation(index, have, d)
    if perm is not None and not alone:
        return draft.replace(d.name, draft.node("Transpose", (source,), {"perm": perm}))
    raise Miss("the chain is neither a Reshape nor a Transpose")


def reshaped(draft: Draft, source: str, want: Shape) -> str:
    """source under another shape: Reshape to a constant, Squeeze, Unsqueeze, or Reshape to a target that is there."""
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
    raise Miss(f"{want!r} cannot be spelled as a constant")


def units_between(longer: Shape, shorter: Shape) -> tuple[int, ...]:
    """The axes of one element that `longer` has and `shorter` has not; none when that is not the difference."""
    axes: list[int] = []
    for at, e in enumerate(longer):
        if at - len(axes) < len(shorter) and shorter[at - len(axes)] == e:
            continue
        if e != ONE:
            return ()
        axes.append(at)
    return tuple(axes) if len(longer) - len(axes) == len(shorter) else ()


STEPS: tuple[Step, ...] = (Step("moves", "move(...move(x)) => x, Reshape(x) or Transpose(x)", "exact", moves, _OPS),)
