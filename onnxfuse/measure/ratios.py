"""How many times as long as another a model runs, with a confidence interval, out of runs that were made in turns.

Noise is other work on the same cores: it only ever adds, often more than all of the run, and comes and goes. So a ratio
is taken of neighbours in time, and of the least of several runs where many are disturbed:

1.  Turns are paired, each with its neighbour of the other model, and 1, 2, 4, 8 or 16 pairs that follow each other are
    joined: what they say is the least time of one side to that of the other. Where few runs go undisturbed, many say
    more; where most do, few. That number is taken whose interval is the narrowest, each at half the error: it was
    chosen. How many were disturbed does not tell it, since what is usual may be a disturbed run.
2.  The ratio is the Hodges-Lehmann estimate of the logarithms: the median of the means of any two. Its 95 % interval is
    that of Wilcoxon's signed ranks (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., 3.2 and
    3.3). Both ask for symmetry only, which two models that are equally likely to be disturbed have, and hold up to 29 %
    of pairs that are off by any amount, where a mean is off by one. In still air they need 5 % more pairs than a mean.
3.  Pairs that follow each other may hang together: what a side meets lasts for some turns. Their sum of signed ranks
    then varies more than that of as many independent ones, by the time over which they are correlated (Geyer, Practical
    Markov Chain Monte Carlo, Statistical Science 7, 1992, 3.3): the interval is as much wider.
4.  Who looks again while a question is undecided is more likely to be fooled once: each of n looks is made at 5 % / n
    (Bonferroni), so that all of them together are wrong once in twenty times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Turns: TypeAlias = npt.NDArray[np.float64]

STATISTIC = "median of ratios of neighbouring turns' least times (Hodges-Lehmann)"
CONFIDENCE = 0.95
SLOWER, NOT_SLOWER, INCONCLUSIVE = "slower", "not slower", "inconclusive"

_DISTURBED = 1.25  # times its own usual least time: such a run met something else
_USUAL = 0.1  # the share of runs that are no longer than the usual least time
_JOINED = (1, 2, 4, 8, 16)  # turns of which the least time is taken
_GOOD = 0.9  # how likely the least of turns that are joined for a level is to be an undisturbed one
_FEWEST = 8  # pairs that are left where some are joined
_CHOICE = 2  # times as rarely an interval that was chosen for being narrow is allowed to miss
_EXACT = 25  # pairs up to which the distribution of signed ranks is counted out
_MOST = 1500  # pairs of which all means are made: beyond, neighbours are joined
_HUGE = 100.0  # of a logarithm: as good as no bound
_BUSY = 0.2  # the share of disturbed runs from which on a machine is called busy


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long as the second the first takes, between `low` and `high` with 95 % confidence."""

    value: float
    low: float
    high: float
    pairs: int
    disturbed: float = 0.0  # share of the turns, of both sides, that other work has lengthened

    @property
    def inverse(self) -> Ratio:
        """How many times as long as the first the second takes."""
        return Ratio(1.0 / self.value, _over(self.high), _over(self.low), self.pairs, self.disturbed)

    @property
    def busy(self) -> bool:
        """Whether the machine did other work while it was measured."""
        return self.disturbed > _BUSY

    def widened(self, by: float) -> Ratio:
        """The same where the first is known to differ from itself by a factor: no interval is narrower than that."""
        low, high = min(self.low, self.value / by), max(self.high, self.value * by)
        return Ratio(self.value, low, high, self.pairs, self.disturbed)


def ratio(first: Sequence[float], second: Sequence[float], *, looks: int = 1) -> Ratio:
    """Of the least times of turns: those with the same number are neighbours. `looks` is how often this is asked.

    >>> found = ratio([2.0, 2.1, 2.0, 2.0, 2.1, 9.9, 2.0, 2.0], [1.0, 1.0, 1.0, 1.1, 1.0, 1.0, 7.0, 1.0])
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (2.0, 0.76, 4.45)
    """
    return _ratio(first, second, _JOINED, looks)


def _ratio(first: Sequence[float], second: Sequence[float], joined: Sequence[int], looks: int) -> Ratio:
    """With so many turns joined, or with any of these numbers, whichever tells most."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    a, b = a[: min(len(a), len(b))], b[: min(len(a), len(b))]
    fewest = -(-len(a) // _MOST)
    joins = {max(fewest, min(each, len(a) // _FEWEST), 1) for each in joined}
    error = (1.0 - CONFIDENCE) / looks / (_CHOICE if len(joins) > 1 else 1)
    pairs = [np.log(_least(a, each) / _least(b, each)) for each in sorted(joins)]
    bounds, logs = min(((_signed_ranks(each, error), each) for each in pairs), key=lambda of: _width(of[0]))
    value, low, high = (math.exp(x) if x < math.inf else x for x in bounds)
    return Ratio(value, low, high, len(logs), (_disturbed(a) + _disturbed(b)) / 2)


def verdict(found: Ratio, limit: float) -> str:
    """Whether the first is slower than the second by more than a share `limit`: as far as the interval tells."""
    if found.low > 1.0 + limit:
        return SLOWER
    return NOT_SLOWER if found.high <= 1.0 + limit else INCONCLUSIVE


def level(turns: Sequence[float], *, looks: int = 1) -> Ratio:
    """Of least times of turns to one millisecond: how long one model takes, where it has no other beside it.

    Of how many turns the least is taken follows from the share of disturbed ones, not from the interval: a level is to
    mean the same at another time.
    """
    disturbed = _disturbed(np.asarray(turns, np.float64))
    joined = 1
    if disturbed > 1.0 - _GOOD:
        joined = min(_JOINED[-1], math.ceil(math.log(1.0 - _GOOD) / math.log(min(disturbed, 0.99))))
    return replace(_ratio(turns, [1.0] * len(turns), (joined,), looks), disturbed=disturbed)


def quotient(now: Ratio, earlier: Ratio) -> Ratio:
    """Of two levels that were measured at different times; what has changed since then is not in the interval."""
    value = now.value / earlier.value
    below = math.hypot(_log(now.value, now.low), _log(earlier.high, earlier.value))
    above = math.hypot(_log(now.high, now.value), _log(earlier.value, earlier.low))
    high = value * math.exp(above) if above < _HUGE else math.inf
    return Ratio(value, value * math.exp(-below), high, now.pairs, now.disturbed)


def _log(large: float, small: float) -> float:
    return math.log(large / small) if small > 0.0 and large < math.inf else math.inf


def _disturbed(turns: Turns) -> float:
    """The share of turns that met other work."""
    return float(np.mean(turns > _DISTURBED * np.quantile(turns, _USUAL)))


def _width(bounds: tuple[float, float, float]) -> float:
    return bounds[2] - bounds[1]


def _least(turns: Turns, joined: int) -> Turns:
    """The least time of every so many turns; what is left over at the end goes to the last ones."""
    if joined == 1 or len(turns) < 2 * joined:
        return turns if joined == 1 else turns.min(keepdims=True)
    return np.minimum.reduceat(turns, np.arange(0, len(turns) - joined + 1, joined))


def _signed_ranks(values: Turns, error: float) -> tuple[float, float, float]:
    """The median of the means of any two values, and the interval of Wilcoxon's signed ranks."""
    n = len(values)
    means = np.sort(((values[:, None] + values[None, :]) / 2)[np.triu_indices(n)])
    middle = float(np.median(means))
    rank = _rank(n, error, _together(values - middle))
    return (middle, float(means[rank - 1]), float(means[-rank])) if rank else (middle, -math.inf, math.inf)


def _together(values: Turns) -> float:
    """Of how many values one is worth, since neighbours are alike: by the correlation of their signed ranks.

    >>> rng = np.random.default_rng(0)
    >>> alone = rng.normal(size=400)
    >>> round(_together(alone), 1), round(_together(np.repeat(alone, 8)), 1)
    (1.0, 8.1)
    """
    n = len(values)
    ranks = np.sign(values) * (1.0 + np.argsort(np.argsort(np.abs(values))))
    whole = float(ranks @ ranks) or 1.0
    time = 1.0
    for lag in range(1, n // 4, 2):
        two = float(ranks[:-lag] @ ranks[lag:] + ranks[: -lag - 1] @ ranks[lag + 1 :]) / whole
        if two <= 0.0:
            break
        time += 2.0 * two
    return time


def _rank(n: int, error: float, together: float = 1.0) -> int:
    """Which of the means, counted from either end, bound the interval; 0 where so few have none."""
    z = statistics.NormalDist().inv_cdf(1.0 - error / 2) * math.sqrt(together)
    if n <= _EXACT:
        tail = np.cumsum(_rank_sums(n)) / 2.0**n
        return int(np.searchsorted(tail, statistics.NormalDist().cdf(-z), side="right"))
    return max(0, math.floor(n * (n + 1) / 4 - z * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)))


def _rank_sums(n: int) -> Turns:
    """In how many of 2**n ways signs give each sum of the ranks that are positive.

    >>> _rank_sums(3).tolist()
    [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    """
    ways = np.ones(1)
    for rank in range(1, n + 1):
        more = np.zeros(len(ways) + rank)
        more[: len(ways)] += ways
        more[rank:] += ways
        ways = more
    return ways


def _over(value: float) -> float:
    return math.inf if value == 0.0 else 1.0 / value
