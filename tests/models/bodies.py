"""Models as text whose work is in subgraphs of control flow nodes, and one like a merged decoder."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from models.networks import network

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
WIDTH = 32
# Both branches, with a weight that they share, and one of the names inside them in both.
BRANCHES = """g (bool c, float[n, 32] x) => (float[n, 32] y) {
    y = If (c) <
        then_branch = a () => (float[n, 32] t) { m = MatMul (x, w)  s = Add (m, b)  t = Relu (s) },
        else_branch = e () => (float[n, 32] u) {
            i = Abs (x)  m = MatMul (i, w)  s = Sub (m, b)  u = Sigmoid (s) } > }"""
# An If in a Loop: the condition, and what is carried on, change with the iterations.
NESTED = """g (int64 k, float[n, 32] x) => (float[n, 32] y, float[j, n, 32] all) {
    yes = Constant <value = bool {1}> ()
    y, all = Loop (k, yes, x) <
      body = l (int64 i, bool go, float[n, 32] h) => (bool on, float[n, 32] o, float[n, 32] q) {
        on = Identity (go)  two = Constant <value = int64 {2}> ()
        half = Mod (i, two)  odd = Cast <to = 9> (half)  p = Mul (h, b)  r = Add (p, b)
        o = If (odd) < then_branch = a () => (float[n, 32] t) { m = MatMul (r, w)  t = Tanh (m) },
                       else_branch = e () => (float[n, 32] u) {
                           v = Exp (r)  z = Add (v, h)  u = Softmax <axis = -1> (z) } >
        e = Neg (o)  q = Relu (e) } > }"""
# What is carried on grows; the kernel that sees it must not rely on its first shape.
GROWING = """g (int64 k, float[n, 32] x) => (float[a, 32] y) {
    yes = Constant <value = bool {1}> ()
    y = Loop (k, yes, x) < body = l (int64 i, bool go, float[c, 32] h) => (bool on, float[d, 32] o) {
        on = Identity (go)  p = Mul (h, b)  r = Tanh (p)  o = Concat <axis = 0> (r, x) } > }"""
# A state and slices of two sequences, one of them along its last axis.
SCANNED = """g (float[n, 32] x, float[s, n, 32] e, float[n, 32, s] f) => (float[n, 32] y, float[s, n, 32] all) {
    y, all = Scan <num_scan_inputs = 2, scan_input_axes = [0, -1],
        body = l (float[n, 32] h, float[n, 32] d, float[n, 32] g) => (float[n, 32] o, float[n, 32] q) {
            p = Add (h, d)  r = MatMul (p, w)  o = Tanh (r)  v = Mul (o, g)  q = Relu (v) }> (x, e, f) }"""
# The runtime has to know the shapes of what the body of a Scan makes.
UNSHAPED = SCANNED.replace("(float[n, 32] o, float[n, 32] q)", "(float[] o, float[] q)")
# Random numbers, a sequence and an operator without a row stay as they are.
ODD = """g (bool c, float[n, 32] x) => (float[n, 32] y) {
    y = If (c) <
        then_branch = a () => (float[n, 32] t) {
            s = SequenceConstruct (x, x)  at = Constant <value = int64 {1}> ()  m = SequenceAt (s, at)
            k = RandomNormalLike <seed = 1.0> (m)  z = Mul (k, nought)  h = Add (m, z)  q = Exp (x)  r = Add (q, x)
            t = Add (r, h) },
        else_branch = e () => (float[n, 32] u) { v = Exp (x)  z = Mul (v, x)  u = Neg (z) } > }"""
# Kernels behind a Loop: of what it carries on, of what its iterations gave, of a sequence that it filled.
BEHIND = """g (int64 k, float[n, 32] x) => (float[a, b] y, float[c, d, e] all, float[r, s] rows) {
    yes = Constant <value = bool {1}> ()  none = SequenceEmpty ()  three = Constant <value = int64 {3}> ()
    h, s = Loop (k, yes, x, none) <
      body = l (int64 i, bool go, float[n, 32] h, seq(float[q, 32]) had)
          => (bool on, float[n, 32] o, seq(float[q, 32]) has) {
        on = Identity (go)  p = Mul (h, b)  o = Tanh (p)
        t = Concat <axis = 0> (o, x)  has = SequenceInsert (had, t) } >
    m = MatMul (h, w)  v = Add (m, b)  y = Relu (v)
    z, e = Loop (three, yes, h) <
      body = l2 (int64 i, bool go, float[n, 32] h) => (bool on, float[n, 32] o, float[n, 32] g) {
        on = Identity (go)  o = Sin (h)  g = Exp (o) } >
    f = Mul (e, b)  all = Sigmoid (f)
    s2 = SequenceInsert (s, z)  c = ConcatFromSequence <axis = 0> (s2)  d = Add (c, b)  rows = Tanh (d) }"""
MODELS = {
    "behind": BEHIND, "branches": BRANCHES, "nested": NESTED, "growing": GROWING, "scanned": SCANNED,
    "unshaped": UNSHAPED, "odd": ODD,
}  # fmt: skip


def model(name: str) -> onnx.ModelProto:
    """A model of MODELS with its weights, which lie in the main graph."""
    made = parser.parse_model(HEAD + MODELS[name])
    random = np.random.default_rng(7)
    weights = {
        "w": random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5,
        "b": random.normal(size=WIDTH),
        "nought": np.zeros(()),
    }
    read = {name for graph in graphs_of(made.graph) for node in graph.node for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in weights.items() if k in read
    )
    return made


def graphs_of(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and those inside it."""
    inner = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [graph, *(each for one in inner for each in graphs_of(one))]


def merged(name: str) -> onnx.ModelProto:
    """A network twice in the branches of one If, as a merged decoder has it: all weights are in the main graph.

    The second branch differs by what it does to its input mask and to its result.
    """
    made = network(name).build()
    inputs, outputs = list(made.graph.input), list(made.graph.output)
    branches = []
    for which in ("without", "with"):
        result = helper.make_tensor_value_info(f"{outputs[0].name}.{which}", TensorProto.FLOAT, None)
        branch = helper.make_graph(list(made.graph.node), which, [], [result])
        last = "Identity" if which == "without" else "Neg"
        branch.node.append(helper.make_node(last, [outputs[0].name], [result.name]))
        branch.value_info.extend(made.graph.value_info)
        branches.append(branch)
    result_ = onnx.ValueInfoProto()
    result_.CopyFrom(outputs[0])
    result_.name = "result"
    node = helper.make_node("If", ["use_cache"], ["result"], "merged", then_branch=branches[1], else_branch=branches[0])
    for field in ("node", "output", "value_info"):
        made.graph.ClearField(field)
    made.graph.node.append(node)
    made.graph.output.append(result_)
    made.graph.input.append(helper.make_tensor_value_info("use_cache", TensorProto.BOOL, []))
    assert len(inputs) + 1 == len(made.graph.input)
    return made
