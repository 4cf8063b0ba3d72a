"""Weights that are 8-bit codes times a scale of each column, as they were before rewriting multiplied them out.

They are written as codes, from which nodes make them where the model is loaded: the runtime folds constants, as it does
in the model that was loaded. Without that, files of weights that were quantized would be four times as large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

Floats = npt.NDArray[np.float32]

OPSET = 7  # the first in which arithmetic broadcasts
PARTS = ("codes", "offset", "scale", "floats", "steps")
LEVELS = 255  # largest code
_SAMPLE = 64  # columns that are looked at before all
_NEAR = 4  # how many neighbours of an estimated scale are tried on each side
_UNITS = 2  # in the last place of a weight, which may differ by these: two factors round twice


@dataclass(frozen=True, slots=True, eq=False)
class CodedColumns:
    """How weights w are (codes - offset) * scale, both operations rounded to float32.

    `offset` and `scale` are float32 of the rank of the weights, of one element along the axes of a column.
    """

    offset: Floats
    scale: Floats

    def codes(self, weights: Floats) -> npt.NDArray[np.uint8]:
        """The codes of these weights, of their shape."""
        return np.asarray(np.rint(weights / self.scale) + self.offset, np.uint8)


def decoding(weights: str, names: Mapping[str, str]) -> tuple[onnx.NodeProto, ...]:
    """The nodes that make weights of their codes, offset and scale, with the names of the parts PARTS."""
    steps = (("Cast", ["codes"], "floats"), ("Sub", ["floats", "offset"], "steps"), ("Mul", ["steps", "scale"], ""))
    nodes = [
        helper.make_node(op, [names[i] for i in inputs], [names.get(out, weights)], f"{names.get(out, weights)}/{op}")
        for op, inputs, out in steps
    ]
    nodes[0].attribute.append(helper.make_attribute("to", onnx.TensorProto.FLOAT))
    return tuple(nodes)


def coding(weights: Floats) -> CodedColumns | None:
    """The codes of packed weights, if they give each again to _UNITS in its last place; None for other weights.

    That is what a factor costs that rewriting moved into weights: the product with the scale is rounded once more. A
    column lies along all axes between the first and the last of panels (rank 3 and more), of a matrix along one; short
    columns of one scale are found as one.
    """
    every = tuple(range(weights.ndim))
    ways = [every[1:-1], every] if weights.ndim > 2 else [(0,), (1,), every] if weights.ndim == 2 else []
    return next((found for axes in ways if (found := _along(weights, axes)) is not None), None)


def _along(weights: Floats, axes: tuple[int, ...]) -> CodedColumns | None:
    """Codes with one scale for all elements along `axes`."""
    kept = [a for a in range(weights.ndim) if a not in axes]
    lines = weights.transpose(*kept, *axes).reshape(int(np.prod([weights.shape[a] for a in kept])), -1)
    if not lines.size or _scales(lines[:: -(-len(lines) // _SAMPLE)]) is None:
        return None
    scales = _scales(lines)
    if scales is None:
        return None
    shape = [weights.shape[a] if a in kept else 1 for a in range(weights.ndim)]
    lowest = _steps(lines, scales).min(1)
    return CodedColumns(-lowest.reshape(shape), scales.reshape(shape))


def _scales(lines: Floats) -> Floats | None:
    """The scale of each line (rows of a matrix), by which its elements are integers less than 256 apart; else None.

    The least distance of two elements is nearly the scale, and so is the largest element over its integer, which has
    the least error by rounding; the scale itself is among the neighbours of that quotient.
    """
    if not np.isfinite(lines).all():
        return None
    ordered = np.sort(lines, 1).astype(np.float64)
    apart = np.diff(ordered, axis=1)
    least = np.min(np.where(apart > 0, apart, np.inf), axis=1, initial=np.inf)
    largest = np.abs(ordered).max(1)
    least = np.where(np.isfinite(least), least, np.where(largest > 0, largest, 1.0))
    if np.any(ordered[:, -1] - ordered[:, 0] > (LEVELS + 0.5) * least):
        return None
    steps = np.rint(largest / least)
    about = np.where(largest > 0, largest / np.maximum(steps, 1), 1).astype(np.float32)
    unit = np.spacing(np.abs(lines))
    best, scales = np.full(len(lines), np.inf), about
    for away in sorted(range(-_NEAR, _NEAR + 1), key=abs):
        tried = (about.view(np.int32) + np.int32(away)).view(np.float32)
        wrong = np.max(np.abs(_steps(lines, tried) * tried[:, None] - lines) / unit, axis=1)
        best, scales = np.minimum(best, wrong), np.where(wrong < best, tried, scales)
        if not best.any():
            break
    return scales if best.max() <= _UNITS else None


def _steps(lines: Floats, scales: Floats) -> Floats:
    return np.asarray(np.rint(lines / scales[:, None]), np.float32)
