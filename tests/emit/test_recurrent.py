"""Recurrent layers in function bodies: they load and run without the library, from every opset on that has a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxfuse
from tests.kernels.pool_host import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

# Exported as PyTorch does it: batch first, bidirectional, states cut from one tensor.
MODEL = """<ir_version: 8, opset_import: ["" : %d]>
recurrent (float[N, T, 6] x, float[4, N, 8] s) => (float[P, Q, R] y, float[A, B, C] last) {
  t = Transpose <perm = [1, 0, 2]> (x)
  from = Constant <value = int64[1] {2}> ()
  to = Constant <value = int64[1] {4}> ()
  axis = Constant <value = int64[1] {0}> ()
  begun = Slice (s, from, to, axis)
  %s
  u = Transpose <perm = [0, 2, 1, 3]> (a)
  sizes = Constant <value = int64[3] {0, 0, -1}> ()
  v = Reshape (u, sizes)
  z = Transpose <perm = [1, 0, 2]> (v)
  y = Relu (z)
}"""
ABOUT = 'hidden_size = 8, direction = "bidirectional"'
LAYERS = {
    "LSTM": (f"a, last, c = LSTM <{ABOUT}> (t, w, r, b, , begun, begun)", 4),
    "GRU": (f"a, last = GRU <{ABOUT}, linear_before_reset = 1> (t, w, r, b, , begun)", 3),
    "RNN": (f"a, last = RNN <{ABOUT}> (t, w, r, b, , begun)", 1),
}


def exported(op: str, opset: int) -> onnx.ModelProto:
    text, gates = LAYERS[op]
    proto = onnx.parser.parse_model(MODEL % (opset, text))
    rng = np.random.default_rng(5)
    for name, shape in (("w", (2, 8 * gates, 6)), ("r", (2, 8 * gates, 8)), ("b", (2, 16 * gates))):
        values = rng.normal(size=shape).astype(np.float32) / 3
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    return proto


@needs_compiler
@pytest.mark.parametrize("opset", [10, 14, 22])
@pytest.mark.parametrize("op", LAYERS)
def test_with_and_without_the_library_a_layer_gives_the_same(op: str, opset: int, tmp_path: Path) -> None:
    onnx.save(exported(op, opset), tmp_path / "m.onnx")
    made = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", min_group=1, gain=False, strict=True)
    assert made.kernels == 1
    sessions = [
        onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]),
        onnxruntime.InferenceSession(tmp_path / "o.onnx", providers=["CPUExecutionProvider"]),
        onnxfuse.session(tmp_path / "o.onnx"),
    ]
    rng = np.random.default_rng(0)
    for batch, steps in ((1, 1), (3, 5), (2, 40)):
        x, s = (rng.normal(size=shape).astype(np.float32) for shape in ((batch, steps, 6), (4, batch, 8)))
        wanted, *others = (session.run(None, {"x": x, "s": s}) for session in sessions)
        for got in others:
            for one, other in zip(wanted, got, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# As PyTorch exports packed sequences: lengths are an input of both layers, and last states are put in order again.
PACKED = """<ir_version: 8, opset_import: ["" : 17]>
packed (float[T, N, 6] x, int64[N] l, int64[M] order) => (float[T, P, N, 8] y, float[4, M, 8] ends) {
  i = Cast <to = 6> (l)
  a, one = GRU <hidden_size = 8, direction = "bidirectional", linear_before_reset = 1> (x, w, r, b, i)
  t = Transpose <perm = [0, 2, 1, 3]> (a)
  sizes = Constant <value = int64[3] {0, 0, 16}> ()
  v = Reshape (t, sizes)
  y, two = GRU <hidden_size = 8, direction = "bidirectional", linear_before_reset = 1> (v, u, r, b, i)
  both = Concat <axis = 0> (one, two)
  ends = Gather <axis = 1> (both, order)
}"""


@needs_compiler
def test_sequences_end_where_their_lengths_say(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(PACKED)
    proto.graph.initializer.extend(exported("GRU", 17).graph.initializer)
    u = np.random.default_rng(1).normal(size=(2, 24, 16)).astype(np.float32) / 3
    proto.graph.initializer.append(numpy_helper.from_array(u, "u"))
    onnx.save(proto, tmp_path / "m.onnx")
    made = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", min_group=1, gain=False, strict=True)
    assert "GRU" not in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node} and made.kernels > 0
    original = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    fused = onnxfuse.session(tmp_path / "o.onnx")
    rng = np.random.default_rng(0)
    for steps, lengths in ((1, [1]), (5, [3]), (5, [5, 0, 2]), (9, [9, 1, 4, 0, 7, 8, 2, 3, 6, 5, 9, 9, 1])):
        x = rng.normal(size=(steps, len(lengths), 6)).astype(np.float32)
        feed = {"x": x, "l": np.array(lengths), "order": rng.permutation(len(lengths))}
        for one, other in zip(original.run(None, feed), fused.run(None, feed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match="an index is out of range"):
        fused.run(None, {"x": x[:4, :2], "l": np.array([5, 1]), "order": np.array([1, 0])})
