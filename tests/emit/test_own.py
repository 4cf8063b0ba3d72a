"""Bodies of ONNX Runtime's own operators run without the library: as they are, or spelled in standard operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, TensorShapeProto, helper

from tests.emit import plans
from tests.ops import cases_attention, cases_contrib, cases_normalization, cases_quantized
from tests.ops.case import Case, feeds, model, ours

OWN_NORMS = [c for c in cases_normalization.CASES if c.op.endswith("LayerNormalization") and "onnx" in c.wrong]
CODES = [c for c in cases_quantized.CASES if c.op.startswith(cases_contrib.M)]
OWN = (*cases_contrib.CASES, *cases_attention.CASES, *OWN_NORMS, *CODES)
CASES = [c for c in OWN if c.opset < 17 or c.op != "LayerNormalization"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_body_computes_what_the_operator_does(case: Case, tmp_path: Path) -> None:
    made = ours(case)
    proto = model(case, [y.dtype for y in made])
    for value, y in zip(proto.graph.output, made, strict=True):
        value.type.tensor_type.shape.dim.extend(TensorShapeProto.Dimension(dim_value=e) for e in y.shape)
    written = plans.written(plans.fused(proto, ["y0"]), tmp_path / "m.onnx", full=False)
    assert [f.domain for f in written.functions] == [plans.DOMAIN]
    inside = {(n.domain, n.op_type) for n in written.functions[0].node}
    assert (case.spelled in inside) == (case.spelled[0] == "com.microsoft")
    plans.assert_same(proto, tmp_path / "m.onnx", feeds(case), 1e-5)


def test_a_model_that_states_no_opset_gets_the_one_that_its_kernels_are_written_in(tmp_path: Path) -> None:
    own = helper.make_node("FastGelu", ["x"], ["t"], domain="com.microsoft")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = helper.make_graph([own, helper.make_node("Relu", ["t"], ["y"])], "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    written = plans.written(plans.fused(proto, ["t y"]), tmp_path / "m.onnx", full=False)
    assert {o.domain: o.version for o in written.opset_import} == {"": 21, "com.microsoft": 1, plans.DOMAIN: 1}
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": plans.random(2, 3)})
