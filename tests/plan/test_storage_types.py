"""Values between kernels with a narrower storage type: which they are, and what reads and stores them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import BF16, F32
from onnxfuse.ir.group import Plan
from onnxfuse.load import load
from onnxfuse.lower import Lowered, lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CPU
from onnxfuse.target import CPUS

TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
m (float[64, 96] x) => (float[64, 96] y, float[64, 96] b, int64[2, n] odd) {
  a = MatMul (x, w)
  b = MatMul (a, w)
  c = MatMul (b, w)
  s = Softmax <axis = -1> (c)
  odd = NonZero (s)
  d = MatMul (s, w)
  y = MatMul (d, w)
}
"""


def planned(*extras: tuple[str, ...], precision: str = "bf16") -> Plan:
    rows = tuple(replace(CPUS["x86-64-v4"], extras=each) for each in extras)
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((96, 96), np.float32), "w"))
    options = Options(precision=precision, min_group=1)
    legality = replace(CPU, targets=lambda archs: rows)
    return plan(load(proto.SerializeToString(), Options()), ROWS, options, legality=legality)


def test_values_between_kernels_have_a_narrower_storage_type() -> None:
    """Not b, which is an output of the model, nor s, which the runtime reads."""
    made = planned(("avx512bf16",))
    assert made.storage_types == {"a": BF16, "d": BF16}  # c stays in its kernel


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rows_of_products_have_no_other_type_elsewhere(precision: str) -> None:
    assert not planned(("avx512bf16",), precision=precision).storage_types
    assert not planned(("avx512bf16",), ()).storage_types  # another target of the library has no such rows


def test_readers_widen_and_makers_round() -> None:
    made = planned(("avx512bf16",))
    for group in made.groups:
        lowered = lower(group, made, ROWS)
        assert isinstance(lowered, Lowered)
        for d in lowered.definitions:
            assert d.value.dtype == made.storage_types.get(d.name, F32)
            assert all(x.dtype == made.storage_types.get(x.source, F32) for x in loads(d.value))
        assert {v: t.dtype for v, t in lowered.types.items() if t.dtype != F32} == {
            v: BF16 for v in lowered.types if v in made.storage_types
        }
