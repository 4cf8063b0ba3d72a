"""Quantized images with the channels last: operators of the runtime for these, as others between two Transposes.

Those between two operators are each other's inverse, and vanish when the graph is rewritten.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from onnxfuse.load.saved.instead import Instead
from onnxfuse.runtime.graphs import graphs

_DOMAIN = "com.microsoft"
# What an operator is between Transposes, and its domain; those of a rank that nothing in the model tells have two axes
# besides batch and channels.
_BETWEEN = {
    "QLinearConv": ("QLinearConv", ""),
    "NhwcMaxPool": ("MaxPool", ""),
    "QLinearAveragePool": ("QLinearAveragePool", _DOMAIN),
    "QLinearGlobalAveragePool": ("QLinearGlobalAveragePool", _DOMAIN),
}
_LAST = ("NhwcMaxPool",)  # which has no attribute that says so
_AXES = 2


def channels_second(graph: onnx.GraphProto) -> None:
    """Put Transposes around operators on images with the channels last, in place; and take others as those of ONNX."""
    for each in graphs(graph):
        made = Instead(each)
        for node in each.node:
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            last = attrs.pop("channels_last", 0) or node.op_type in _LAST
            if node.domain == _DOMAIN and node.op_type in _BETWEEN and (last or node.op_type == "QLinearConv"):
                _put(made, node, attrs, last=bool(last))
            else:
                made.nodes.append(node)
        made.put(each)


def _put(made: Instead, node: onnx.NodeProto, attrs: dict[str, Any], *, last: bool) -> None:
    op, domain = _BETWEEN[node.op_type]
    axes = tuple(range(2, 2 + (len(attrs.get("kernel_shape", ())) or _AXES)))
    near, x, out = node.output[0], node.input[0], node.output[0]
    if last:
        x = made.add("Transpose", (x,), made.fresh(f"{near}/second"), perm=(0, axes[-1], *(a - 1 for a in axes)))
        out = made.fresh(f"{near}/{op}")
    made.add(op, (x, *node.input[1:]), out, domain=domain, **attrs)
    if last:
        made.add("Transpose", (out,), near, perm=(0, *axes, 1))
