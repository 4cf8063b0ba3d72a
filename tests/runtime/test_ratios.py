"""Ratios of noisy simulated times: confidence intervals cover the true ratio, and verdicts may be inconclusive."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from onnxfuse.measure import ratios
from onnxfuse.measure.ratios import INCONCLUSIVE, NOT_SLOWER, SLOWER, Ratio, level, quotient, ratio, verdict

RUNS = 200


def turns(rng: np.random.Generator, ms: float, count: int, busy: float) -> list[float]:
    """Least times of turns: 1 % of jitter, and for a share of them other work that takes up to four times as long."""
    still = ms * np.exp(rng.normal(0.0, 0.01, count))
    return list(still + np.where(rng.random(count) < busy, rng.exponential(2.0 * ms, count), 0.0))


def drift(rng: np.random.Generator, count: int) -> np.ndarray:
    """What both sides have in common: a machine that gets slower and faster again by a tenth."""
    return 1.0 + 0.1 * np.sin(np.linspace(0.0, 3.0 * math.pi, count) + rng.uniform(0, 6))


def verdicts(slower: float, busy: float, count: int, limit: float = 0.03) -> list[str]:
    found = []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        common = drift(rng, count)
        first, second = (np.array(turns(rng, ms, count, busy)) * common for ms in (1.0, slower))
        found.append(verdict(ratio(list(second), list(first)), limit))
    return found


@pytest.mark.parametrize(("busy", "count"), [(0.0, 60), (0.4, 400), (0.7, 1200)])
def test_equal_models_are_not_called_slower(busy: float, count: int):
    found = verdicts(1.0, busy, count)
    assert found.count(SLOWER) <= RUNS * 0.02
    assert found.count(INCONCLUSIVE) <= RUNS * 0.2


@pytest.mark.parametrize(("slower", "busy", "count"), [(1.05, 0.0, 100), (1.1, 0.4, 200), (1.1, 0.7, 900)])
def test_a_slower_model_is_found(slower: float, busy: float, count: int):
    found = verdicts(slower, busy, count)
    assert found.count(SLOWER) >= RUNS * 0.9
    assert found.count(NOT_SLOWER) == 0


@pytest.mark.parametrize("busy", [0.0, 0.1, 0.3, 0.6])
def test_intervals_cover_the_true_ratio(busy: float):
    held = []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        found = ratio(turns(rng, 1.2, 150, busy), turns(rng, 1.0, 150, busy))
        held.append(found.low <= 1.2 <= found.high)
    assert np.mean(held) > 0.92, "95 % are promised; 200 draws are within 3 % of that"


def spells(rng: np.random.Generator, count: int, turns: float) -> np.ndarray:
    """1.8 for some turns, then 1 for some: both of one side last so many turns on average."""
    changes = rng.random(count) < 1.0 / turns
    return np.where((np.cumsum(changes) + rng.integers(2)) % 2 == 0, 1.0, 1.8)


@pytest.mark.parametrize("lasting", [2.0, 8.0, 20.0])
def test_correlated_turns_count_as_fewer(lasting: float):
    """Each side has spells of its own, as when its threads share a core for a while."""
    held, left_open = [], []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        first, second = (np.array(turns(rng, ms, 800, 0.2)) * spells(rng, 800, lasting) for ms in (1.1, 1.0))
        found = ratio(list(first), list(second))
        held.append(found.low <= 1.1 <= found.high)
        left_open.append(verdict(found, 0.03) == INCONCLUSIVE)
    assert np.mean(held) > 0.9, "95 % are promised"
    assert np.mean(left_open) < {2.0: 0.05, 8.0: 0.3, 20.0: 0.9}[lasting], "yet it says something"


@pytest.mark.parametrize("rare", [0.02, 0.08])
def test_rare_minima_do_not_decide(rare: float):
    """Turns are of three kinds, the best one seldom met, as where two threads hardly ever have both cores."""
    held = []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        kinds = (rng.choice([1.0, 1.5, 1.85], 800, p=[rare, 0.3, 0.7 - rare]) for _ in range(2))
        first, second = (np.array(turns(rng, ms, 800, 0.2)) * k for ms, k in zip((1.1, 1.0), kinds, strict=True))
        found = ratio(list(first), list(second))
        held.append(found.low <= 1.1 <= found.high)
    assert np.mean(held) > 0.92


def test_repeated_looks_widen_the_interval():
    rng = np.random.default_rng(1)
    first, second = turns(rng, 1.0, 80, 0.0), turns(rng, 1.0, 80, 0.0)
    once, thrice = ratio(first, second), ratio(first, second, looks=3)
    assert thrice.low < once.low <= once.value == thrice.value <= once.high < thrice.high


def test_intervals_shrink_with_more_turns():
    rng = np.random.default_rng(2)
    first, second = turns(rng, 1.0, 400, 0.0), turns(rng, 1.0, 400, 0.0)
    widths = [math.log(r.high / r.low) for n in (6, 25, 26, 100, 400) for r in [ratio(first[:n], second[:n])]]
    assert all(wide > narrow for wide, narrow in pairwise(widths[:2] + widths[3:]))
    assert (ratio([1.0] * 5, [1.0] * 5).low, ratio([1.0] * 5, [1.0] * 5).high) == (0.0, math.inf)
    assert verdict(ratio([9.0] * 5, [1.0] * 5), 0.03) == INCONCLUSIVE


def test_ranks_are_those_of_the_tables():
    """Hollander, Wolfe and Chicken, table A.4, two-sided 5 %: the largest significant sum, plus one."""
    assert [ratios._rank(n, 0.05) for n in (5, 6, 7, 8, 9, 10, 15, 20, 25)] == [0, 1, 3, 4, 6, 9, 26, 53, 90]
    assert abs(ratios._rank(26, 0.05) - 99) <= 1, "by the normal distribution from here on"


@pytest.mark.parametrize("count", [1, 2, 30, 200, 500])
def test_a_mean_is_found_without_making_all_of_them(count: int):
    """Smooth values, few distinct ones, equal ones, and some that are far from the others."""
    rng = np.random.default_rng(count)
    smooth = rng.normal(size=count)
    for values in (smooth, np.round(smooth, 1), np.ones(count), smooth**9):
        ordered = np.sort(values)
        means = np.sort((ordered[:, None] + ordered)[np.triu_indices(count)]) / 2
        ranks = {*rng.integers(0, len(means), 20).tolist(), 0, len(means) // 2, len(means) - 1}
        found = [ratios._mean_of_two(ordered, rank) for rank in sorted(ranks)]
        np.testing.assert_allclose(found, means[sorted(ranks)], rtol=1e-15, atol=1e-15)


def test_a_busy_machine_is_reported():
    rng = np.random.default_rng(3)
    assert not ratio(turns(rng, 1.0, 100, 0.02), turns(rng, 1.0, 100, 0.02)).busy
    assert ratio(turns(rng, 1.0, 100, 0.6), turns(rng, 1.0, 100, 0.6)).busy


def test_levels_at_different_times():
    rng = np.random.default_rng(4)
    now, then = level(turns(rng, 2.0, 200, 0.3)), level(turns(rng, 1.0, 200, 0.3))
    assert now.low <= 2.0 <= now.high and math.isclose(now.value, 2.0, rel_tol=0.02)
    found = quotient(now, then)
    assert found.low <= 2.0 <= found.high < 2.2
    assert verdict(found, 0.03) == SLOWER and verdict(quotient(then, now), 0.03) == NOT_SLOWER
    assert quotient(Ratio(1.0, 0.0, math.inf, 3), then).high == math.inf


def test_the_inverse_ratio_and_a_wider_interval():
    found = Ratio(2.0, 1.6, 2.5, 9)
    assert (found.inverse.value, found.inverse.low, found.inverse.high) == (0.5, 0.4, 0.625)
    assert Ratio(1.0, 0.0, math.inf, 1).inverse == Ratio(1.0, 0.0, math.inf, 1)
    wide = found.widened(1.5)
    assert (wide.low, wide.high) == (2.0 / 1.5, 3.0) and found.widened(1.1) == found
