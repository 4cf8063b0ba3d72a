"""Bodies of ONNX Runtime's own operators run without the library: as they are, or spelled in standard operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorShapeProto

from tests.emit import plans
from tests.ops import cases_normalization, cases_own
from tests.ops.case import Case, feeds, model, ours

OWN_NORMS = [c for c in cases_normalization.CASES if c.op.endswith("LayerNormalization") and "onnx" in c.wrong]
CASES = [c for c in (*cases_own.CASES, *OWN_NORMS) if c.opset < 17 or c.op != "LayerNormalization"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_body_computes_what_the_operator_does(case: Case, tmp_path: Path) -> None:
    made = ours(case)
    proto = model(case, [y.dtype for y in made])
    for value, y in zip(proto.graph.output, made, strict=True):
        value.type.tensor_type.shape.dim.extend(TensorShapeProto.Dimension(dim_value=e) for e in y.shape)
    written = plans.written(plans.fused(proto, ["y0"]), tmp_path / "m.onnx", full=False)
    assert [f.domain for f in written.functions] == [plans.DOMAIN]
    inside = {(n.domain, n.op_type) for n in written.functions[0].node}
    assert (case.spelled in inside) == (case.spelled[0] != "")
    plans.assert_same(proto, tmp_path / "m.onnx", feeds(case), 1e-5)
