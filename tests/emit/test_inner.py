"""Subgraphs of control flow nodes in the rewritten model: names, captures, and where weights are stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.emit.model import Emitted, emit
from onnxfuse.emit.planned import Planned
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Constant, Graph
from onnxfuse.ir.group import Plan
from onnxfuse.ir.layout import Layout, panels
from onnxfuse.load import simplify_shapes
from onnxfuse.load.names import rename
from tests.emit import plans
from tests.emit.plans import model, random

TWO = """<ir_version: 8, opset_import: ["": 17]>
g (bool c, float[N,24] x) => (float[N,24] y, float[N,24] z) {
  s = Shape(x)
  h = Relu(x)
  y = If(c) <then_branch = a () => (float[N,24] t) { m = Exp(x) n = MatMul(m, w0) r = Reshape(n, s) t = Neg(r) },
             else_branch = b () => (float[N,24] u) { m = Abs(x) n = MatMul(m, w0) k = Add(n, w1) u = Neg(k) }>
  z = Neg(h)
}"""
PANELS = Layout(panels(24, 24, 16))
WEIGHTS = {"w0": random(24, 24), "w1": random(24, seed=1)}


def loaded() -> tuple[Graph, list[Graph]]:
    """The main graph and those of the branches."""
    graph = plans.graph_of(model(TWO, WEIGHTS))
    return graph, [simplify_shapes(body.graph) for body in graph.source.bodies]


def made(graph: Graph, bodies: list[Graph], groups: list[str], layouts: dict[str, Layout]) -> Emitted:
    """The model with a group of nodes in each branch; "" leaves a branch as it is."""
    inner = []
    for body, wanted, found in zip(bodies, groups, graph.source.bodies, strict=True):
        chosen = [plans.group(body, wanted)] if wanted else []
        mine = {v: y for v, y in layouts.items() if v in body.constants}
        fused = plans.bodied(body, chosen, mine)
        inner.append(Planned(Plan(body, tuple(chosen), {}), fused, (), found.node, found.attribute))
    return emit(Plan(graph, (), {}), [], plans.LIBRARY, tuple(inner))


def branches(proto: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [a.g for n in proto.graph.node if n.op_type == "If" for a in n.attribute]


def assert_same(path: Path) -> None:
    for c in (True, False):
        plans.assert_same(model(TWO, WEIGHTS), path, {"c": np.array(c), "x": random(3, 24)})


def test_branches_share_what_is_packed(tmp_path: Path):
    graph, bodies = loaded()
    emitted = made(graph, bodies, ["n", "n"], {"w0": PANELS})
    written = plans.written(emitted, tmp_path / "m.onnx")
    assert sorted(t.name for t in written.graph.initializer) == ["w0.packed", "w1"]
    assert [n.domain for g in branches(written) for n in g.node].count(plans.DOMAIN) == 2
    assert_same(tmp_path / "m.onnx")


def test_a_branch_without_groups_keeps_its_bytes(tmp_path: Path):
    graph, bodies = loaded()
    written = plans.written(made(graph, bodies, ["n", ""], {"w0": PANELS}), tmp_path / "m.onnx")
    before = branches(model(TWO, WEIGHTS))
    assert branches(written)[1] == before[1] and branches(written)[0] != before[0]
    assert sorted(t.name for t in written.graph.initializer) == ["w0", "w0.packed", "w1"]
    assert_same(tmp_path / "m.onnx")


def test_values_that_no_function_body_reads_are_not_computed(tmp_path: Path):
    """The kernel of the first branch takes no shape, so nothing reads s."""
    graph, bodies = loaded()
    written = plans.written(made(graph, bodies, ["n r t", ""], {}), tmp_path / "m.onnx")
    assert "Shape" not in {n.op_type for n in written.graph.node}
    assert_same(tmp_path / "m.onnx")


def test_a_name_that_a_rewrite_gave_in_both_graphs_is_changed_in_the_body(tmp_path: Path):
    graph, bodies = loaded()
    body = bodies[1]
    nodes = [replace(n, inputs=tuple("h" if i == "m" else i for i in n.inputs)) for n in body.nodes]
    nodes[0] = replace(nodes[0], outputs=("h",))
    bodies[1] = body.with_nodes(nodes, types={**body.types, "h": body.types["m"]})
    written = plans.written(made(graph, bodies, ["", "n k"], {}), tmp_path / "m.onnx")
    assert branches(written)[1].node[0].output == ["h_2"] and branches(written)[1].node[1].input[0] == "h_2"
    assert_same(tmp_path / "m.onnx")


def test_weights_that_both_bodies_computed_are_stored_once(tmp_path: Path):
    graph, bodies = loaded()
    for at, body in enumerate(bodies):
        twin = Constant.of(WEIGHTS["w0"].copy(), F32)
        nodes = [replace(n, inputs=tuple("new" if i == "w0" else i for i in n.inputs)) for n in body.nodes]
        types = {**body.types, "new": body.types["w0"]}
        bodies[at] = body.with_nodes(nodes, types=types, constants={**body.constants, "new": twin})
    written = plans.written(made(graph, bodies, ["n", "n"], {"new": PANELS}), tmp_path / "m.onnx")
    assert sorted(t.name for t in written.graph.initializer) == ["new.packed", "w1"]
    assert_same(tmp_path / "m.onnx")


def test_extents_read_by_one_body_only_are_computed_there(tmp_path: Path):
    graph, bodies = loaded()
    emitted = made(graph, bodies, ["r t", "k u"], {})
    first, second = emitted.bodies
    assert [v.name for v in first.proto.graph.input] == ["x"]
    alone = plans.written(first, tmp_path / "a.onnx")
    x = random(5, 24)
    (y,) = plans.outputs(tmp_path / "a.onnx", {"x": x})
    np.testing.assert_allclose(y, -(np.exp(x) @ WEIGHTS["w0"]), rtol=1e-5, atol=1e-5)
    assert sum(n.domain == plans.DOMAIN for n in alone.graph.node) == 1
    plans.written(second, tmp_path / "b.onnx")
    (z,) = plans.outputs(tmp_path / "b.onnx", {"x": x})
    np.testing.assert_allclose(z, -(np.abs(x) @ WEIGHTS["w0"] + WEIGHTS["w1"]), rtol=1e-5, atol=1e-5)


def test_names_change_in_inner_graphs_too():
    (proto,) = [
        model("""<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[N] x) => (float[N] y) {
          h = Relu(x)
          y = If(c) <then_branch = a () => (float[N] t) { t = Neg(h) },
                     else_branch = b () => (float[N] u) { u = Exp(h) }>
        }""")
    ]
    rename(proto.graph, {"h": "k", "x": "x1"})
    assert [n.input[0] for g in branches(proto) for n in g.node] == ["k", "k"]
    assert (proto.graph.input[1].name, proto.graph.node[0].input[0], proto.graph.node[0].output[0]) == ("x1", "x1", "k")
