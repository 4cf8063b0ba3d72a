"""Small elementwise operators in bodies of loops, where the overhead of calls dominates."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import parser

ROUNDS = 200
ELEMENTS = (1, 4, 16, 64, 256, 4096)
_SCALARS = "float k = {0.5}, float z = {0.999}"
# By name: the element type, the body from h to h_next, its constants.
BODIES: Mapping[str, tuple[str, str, str]] = {
    "multiply-add": ("float", "t = Mul(h, z) h_next = Add(t, k)", _SCALARS),
    "double": ("double", "t = Mul(h, z) h_next = Add(t, k)", "double k = {0.5}, double z = {0.999}"),
    "integers": ("int64", "t = Mul(h, z) h_next = Sub(t, k)", "int64 k = {5}, int64 z = {3}"),
    "division": ("int64", "t = Div(h, z) h_next = Sub(t, k)", "int64 k = {5}, int64 z = {3}"),
    "tanh": ("float", "t = Tanh(h) h_next = Add(t, k)", _SCALARS),
    "mask": ("float", "g = Greater(h, k) d = Cast<to = 1>(g) h_next = Mul(d, h)", _SCALARS),
    "mean": ("float", "t = ReduceSum(h, last) h_next = Sub(h, t)", "int64[1] last = {1}"),
    "softmax": ("float", "t = Softmax(h) h_next = Add(t, k)", _SCALARS),
}


def model(name: str, elements: int) -> onnx.ModelProto:
    """A loop of ROUNDS over one body."""
    dtype, body, constants = BODIES[name]
    shape = f"{dtype}[1, {elements}]"
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g ({shape} x) => ({shape} y) <int64 rounds = {{{ROUNDS}}}, bool go = {{1}}>
        {{ y = Loop(rounds, go, x) <body = b (int64 i, bool on, {shape} h) => (bool on_next, {shape} h_next)
          <{constants}> {{ on_next = Identity(on) {body} }}> }}"""
    )
