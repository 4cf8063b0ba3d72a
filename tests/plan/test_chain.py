"""Consecutive contractions: which are fused, and the reasons for those that are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.group import Plan
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CPU
from onnxfuse.target import CPUS, Cpu

MLP = """<ir_version: 8, opset_import: ["" : 17]>
mlp (float[{rows}, {k}] x) => (float[{rows}, {n}] y) {{
  a = MatMul (x, w) b = Relu (a) c = MatMul (b, u) y = Relu (c) }}"""


V4 = CPUS["x86-64-v4"]
NO_SHARED_CACHE = replace(V4, l3_bytes=0)  # weights come from memory


def planned(rows: int | str, k: int, middle: int, n: int, target: Cpu = NO_SHARED_CACHE, **options: str) -> Plan:
    proto = onnx.parser.parse_model(MLP.format(rows=rows, k=k, n=n))
    for name, shape in (("w", (k, middle)), ("u", (middle, n))):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    legality = replace(CPU, targets=lambda archs: (target,))
    return plan(load(proto.SerializeToString(), Options()), ROWS, Options(**options), legality=legality)


def codes(p: Plan) -> set[str]:
    return {d.code for d in p.decisions}


@pytest.mark.parametrize(
    ("rows", "k", "middle", "n"), [(128, 128, 512, 128), (64, 8, 8, 8), (200, 64, 640, 33), (1000, 31, 131, 17)]
)
def test_products_of_the_same_rows_join(rows: int, k: int, middle: int, n: int) -> None:
    (group,) = planned(rows, k, middle, n).groups
    assert [node.op for node in group.nodes] == ["MatMul", "Relu", "MatMul", "Relu"]


@pytest.mark.parametrize(
    ("rows", "k", "middle", "n", "why"),
    [
        (63, 128, 512, 128, "63 rows would leave cores idle"),
        ("M", 128, 512, 128, "is considered for static sizes only"),
        (3000, 96, 384, 96, "for each block of rows: the input of MatMul has 4500 KB"),
        (128, 768, 1000, 768, "every core would read 6000 KB of weights"),
    ],
)
def test_what_costs_more_than_it_saves(rows: int | str, k: int, middle: int, n: int, why: str) -> None:
    made = planned(rows, k, middle, n)
    assert all(len([m for m in g.nodes if m.op == "MatMul"]) < 2 for g in made.groups)
    assert any(d.code == "E-COST" and why in d.reason for d in made.decisions), made.decisions


def test_not_with_16_bit_weights_or_without_fusion() -> None:
    assert codes(planned(128, 128, 512, 128, precision="bf16")) == {"E-COST"}
    assert len(planned(128, 128, 512, 128, strategy="none").groups) != 1


def test_not_where_all_weights_stay_in_the_shared_cache() -> None:
    made = planned(128, 128, 512, 128, V4)
    assert len(made.groups) == 2
    assert "512 KB of weights stay in the shared cache" in made.decisions[0].reason
