"""Each strategy behaves on characteristic graphs as its paper says, unlike another strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onnxfuse.config import BEST, EXHAUSTIVE, SEARCHES, STRATEGIES
from onnxfuse.cost import Cost
from onnxfuse.plan import strategies
from tests.plan.priced import costing, groups, parsed, planned

CHAIN = "(float[64, 64] x) => (float[64, 64] y) { a = Neg(x)\n b = Exp(a)\n y = Relu(b) }"
DIAMOND = "(float[64, 64] x) => (float[64, 64] y) { a = Neg(x)\n b = Exp(a)\n c = Add(a, b)\n y = Relu(c) }"
ROW_ADDED = "(float[64, 64] x, float[64] v) => (float[64, 64] y) { a = Neg(x)\n b = Add(a, v)\n y = Relu(b) }"
SOFTMAX = """(float[64, 64] x) => (float[64, 64] y) <int64[1] axes = {1}>
{ m = ReduceMax<axes = [1], keepdims = 1>(x)\n s = Sub(x, m)\n e = Exp(s)
 t = ReduceSum(e, axes)\n y = Div(e, t) }"""
VARIANCE = """(float[64, 64] x, float[64, 64] m) => (float[64, 1] y) <float two = {2.0}, float little = {0.1}>
{ s = Sub(x, m)\n p = Pow(s, two)\n v = ReduceMean<axes = [1], keepdims = 1>(p)\n a = Add(v, little)\n y = Sqrt(a) }"""
BETWEEN = """(float[64, 32, 16] x, float[32, 48] w) => (float[64, 48] y)
{ e = Exp(x)\n r = ReduceMean<axes = [2], keepdims = 0>(e)\n s = Neg(r)\n y = MatMul(s, w) }"""
ACROSS = """(float[64, 64] x) => (float[64, 64] y)
{ r = ReduceMean<axes = [1], keepdims = 1>(x)\n s = Sub(x, r)
 c = ReduceMean<axes = [0], keepdims = 1>(s)\n y = Sub(s, c) }"""
APART = """(float[64, 64] x, float[64, 64] z) => (float[64, 64] y, float[64, 64] u)
{ a = Neg(x)\n y = Exp(a)\n b = Abs(z)\n u = Sqrt(b) }"""
BESIDE = """(float[64, 64] x) => (float[64, 1] a, float[64, 1] b)
{ a = ReduceMax<axes = [1], keepdims = 1>(x)\n b = ReduceMean<axes = [1], keepdims = 1>(x) }"""
GIVEN = "(float[64, 64] x) => (float[64, 64] a, float[64, 64] y) { a = Neg(x)\n y = Exp(a) }"
RESIZED = """(float[1, 8, 4, 4] x) => (float[1, 8, 8, 8] y) <float[4] s = {1.0, 1.0, 2.0, 2.0}>
{ a = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)\n b = Relu(a)\n y = Resize<mode = "nearest">(b, , s) }"""


def test_none_joins_nothing() -> None:
    assert groups(CHAIN, "none") == ["Neg", "Exp", "Relu"]


def test_nnvm_joins_chains() -> None:
    assert groups(CHAIN, "nnvm") == ["Neg Exp Relu"]


def test_nnvm_joins_no_value_that_is_read_twice() -> None:
    assert groups(DIAMOND, "nnvm") == ["Neg", "Exp Add Relu"]
    assert groups(DIAMOND, "dnnfusion") == ["Neg Exp Add Relu"]


def test_nnvm_joins_nothing_of_another_shape() -> None:
    """Only single elements are broadcast."""
    assert groups(ROW_ADDED, "nnvm") == ["Neg", "Add", "Relu"]
    assert groups(ROW_ADDED.replace("float[64] v", "float v"), "nnvm") == ["Neg Add Relu"]
    assert groups(ROW_ADDED, "anchors") == ["Neg Add Relu"]


def test_dnnfusion_grows_over_a_reduction() -> None:
    """The pattern of TinyBERT that chains miss."""
    assert groups(VARIANCE, "dnnfusion") == ["Sub Pow ReduceMean Add Sqrt"]
    assert "ReduceMean" in groups(VARIANCE, "nnvm")


def test_dnnfusion_never_joins_two_reductions() -> None:
    """Many-to-many with many-to-many is red; stitched kernels hold both."""
    found = groups(SOFTMAX, "dnnfusion")
    assert len(found) > 1 and not any("ReduceMax" in g and "ReduceSum" in g for g in found)
    assert groups(SOFTMAX, "stitch") == groups(SOFTMAX, "anchors") == ["ReduceMax Sub Exp ReduceSum Div"]


def test_dnnfusion_grows_forward_before_it_grows_back() -> None:
    """From the smallest seed, the root: it takes the product behind it, and then not the mean before it."""
    assert groups(BETWEEN, "dnnfusion") == ["Exp ReduceMean", "Neg MatMul"]
    assert groups(BETWEEN, "stitch") == ["Exp ReduceMean Neg", "MatMul"]


class _Joined:
    """A kernel of which only the number of operators is known."""

    inputs = ()

    def __init__(self, operators: int) -> None:
        self.operators = operators


@pytest.mark.parametrize(("dear", "wanted"), [(True, ["MaxPool", "Relu Resize"]), (False, ["MaxPool Relu Resize"])])
def test_dnnfusion_asks_for_the_price_of_yellow_pairs(dear: bool, wanted: list[str]) -> None:
    """A window and what repeats its elements may be joined: the price says."""

    def cost(kernel: Any, *_: Any) -> Cost:
        return Cost((), kernel.operators ** (2.0 if dear else 0.5))

    prices = replace(costing(), kernel=lambda group, plan: _Joined(len(group.nodes)), kernel_cost=cost)
    assert groups(RESIZED, "dnnfusion", prices) == wanted


def test_stitch_leaves_apart_what_blocks_would_wait_for() -> None:
    """A sum over columns needs all rows: that is stitched through global memory, by AStitch alone."""
    assert groups(ACROSS, "astitch") == ["ReduceMean Sub ReduceMean Sub"]
    found = groups(ACROSS, "stitch")
    assert len(found) > 1 and not any(g.count("ReduceMean") > 1 for g in found)


def test_stitch_packs_what_does_not_depend_on_each_other() -> None:
    assert groups(APART, "stitch") == ["Neg Exp Abs Sqrt"]
    assert groups(APART, "dnnfusion") == ["Neg Exp", "Abs Sqrt"]


def test_contractions_are_not_stitched() -> None:
    for strategy in ("stitch", "astitch"):
        assert "MatMul" in groups(BETWEEN, strategy)


def test_astitch_takes_whole_scopes() -> None:
    """Two independent scopes too, though of other sizes."""
    text = APART.replace("float[64, 64] z", "float[8, 8] z").replace("float[64, 64] u", "float[8, 8] u")
    assert groups(text, "astitch") == ["Neg Exp Abs Sqrt"]
    assert groups(text, "stitch") == ["Neg Exp", "Abs Sqrt"]


def test_priority_joins_siblings() -> None:
    assert groups(BESIDE, "priority") == ["ReduceMax ReduceMean"]
    assert groups(BESIDE, "dnnfusion") == ["ReduceMax", "ReduceMean"]


def test_priority_gives_several_results() -> None:
    assert groups(GIVEN, "priority") == ["Neg Exp"]
    assert groups(GIVEN, "nnvm") == ["Neg", "Exp"]


def test_without_prices_nothing_is_merged_by_them() -> None:
    assert groups(CHAIN, "priority", costing(0)) == ["Neg", "Exp", "Relu"]
    assert groups(CHAIN, BEST, costing(0)) == groups(CHAIN, "anchors") == ["Neg Exp Relu"]


TWO = """(float[8, 16] x, float[16, 16] u, float[5, 7] z) => (float[8, 16] y, float[5, 7] w)
{ y = MatMul(x, u)\n w = Tanh(z) }"""


def test_exhaustive_tries_groups_that_are_not_connected() -> None:
    """A product and an operator without a value in common: one kernel saves a call; no strategy proposes it."""
    assert groups(TWO, BEST) == ["MatMul", "Tanh"]
    assert groups(TWO, EXHAUSTIVE) == ["MatMul Tanh"]
    assert groups(TWO, EXHAUSTIVE, costing(0)) == groups(TWO, BEST)  # there is no budget for the proposals


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_covers_the_graph(strategy: str) -> None:
    """Every node in one group, in an order in which each comes after what it reads."""
    made = planned(parsed(SOFTMAX), strategy)
    names = [n.name for g in made.groups for n in g.nodes]
    assert sorted(names) == sorted(n.name for n in made.graph.nodes)
    there = {*made.graph.inputs, *made.graph.constants}
    for g in made.groups:
        assert there.issuperset(g.inputs)
        there.update(g.outputs)


def test_every_name_has_a_strategy() -> None:
    assert {*strategies.STRATEGIES, *SEARCHES} == set(STRATEGIES)
