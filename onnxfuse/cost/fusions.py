"""Fusions that ONNX Runtime does itself: chains that it has one operator for, activations, quantized operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from onnxfuse.cost.nodes import Call, Tensor
from onnxfuse.cost.runtime import node_seconds
from onnxfuse.ir.graph import Node
from onnxfuse.target import Cpu

# Operators that the runtime has for chains, longer ones first: names of a step with | between them, ? for one that may
# be missing. Every step reads what one before it has made.
_CHAINS = (
    ("LayerNormalization", "ReduceMean Sub Pow|Mul ReduceMean Add Sqrt Div ?Mul ?Add"),
    ("SimplifiedLayerNormalization", "Pow|Mul ReduceMean Add Sqrt Div|Reciprocal Mul ?Mul"),
    ("Gelu", "Div|Mul Erf Add Mul Mul"),
    ("QuickGelu", "Sigmoid Mul"),
)
# What is done on the way to a result that an operator stores, or on the way to what it reads.
_ACTIVATIONS = frozenset(["Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"])
_BEHIND: dict[str, frozenset[str]] = {
    "Conv": _ACTIVATIONS | {"Add"},
    "MatMul": frozenset(("Add",)),
    "Gemm": _ACTIVATIONS,
}
_CODED = frozenset(
    [
        "Conv",
        "MatMul",
        "Gemm",
        "Add",
        "Mul",
        "AveragePool",
        "GlobalAveragePool",
        "Sigmoid",
        "LeakyRelu",
        "Concat",
        "Softmax",
    ]
)


def group_seconds(
    nodes: Sequence[Node], tensors: Mapping[str, Tensor], target: Cpu, run_weight_bytes: float = 0.0
) -> float:
    """Seconds that the runtime takes for nodes, in topological order, all of whose values `tensors` knows."""
    return sum(node_seconds(call, target, run_weight_bytes) for call in calls_of(nodes, tensors))


def calls_of(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Call]:
    """What the runtime makes of nodes that stand together in a graph."""
    left = {n.name: n for n in nodes}
    for op, pattern in _CHAINS:
        for n in nodes:
            chain = _matched(n, list(left.values()), pattern.split()) if n.name in left else ()
            if chain:
                for each in chain:
                    del left[each.name]
                yield _call(op, chain[0], chain[-1], tensors)
    yield from _single(list(left.values()), tensors)


def taken_in(nodes: Sequence[Node]) -> frozenset[str]:
    """Names of nodes that the runtime takes into the contraction before them."""
    readers = _readers(nodes)
    found = [(n, readers.get(n.outputs[0], [])) for n in nodes if n.op in _BEHIND]
    return frozenset(r[0].name for n, r in found if len(r) == 1 and r[0].op in _BEHIND[n.op])


def _matched(first: Node, nodes: Sequence[Node], steps: Sequence[str]) -> tuple[Node, ...]:
    """The nodes that go through these steps from the first one on; none where one is missing."""
    if first.op not in steps[0].split("|"):
        return ()
    found, made = [first], set(first.outputs)
    rest = iter(nodes[[n.name for n in nodes].index(first.name) + 1 :])
    at = next(rest, None)
    for step in steps[1:]:
        names = step.removeprefix("?").split("|")
        ahead = at
        while ahead is not None and not (ahead.op in names and made.intersection(ahead.reads)):
            ahead = next(rest, None)
        if ahead is None:
            return tuple(found) if step.startswith("?") else ()
        found.append(ahead)
        made.update(ahead.outputs)
        at = next(rest, None)
    return tuple(found)


def _call(op: str, first: Node, last: Node, tensors: Mapping[str, Tensor]) -> Call:
    inputs = tuple(tensors[i] if i else None for i in first.inputs)
    return Call(op, inputs, tuple(tensors[o] for o in last.outputs if o), first.attrs)


def _single(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> Iterator[Call]:
    """Nodes that no chain took, but those that others take in."""
    readers = _readers(nodes)
    decoded = {n.outputs[0]: n.inputs[0] for n in nodes if n.op == "DequantizeLinear"}
    gone: set[str] = set()
    for n in nodes:
        if n.name in gone:
            continue
        if n.op == "DequantizeLinear" and all(r.op in _CODED for r in readers.get(n.outputs[0], ())):
            gone.add(n.name)
            continue
        absorbed = _BEHIND.get(n.op, frozenset())
        followers = readers.get(n.outputs[0], [])
        if len(followers) == 1 and (followers[0].op in absorbed or _codes(n, followers[0], decoded)):
            gone.add(followers[0].name)
        call = _call(n.op, n, n, tensors)
        codes = {at: decoded[i] for at, i in enumerate(n.inputs) if i in decoded and n.op in _CODED}
        yield replace(call, inputs=tuple(_as_code(t, codes.get(at), tensors) for at, t in enumerate(call.inputs)))


def _readers(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for n in nodes:
        for i in dict.fromkeys(n.reads):
            found.setdefault(i, []).append(n)
    return found


def _codes(n: Node, follower: Node, decoded: Mapping[str, str]) -> bool:
    """Whether a node works on codes, which the next one makes of its result."""
    return follower.op == "QuantizeLinear" and n.op in _CODED and any(i in decoded for i in n.inputs)


def _as_code(t: Tensor | None, code: str | None, tensors: Mapping[str, Tensor]) -> Tensor | None:
    return tensors[code] if code is not None and code in tensors else t
