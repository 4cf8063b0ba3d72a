"""A small budget is spent where most may be saved, and not at all where nothing can be clearly faster."""

from __future__ import annotations

import pytest

from onnxfuse.config import BEST, Options, strategy_of
from onnxfuse.plan.legal import Set, members, set_of
from onnxfuse.plan.search.alternatives import alternatives
from onnxfuse.plan.search.promises import in_order
from onnxfuse.plan.search.space import Space
from onnxfuse.plan.strategies import STRATEGIES
from tests.plan.priced import costing, network_graph, planned
from tests.plan.test_alternatives import MLP, SCALED, weighted
from tests.plan.test_best import space_of


def ordered(text: str) -> tuple[Space, list[Set]]:
    """The alternatives of a graph, in the order in which they are scheduled."""
    space = space_of(weighted(text))
    assert space.prices is not None
    usual = [set_of(g) for g in STRATEGIES["anchors"](space).groups]
    return space, in_order(space, space.prices, usual, alternatives(space, usual))


SCALED_BLOCK = """(float[1, 24, 56, 56] x, float[24, 1, 1] s) => (float[1, 24, 56, 56] y)
<float[144, 24, 1, 1] w, float[144, 1, 3, 3] v, float[24, 144, 1, 1] u>
{ m = Mul(x, s)\n a = Conv(m, w)\n c = Conv<group = 144, pads = [1, 1, 1, 1]>(a, v)\n y = Conv(c, u) }"""
TWO_CHAINS = """(float[4096, 64] x, float[512, 64] z, float[64] s) => (float[4096, 16] a, float[512, 16] b)
<float[64, 16] w>
{ u = Mul(z, s)\n b = MatMul(u, w)\n v = Mul(x, s)\n a = MatMul(v, w) }"""


def test_windows_with_products_are_scheduled_last() -> None:
    space, found = ordered(SCALED_BLOCK)
    made = ["".join(space.scope.nodes[i].outputs[0] for i in members(g)) for g in found]
    assert made.index("ma") < made.index("ac") and made.index("ma") < made.index("cy")


def test_what_hands_on_most_is_merged_first() -> None:
    """Of two equal chains, that of the larger values."""
    space, found = ordered(TWO_CHAINS)
    made = ["".join(space.scope.nodes[i].outputs[0] for i in members(g)) for g in found]
    assert made.index("va") < made.index("ub")


def test_nothing_is_searched_where_products_take_nearly_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text = MLP.replace("128, 64", "1024, 512").replace("64, 96", "512, 2048").replace("96, 64", "2048, 512")
    prices, graph = costing(), weighted(text)
    made = planned(graph, BEST, prices)
    assert prices.memo.scheduled == 0 and not made.candidates
    monkeypatch.setattr("onnxfuse.plan.planner.may_win", lambda *_: True)
    searched = planned(graph, BEST, prices)
    assert prices.memo.scheduled > 0
    assert searched.groups == made.groups == planned(graph, "anchors").groups


@pytest.mark.parametrize("name", ["tiny-mobilenet", "tiny-bert"])
def test_a_small_budget_asks_no_strategy(name: str) -> None:
    prices = costing(4)
    made = planned(network_graph(name), BEST, prices, least=2)
    assert 0 < prices.memo.scheduled <= 4
    assert {by for c in made.candidates for by in c.by}.isdisjoint(set(STRATEGIES) - {"anchors"})


def test_rows_are_scaled_by_a_default_build_too() -> None:
    """The budget of a build suffices for the one merge that pays."""
    text = SCALED.replace("784", "4096").replace("24", "16")
    assert [len(planned(weighted(text), BEST, costing(n)).groups) for n in (0, Options().plan_budget)] == [2, 1]


def test_prices_decide_on_cpus() -> None:
    assert [strategy_of(Options(target=t)) for t in ("cpu", "cuda")] == ["best", "anchors"]
    assert strategy_of(Options(strategy="none")) == "none"
