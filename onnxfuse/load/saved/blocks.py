"""Images in blocks of channels: the operators of `com.microsoft.nchwc` as those of ONNX.

An image in blocks is taken for one with as many channels as the blocks have: those above the model's own are zeros
in weights, and are cut off where the image leaves its blocks. Filters are constants in blocks too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfuse.load.saved.instead import Instead
from onnxfuse.load.tensors import Payloads, constant
from onnxfuse.runtime.blocks import BLOCKED, channels_of_a_block
from onnxfuse.runtime.graphs import graphs

_OPSET = 13  # from which on all that is written here has this form
_TO_FRONT, _TO_BACK = (0, 3, 1, 2), (0, 2, 3, 1)  # of the channels
# What a convolution does with its sums: attributes that parameters are, or inputs (Clip).
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "": (),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Clip": ("min", "max"),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}


class _Unknown(Exception):
    """An operator in blocks that nothing is known to be equal to."""


Array = np.ndarray[Any, Any]


class _Blocks:
    """Operators in blocks of one graph, and what takes their place."""

    def __init__(self, graph: onnx.GraphProto, read: Callable[[onnx.TensorProto], Array], size: int) -> None:
        self.graph, self.read, self.size = graph, read, size
        self.tensors = {t.name: t for t in graph.initializer}
        self.made = Instead(graph)
        self.filters: dict[str, str] = {}

    def replace(self) -> None:
        """Make nodes instead of all those in blocks. Raises _Unknown."""
        for node in self.graph.node:
            if node.domain != BLOCKED:
                self.made.nodes.append(node)
                continue
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type not in _OPERATORS:
                raise _Unknown(node.op_type)
            _OPERATORS[node.op_type](self, node, attrs)

    def convolution(self, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> None:
        """Conv, plus input 3, with an activation."""
        x, w, bias, added = (*node.input, "", "")[:4]
        how = {k: v for k, v in attrs.items() if not k.startswith("activation")}
        if w not in self.tensors or attrs.get("activation", b"").decode() not in _ACTIVATIONS:
            raise _Unknown(node.op_type)
        outputs, inputs = self.tensors[w].dims[:2]
        alone = how.get("group", 1) > 1 and inputs == 1
        if alone:
            how["group"] = outputs
        steps = [("Conv", (self.filter(w, whole=alone or inputs < self.size), *([bias] if bias else ())), how)]
        if added:
            steps.append(("Add", (added,), {}))
        if name := attrs.get("activation", b"").decode():
            steps.append(self.activation(node.output[0], name, attrs.get("activation_params", ())))
        for k, (op, others, given) in enumerate(steps):
            last = k == len(steps) - 1
            out = node.output[0] if last else self.made.fresh(f"{node.output[0]}/{op}")
            x = self.made.add(op, (x, *others), out, **given)

    def activation(self, near: str, name: str, parameters: tuple[float, ...]) -> tuple[str, tuple[str, ...], Any]:
        """An activation: its operator, its inputs but the first one, and its attributes."""
        given = dict(zip(_ACTIVATIONS[name], parameters, strict=False))
        if name != "Clip":
            return name, (), given
        return name, tuple(self.made.constant(f"{near}/{k}", np.array(v, np.float32)) for k, v in given.items()), {}

    def filter(self, name: str, *, whole: bool) -> str:
        """The filters of a convolution in the order of ONNX; `whole`: only the channels of the result are in blocks."""
        if name not in self.filters:
            held, b = self.read(self.tensors[name]), self.size
            o, i, *window = held.shape
            if whole:
                ordered = held.reshape(o // b, i, *window, b).transpose(0, 4, 1, 2, 3)
            else:
                ordered = held.reshape(o // b, i // b, *window, b, b).transpose(0, 5, 1, 4, 2, 3)
            self.filters[name] = self.made.constant(
                f"{name}/ordered", np.ascontiguousarray(ordered.reshape(held.shape))
            )
        return self.filters[name]

    def pool(self, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> None:
        """An operator that does with each channel what that of ONNX does."""
        self.made.add(node.op_type, node.input, node.output[0], **attrs)

    def enter(self, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> None:
        """ReorderInput: channels of zeros are added up to the end of the last block."""
        x, near = node.input[0], node.output[0]
        if attrs.get("channels_last", 0):
            x = self.made.add("Transpose", (x,), self.made.fresh(f"{near}/channels"), perm=_TO_FRONT)
        one, size = (self.made.constant(f"{near}/number", np.array([v], np.int64)) for v in (1, self.size))
        front, back = (self.made.constant(f"{near}/zeros", np.zeros(n, np.int64)) for n in (5, 2))
        have = self.made.add("Gather", (self._after("Shape", x, near), one), self.made.fresh(f"{near}/have"))
        missing = self.made.add("Mod", (self._after("Neg", have, near), size), self.made.fresh(f"{near}/missing"))
        pads = self.made.add("Concat", (front, missing, back), self.made.fresh(f"{near}/pads"), axis=0)
        self.made.add("Pad", (x, pads), near)

    def leave(self, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> None:
        """ReorderOutput: the channels of the model."""
        last, near = attrs.get("channels_last", 0), node.output[0]
        ends = (0, attrs["channels"], 1)
        places = [self.made.constant(f"{near}/number", np.array([v], np.int64)) for v in ends]
        cut = self.made.fresh(f"{near}/cut") if last else near
        x = self.made.add("Slice", (node.input[0], *places), cut)
        if last:
            self.made.add("Transpose", (x,), near, perm=_TO_BACK)

    def _after(self, op: str, x: str, near: str) -> str:
        return self.made.add(op, (x,), self.made.fresh(f"{near}/{op}"))


_OPERATORS: dict[str, Callable[[_Blocks, onnx.NodeProto, Mapping[str, Any]], None]] = {
    "Conv": _Blocks.convolution,
    "MaxPool": _Blocks.pool,
    "AveragePool": _Blocks.pool,
    "GlobalMaxPool": _Blocks.pool,
    "GlobalAveragePool": _Blocks.pool,
    "ReorderInput": _Blocks.enter,
    "ReorderOutput": _Blocks.leave,
}


def without_blocks(proto: onnx.ModelProto, payloads: Payloads, opset: int) -> None:
    """Replace operators in blocks, in place: all of a model, or none."""
    blocked = [g for g in graphs(proto.graph) if any(n.domain == BLOCKED for n in g.node)]
    size = channels_of_a_block() if blocked and opset >= _OPSET else 0
    try:
        made = [_Blocks(g, lambda t: constant(t, payloads).load(), size) for g in blocked] if size else []
        for each in made:
            each.replace()
    except _Unknown:
        return
    for each in made:
        each.made.put(each.graph, each.filters)
