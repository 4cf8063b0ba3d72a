"""A recurrent layer takes what is moved around it into its group, and is in no other product's group."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.group import Plan
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CPU, CUDA, Legality

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
recurrent (float[%s] x) => (%s) {
  one = Constant <value = int64[1] {1}> ()
  %s
}"""
SHAPES = {
    "w": (1, 32, 8), "r": (1, 32, 8), "v": (1, 32, 8), "q": (1, 32, 8), "m": (8, 8), "w2": (2, 32, 8), "r2": (2, 32, 8),
}  # fmt: skip
STRATEGIES = ("anchors", "best", "priority", "dnnfusion", "stitch", "astitch", "nnvm")


def planned(
    text: str,
    legality: Legality[Any] = CPU,
    *,
    outputs: str = "float[A, B, C] y",
    shape: str = "4, 7, 8",
    **options: Any,
) -> Plan:
    proto = onnx.parser.parse_model(MODEL % (shape, outputs, text))
    for name, size in SHAPES.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(size, np.float32), name))
    chosen = Options(min_group=1, **options)
    return plan(load(proto.SerializeToString(), chosen), ROWS, chosen, legality=legality)


def ops(plan: Plan) -> list[tuple[str, ...]]:
    return [tuple(n.op for n in g.nodes) for g in plan.groups]


@pytest.mark.parametrize("shape", ["4, 7, 8", "N, T, 8"])
def test_transposes_and_squeezes_around_a_layer_are_in_its_kernel(shape: str) -> None:
    made = planned(
        """t = Transpose <perm = [1, 0, 2]> (x)
        a = LSTM <hidden_size = 8> (t, w, r)
        s = Squeeze (a, one)
        y = Transpose <perm = [1, 0, 2]> (s)""",
        shape=shape,
    )
    assert ops(made) == [("Transpose", "LSTM", "Squeeze", "Transpose")]


def test_directions_are_put_beside_each_other_in_the_kernel() -> None:
    made = planned(
        """a = LSTM <hidden_size = 8, direction = "bidirectional"> (x, w2, r2)
        t = Transpose <perm = [0, 2, 1, 3]> (a)
        sizes = Constant <value = int64[3] {0, 0, -1}> ()
        y = Reshape (t, sizes)"""
    )
    assert ops(made) == [("LSTM", "Transpose", "Reshape")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_layer_is_in_the_group_of_no_other_product(strategy: str) -> None:
    made = planned(
        """p = MatMul (x, m)
        a = LSTM <hidden_size = 8> (p, w, r)
        s = Squeeze (a, one)
        b = LSTM <hidden_size = 8> (s, v, q)
        u = Squeeze (b, one)
        z = MatMul (u, m)
        y = Softmax (z)""",
        strategy=strategy,
    )
    heavy = [[n.op for n in g.nodes if n.op in ("MatMul", "LSTM", "Softmax")] for g in made.groups]
    assert [h for h in heavy if "LSTM" in h] == [["LSTM"], ["LSTM"]]


def test_the_gpu_leaves_layers_to_the_runtime_and_says_so() -> None:
    made = planned(
        """t = Relu (x)
        a = LSTM <hidden_size = 8> (t, w, r)
        y = Squeeze (a, one)""",
        CUDA,
        target="cuda",
        arch=("sm_90",),
    )
    assert all(n.op != "LSTM" for g in made.groups for n in g.nodes)
    assert any(d.code.startswith("E-") and "LSTM" in d.reason for d in made.decisions)
