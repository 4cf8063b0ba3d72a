"""Shape arithmetic as exporters write it: torch's by Gather, paddle's by Cast and Slice, zero states."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from models.net import Net

Part = int | str  # of a shape: a number, or a value of one element
AXES_ARE_INPUTS = 13  # from this opset on


def extent(net: Net, x: str, axis: int) -> str:
    """One extent of a value as a scalar, as tracing reads it."""
    return net.node("Gather", net.node("Shape", x), net.constant(axis), axis=0)


def unsqueeze(net: Net, x: str, *axes: int) -> str:
    """Unsqueeze, its axes where this opset has them."""
    if net.opset < AXES_ARE_INPUTS:
        return net.node("Unsqueeze", x, axes=list(axes))
    return net.node("Unsqueeze", x, net.constant(list(axes)))


def squeeze(net: Net, x: str, *axes: int) -> str:
    """Squeeze, its axes where this opset has them."""
    if net.opset < AXES_ARE_INPUTS:
        return net.node("Squeeze", x, axes=list(axes))
    return net.node("Squeeze", x, net.constant(list(axes)))


def cut(net: Net, x: str, axis: int, start: Part, end: Part, step: int = 1) -> str:
    """Slice of one axis; values are of one element."""
    bounds = [net.constant([each]) if isinstance(each, int) else each for each in (start, end)]
    return net.node("Slice", x, *bounds, net.constant([axis]), net.constant([step]))


def shape(net: Net, *parts: Part) -> str:
    """A shape: numbers, and scalars that Unsqueeze makes vectors of, in one Concat."""
    vectors = [net.constant([part]) if isinstance(part, int) else unsqueeze(net, part, 0) for part in parts]
    return net.node("Concat", *vectors, axis=0)


def reshape(net: Net, x: str, *parts: Part, out: str = "") -> str:
    """Reshape to a shape of numbers and scalars."""
    if all(isinstance(part, int) for part in parts):
        return net.node("Reshape", x, net.constant([int(part) for part in parts]), out=out)
    return net.node("Reshape", x, shape(net, *parts), out=out)


def zeros(net: Net, *parts: Part) -> str:
    """Zeros of a shape, as tracing gives them to recurrent layers."""
    value = numpy_helper.from_array(np.zeros(1, np.float32))
    return net.node("ConstantOfShape", shape(net, *parts), value=value)


# --- as paddle2onnx writes it ----------------------------------------------------------------------------------------


def paddle_extent(net: Net, x: str, axis: int) -> str:
    """One extent as a vector of int32: Shape, Cast and Slice."""
    short = net.node("Cast", net.node("Shape", x), to=TensorProto.INT32)
    return cut(net, short, 0, axis, axis + 1)


def paddle_shape(net: Net, *parts: Part) -> str:
    """A shape of numbers and of vectors of int32; each is cast."""
    vectors = [net.constant(np.array([part], np.int32)) if isinstance(part, int) else part for part in parts]
    return net.node("Concat", *(net.node("Cast", each, to=TensorProto.INT64) for each in vectors), axis=0)


def paddle_flat(net: Net, x: str, outer: int, last: int = -1) -> str:
    """The first `outer` axes as they are and the others as one: Shape, Slice, Concat and Reshape."""
    kept = net.node("Slice", net.node("Shape", x), net.constant([0]), net.constant([outer]), net.constant([0]))
    return net.node("Reshape", x, net.node("Concat", kept, net.constant([last]), axis=0))
