"""Products with the same input merged into one: the weights are concatenated, the result is sliced (as for QKV)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.graph import Attribute, Constant, Node
from onnxfuse.ops import elementwise
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Array, Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.steps import StructuralRule

_ELEMENTWISE = frozenset(row.op for row in elementwise.ROWS)
_DEEPEST = 8  # elementwise nodes behind a product that are searched for a use together with another product


@dataclass(frozen=True, slots=True)
class Branch:
    """One product: its weight, its result (after the bias), its bias or "", and its number of columns."""

    weight: str
    out: str
    bias: str
    columns: int
    dtype: str


def merged_products(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Several MatMuls (with or without a constant bias) or Gemms with the same input become one."""
    node = work.nodes[at]
    branches: list[Branch] = []
    for other in sorted(work.users.get(node.inputs[0], ()), key=lambda k: work.place[k]):
        try:
            if _alike(work.nodes[other], node):
                branches.append(_branch(work, work.nodes[other]))
        except Miss:
            continue
    mine = _branch(work, node)
    depth = work.constants[mine.weight].shape[_depth_axis(node)]
    same = [b for b in branches if b.dtype == mine.dtype and work.constants[b.weight].shape[_depth_axis(node)] == depth]
    same = _apart(work, same)
    if len(same) < 2 or same[0] != mine:
        raise NoMatch(f"{node.inputs[0]} has no later product with constant weights of equal depth and type")
    return _merged(Draft(work, at), node, same)


def _apart(work: MutableGraph, branches: list[Branch]) -> list[Branch]:
    """Branches without those whose results meet in elementwise operators, such as a gate and the value it multiplies.

    Unmerged, one of the two is combined with the other in the epilogue of its product. Merged, both would have to be
    stored and read again.
    """
    behind = [_behind(work, b.out) for b in branches]
    meets = [any(i != k and behind[i] & behind[k] for k in range(len(branches))) for i in range(len(branches))]
    return [b for b, met in zip(branches, meets, strict=True) if not met]


def _behind(work: MutableGraph, value: str) -> set[int]:
    """The elementwise nodes that a value reaches through elementwise nodes only."""
    found: set[int] = set()
    values = {value}
    for _ in range(_DEEPEST):
        users = {k for v in values for k in work.users.get(v, ())} - found
        users = {k for k in users if work.nodes[k].op in _ELEMENTWISE and work.nodes[k].domain in ("", "ai.onnx")}
        found |= users
        values = {o for k in users for o in work.nodes[k].outputs}
    return found


def _alike(a: Node, b: Node) -> bool:
    return a.op == b.op and a.domain == b.domain and a.attrs == b.attrs and a.inputs[0] == b.inputs[0]


def _depth_axis(node: Node) -> int:
    return 1 if node.attrs.get("transB", 0) else 0


def _branch(work: MutableGraph, node: Node) -> Branch:
    weight = work.constants.get(node.inputs[1])
    if weight is None or len(weight.shape) != 2 or not weight.dtype.floating or not work.single_use(node.inputs[1]):
        raise Miss(f"the weight {node.inputs[1]} is not a constant matrix with one reader")
    columns = weight.shape[1 - _depth_axis(node)]
    if node.op == "Gemm":
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if bias and not _is_vector(work, bias, columns):
            raise Miss(f"the bias {bias} is not a constant vector")
        return Branch(node.inputs[1], node.outputs[0], bias, columns, weight.dtype.name)
    out, bias = node.outputs[0], ""
    if work.single_use(out):
        add = work.nodes[next(iter(work.users[out]))]
        other = add.inputs[1 - add.inputs.index(out)] if add.op == "Add" else ""
        if _is_vector(work, other, columns) and work.types.get(add.outputs[0]) == work.types.get(out):
            out, bias = add.outputs[0], other
    return Branch(node.inputs[1], out, bias, columns, weight.dtype.name)


def _is_vector(work: MutableGraph, bias: str, columns: int) -> bool:
    """Whether a value is a constant that varies along columns only."""
    found = work.constants.get(bias)
    return found is not None and (found.size == 1 or (found.size == columns and found.shape[-1] == columns))


def _merged(draft: Draft, node: Node, branches: list[Branch]) -> Draft:
    work = draft.work
    axis = 1 - _depth_axis(node)
    weights = [work.constants[b.weight] for b in branches]
    depth, columns = weights[0].shape[1 - axis], sum(b.columns for b in branches)
    shape = (depth, columns) if axis else (columns, depth)
    names = [b.weight for b in branches]
    w = draft.lazily(weights[0].dtype, shape, joined(weights, axis), "joined", *names)
    inputs, attrs = [node.inputs[0], w], dict(node.attrs)
    bias = _joined_bias(draft, branches)
    if node.op == "Gemm":
        y = draft.node("Gemm", inputs + ([bias] if bias else []), attrs)
    else:
        y = draft.node("MatMul", inputs, attrs)
        y = draft.node("Add", (y, bias)) if bias else y
    last, first = len(draft.type(y).shape) - 1, 0
    for b in branches:
        draft.replace(b.out, _columns(draft, y, last, first, first + b.columns))
        first += b.columns
    return draft


def joined(weights: Sequence[Constant], axis: int) -> Callable[[], Array]:
    """A load of the concatenated weights."""
    return lambda: np.concatenate([w.load() for w in weights], axis)


def _joined_bias(draft: Draft, branches: list[Branch]) -> str:
    if not any(b.bias for b in branches):
        return ""
    work = draft.work
    dtype = work.constants[branches[0].weight].dtype
    parts = [np.broadcast_to(work.array(b.bias).reshape(-1) if b.bias else 0, (b.columns,)) for b in branches]
    return draft.array(np.concatenate(parts), dtype, "joined", *(b.bias or b.weight for b in branches))


def _columns(draft: Draft, y: str, axis: int, start: int, end: int) -> str:
    """One branch's columns of the product. Slices rather than a Split, since each can be fused into its readers."""
    if draft.work.opset >= 10:
        return draft.node("Slice", (y, *(draft.ints((value,)) for value in (start, end, axis))))
    attrs: dict[str, Attribute] = {"starts": (start,), "ends": (end,), "axes": (axis,)}
    return draft.node("Slice", (y,), attrs)


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "merged-products",
        "x@w1 + b1, x@w2 + b2, ... => slices of x@[w1 w2 ...] + [b1 b2 ...]",
        "exact",
        merged_products,
        frozenset({"MatMul", "Gemm"}),
        (
            "constant(w)",
            "constant(b)",
            "one reader of each w",
            "equal depth and element type",
            "the results are not combined elementwise",
        ),
    ),
)
