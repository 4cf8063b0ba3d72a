"""Cleanup: constant folding, identities, common subexpressions, unused outputs, constant Reshape targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnxfuse.ir.compose import computes, sources
from onnxfuse.ir.graph import Attribute, Constant, Decision, Node
from onnxfuse.ir.index import Index
from onnxfuse.ops.evaluate import meaning
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import define
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.folding import LARGEST_WORK, folded, load_of, plain, scattered
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph, NoMatch, content, static_shape
from onnxfuse.rewrite.operators import commutes
from onnxfuse.rewrite.steps import StructuralRule

_OPTIONAL = frozenset({"Dropout", "BatchNormalization", "LayerNormalization", "MaxPool"})  # outputs behind the first
_RESHAPE = frozenset({"Reshape"})
_WRITES = frozenset({"ScatterElements", "ScatterND"})
_FILLED = 1 << 20  # largest value of moved constants, in bytes, that is materialized to fold a scatter of it
_FACTORS = frozenset({"Cast", "Mul", "Sub"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_PRODUCTS = frozenset({"Gemm", "MatMul"})
_UNROWED_PURE = frozenset({"Shape", "Size"})


def fold(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Values made of constants alone, and integers that are known whatever the inputs are, become constants."""
    node = work.nodes[at]
    outputs = [o for o in node.outputs if o]
    values = _known(work, node) or _evaluated(work, at)
    draft = Draft(work, at)
    for o in outputs:
        if work.types.get(o) is None:
            raise Miss(f"the type of output {o} is unknown")
        draft.become(o, values[o])
    return draft


def _evaluated(work: MutableGraph, at: int) -> dict[str, Constant]:
    node = work.nodes[at]
    row = ROWS.find(node, work.opset)
    dequantized = node.op == "DequantizeLinear" and _is_dequantized(work, node)
    if row is not None and row.codes and not dequantized:
        raise NoMatch("Q and DQ nodes are not folded, since quantized constants are smaller")
    filled: dict[str, Constant] = {}
    for k, i in enumerate(node.inputs):
        if i and i not in work.constants and not (row and k in row.quiet_inputs):
            filled |= _filled(work, node, i)
    constants = {**work.constants, **filled} if filled else work.constants
    definitions = work.definitions(at)
    weights = dequantized or (node.op == "Cast" and _is_weight(work, node))
    return folded(definitions, node.outputs, constants, weights=weights, by=scattered(node, constants))


def _is_weight(work: MutableGraph, node: Node) -> bool:
    """Whether a Cast of 8-bit integers becomes the right side of a product by constant factors, and nothing else.

    Behind more elements than an evaluation visits, or of another shape, factors would not be folded (decision 0219).
    """
    source, value = work.constants.get(node.inputs[0]), node.outputs[0]
    if source is None or source.dtype.bytes > 1 or not work.single_use(node.inputs[0]):
        return False
    shape = static_shape(work.type(value))
    if int(np.prod(shape, dtype=np.int64)) > LARGEST_WORK:
        return False
    while work.single_use(value) and static_shape(work.type(value)) == shape:
        (reader,) = (work.nodes[at] for at in work.users[value])
        if reader.op == "MatMul":
            return reader.inputs[1] == value and reader.inputs[0] not in work.constants
        if reader.op not in _FACTORS or any(i != value and i not in work.constants for i in reader.inputs):
            return False
        value = reader.outputs[0]
    return False


def _is_dequantized(work: MutableGraph, node: Node) -> bool:
    """Whether codes become a weight of one product or convolution of values that are not quantized, and nothing else.

    The runtime computes these in floating point too, and dequantizes their weights in each run. Not of products with
    weights in order, whose left sides it quantizes itself (decision 0294).
    """
    source, value, turned = work.constants.get(node.inputs[0]), node.outputs[0], False
    while source is not None and work.single_use(value):
        (reader,) = (work.nodes[at] for at in work.users[value])
        if reader.op != "Transpose":
            left = work.node(reader.inputs[0])
            quantized = left is not None and left.op == "DequantizeLinear"
            turned |= reader.op == "Gemm" and work.view(reader).attr("transB", 0) == 1
            weight = reader.op in _CONVOLUTIONS or (reader.op in _PRODUCTS and (turned or value != reader.inputs[1]))
            return weight and reader.inputs[0] != value and not quantized
        value, turned = reader.outputs[0], True
    return False


def _filled(work: MutableGraph, node: Node, value: str) -> dict[str, Constant]:
    """An input of a scatter of constants that is made of constants, but too large to become one. Raises Miss."""
    if node.op not in _WRITES:
        raise NoMatch(f"{value} is not a constant")
    return {value: _spread(work, value)}


def _spread(work: MutableGraph, value: str) -> Constant:
    """A value as a constant, where constants are only moved and repeated to make it. Raises Miss."""
    if value in work.constants:
        return work.constants[value]
    t = work.types.get(value)
    shape = t.static_shape if t is not None else None
    definitions = work.definitions(work.maker[value]) if value in work.maker else ()
    if not definitions or t is None or shape is None or any(computes(d.value) for d in definitions):
        raise NoMatch(f"{value} is not a constant")
    read = sorted({s for d in definitions for s in sources(d.value)} - {d.name for d in definitions})
    given = {s: _spread(work, s) for s in read}
    made = Constant(t.dtype, shape, lambda: meaning(definitions, {s: c.load() for s, c in given.items()}, {})[value])
    if made.bytes > _FILLED:
        raise Miss(f"{value} has more than {_FILLED} bytes")
    return made


def _known(work: MutableGraph, node: Node) -> dict[str, Constant]:
    found: dict[str, Constant] = {}
    for o in node.outputs:
        elements = work.known.get(o)
        if not o or elements is None or any(e.constant is None for e in elements):
            return {}
        type_ = work.type(o)
        array = np.asarray([e.constant for e in elements], type_.dtype.numpy).reshape(static_shape(type_))
        found[o] = Constant.of(array, type_.dtype)
    return found


def identity(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A node that its row defines as `out[i] = in[i]` is replaced by its input, whatever its operator is."""
    node = work.nodes[at]
    if node.op == "Identity" and node.standard:
        return Draft(work, at).replace(node.outputs[0], node.inputs[0], typed=False)
    meaning = work.definitions(at)
    d = meaning[-1]
    load = load_of(d)
    if len(meaning) != 1 or load is None:
        raise NoMatch(f"{node.op} changes values")
    if plain(load.index, d) != plain(tuple(map(Index.of, d.axes)), d):
        raise NoMatch(f"{node.op} changes the positions of elements")
    return Draft(work, at).replace(d.name, load.source)


def common_subexpressions(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Common subexpressions: the later of two equal nodes is replaced by the earlier one."""
    key = node_key(work, work.nodes[at])
    first = work.equal.get(key)
    if first is None or first not in work.nodes or first == at or node_key(work, work.nodes[first]) != key:
        work.equal[key] = at
        raise NoMatch("no other node has the same operator, inputs and attributes")
    if work.place[first] > work.place[at]:
        work.equal[key], first, at = at, at, first
    draft = Draft(work, at)
    for mine, theirs in zip(work.nodes[at].outputs, work.nodes[first].outputs, strict=True):
        if mine:
            draft.replace(mine, theirs, typed=False)
    return draft


def node_key(work: MutableGraph, node: Node) -> tuple[object, ...]:
    """A key that two nodes share when they compute the same value. Raises Miss for nodes not known to be pure."""
    pure = node.op in _UNROWED_PURE or ROWS.find(node, work.opset) is not None
    if not node.standard or not pure or node.op == "Dropout" or node.captures:
        raise Miss(f"{node.op} is not known to be deterministic")
    inputs = tuple(sorted(node.inputs)) if commutes(node.op) else node.inputs
    attrs = tuple(sorted((k, _attribute_key(v)) for k, v in node.attrs.items()))
    return node.op, inputs, attrs, tuple(map(bool, node.outputs))


def _attribute_key(value: Attribute) -> str:
    if isinstance(value, Constant):
        digest = content(value)
        return digest.hex() if digest is not None else f"at {id(value)}"
    return repr(value)


def unused_outputs(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Optional outputs without readers are removed, where the operator then has a row."""
    node = work.nodes[at]
    wanted = [o if k == 0 or work.users.get(o) or o in work.pinned else "" for k, o in enumerate(node.outputs)]
    while wanted and not wanted[-1]:
        wanted.pop()
    if tuple(wanted) == node.outputs or not node.outputs[0]:
        raise Miss("every output is used")
    draft = Draft(work, at)
    fresh = replace(node, outputs=tuple(f"{o}/kept" if o else "" for o in wanted))
    meaning = define(ROWS, work.view(fresh))
    if isinstance(meaning, Decision):  # mostly training mode, whose random values may depend on the outputs
        raise Miss(meaning.reason)
    draft.nodes.append(fresh)
    draft.meanings[fresh.outputs[0]] = meaning
    for old, new in zip(wanted, fresh.outputs, strict=True):
        if old:
            draft.types[new] = work.types.get(old)
            draft.replace(old, new, typed=False)
    return draft


def constant_reshape(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A Reshape whose target is computed from shapes gets an equal constant target (0: copied, -1: inferred)."""
    node = work.nodes[at]
    if node.inputs[1] in work.constants:
        raise Miss("the target shape is a constant already")
    (meaning,) = work.definitions(at)
    have, asked = work.type(node.inputs[0]).shape, work.known.get(node.inputs[1], ())
    target = spelled(have, meaning.shape)
    if target is None and not node.attrs.get("allowzero"):  # with it, the original takes -1 beside an extent of 0
        target = _as_asked(have, asked, meaning.shape)
    if target is None:
        raise Miss(f"the target shape {meaning.shape!r} cannot be written as a constant")
    draft = Draft(work, at)
    return draft.replace(node.outputs[0], draft.node("Reshape", (node.inputs[0], draft.ints(target))))


def _as_asked(have: tuple[Index, ...], asked: tuple[Index, ...], want: tuple[Index, ...]) -> tuple[int, ...] | None:
    """A constant target with -1 where the given one has it, and 0 for symbols copied from the input; or None."""
    if len(asked) != len(want) or [e.constant for e in asked].count(-1) != 1:
        return None
    out = [_entry(have[at] if at < len(have) else None, e) for at, e in enumerate(asked)]
    return None if None in out else tuple(n for n in out if n is not None)


def _entry(have: Index | None, asked: Index) -> int | None:
    """An entry of a Reshape target: a number, or 0 for the extent that is there."""
    n = asked.constant
    return n if n is not None else 0 if asked == have else None


def spelled(have: tuple[Index, ...], want: tuple[Index, ...]) -> tuple[int, ...] | None:
    """A constant Reshape target (allowzero=0) from one shape to another, None when there is none.

    A target never holds both -1 and a copied symbol: the runtime refuses that pair when a symbol is 0.
    """
    out: list[int] = []
    for at, e in enumerate(want):
        n = e.constant
        out.append(n if n is not None else 0 if at < len(have) and have[at] == e else -1)
    copied = any(n == 0 for n in out)
    inferred = out.count(-1)
    empty = any(e == 0 for e in want)
    return None if empty or inferred > 1 or (inferred and copied) else tuple(out)


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule("identity", "out[i] = in[i] => in", "exact", identity),
    StructuralRule(
        "fold", "f(constants) => constant", "exact", fold, when=("the result is not much larger than its inputs",)
    ),
    StructuralRule("unused-outputs", "y, unread = f(x) => y = f(x)", "exact", unused_outputs, _OPTIONAL),
    StructuralRule(
        "common-subexpressions",
        "f(x), f(x) => one f(x)",
        "exact",
        common_subexpressions,
        when=("the operator is pure",),
    ),
    StructuralRule(
        "constant-reshape", "Reshape(x, computed) => Reshape(x, constant)", "exact", constant_reshape, _RESHAPE
    ),
)
