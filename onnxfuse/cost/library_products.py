"""What follows a product, as an epilogue of cuBLASLt.

Its epilogues are activation(sum + bias + residual): a bias is a row that all rows get, a residual is added as beta * C.
Its GELU is the tanh form (benchmarks/gpu), so that the form with erf is none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.ir.compose import free_axes, loads, rebuild, replaced, size, walk
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import Axis
from onnxfuse.ir.launch import Activation
from onnxfuse.ir.scalar import Apply, Const, Load, Scalar, variable

FAR = (8.0, 30.0, 1e3, 6e4)  # where a function that is cut off, as ReLU at 6, is told from one that is not
SAMPLES = np.array([*np.linspace(-6.0, 6.0, 97), *FAR, *(-x for x in FAR)])
LIMITS = (1e-7, 65504.0, 1e6, 3e38, np.inf)  # near 0, and where results of any type may be cut off
EVERYWHERE = np.array([*SAMPLES, *LIMITS, *(-x for x in LIMITS)])
APART = 1e-4  # from GELU: constants may be rounded to 16 bits; its two forms are 4.7e-4 apart
MARK = variable("%core", F32)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """activation(sum + bias + residual), the last two where there are any."""

    bias: Load | None
    residual: Load | None
    activation: Activation


def epilogue_of(finish: Scalar, total: Scalar, columns: Collection[Axis]) -> Epilogue | None:
    """What is made of the sum `total`, as an epilogue of cuBLASLt; None where it is none, or nothing.

    A bias has no axes but `columns`. Roundings to 16 bits in between are left out.
    """
    bare, core = uncast(finish), uncast(total)
    for x in sorted({n for n in walk(bare) if core in walk(n)}, key=size):
        outer = replaced(bare, x, MARK)
        if any(n != MARK for n in loads(outer)):
            continue
        activation, terms = _activation(outer), _terms(x, core)
        if activation is None or terms is None:
            return None
        bias = [n for n in terms if free_axes(n) and free_axes(n) <= {*columns}]
        residual = [n for n in terms if n not in bias]
        if max(len(bias), len(residual)) > 1 or not (terms or activation):
            return None
        return Epilogue(next(iter(bias), None), next(iter(residual), None), activation)
    return None


def uncast(x: Scalar) -> Scalar:
    """x without roundings between types of floats."""

    def leaf(n: Scalar) -> Scalar | None:
        if isinstance(n, Apply) and n.fn == "cast" and n.dtype.floating and n.args[0].dtype.floating:
            return uncast(n.args[0])
        return None

    return rebuild(x, leaf, lambda e: e)


def _terms(x: Scalar, core: Scalar) -> list[Load] | None:
    """What is added to the sum, which is one of the terms; None where anything else happens."""
    found = list(_added(x))
    rest = [n for n in found if n != core]
    plain = [n for n in rest if isinstance(n, Load) and n.index and not n.guards]
    return plain if len(plain) == len(rest) == len(found) - 1 else None


def _added(x: Scalar) -> Iterator[Scalar]:
    if isinstance(x, Apply) and x.fn == "add":
        for each in x.args:
            yield from _added(each)
    else:
        yield x


def _activation(x: Scalar) -> Activation | None:
    """Which function of MARK an expression is, by its values: identity and ReLU exactly, GELU nearly."""
    exact: Mapping[Activation, npt.NDArray[Any]] = {"": EVERYWHERE, "relu": np.maximum(EVERYWHERE, 0)}
    with np.errstate(all="ignore"):
        found = np.broadcast_to(_values(x, EVERYWHERE), EVERYWHERE.shape)
        gelu = np.broadcast_to(_values(x, SAMPLES), SAMPLES.shape)
    cube = SAMPLES + 0.044715 * SAMPLES**3
    if np.abs(gelu - 0.5 * SAMPLES * (1 + np.tanh(np.sqrt(2 / np.pi) * cube))).max() < APART:
        return "gelu"
    return next((name for name, wanted in exact.items() if np.array_equal(found, wanted)), None)


def _values(x: Scalar, samples: npt.NDArray[Any]) -> Any:
    """The values of a function of MARK; NaN for what is no arithmetic."""
    if x == MARK:
        return samples
    if isinstance(x, Const):
        return float(x.value)
    if not isinstance(x, Apply) or not x.dtype.floating:
        return np.nan
    return FUNCTIONS[x.fn].numpy(*(_values(each, samples) for each in x.args))
