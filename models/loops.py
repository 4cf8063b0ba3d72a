"""Bodies of loops: small elementwise operators, where the overhead of calls dominates, and cells that carry weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper, parser

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


STEPS = 50
HIDDEN = (1, 7, 16, 48, 64, 128)


def cell(hidden: int) -> onnx.ModelProto:
    """A recurrent layer of STEPS steps as exporters of TensorFlow write it: its weights are carried on unchanged."""
    h, rng = hidden, np.random.default_rng(0)
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[{STEPS}, 1, {h}] x) => (float[1, {h}] y) <int64 steps = {{{STEPS}}}, bool go = {{1}}>
        {{ y, w_last, u_last, b_last = Loop(steps, go, zeros, w, u, b) <body = c
          (int64 i, bool on, float[1, {h}] s, float[{h}, {h}] v, float[{h}, {h}] t, float[{h}] c)
          => (bool on_next, float[1, {h}] s_next, float[{h}, {h}] v_next, float[{h}, {h}] t_next, float[{h}] c_next)
          {{ on_next = Identity(on) v_next = Identity(v) t_next = Identity(t) c_next = Identity(c) x_i = Gather(x, i)
             p = MatMul(x_i, v) q = MatMul(s, t) r = Add(p, q) a = Add(r, c) s_next = Tanh(a) }}> }}"""
    )
    for name, shape in (("zeros", (1, h)), ("w", (h, h)), ("u", (h, h)), ("b", (h,))):
        values = rng.standard_normal(shape) / h**0.5 * (name != "zeros")
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return model
