"""Bodies of If, Loop and Scan are fused, and compute what they did, whichever of them runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models.networks import network
from onnxfuse.measure.profile_child import node_origins
from onnxfuse.pipeline import optimize
from onnxfuse.report.result import Result
from onnxfuse.runtime.engine import open_session, options, output_names, run
from onnxfuse.verify.compare import FLOORS, distance
from tests.calls import on_cpu
from tests.models import bodies
from tests.models.fused import CACHE, Feeds
from tests.models.planted import Planted
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler

SUMMED = """g (bool c, float[n, 32] x) => (float[n, 32] y) {
    y = If (c) <
        then_branch = a () => (float[n, 32] t) {
            p = Mul (x, x)  q = Add (p, x)  s = Softmax <axis = -1> (q)  r = Mul (s, x)  t = Tanh (r) },
        else_branch = e () => (float[n, 32] u) { u = Identity (x) } > }"""


def built(made: onnx.ModelProto, folder: Path, **changes: Any) -> Result:
    """The model optimized in a folder, as `fused.onnx`."""
    onnx.save(made, folder / "m.onnx")
    usual = {"verify": False, "gain": False, "strict": True, "cache_dir": str(CACHE), "jobs": 1, "overwrite": True}
    return optimize(folder / "m.onnx", folder / "fused.onnx", **usual | changes)


def worst(folder: Path, result: Result, sets: Iterable[Feeds]) -> float:
    """The largest error of `fused.onnx` in all four ways, against the original without optimizations."""
    plain = open_session(str(folder / "m.onnx"), options(optimize=False, threads=2))
    names, found = output_names(plain), [0.0]
    for libraries in ((result.output.library,), ()):
        for optimized in (True, False):
            given = options(libraries=[each for each in libraries if each], optimize=optimized, threads=2)
            session = open_session(str(folder / "fused.onnx"), given)
            for feeds in sets:
                pairs = zip(run(plain, feeds, names), run(session, feeds, names), strict=True)
                found += [distance(a, b).error for a, b in pairs]
    return max(found)


def feeds_of(name: str) -> list[Feeds]:
    """Inputs that lead through every branch, with several extents."""
    random = np.random.default_rng(3)

    def floats(*shape: int) -> np.ndarray[Any, Any]:
        return random.normal(size=shape).astype(np.float32)

    if name in ("branches", "odd"):
        return [{"c": np.array(c), "x": floats(n, bodies.WIDTH)} for c in (True, False) for n in (1, 5, 17)]
    if name in ("scanned", "unshaped"):
        shapes = ((1, 1), (4, 3), (3, 7))
        width = bodies.WIDTH
        return [{"x": floats(n, width), "e": floats(s, n, width), "f": floats(n, width, s)} for n, s in shapes]
    return [{"k": np.array(k), "x": floats(n, bodies.WIDTH)} for k, n in ((0, 3), (1, 1), (4, 5), (5, 2))]


def calls_in(path: Path) -> dict[str, list[onnx.NodeProto]]:
    """The calls of kernels by the name of the graph that they are in."""
    made = onnx.load(path)
    return {g.name: [n for n in g.node if n.domain.startswith("onnxfuse.")] for g in bodies.graphs_of(made.graph)}


@pytest.mark.parametrize("name", bodies.MODELS)
def test_bodies_compute_what_they_did(name: str, tmp_path: Path) -> None:
    result = built(bodies.model(name), tmp_path)
    calls = calls_in(tmp_path / "fused.onnx")
    assert sum(map(len, calls.values())) == result.kernels > 0
    assert all(calls[graph] for graph in calls if graph not in ("g", "l", "l2"))
    assert worst(tmp_path, result, feeds_of(name)) <= FLOORS["float32"]


@pytest.mark.parametrize(("state", "last"), [("[n, 32]", "q"), ("[]", "q"), ("[]", "x")])
def test_a_loop_without_iterations_has_the_shape_that_it_had(state: str, last: str, tmp_path: Path) -> None:
    """The runtime has it from what it infers of the body: nothing of what is carried on without a declared shape."""
    text = """g (int64 k, float[n, 32] x) => (float[a, b] y, float[t, c, d] z) <bool yes = {1}> {
        y, z = Loop (k, yes, x) <body = l (int64 i, bool go, float%s h) => (bool on, float%s o, float[] v) {
            on = Identity (go)  p = Tanh (h)  q = Neg (p)  o = Mul (q, p)  r = Exp (%s)  v = Sigmoid (r) }> }"""
    made = onnx.parser.parse_model(bodies.HEAD + text % (state, state, last))
    result = built(made, tmp_path)
    assert calls_in(tmp_path / "fused.onnx")["l"]
    assert worst(tmp_path, result, feeds_of("nested")) <= FLOORS["float32"]


def test_a_weight_that_both_branches_read_is_packed_once(tmp_path: Path) -> None:
    built(bodies.model("branches"), tmp_path)
    made = onnx.load(tmp_path / "fused.onnx")
    names = [t.name for t in made.graph.initializer]
    assert sorted(names) == ["b", "w.packed"]
    assert not any(g.initializer for g in bodies.graphs_of(made.graph)[1:])


def test_groups_tell_where_they_are(tmp_path: Path) -> None:
    result = built(bodies.model("nested"), tmp_path)
    inside = [g.nodes for g in result.groups if "If_0/then_branch" in g.name]
    assert inside == [("Loop_0/body/If_0/then_branch/MatMul_0", "Loop_0/body/If_0/then_branch/Tanh_0")]
    origins = node_origins(onnx.load(tmp_path / "fused.onnx"))
    assert {g.name: g.nodes for g in result.groups}.items() <= origins.items()
    assert result.nodes_after == sum(len(g.node) for g in bodies.graphs_of(onnx.load(tmp_path / "fused.onnx").graph))


def test_nodes_in_bodies_can_be_skipped(tmp_path: Path) -> None:
    result = built(bodies.model("branches"), tmp_path, skip_node=("If_0/else_branch",))
    assert [g.nodes[0] for g in result.groups] == ["If_0/then_branch/MatMul_0"]
    assert "E-KEEP" in {r.code for r in result.refusals}
    kept = bodies.graphs_of(onnx.load(tmp_path / "fused.onnx").graph)[2]
    assert [n.op_type for n in kept.node] == ["Abs", "MatMul", "Sub", "Sigmoid"]
    assert worst(tmp_path, result, feeds_of("branches")) <= FLOORS["float32"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_wrong_kernel_in_a_branch_is_dropped(number: int, tmp_path: Path) -> None:
    """Whichever branch the inputs take when the whole model is compared."""
    planted = Planted(number)
    right = built(bodies.model("branches"), tmp_path)
    made = built(bodies.model("branches"), tmp_path, calls=on_cpu(render=planted), verify=True)
    wrong = [g for g in right.groups if g.kernel == planted.name]
    found = {node for r in made.refusals if r.code == "E-NUMERICS" for node in r.nodes}
    assert len(wrong) == 1 and found == set(wrong[0].nodes)
    assert made.kernels >= right.kernels - 1
    assert worst(tmp_path, made, feeds_of("branches")) <= FLOORS["float32"]


def test_a_body_is_compared_again_when_it_is_planned_again(tmp_path: Path) -> None:
    """Without the sums of a wrong kernel the rest of its branch is another kernel, which is compared in turn."""
    made = onnx.parser.parse_model(bodies.HEAD + SUMMED)
    right = built(made, tmp_path)
    planted = Planted(0)
    found = built(made, tmp_path, calls=on_cpu(render=planted), verify=True)
    assert {n for r in found.refusals if r.code == "E-NUMERICS" for n in r.nodes} & set(right.groups[0].nodes)
    assert found.kernels > 0 and planted.name not in {g.kernel for g in found.groups}
    feeds = [{"c": np.array(True), "x": np.ones((n, bodies.WIDTH), np.float32)} for n in (1, 5)]
    assert worst(tmp_path, found, feeds) <= FLOORS["float32"]


def test_new_names_of_a_body_are_none_of_the_main_graph(tmp_path: Path) -> None:
    """Rewrites name what they make in every graph alike: constants that both need must not hide each other."""
    made = bodies.model("branches")
    built(made, tmp_path)
    graphs = bodies.graphs_of(onnx.load(tmp_path / "fused.onnx").graph)
    outer = names_in(graphs[0])
    assert not any(outer & names_in(each) for each in graphs[1:])


def names_in(graph: onnx.GraphProto) -> set[str]:
    """The values that a graph defines."""
    made = {o for node in graph.node for o in node.output}
    return made | {t.name for t in graph.initializer} | {v.name for v in graph.input}


@pytest.mark.parametrize("skipped", [(), ("else_branch/MatMul",)])
@pytest.mark.parametrize("outside", [False, True])
def test_weights_of_a_body_itself(outside: bool, skipped: tuple[str, ...], tmp_path: Path) -> None:
    """Packed they move to the main graph, else they stay; beside the file or in it."""
    made = bodies.model("branches")
    branch = bodies.graphs_of(made.graph)[2]
    branch.initializer.append(made.graph.initializer[0])
    branch.initializer[0].name = "own"
    product = next(n for n in branch.node if n.op_type == "MatMul")
    product.input[1] = "own"
    result = built(made, tmp_path, skip_node=skipped, save_as_external_data=outside)
    kept = bodies.graphs_of(onnx.load(tmp_path / "fused.onnx").graph)[2]
    assert [t.name for t in kept.initializer] == (["own"] if skipped else [])
    assert (result.output.data is not None) == outside
    assert worst(tmp_path, result, feeds_of("branches")) <= FLOORS["float32"]


@pytest.mark.parametrize("name", ["tiny-gpt2", pytest.param("tiny-gpt2.dynamic", marks=pytest.mark.slow)])
def test_a_merged_decoder_is_fused_in_both_branches(name: str, tmp_path: Path) -> None:
    alone = built(network(name).build(), tmp_path, plan_budget=0)  # which the branches would share
    size = (tmp_path / "fused.onnx").stat().st_size
    result = built(bodies.merged(name), tmp_path, plan_budget=0)
    calls = calls_in(tmp_path / "fused.onnx")
    assert {name: len(nodes) for name, nodes in calls.items() if nodes}.keys() == {"with", "without"}
    assert alone.kernels <= len(calls["with"]) <= alone.kernels + 1
    assert result.distinct_kernels <= alone.distinct_kernels + 2
    weights = sum(np.prod(t.dims) * 4 for t in onnx.load(tmp_path / "m.onnx").graph.initializer)
    assert (tmp_path / "fused.onnx").stat().st_size < size + weights / 2  # no weight is there twice
    sets = [network(name).sample(seed=1) | {"use_cache": np.array(c)} for c in (True, False)]
    assert worst(tmp_path, result, sets) <= FLOORS["float32"]


def test_what_is_behind_a_loop_is_fused(tmp_path: Path) -> None:
    result = built(bodies.model("behind"), tmp_path, dry_run=True)
    groups = [set(g.nodes) for g in result.groups]
    assert all(g in groups for g in ({"MatMul_0", "Add_0", "Relu_0"}, {"Mul_0", "Sigmoid_0"}, {"Add_1", "Tanh_0"}))
    assert not any(r.code == "E-SHAPE-UNKNOWN" for r in result.refusals)
