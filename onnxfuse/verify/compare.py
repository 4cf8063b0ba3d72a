"""Distances between tensors, and the distances that rounding errors alone may cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Results: TypeAlias = list[list[Array]]  # by set of inputs, by output

# What rounding alone may do to the relative L2 error of a whole network, by its coarsest float type: some 100 roundings
# for float32, whose sums are reordered, and fewer for the types that are rounded after each operator.
FLOORS: dict[str, float] = {
    "float64": 1e-12,
    "float32": 2e-5,
    "float16": 8e-3,
    "bfloat16": 5e-2,
    "float8": 2e-1,
    "quantized": 5e-3,  # float tensors behind 8-bit ones, where one rounding can become one step
}

# One rounding, relative.
EPSILONS: dict[str, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8": 2.0**-2,
}

ROUNDINGS: dict[str, float] = {"fp32": 0.0, "bf16": 2.0**-8, "fp16": 2.0**-11}  # at most, by `--precision`; relative
UNRELATED = 0.5  # distance (relative L2) above which two outputs are considered unrelated

REPRODUCED = 0.1  # an output counts as reproduced if the original's own runs agree within this (relative L2)
ONE_OF = 1000  # one in so many 8-bit values may differ by one step: near a tie the last bit of the float decides
_TINY = 1e-30
_BLOCK = 1 << 13  # elements: too few for BLAS to wake other threads


@dataclass(frozen=True, slots=True)
class Distance:
    """How far `b` is from `a`. Floats: relative L2 error. Others: the share of elements that differ."""

    error: float  # infinite when shapes, types, or the places of NaN and infinities differ
    max_abs: float  # the largest difference of two elements
    rms: float = 0.0  # of the reference's finite elements
    reason: str = ""  # why the error is infinite
    at: int = 0  # the set of inputs, of several, at which this was found


def distance(a: Array, b: Array, scale: float = 0.0) -> Distance:
    """The distance of `b` from the reference `a`; a few 8-bit integers of many may be one step apart.

    Errors are relative to a root mean square of `a` of at least `scale` (see `scales`).

    >>> distance(np.array([3.0, 4.0]), np.array([3.0, 4.5])).error
    0.1
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return Distance(np.inf, np.inf, reason=f"{b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}")
    if not a.size:
        return Distance(0.0, 0.0)
    if not is_float(a.dtype):
        return _exact_distance(a, b)
    if a.dtype.itemsize < 4:
        a, b = a.astype(np.float32), b.astype(np.float32)
    a, b = a.ravel(), b.ravel()
    found = _float_distance(a, b, scale)
    if np.isfinite(found.error + found.rms):
        return found
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return Distance(np.inf, np.inf, reason="NaN or infinity in other places")
    return _float_distance(a[finite], b[finite], scale)


def _exact_distance(a: Array, b: Array) -> Distance:
    if a.dtype.kind not in "iub":
        return Distance(float(np.mean(a != b)), 0.0)
    off = np.abs(a.astype(np.float64) - b.astype(np.float64))
    steps = off == 1.0
    ties = a.dtype.kind in "iu" and a.dtype.itemsize == 1 and np.count_nonzero(steps) <= max(1, a.size // ONE_OF)
    return Distance(float(np.mean(off > ties)), float(off.max(initial=0.0)))


def _float_distance(a: Array, b: Array, scale: float) -> Distance:
    """Of two rows, block by block: the copies in float64 stay small. Not finite where the rows are not."""
    squares = off_squares = most = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for at in range(0, a.size, _BLOCK):
            x, y = (each[at : at + _BLOCK].astype(np.float64) for each in (a, b))
            y -= x
            squares += float(x @ x)
            off_squares += float(y @ y)
            most = max(most, float(np.abs(y, out=y).max()))
    norm, size = float(np.sqrt(squares)), float(np.sqrt(off_squares))
    error = size / max(norm, scale * float(np.sqrt(a.size)), _TINY) if size else 0.0
    return Distance(error, most, norm / max(1.0, float(np.sqrt(a.size))))


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is floating-point, the types that NumPy lacks (bfloat16, float8) included."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8"))


def type_name(dtype: np.dtype[Any]) -> str:
    """The key of `FLOORS` and `EPSILONS` for a float type.

    >>> type_name(np.dtype(np.float32))
    'float32'
    """
    return "float8" if dtype.name.startswith("float8") else dtype.name


def worst(found: Sequence[Distance]) -> Distance:
    """The largest error of several pairs, with the smallest reference."""
    at = max(range(len(found)), key=lambda i: found[i].error)
    return replace(found[at], rms=min(each.rms for each in found), at=at)


def by_set(expected: Results, found: Results, scales: Sequence[float] = ()) -> list[list[Distance]]:
    """By set of inputs, by output, the distances; `scales` are those of outputs."""
    return [
        [distance(x, y, scale) for x, y, scale in zip(a, b, scales or [0.0] * len(a), strict=True)]
        for a, b in zip(expected, found, strict=True)
    ]


def distances(expected: Results, found: Results, scales: Sequence[float] = ()) -> list[Distance]:
    """By output, the largest distance over all sets of inputs."""
    return [worst(column) for column in zip(*by_set(expected, found, scales), strict=True)]


def limit(own: Sequence[float], floor: float, exact: bool) -> float:
    """The distance allowed to another model: ten times the original's own largest, at least `floor` for floats."""
    widest = 10.0 * max(own, default=0.0)
    return widest if exact else max(widest, floor)


def rounded(precision: str, sensitivity: float) -> float:
    """The distance that `--precision` may put between a network and the original.

    Both operands of each product are rounded by at most u, half an epsilon of the format. Errors of layers behind each
    other are independent, so that L layers leave sqrt(2 L) u, 14 u for a hundred: 16 u is the least. Networks that
    enlarge errors show it when their inputs are rounded: that has `sensitivity` the output by one such error, of which
    sqrt(2 L) are allowed here too.
    """
    return min(UNRELATED, 16.0 * max(ROUNDINGS[precision], sensitivity))


TRUTH_FACTOR = 2.0  # of the original's own error to float64, what another model's may be
TRUTH_MOST = 1e-3  # of an error to float64: a kernel that is wrong by a percent is further away
DRAWN_MOST = 8e-3  # of an error that perturbations of the original allow, for the same reason


def by_truth(
    pairs: Sequence[tuple[float, float]], others: bool, least: float, drawn: Sequence[float] = ()
) -> tuple[float, float]:
    """Error to float64 and limit of an output, of the set of inputs that is nearest its limit or furthest over it.

    `pairs` are the errors of the model under test and of the original, for each set that was too far away; `others`
    tells that there are sets that were not. What is allowed is twice the original's own error, or the limit that is
    there. Inputs on which the original itself is wrong say little, those on which it is very wrong say nothing: they
    are believed only where others tell that no kernel is wrong by a percent. So are `drawn`, for each pair how far
    perturbations drive the original; they allow a bounded error, and never leave out a set (decision 0206).
    """
    steps = drawn if drawn and others else [0.0] * len(pairs)
    told = others or any(TRUTH_FACTOR * own <= TRUTH_MOST for _, own in pairs)
    most = UNRELATED if told else TRUTH_MOST
    limits = [
        (error, max(least, min(TRUTH_FACTOR * own, most), min(TRUTH_FACTOR * step, DRAWN_MOST)))
        for (error, own), step in zip(pairs, steps, strict=True)
        if own <= REPRODUCED or not told
    ]
    return max(limits, key=lambda pair: excess(*pair), default=(0.0, least))


def quantized_limit(own: Sequence[float], floor: float) -> float:
    """The distance allowed to runs of a quantized model with kernels; `own` are distances of the original from itself.

    Quantization steps drive any two runs about equally far apart; the factor 2 is a margin. There is no limit if the
    original's own runs differ in shape, or in the places of NaN (`own` is infinite).
    """
    widest = max(own, default=0.0)
    return widest if np.isinf(widest) else min(UNRELATED, max(2.0 * widest, floor))


def depth_bound(epsilon: float, depth: int, longest: int) -> float:
    """A bound of the rounding error of a network with `depth` consecutive operators and sums of `longest` terms.

    Used if there is no measured limit. Errors of layers are independent, so they grow with the square root of depth.
    """
    return min(TRUTH_MOST, epsilon * float(np.sqrt(depth) * np.sqrt(min(longest, LONGEST_PLAIN_SUM))))


def excess(error: float, limit: float) -> float:
    """The ratio of an error to its limit: at most 1 passes."""
    return error / limit if limit else (np.inf if error else 0.0)


LONGEST_PLAIN_SUM = 4096


def group_bound(dtype: np.dtype[Any], reduction: int, rounding: float = 0.0) -> float:
    """The relative L2 error that one kernel may have against its body, for its coarsest type and its longest sum.

    Roundings of a sum of n terms grow as sqrt(n); sixteen of them are for what surrounds it (exp, divisions, a mean
    taken off), and four is for luck. Longer sums are made of partial ones: where the runtime adds them up one by one,
    its result is the worse one, but it is what users compare with, and such a node is better left alone.

    `rounding` is what the kernel, not the body, takes off each number before it is multiplied: those errors do not grow
    with the sum, since it grows with them.
    """
    return 4.0 * rounding + 4.0 * EPSILONS[type_name(dtype)] * (
        16.0 + float(np.sqrt(min(reduction, LONGEST_PLAIN_SUM)))
    )


def relevant(tensor: Array) -> bool:
    """Whether comparing a tensor is informative: at least half of its elements are finite, or it holds no floats."""
    if not is_float(tensor.dtype) or not tensor.size:
        return True
    wide = tensor.astype(np.float32) if tensor.dtype.itemsize < 4 else tensor
    return bool(np.isfinite(wide).mean() >= 0.5)
