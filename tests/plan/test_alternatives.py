"""Alternatives to the fixed rules of growth are proposed, and prices decide."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.config import BEST
from onnxfuse.ir.graph import Graph
from onnxfuse.plan.legal import members, set_of
from onnxfuse.plan.price import clearly_less
from onnxfuse.plan.search.alternatives import alternatives
from onnxfuse.plan.search.space import Space
from onnxfuse.plan.strategies import STRATEGIES
from onnxfuse.target import CPUS
from onnxfuse.target.processors import PROCESSORS
from tests.plan.priced import HEAD, costing, graph_of, planned, seconds
from tests.plan.test_best import space_of

SCALED = """(float[784, 96] x, float[96] s) => (float[784, 24] y) <float[96, 24] w>
{ a = Mul(x, s)\n b = MatMul(a, w)\n y = Relu(b) }"""
MLP = """(float[128, 64] x) => (float[128, 64] y) <float[64, 96] w, float[96, 64] u>
{ a = MatMul(x, w)\n b = Relu(a)\n y = MatMul(b, u) }"""
ADDED = """(float[1, 8, 64] x, float[16, 8, 96] r) => (float[16, 8, 96] y) <float[64, 96] w>
{ a = MatMul(x, w)\n y = Add(a, r) }"""
BESIDE = """(float[64, 64] x) => (float[64, 96] a, float[64, 1] b) <float[64, 96] w>
{ a = MatMul(x, w)\n b = ReduceMax<axes = [1], keepdims = 1>(x) }"""
BLOCK = """(float[1, 24, {side}, {side}] x) => (float[1, 24, {side}, {side}] y)
<float[144, 24, 1, 1] w, float[144, 1, 3, 3] v, float[24, 144, 1, 1] u>
{{ a = Conv(x, w)\n b = Sigmoid(a)\n c = Conv<group = 144, pads = [1, 1, 1, 1]>(b, v)\n y = Conv(c, u) }}"""
SPLIT = """(float[128, 64] x, float[64, 64] k) => (float[128, 64] y) <float[64, 96] w>
{ a = Tanh(x)\n b = Exp(a)\n y = MatMul(b, k) }"""


def weighted(text: str) -> Graph:
    """A graph in ONNX's text form; the values that are declared in it are weights."""
    proto = onnx.parser.parse_model(f"{HEAD} g {text}")
    for v in proto.graph.value_info:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        proto.graph.initializer.append(numpy_helper.from_array(np.full(shape, 0.01, np.float32), v.name))
    del proto.graph.value_info[:]
    return graph_of(proto.SerializeToString())


def proposed(text: str, strategy: str = "anchors") -> dict[str, list[str]]:
    """The alternatives to the groups that a strategy makes, as operators, by name."""
    space = space_of(weighted(text))
    groups = [set_of(g) for g in STRATEGIES[strategy](space).groups]
    found = alternatives(space, groups)
    return {name: [_operators(space, g) for g in each] for name, each in found.items() if each}


def _operators(space: Space, group: int) -> str:
    return " ".join(space.scope.nodes[i].op for i in members(group))


@pytest.mark.parametrize(
    ("text", "strategy", "name", "groups"),
    [
        (SCALED, "anchors", "prologue", ["Mul MatMul Relu"]),
        (MLP, "anchors", "chain", ["MatMul Relu MatMul"]),
        (ADDED, "anchors", "epilogue", ["MatMul Add"]),
        (BESIDE, "anchors", "beside", ["MatMul ReduceMax"]),
        (SPLIT, "anchors", "stored", ["Tanh Exp", "MatMul"]),
    ],
)
def test_each_is_proposed_where_it_is_another_decision(text: str, strategy: str, name: str, groups: list[str]) -> None:
    found = proposed(text, strategy)
    assert found[name] == groups
    others = [t for t in (SCALED, MLP, ADDED, BESIDE, SPLIT) if t != text]
    assert any(name not in proposed(t, strategy) for t in others)


def test_products_of_one_group_are_proposed_apart() -> None:
    space = space_of(weighted(MLP))
    (whole,) = [set_of(space.order)]
    assert [_operators(space, g) for g in alternatives(space, [whole])["apart"]] == ["MatMul Relu", "MatMul"]


def test_a_window_between_convolutions_is_proposed_with_them() -> None:
    """Growth compares two closed forms; where they say no, or the window has been left alone, prices are asked."""
    assert proposed(BLOCK.format(side=56))["strips"] == ["Conv Sigmoid Conv", "Conv Sigmoid Conv Conv"]
    others = (SCALED, MLP, ADDED, BESIDE, SPLIT, BLOCK.format(side=7))  # by strips already, at 7
    assert not any("strips" in proposed(t) for t in others)


@pytest.mark.parametrize(("family", "side", "grown", "groups"), [("zen4", 56, 3, 1), ("zen3", 28, 1, 2)])
def test_a_block_is_divided_as_is_predicted_to_be_fastest(
    family: str, side: int, grown: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel where growth makes three, or two where it makes one."""
    cpu = CPUS["x86-64-v4" if family == "zen4" else "x86-64-v3"].on(PROCESSORS[family])
    monkeypatch.setattr("tests.plan.priced.TARGET", cpu)
    prices, graph = costing(), weighted(BLOCK.format(side=side))
    usual, best = (planned(graph, name, prices) for name in ("anchors", BEST))
    assert [len(p.groups) for p in (usual, best)] == [grown, groups]
    assert seconds(best, prices) < seconds(usual, prices)


def test_rows_are_scaled_in_the_kernel_of_their_product_where_that_is_predicted_faster() -> None:
    prices, text = costing(), SCALED.replace("784", "4096").replace("24", "16")
    usual, best = (planned(weighted(text), name, prices) for name in ("anchors", BEST))
    assert [len(p.groups) for p in (usual, best)] == [2, 1]
    assert clearly_less(seconds(best, prices), seconds(usual, prices))
    (taken,) = [c for c in best.candidates if "prologue" in c.by]
    assert taken.reason is None
    lost = [c for c in best.candidates if "anchors" in c.by]
    assert len(lost) == 2
    for c in lost:
        assert c.seconds is not None
        assert c.reason is not None
        assert c.reason.code == "E-COST"
        assert "its region takes" in c.reason.reason


def test_an_alternative_without_a_clear_gain_is_reported() -> None:
    best = planned(weighted(SCALED.replace("784", "640").replace("24", "512")), BEST, costing())
    assert len(best.groups) == 2
    (lost,) = [c for c in best.candidates if "prologue" in c.by]
    assert lost.seconds is not None
    assert lost.reason is not None
    assert "no plan is predicted to be clearly faster" in lost.reason.reason
