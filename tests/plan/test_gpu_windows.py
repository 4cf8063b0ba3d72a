"""Which convolutions become kernels on a GPU: depthwise ones, where these are predicted to take no longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.backends import BACKENDS
from onnxfuse.config import Options
from onnxfuse.cost import Cost
from onnxfuse.ir.graph import Graph
from onnxfuse.ops.rows import ROWS
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.run import opened, run
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CUDA
from tests.rules.build import Build

GIVEN = Options(target="cuda", arch=("sm_90",), cuda_graph=True)


def convolved(op: str, channels: int, *shape: int, groups: int) -> Graph:
    """A convolution of weights of this shape, and two operators behind it."""
    b = Build(17)
    x, w = b.input("x", 1, channels, 28, 28), b.constant(np.ones((*shape, 3, 3), np.float32))
    y = b.node(op, x, w, group=groups, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return b.graph(b.node("Relu", b.node("Neg", y)))


@pytest.mark.parametrize(
    ("graph", "fused"),
    [
        (convolved("Conv", 32, 32, 1, groups=32), True),
        (convolved("Conv", 32, 64, 1, groups=32), True),
        (convolved("Conv", 32, 32, 4, groups=8), False),
        (convolved("Conv", 32, 32, 32, groups=1), False),
        (convolved("ConvTranspose", 32, 32, 1, groups=32), False),
    ],
    ids=["depthwise", "twice", "grouped", "full", "transposed"],
)
def test_a_convolution_of_each_channel_by_itself_is_in_a_kernel(graph: Graph, fused: bool) -> None:
    made = plan(graph, ROWS, GIVEN, legality=CUDA)
    (group,) = made.groups
    assert [n.op for n in group.nodes] == [*(["Conv"] if fused else []), "Neg", "Relu"]


@pytest.mark.parametrize(("before", "fused"), [(("Neg", "Relu"), True), (("Neg", "Sigmoid"), False)])
def test_what_costs_little_is_computed_again_before_a_window(before: tuple[str, ...], fused: bool) -> None:
    b = Build(17)
    x = b.input("x", 1, 32, 28, 28)
    for op in before:
        x = b.node(op, x)
    y = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    made = plan(b.graph(b.node("Neg", y)), ROWS, GIVEN, legality=CUDA)
    groups = [[n.op for n in g.nodes] for g in made.groups]
    assert groups == ([[*before, "MaxPool", "Neg"]] if fused else [[*before], ["MaxPool", "Neg"]])


def model() -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.ones((96, 1, 7, 7), "float32"), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 96, 56, 56]) for name in ("x", "y")]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=96, kernel_shape=[7, 7], pads=[3, 3, 3, 3]),
        *(helper.make_node(op, [a], [b]) for op, a, b in (("Exp", "c", "e"), ("Tanh", "e", "t"), ("Neg", "t", "y"))),
    ]
    graph = helper.make_graph(nodes, "depthwise", ends[:1], ends[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("factor", "fused"), [(1.0, True), (6.5, False)])
def test_it_is_one_only_where_that_is_predicted_to_be_faster(tmp_path: Path, factor: float, fused: bool) -> None:
    """Other kernels may be predicted five times as slow before they are given up."""
    row = BACKENDS["cuda"]
    onnx.save(model(), tmp_path / "m.onnx")

    def slower(*given: Any, **named: Any) -> Cost | None:
        cost = row.kernel_cost(*given, **named)
        return cost and replace(cost, phases=tuple(replace(p, seconds=factor * p.seconds) for p in cost.phases))

    calls = Calls(backends={**BACKENDS, "cuda": replace(row, kernel_cost=slower)})
    with opened(tmp_path / "m.onnx", replace(GIVEN, no_cache=True), calls, lambda what, facts: None) as context:
        b = run(context, calls, "render", lambda step, b: None)
    ops = [n.op for part in b.parts for n in part.group.nodes]
    assert ("Conv" in ops) == fused and "Tanh" in ops
    assert any(each.code == "E-COST" for each in b.refused) != fused
