"""Unlocks work: the named flag or edit fuses the refused nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse import optimize
from onnxfuse.ir.graph import CODES
from onnxfuse.ir.unsupported import FLOATS
from onnxfuse.report.result import Refusal, Result

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
ROUND = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y)
{{ a = Neg(x)\n b = Abs(a)\n c = Add(a, b)\n y = Relu(c) }}"""
SORTED = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y) <int64[1] k = {{8}}>
{{ a = Neg(x)\n b, i = TopK(a, k)\n c = Add(a, b)\n y = Relu(c) }}"""
SOFTMAX = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y)
{{ a = Neg(x)\n b = ReduceMax<axes = [1], keepdims = 1>(a)\n c = Sub(a, b)\n y = Exp(c) }}"""
GIVEN = f"""{HEAD} g (float[4, 8] x, int64[2] s) => (float[8, 4] y)
{{ a = Neg(x)\n b = Reshape(a, s)\n y = Relu(b) }}"""
PARTS = f"""{HEAD} g (float[N, 6] x) => (float[P, 6] y, float[Q, 6] z)
{{ a = Neg(x)\n b, c = Split<axis = 0>(a)\n y = Relu(b)\n z = Exp(c) }}"""
FILTERS = f"""{HEAD} g (float[1, 3, 9, 9] x, float[4, 3, K, K] w) => (float[1, 4, P, Q] y)
{{ a = Conv(x, w)\n y = Relu(a) }}"""
PLACES = f"""{HEAD} g (float[1, 3, 8, 8] x) => (float[1, 3, 4, 4] y, int64[1, 3, 4, 4] i)
{{ a, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)\n y = Relu(a) }}"""
TRAINED = """<ir_version: 8, opset_import: ["": 13]> g (float[2, 3, 8] x, float[3] s, float[3] b, float[3] m,
float[3] v) => (float[2, 3, 8] y) { a, n, o, p, q = BatchNormalization(x, s, b, m, v)\n y = Relu(a) }"""
DROPPED = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y, bool[4, 8] k)
{{ a = Neg(x)\n b, k = Dropout(a)\n y = Relu(b) }}"""
TRAINING = f"""{HEAD} g (float[4, 8] x, bool t) => (float[4, 8] y) <float r = {{0.5}}>
{{ a = Neg(x)\n b = Dropout(a, r, t)\n y = Relu(b) }}"""

FOREIGN = """<ir_version: 8, opset_import: ["": 17, "com.example": 1]> g (float[4, 8] x) => (float[4, 8] y)
{ a = com.example.Twist(x)\n b = Exp(a)\n y = Mul(b, a) }"""
TWIST = """<opset_import: ["": 17], domain: "com.example"> Twist (x) => (y) { a = Neg(x)\n y = Sin(a) }"""
OLD = """<ir_version: 8, opset_import: ["": 6]> g (float[4, 8] x) => (float[4, 8] y) { a = Neg(x)\n y = Exp(a) }"""
NEWER = (
    """<ir_version: 8, opset_import: ["": 13]> g (float[4, 8] x) => (float[4, 8] y) { a = HardSwish(x)\n y = Exp(a) }"""
)
QUANTIZED = """<ir_version: 8, opset_import: ["": 9]>
g (float[4, 8] x) => (float[4, 8] y) <float s = {0.1}, uint8 z = {9}>
{ q = QuantizeLinear(x, s, z)\n d = DequantizeLinear(q, s, z)\n y = Abs(d) }"""
NORM = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{ a = LpNormalization<p = 3>(x)\n y = Exp(a) }}"""
SHIFT = f"""{HEAD} g (uint8[4] x, uint8[4] z) => (uint8[4] y)
{{ a = BitShift<direction = "UP">(x, z)\n y = BitShift<direction = "LEFT">(a, z) }}"""
MIRROR = f"""{HEAD} g (float[4] x) => (float[6] y) <int64[2] p = {{1, 1}}>
{{ a = Neg(x)\n b = Pad<mode = "mirror">(a, p)\n y = Exp(b) }}"""
SPLINE = f"""{HEAD} g (float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y) <float[4] s = {{1.0, 1.0, 2.0, 2.0}}>
{{ a = Neg(x)\n b = Resize<mode = "spline">(a, , s)\n y = Exp(b) }}"""
PIXELS = f"""{HEAD} g (uint8[1, 1, 4, 4] x, uint8 k) => (uint8[1, 1, 8, 8] y) <float[4] s = {{1.0, 1.0, 2.0, 2.0}}>
{{ a = Max(x, k)\n b = Resize<mode = "linear">(a, , s)\n y = Max(b, k) }}"""
SATURATED = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y) <float s = {{0.1}}, uint8 z = {{128}}>
{{ a = Tanh(x)\n q = QuantizeLinear(a, s, z)\n d = DequantizeLinear(q, s, z)\n y = Exp(d) }}"""
ONCE = f"""{HEAD} g (float[1500, 1500] x) => (float[1500, 1500] y)
{{ t = Mul(a, b)\n u = Sin(t)\n v = Neg(x)\n y = Add(v, u) }}"""
INTEGERS = f"""{HEAD} g (float[8, 64] x, uint8[64, 16] w) => (float[8, 16] y) <float s = {{0.1}}, uint8 z = {{128}}>
{{ q = QuantizeLinear(x, s, z)\n i = MatMulInteger(q, w, z, z)\n f = Cast<to = 1>(i)\n y = Mul(f, s) }}"""
MATRIX = f"""{HEAD} g (float[4096, 64] x, float[64, 64] w) => (float[4096, 64] y)
{{ a = MatMul(x, w)\n b = Softmax(a)\n c = Neg(b)\n y = Sin(c) }}"""
WEIGHED = MATRIX.replace(", float[64, 64] w", "")
BODY = f"""{HEAD} g (int64 k, float[4, 8] x) => (float[4, 8] y)
{{ go = Constant<value = bool {{1}}>()
 y = Loop(k, go, x) <body = l (int64 i, bool g, float[4, 8] h) => (bool on, float[4, 8] o) <bool g = {{1}}>
   {{ on = Identity(g)\n a = Neg(h)\n o = Exp(a) }}> }}"""

Edit = Callable[[onnx.ModelProto, Refusal], None]


def named(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Every node has a name of its own."""
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{number}"
    return proto


def node_of(proto: onnx.ModelProto, op: str) -> onnx.NodeProto:
    return next(n for n in proto.graph.node if n.op_type == op)


def take_out(proto: onnx.ModelProto, told: Refusal) -> None:
    """The nodes that the unlock names: who read their results reads what they read."""
    (name,) = told.unlock.removeprefix("remove ").removesuffix(" from between them").split(", ")
    out = next(n for n in proto.graph.node if n.name == name)
    for n in proto.graph.node:
        n.input[:] = [out.input[0] if v == out.output[0] else v for v in n.input]
    proto.graph.node.remove(out)


def fixed(name: str, value: Any) -> Edit:
    """An input of the model that is a constant now."""

    def edit(proto: onnx.ModelProto, told: Refusal) -> None:
        assert f"make {name} a constant" in told.unlock
        proto.graph.input.remove(next(i for i in proto.graph.input if i.name == name))
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))

    return edit


def without_output(op: str) -> Edit:
    """A node without its second output, which the model gave."""

    def edit(proto: onnx.ModelProto, told: Refusal) -> None:
        gone = node_of(proto, op).output.pop()
        assert told.unlock == f"remove its output {gone}"
        del proto.graph.output[1]

    return edit


def for_inference(proto: onnx.ModelProto, told: Refusal) -> None:
    assert "one output, training_mode 0" in told.unlock
    node = node_of(proto, "BatchNormalization")
    del node.output[1:]


def with_function(proto: onnx.ModelProto, told: Refusal) -> None:
    assert told.unlock.startswith("a function com.example::Twist in the model")
    proto.functions.append(onnx.parser.parse_function(TWIST))


def of_opset(version: int) -> Edit:
    """The model in another opset."""

    def edit(proto: onnx.ModelProto, told: Refusal) -> None:
        assert f"opset of {version} or newer" in told.unlock or f"opset from {version} to" in told.unlock
        proto.opset_import[0].version = version

    return edit


def with_attribute(op: str, name: str, value: Any) -> Edit:
    """A node with an attribute as the unlock offers it."""

    def edit(proto: onnx.ModelProto, told: Refusal) -> None:
        assert name in told.unlock and str(value) in told.unlock
        node = node_of(proto, op)
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return edit


def through_floats(op: str) -> Edit:
    """A node whose first input and output are cast to float32 and back."""

    def edit(proto: onnx.ModelProto, told: Refusal) -> None:
        assert told.unlock == FLOATS
        node = node_of(proto, op)
        at = list(proto.graph.node).index(node)
        before = helper.make_node("Cast", [node.input[0]], ["floats"], to=1, name="before")
        after = helper.make_node("Cast", ["made"], [node.output[0]], to=2, name="after")
        node.input[0], node.output[0] = "floats", "made"
        nodes = [*proto.graph.node[:at], before, node, after, *proto.graph.node[at + 1 :]]
        copy = onnx.GraphProto(node=nodes)
        del proto.graph.node[:]
        proto.graph.node.extend(copy.node)

    return edit


def without_initializer(proto: onnx.ModelProto, told: Refusal) -> None:
    assert told.unlock == "take it out of the initializers of the body"
    del node_of(proto, "Loop").attribute[0].g.initializer[:]


@dataclass(frozen=True)
class Locked:
    """A model in which something is refused, and what is said to unlock it: flags, or an edit."""

    code: str
    text: str
    given: dict[str, Any] = field(default_factory=dict)  # to begin with
    flags: dict[str, Any] = field(default_factory=dict)  # that the unlock names
    edit: Edit | None = None
    says: str = ""
    whole: bool = False  # whether one kernel is left
    constants: dict[str, tuple[int, ...]] = field(default_factory=dict)  # that are not in the text, with their shapes


LOCKED = (
    Locked(
        "E-CYCLE", ROUND, {"skip_node": ("Abs",)}, {"skip_node": ()}, says="leave out the --skip-node of", whole=True
    ),
    Locked("E-CYCLE", SORTED, edit=take_out, whole=True),
    Locked("E-TYPE", SOFTMAX, {"strategy": "nnvm"}, {"strategy": "anchors"}, says="--strategy anchors", whole=True),
    Locked("E-SHAPE-UNKNOWN", GIVEN, edit=fixed("s", np.array([8, 4], np.int64))),
    Locked("E-SHAPE-UNKNOWN", PARTS, flags={"dim": ("N=4",)}, says="give --dim N=N"),
    Locked("E-SHAPE-UNKNOWN", FILTERS, flags={"dim": ("K=3",), "min_group": 1}, says="give --dim K=N"),
    Locked("E-NO-KERNEL", PLACES, edit=without_output("MaxPool")),
    Locked("E-NO-KERNEL", TRAINED, edit=for_inference),
    Locked("E-RANDOM", DROPPED, edit=without_output("Dropout")),
    Locked("E-RANDOM", TRAINING, edit=fixed("t", np.array(False))),
    Locked("E-KEEP", ROUND, {"skip_node": ("Abs",)}, {"skip_node": ()}, says="leave out that --skip-node", whole=True),
    Locked("E-COST", ROUND, {"min_group": 9}, {"min_group": 4}, says="--min-group 4", whole=True),
    Locked("E-COST", ONCE, flags={"min_group": 1}, says="--min-group 1", constants={"a": (1500, 1), "b": (1, 1500)}),
    Locked("E-COST", INTEGERS, flags={"min_group": 1}, says="--min-group 1"),
    Locked("E-NUMERICS", SATURATED, flags={"rtol": 0.1}, says="--rtol"),
    Locked("E-OPAQUE", FOREIGN, edit=with_function),
    Locked("E-NO-KERNEL", OLD, edit=of_opset(7)),
    Locked("E-OPSET", NEWER, edit=of_opset(14)),
    Locked("E-NO-KERNEL", QUANTIZED, edit=of_opset(10)),
    Locked("E-NO-KERNEL", NORM, edit=with_attribute("LpNormalization", "p", 2)),
    Locked("E-NO-KERNEL", SHIFT, edit=with_attribute("BitShift", "direction", "LEFT")),
    Locked("E-NO-KERNEL", MIRROR, edit=with_attribute("Pad", "mode", "reflect")),
    Locked("E-NO-KERNEL", SPLINE, edit=with_attribute("Resize", "mode", "cubic")),
    Locked("E-NO-KERNEL", MATRIX, {"target": "cuda", "arch": ("sm_80",)}, {"target": "cpu", "arch": ()}, says="cpu"),
    Locked(
        "E-COST",
        WEIGHED,
        {"target": "cuda", "arch": ("sm_80",)},
        {"target": "cpu", "arch": ()},
        says="cpu",
        constants={"w": (64, 64)},
    ),
    Locked("E-DTYPE", PIXELS, edit=through_floats("Resize")),
    Locked("E-SUBGRAPH", BODY, {"min_group": 1}, edit=without_initializer, says="take it out"),
)
# Codes without an unlock, and why; those whose unlock other tests apply.
NONE = {
    "E-NUMEL": "values of other sizes have other loops",
    "E-BROADCAST": "the model itself is at fault",
    "E-INVALID": "the runtime refuses it too",
    "E-INTERNAL": "it is to be reported",
    "E-RESOURCE": "a group holds as much as it can",
    "E-LAYOUT": "of several --arch, one is to be named: tests/cli/test_archs.py builds for several",
}
ELSEWHERE = {"E-FANOUT": "tests/plan/test_complete_refusals.py"}


def planned(proto: onnx.ModelProto, **options: Any) -> Result:
    return optimize(proto.SerializeToString(), "unused.onnx", dry_run=True, strict=True, **options)


@pytest.mark.parametrize("case", LOCKED, ids=lambda c: f"{c.code}-{c.says or c.edit.__name__}")
def test_an_unlock_unlocks(case: Locked) -> None:
    proto = named(onnx.parser.parse_model(case.text))
    for name, shape in case.constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    locked = [
        r for r in planned(proto, **case.given).refusals if r.code == case.code and r.unlock and case.says in r.unlock
    ]
    assert locked, case
    if case.edit is not None:
        case.edit(proto, locked[0])
    after = planned(proto, **case.given | case.flags)
    groups = [set(g.nodes) for g in after.groups]
    for told in locked if case.edit is None else locked[:1]:
        there = {name for name in told.nodes if name in {n.name for n in proto.graph.node} or "/body/" in name}
        fused = there <= set().union(*groups) or after.nodes_left == 0  # what does nothing any more is gone
        assert there and fused, (told, after.refusals)
    assert not case.whole or len(groups) == 1, groups
    assert not any(r.code == case.code and r.unlock == locked[0].unlock for r in after.refusals), after.refusals


def test_every_code_has_an_unlock_or_a_reason() -> None:
    tested = {case.code for case in LOCKED}
    assert tested | NONE.keys() | ELSEWHERE.keys() == set(CODES) and not tested & NONE.keys()


def test_what_many_nodes_stand_between_has_no_unlock() -> None:
    """Five sorts one behind the other: nobody takes them all out."""
    nodes = [helper.make_node("Neg", ["x"], ["v0"])]
    nodes += [helper.make_node("TopK", [f"v{i}", "k"], [f"v{i + 1}", f"i{i}"]) for i in range(5)]
    nodes += [helper.make_node("Add", ["v0", "v5"], ["y"])]
    ends = [helper.make_tensor_value_info(name, 1, [4, 8]) for name in ("x", "y")]
    k = numpy_helper.from_array(np.array([8], np.int64), "k")
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [k])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (told,) = [r for r in planned(model).refusals if r.code == "E-CYCLE"]
    assert told.unlock == "Neg_0 alone: --min-group 1 makes a kernel of it"
