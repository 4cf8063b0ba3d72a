"""Usual sizes of what a model leaves open."""

from __future__ import annotations

import onnx.parser
import pytest

from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.plan.sizes import signal_dims, signal_sizes, sizes_at

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


@pytest.mark.parametrize(
    ("inputs", "body", "found"),
    [
        ("float[b, 1, n] x", "y = MaxPool <kernel_shape = [400], strides = [160]> (x)", {"n": 128 * 160}),
        ("float[b, 1, n] x", "a = MaxPool <kernel_shape = [16], strides = [16]> (x)"
         " y = MaxPool <kernel_shape = [8], strides = [20]> (a)", {"n": 128 * 320}),
        ("float[b, 1, n] x", "y = MaxPool <kernel_shape = [4096], strides = [4096]> (x)", {"n": 1 << 16}),
        ("float[b, 1, n] x", "y = MaxPool <kernel_shape = [2], strides = [2]> (x)", {}),
        ("float[b, n, c] x", "y = Relu (x)", {}),
        ("int32[b, 1, n] x", "a = Cast <to = 1> (x)  y = MaxPool <kernel_shape = [400], strides = [160]> (a)", {}),
        ("float[b, 3, h, w] x", "y = MaxPool <kernel_shape = [64, 64], strides = [64, 64]> (x)", {}),
        ("float[b, h, w] x", "o = Constant <value = int64[1] {1}> () a = Unsqueeze (x, o)"
         " y = MaxPool <kernel_shape = [64, 64], strides = [64, 64]> (a)", {}),
    ],
)  # fmt: skip
def test_signals_have_a_usual_number_of_frames(inputs: str, body: str, found: dict[str, int]) -> None:
    made = onnx.parser.parse_model(f"{HEAD}g ({inputs}) => (float y) {{ {body} }}")
    made.graph.output[0].type.tensor_type.ClearField("shape")
    graph = load(made.SerializeToString(), Options())
    assert signal_sizes(graph) == found
    usual = {s: 1 if s == "b" else 128 for s in ("b", "n", "c", "h", "w") if s in inputs.partition("[")[2]}
    assert sizes_at([graph], {}, {}) == usual | found


def test_dimensions_without_names_are_told_by_input_and_axis() -> None:
    body = "y = MaxPool <kernel_shape = [400], strides = [160]> (x)"
    made = onnx.parser.parse_model(f"{HEAD}g (float[b, 1, n] x) => (float[b, 1, m] y) {{ {body} }}")
    for dim in made.graph.input[0].type.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    assert signal_dims(load(made.SerializeToString(), Options())) == {"x.2": 128 * 160}
