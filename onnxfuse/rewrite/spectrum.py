"""Fourier transforms as products with constant matrices, which can become kernels.

The discrete Fourier transform (DFT) of N points is a linear map. A short-time Fourier transform (STFT) is a convolution
whose filters are the rows of the DFT matrix times the window, and whose stride is the frame step. It takes N / log N
times as many operations as a fast transform, and is faster for small N: the runtime transforms frame by frame in scalar
code, whereas a product runs near peak. What follows, such as the power of each bin, can be fused. The matrices are
computed in double precision.
"""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Array, Miss, MutableGraph
from onnxfuse.rewrite.steps import StructuralRule

LONGEST = 1024  # most points of a transform that becomes a product: its matrix has 4 MB of float32


def frames_as_convolution(work: MutableGraph, at: int, trust: bool) -> Draft:
    """STFT(x, step, window) of a real signal becomes a convolution with the windowed rows of the DFT matrix."""
    node = work.nodes[at]
    window, step = _window(work, node), _whole(work, node, 1)
    bins = _bins(work, node, len(window))
    filters = transform(len(window), bins)[:, :1] * window[:, None, None, None]  # time, part of x, bin, part of y
    shape = work.type(node.inputs[0]).shape
    draft = Draft(work, at)
    if len(shape) == 3:
        _real(shape[2].constant)
        signal = draft.node("Transpose", node.inputs[:1], {"perm": (0, 2, 1)})
    else:
        signal = draft.node("Unsqueeze", (node.inputs[0], draft.ints((1,))))
    rows = filters.reshape(len(window), 1, 2 * bins).transpose(2, 1, 0)
    weight = draft.array(rows, F32, "transform", node.op)
    found = draft.node("Conv", (signal, weight), {"strides": (step,)})
    found = draft.node("Transpose", (found,), {"perm": (0, 2, 1)})
    found = draft.node("Reshape", (found, draft.ints((0, 0, bins, 2))))
    return draft.replace(node.outputs[0], found, typed=False)


def transform_as_product(work: MutableGraph, at: int, trust: bool) -> Draft:
    """DFT along an axis of known extent becomes a product with the DFT matrix.

    Imaginary parts that are constant zeros are not multiplied, and of a result of which one part is read, as
    `torch.fft.fft(x).real` is exported, the other is not computed.
    """
    node = work.nodes[at]
    type_, view = work.type(node.inputs[0]), work.view(node)
    rank, inverse = len(type_.shape), bool(view.attr("inverse", 0))
    axis = (_whole(work, node, 2) if view.has(2) else view.attr("axis", 1 if work.opset < 20 else -2)) % rank
    have = type_.shape[axis].constant if axis < rank - 1 else None
    if have is None or type_.shape[-1].constant not in (1, 2):
        raise Miss("the DFT is not along a signal axis of known extent")
    points = _whole(work, node, 1) if view.has(1) else have
    if inverse and view.attr("onesided", 0):
        raise Miss("the DFT is an inverse of a one-sided spectrum")
    bins = _bins(work, node, points, 0)
    signal = _real_part(work, node.inputs[0])
    parts = work.type(signal).shape[-1].constant or 1
    result, part = _part_read(work, node.outputs[0])
    matrix = transform(points, bins, inverse)[:have, :parts]
    matrix = matrix if part is None else matrix[..., [part]]
    matrix = np.concatenate([matrix, np.zeros((max(0, have - points), *matrix.shape[1:]))])  # what is cut off
    draft = Draft(work, at)
    order = (*(i for i in range(rank - 1) if i != axis), axis)
    back = tuple(map(order.index, range(rank - 1)))
    turned = axis != rank - 2
    found = draft.node("Transpose", (signal,), {"perm": (*order, rank - 1)}) if turned else signal
    found = draft.node("Reshape", (found, draft.ints((*(0,) * (rank - 2), have * parts))))
    columns = matrix.reshape(have * parts, matrix.shape[2] * matrix.shape[3])
    found = draft.node("MatMul", (found, draft.array(columns, F32, "transform", node.op)))
    if part is None:
        found = draft.node("Reshape", (found, draft.ints((*(0,) * (rank - 2), bins, 2))))
        back = (*back, rank - 1)
    found = draft.node("Transpose", (found,), {"perm": back}) if turned else found
    return draft.replace(result, found, typed=False)


def _real_part(work: MutableGraph, value: str) -> str:
    """The real part of a value whose imaginary part is constant zeros; else the value."""
    made = work.node(value)
    if made is None or made.op != "Concat" or len(made.inputs) != 2 or value in work.pinned:
        return value
    rank = len(work.type(value).shape)
    zeros = work.constants.get(made.inputs[1])
    alone = [work.type(x).shape[-1].constant == 1 for x in made.inputs]
    if work.view(made).attr("axis", 0) % rank != rank - 1 or not all(alone) or zeros is None or zeros.load().any():
        return value
    return made.inputs[0]


def _part_read(work: MutableGraph, value: str) -> tuple[str, int | None]:
    """The one part of a complex value that a Gather, its only reader, takes, and which it is; else the value, None."""
    readers = [work.nodes[at] for at in work.users.get(value, ())]
    if len(readers) != 1 or readers[0].op != "Gather" or value in work.pinned:
        return value, None
    (node,), rank = readers, len(work.type(value).shape)
    scalar, known = not work.type(node.inputs[1]).shape, work.known.get(node.inputs[1], ())
    part = known[0].constant if len(known) == 1 else None
    if work.view(node).attr("axis", 0) % rank != rank - 1 or not scalar or part not in (-2, -1, 0, 1):
        return value, None
    return node.outputs[0], part % 2


def transform(points: int, bins: int, inverse: bool = False) -> Array:
    """The matrix [points, parts of x, bins, parts of y] of a discrete Fourier transform, parts real and imaginary.

    y[k] = sum over n of x[n] * exp(-2 pi i n k / points); the inverse has the other sign, and divides by the points.
    """
    if not 0 < points <= LONGEST:
        raise Miss(f"a transform of {points} points has too large a matrix (at most {LONGEST})")
    angle = 2 * np.pi * (np.outer(np.arange(points), np.arange(bins)) % points) / points
    cos, sin = np.cos(angle), np.sin(angle) if inverse else -np.sin(angle)
    made = np.array([[cos, sin], [-sin, cos]]).transpose(2, 0, 3, 1)
    return made / points if inverse else made


def _bins(work: MutableGraph, node: Node, points: int, usual: int = 1) -> int:
    """Number of bins of a spectrum: of one side, which determines the other for real signals, or of both."""
    return points // 2 + 1 if work.view(node).attr("onesided", usual) else points


def _window(work: MutableGraph, node: Node) -> Array:
    """The window of an STFT, ones where it has none. Raises Miss."""
    view = work.view(node)
    length = _whole(work, node, 3) if view.has(3) else None
    if not view.has(2):
        if length is None:
            raise Miss("the STFT has neither a window nor a constant frame_length")
        return np.ones(length)
    found = work.constants.get(node.inputs[2])
    if found is None or found.dtype != F32 or (length is not None and found.shape != (length,)):
        raise Miss("the window is not a constant float32 vector of frame_length")
    if not 0 < found.size <= LONGEST:
        raise Miss(f"a transform of {found.size} points has too large a matrix (at most {LONGEST})")
    return np.asarray(found.load(), np.float64).reshape(-1)


def _whole(work: MutableGraph, node: Node, i: int) -> int:
    """The value of an integer input that is a constant scalar. Raises Miss."""
    found = work.known.get(node.inputs[i], ())
    if len(found) != 1 or found[0].constant is None:
        raise Miss(f"{node.inputs[i]} is not a constant scalar")
    return found[0].constant


def _real(parts: int | None) -> None:
    if parts != 1:
        raise Miss("the signal is complex")


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "frames-as-convolution",
        "STFT(x, step, window) => Reshape(Transpose(Conv(x, windowed rows of the transform, strides=step)))",
        "reassociates",
        frames_as_convolution,
        frozenset({"STFT"}),
        ("the signal is real", "step and window are constant", f"a frame has at most {LONGEST} numbers"),
    ),
    StructuralRule(
        "transform-as-product",
        "DFT(x) => Transpose(Reshape(MatMul(Reshape(Transpose(x)), matrix of the transform)))",
        "reassociates",
        transform_as_product,
        frozenset({"DFT"}),
        (
            "it runs along an axis of known extent",
            f"at most {LONGEST} points",
            "no half spectrum is transformed back",
        ),
    ),
)
