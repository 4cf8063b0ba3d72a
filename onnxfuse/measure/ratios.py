"""The ratio of the latencies of two models, with a confidence interval, from runs measured in turns.

Noise is other work on the same cores: it only adds time, often more than the run itself, and comes and goes. So ratios
are taken of neighbours in time, and of the least of several runs where many are disturbed:

1.  Turns are paired, each with its neighbour of the other model, and blocks of 1, 2, 4, 8 or 16 consecutive pairs are
    formed: a block gives the least time of one model over that of the other. Large blocks are better where few runs are
    undisturbed, small ones where most are. The block size with the narrowest interval is taken; since it was selected,
    each interval is computed at half the error. The share of disturbed runs cannot decide this, since the usual run may
    be a disturbed one.
2.  The ratio is the Hodges-Lehmann estimate of the logarithms: the median of the means of any two. Its 95 % interval is
    that of Wilcoxon's signed ranks (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., 3.2 and
    3.3). Both assume only symmetry, which holds for two models that are equally likely to be disturbed, and tolerate
    29 % of arbitrarily wrong pairs, while one is enough to spoil a mean. Without noise they need 5 % more pairs.
3.  Consecutive pairs may be correlated, since a disturbance lasts for some turns. Their sum of signed ranks then varies
    more than that of independent ones, by the integrated autocorrelation time (Geyer, Practical Markov Chain Monte
    Carlo, Statistical Science 7, 1992, 3.3); the interval is widened accordingly.
4.  Repeated looks at an undecided comparison raise the chance of an error: each of n looks is made at 5 % / n
    (Bonferroni), so that all of them together are wrong at most once in twenty times.
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

STATISTIC = "median of the ratios of minimum times of adjacent turns (Hodges-Lehmann)"
CONFIDENCE = 0.95
SLOWER, NOT_SLOWER, INCONCLUSIVE = "slower", "not slower", "inconclusive"

_DISTURBED = 1.25  # a run is disturbed if it takes longer than this times the usual time
_USUAL = 0.1  # the quantile of times that counts as the usual time
_BLOCK_SIZES = (1, 2, 4, 8, 16)  # turns of which the least time is taken
_UNDISTURBED_CHANCE = 0.9  # wanted probability that a block of a level has an undisturbed turn
_FEWEST_BLOCKS = 8  # that are left for any block size above 1
_SELECTION_PENALTY = 2  # divides the error of intervals among which the narrowest is selected
_EXACT = 25  # pairs up to which the exact distribution of signed ranks is used
_MOST_PAIRS = 1500  # of which all pairwise means are computed; more are formed into blocks
_FEW_SUMS = 1 << 13  # that are gathered, to take one of them
_HUGE = 100.0  # of a logarithm: no bound
_BUSY = 0.2  # the share of disturbed runs above which a machine is called busy


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of the first over that of the second, between `low` and `high` with 95 % confidence.

    `low` 0 and `high` infinite: the turns were too few for an interval.
    """

    value: float
    low: float
    high: float
    pairs: int
    disturbed: float = 0.0  # share of the turns of both models that other work lengthened

    @property
    def inverse(self) -> Ratio:
        """Time of the second over that of the first."""
        return Ratio(1.0 / self.value, _over(self.high), _over(self.low), self.pairs, self.disturbed)

    @property
    def busy(self) -> bool:
        """Whether the machine did other work during the measurement."""
        return self.disturbed > _BUSY

    def widened(self, by: float) -> Ratio:
        """The same ratio with an interval at least as wide as the factor by which the first differs from itself."""
        low, high = min(self.low, self.value / by), max(self.high, self.value * by)
        return Ratio(self.value, low, high, self.pairs, self.disturbed)


def ratio(first: Sequence[float], second: Sequence[float], *, looks: int = 1) -> Ratio:
    """The ratio from the least times of turns; those with the same index are neighbours. `looks`: interim analyses.

    >>> found = ratio([2.0, 2.1, 2.0, 2.0, 2.1, 9.9, 2.0, 2.0], [1.0, 1.0, 1.0, 1.1, 1.0, 1.0, 7.0, 1.0])
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (2.0, 0.76, 4.45)
    """
    return _ratio(first, second, _BLOCK_SIZES, looks)


def _ratio(first: Sequence[float], second: Sequence[float], sizes: Sequence[int], looks: int) -> Ratio:
    """The ratio with the block size, among `sizes`, whose interval is the narrowest."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    a, b = a[: min(len(a), len(b))], b[: min(len(a), len(b))]
    fewest = -(-len(a) // _MOST_PAIRS)
    blocks = {max(fewest, min(each, len(a) // _FEWEST_BLOCKS), 1) for each in sizes}
    error = (1.0 - CONFIDENCE) / looks / (_SELECTION_PENALTY if len(blocks) > 1 else 1)
    pairs = [np.log(_least(a, each) / _least(b, each)) for each in sorted(blocks)]
    bounds, logs = min(((_signed_ranks(each, error), each) for each in pairs), key=lambda of: _width(of[0]))
    value, low, high = (math.exp(x) if x < math.inf else x for x in bounds)
    return Ratio(value, low, high, len(logs), (_disturbed(a) + _disturbed(b)) / 2)


def verdict(found: Ratio, limit: float) -> str:
    """Whether the first is slower than the second by more than a share `limit`, or whether that is undecided."""
    if found.low > 1.0 + limit:
        return SLOWER
    return NOT_SLOWER if found.high <= 1.0 + limit else INCONCLUSIVE


def level(turns: Sequence[float], *, looks: int = 1) -> Ratio:
    """The milliseconds of a run of one model, from the least times of turns, as a ratio to one millisecond.

    The block size follows from the share of disturbed turns, not from the interval, so that levels measured at
    different times are comparable.
    """
    disturbed = _disturbed(np.asarray(turns, np.float64))
    block = 1
    if disturbed > 1.0 - _UNDISTURBED_CHANCE:
        block = min(_BLOCK_SIZES[-1], math.ceil(math.log(1.0 - _UNDISTURBED_CHANCE) / math.log(min(disturbed, 0.99))))
    return replace(_ratio(turns, [1.0] * len(turns), (block,), looks), disturbed=disturbed)


def quotient(now: Ratio, earlier: Ratio) -> Ratio:
    """The ratio of two levels measured at different times; the interval ignores changes of the machine in between."""
    value = now.value / earlier.value
    below = math.hypot(_log(now.value, now.low), _log(earlier.high, earlier.value))
    above = math.hypot(_log(now.high, now.value), _log(earlier.value, earlier.low))
    high = value * math.exp(above) if above < _HUGE else math.inf
    return Ratio(value, value * math.exp(-below), high, now.pairs, now.disturbed)


def _log(large: float, small: float) -> float:
    return math.log(large / small) if small > 0.0 and large < math.inf else math.inf


def _disturbed(turns: Turns) -> float:
    """The share of turns that other work lengthened."""
    return float(np.mean(turns > _DISTURBED * np.quantile(turns, _USUAL)))


def _width(bounds: tuple[float, float, float]) -> float:
    return bounds[2] - bounds[1]


def _least(turns: Turns, block: int) -> Turns:
    """The least time of each block of turns; a rest at the end joins the last block."""
    if block == 1 or len(turns) < 2 * block:
        return turns if block == 1 else turns.min(keepdims=True)
    return np.minimum.reduceat(turns, np.arange(0, len(turns) - block + 1, block))


def _signed_ranks(values: Turns, error: float) -> tuple[float, float, float]:
    """The median of the means of any two values, and the bounds of its interval by Wilcoxon's signed ranks."""
    ordered, means = np.sort(values), len(values) * (len(values) + 1) // 2
    middle = (_mean_of_two(ordered, (means - 1) // 2) + _mean_of_two(ordered, means // 2)) / 2
    rank = _rank(len(values), error, _autocorrelation_time(values - middle))
    if not rank:
        return middle, -math.inf, math.inf
    return middle, _mean_of_two(ordered, rank - 1), _mean_of_two(ordered, means - rank)


def _mean_of_two(ordered: Turns, rank: int) -> float:
    """The mean of two of these ascending values, or of one with itself, that comes after `rank` others.

    The sums with each value ascend too. Those that it cannot be are cut off from these rows, at either end, by a pivot:
    the middle one of the rows' middles (Johnson and Mizoguchi, SIAM Journal on Computing 7, 1978).

    >>> [_mean_of_two(np.array([1.0, 2.0, 5.0]), rank) for rank in range(6)]
    [1.0, 1.5, 2.0, 3.0, 3.5, 5.0]
    """
    first, last = np.arange(len(ordered)), np.full(len(ordered), len(ordered))
    before, left = math.inf, (last - first).sum()
    while _FEW_SUMS < left < before:
        rows = np.flatnonzero(last - first)
        middles = ordered[rows] + ordered[(first + last)[rows] // 2]
        pivot = np.partition(middles, len(rows) // 2)[len(rows) // 2]
        below, through = (
            np.clip(np.searchsorted(ordered, pivot - ordered, side), first, last) for side in ("left", "right")
        )
        less, not_more = (below - first).sum(), (through - first).sum()
        if less <= rank < not_more:
            return float(pivot / 2)
        first, last, rank = (first, below, rank) if rank < less else (through, last, int(rank - not_more))
        before, left = left, (last - first).sum()
    sums = np.concatenate([ordered[a:b] + each for each, a, b in zip(ordered, first, last, strict=True)])
    return float(np.partition(sums, rank)[rank] / 2)


def _autocorrelation_time(values: Turns) -> float:
    """The integrated autocorrelation time of the signed ranks: so many values carry the information of one.

    >>> rng = np.random.default_rng(0)
    >>> alone = rng.normal(size=400)
    >>> round(_autocorrelation_time(alone), 1), round(_autocorrelation_time(np.repeat(alone, 8)), 1)
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


def _rank(n: int, error: float, correlation_time: float = 1.0) -> int:
    """The rank, from either end, of the means that bound the interval; 0 if there are too few for one."""
    z = statistics.NormalDist().inv_cdf(1.0 - error / 2) * math.sqrt(correlation_time)
    if n <= _EXACT:
        tail = np.cumsum(_rank_sums(n)) / 2.0**n
        return int(np.searchsorted(tail, statistics.NormalDist().cdf(-z), side="right"))
    return max(0, math.floor(n * (n + 1) / 4 - z * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)))


def _rank_sums(n: int) -> Turns:
    """How many of the 2**n choices of signs give each sum of positive ranks.

    >>> _rank_sums(3).tolist()
    [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    """
    counts = np.ones(1)
    for rank in range(1, n + 1):
        more = np.zeros(len(counts) + rank)
        more[: len(counts)] += counts
        more[rank:] += counts
        counts = more
    return counts


def _over(value: float) -> float:
    return math.inf if value == 0.0 else 1.0 / value
