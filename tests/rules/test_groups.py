"""GroupNormalization as exporters write it: between two Reshapes, with groups as channels."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.config import Options
from onnxfuse.emit.model import emit
from onnxfuse.ir.group import Plan
from onnxfuse.rewrite import rewrite
from tests.emit import plans
from tests.rules.build import Build, only, ops, rewritten, same
from tests.rules.test_affine import stays

RULE = "grouped-normalization"


def grouped(b: Build, groups: tuple[int, ...], have: tuple[int, ...] = (2, 4, 6, 6)) -> str:
    """Images of which a Reshape to `groups` makes the channels that are normalized."""
    scales = (b.weights(groups[1]), b.weights(groups[1]))
    normal = b.node("InstanceNormalization", b.node("Reshape", b.input("x", *have), b.ints(*groups)), *scales)
    return str(b.node("Reshape", normal, b.ints(*have)))


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize(
    ("groups", "op"),
    [((0, 2, -1), "Group"), ((0, 1, 4, 6, 6), "Group"), ((2, 2, 2, -1), "Group"), ((0, 4, -1), "Instance")],
)
def test_groups_of_channels_are_normalized_by_one_operator(groups: tuple[int, ...], op: str, opset: int) -> None:
    b = Build(opset)
    before = b.graph(grouped(b, groups))
    after, _ = rewritten(before, only(RULE))
    assert ops(after) == [f"{op}Normalization"]
    same(before, after, terms=144)


@pytest.mark.parametrize("groups", [(1, 2, -1), (1, 8, 6, 6), (4, 2, -1)])
def test_groups_across_images_stay(groups: tuple[int, ...]) -> None:
    b = Build(17)
    stays(b, grouped(b, groups), RULE)


def test_scales_by_channel_are_no_scales_by_group() -> None:
    b = Build(21)
    stays(b, grouped(b, (0, 2, -1)), RULE)


def test_what_stays_with_the_runtime_is_written_in_the_opset_of_the_model(tmp_path) -> None:
    """GroupNormalization is not in opset 17; what its row spells has names of its own and joins the nodes around."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,4,6,6] x) => (float[N,4,6,6] y) {
          g = Constant <value_ints = [0, 2, -1]> ()  i = Reshape(x, g)  n = InstanceNormalization(i, s, t)
          s4 = Shape(x)  t0 = Reshape(n, s4)  j = Relu(t0)
          i2 = Reshape(j, g)  n2 = InstanceNormalization(i2, s, t)  s5 = Shape(j)  y = Reshape(n2, s5) }"""
    proto = plans.model(text, {"s": plans.random(2), "t": plans.random(2, seed=1)})
    after, _ = rewrite(plans.graph_of(proto), Options())
    assert ops(after) == ["GroupNormalization", "Relu", "GroupNormalization"]
    written = plans.written(emit(Plan(after, ()), (), plans.LIBRARY), tmp_path / "m.onnx")
    assert {n.op_type for n in written.graph.node} >= {"InstanceNormalization", "Reshape", "Relu"}
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": np.asarray(plans.random(3, 4, 6, 6))})
