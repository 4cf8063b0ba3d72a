"""Windows between convolutions: which join them by strips of lines, and the reasons for those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxfuse import optimize, session
from onnxfuse.config import Options
from onnxfuse.ir.group import Plan
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CPU
from onnxfuse.target import CPUS, Cpu

BLOCK = """<ir_version: 8, opset_import: ["" : 17]>
block (float[{images}, {depth}, {side}, {side}] x) => (float[{images}, 24, P, Q] y{more}) {{
  a = Conv (x, w) b = Relu (a)
  c = Conv <group = {channels}, strides = [{stride}, {stride}], pads = [1, 1, 1, 1]> (b, v) d = Relu (c)
  e = Conv (d, u) {tail} }}"""
SLOW = CPUS["sapphirerapids"]  # what is behind L2 is much slower than L2
FAST = replace(SLOW, l3_gbps=200.0, barrier_us=0.0, dispatch_us=0.0)


def planned(
    side: int | str, channels: int = 96, stride: int = 2, more: str = "", tail: str = "y = Relu (e)",
    depth: int = 16, target: Cpu = SLOW, images: int | str = 1, **options: str,
) -> Plan:  # fmt: skip
    proto = onnx.parser.parse_model(
        BLOCK.format(side=side, channels=channels, stride=stride, more=more, tail=tail, depth=depth, images=images)
    )
    for name, shape in (("w", (channels, depth, 1, 1)), ("v", (channels, 1, 3, 3)), ("u", (24, channels, 1, 1))):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    legality = replace(CPU, targets=lambda archs: (target,))
    return plan(load(proto.SerializeToString(), Options()), ROWS, Options(**options), legality=legality)


def sizes(p: Plan) -> list[int]:
    """Nodes of each group."""
    return [len(g.nodes) for g in p.groups]


@pytest.mark.parametrize(("side", "stride"), [(112, 2), (112, 1), (84, 2)])
def test_large_images_go_by_strips(side: int, stride: int) -> None:
    assert sizes(planned(side, stride=stride)) == [6]


@pytest.mark.parametrize(("side", "channels", "depth"), [(7, 960, 160), (14, 576, 96), (14, 480, 112)])
def test_images_that_stay_in_the_cores_caches_do_not(side: int, channels: int, depth: int) -> None:
    """If computing a line twice takes longer than a kernel call: that is what small ones save."""
    assert sizes(planned(side, 24, depth=16)) == [6]
    made = planned(side, channels, depth=depth, stride=1)
    assert sizes(made) == [2, 2, 2]
    assert any(d.code == "E-COST" and "by strips of lines" in d.reason for d in made.decisions)


def test_any_number_of_large_images_does() -> None:
    assert sizes(planned(112, images="N")) == [6]
    assert sizes(planned(14, 576, depth=96, stride=1, images="N")) == [2, 2, 2]


def test_nor_do_large_ones_where_the_shared_cache_is_fast() -> None:
    assert sizes(planned(112, stride=1, target=FAST)) == [2, 2, 2]
    assert sizes(planned(112, stride=1)) == [6]


def test_an_image_with_other_readers_is_stored() -> None:
    assert sizes(planned(112, more=", float[1, 96, 112, 112] b")) == [2, 2, 2]


def test_a_result_of_the_window_with_other_readers_is_an_output() -> None:
    made = planned(112, more=", float[1, 96, 56, 56] d")
    assert sizes(made) == [4, 2]
    assert made.groups[0].outputs == ("d",)


@pytest.mark.parametrize(("side", "options"), [("H", {}), (112, {"precision": "bf16"})])
def test_sizes_are_known_and_weights_are_float32(side: int | str, options: dict[str, str]) -> None:
    assert sizes(planned(side, **options)) == [2, 2, 2]


def test_the_mean_of_a_window_is_in_its_kernel() -> None:
    """Of squeeze and excitation: it was in the kernel of the window, whose result is an output all the same."""
    tail = "y = Relu (e) g = ReduceMean <axes = [2, 3]> (d) z = Relu (g)"
    made = planned(112, more=", float[1, 96, 1, 1] z", tail=tail)
    assert [[n.op for n in g.nodes] for g in made.groups] == [
        ["Conv", "Relu", "Conv", "Relu", "ReduceMean", "Relu"], ["Conv", "Relu"]
    ]  # fmt: skip


def test_a_mean_after_the_last_convolution_is_not() -> None:
    made = planned(112, more=", float[1, 24, 1, 1] z", tail="y = Relu (e) z = ReduceMean <axes = [2, 3]> (y)")
    assert [n.op for n in made.groups[0].nodes] == ["Conv", "Relu"] * 3


POOLED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 3, {side}, {side}] x) => (float[1, 8, P, Q] y{more}) {{
  a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu (a)
  c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
  e = Conv (c, u) y = Relu (e) }}"""


def pooled(side: int | str, more: str = "") -> onnx.ModelProto:
    proto = onnx.parser.parse_model(POOLED.format(side=side, more=more))
    rng = np.random.default_rng(0)
    for name, shape in (("w", (16, 3, 3, 3)), ("u", (8, 16, 1, 1))):
        values = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    return proto


@pytest.mark.parametrize("side", [7, 32, "H"])
def test_a_pool_joins_the_convolution_that_makes_its_image(side: int | str) -> None:
    """A phase of the same kernel saves a call; a convolution behind it joins only where all three go by strips."""
    legality = replace(CPU, targets=lambda archs: (FAST,))
    made = plan(load(pooled(side).SerializeToString(), Options()), ROWS, Options(), legality=legality)
    assert [[n.op for n in g.nodes] for g in made.groups] == [["Conv", "Relu", "MaxPool"], ["Conv", "Relu"]]


def test_an_image_that_others_read_too_is_not_pooled_in_its_kernel() -> None:
    made = plan(load(pooled(32, ", float[1, 16, 32, 32] b").SerializeToString(), Options()), ROWS, Options())
    assert ["Conv", "Relu", "MaxPool"] not in [[n.op for n in g.nodes] for g in made.groups]


@pytest.mark.parametrize("mean", ["GlobalAveragePool (d)", "ReduceMean <axes = [2, 3]> (d)"])
def test_a_pool_of_whole_images_joins_as_a_mean_does(mean: str) -> None:
    """Of squeeze and excitation behind a depthwise convolution, whose result has other readers."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 16, 9, 9] x) => (float[1, 16, 9, 9] d, float[1, 16, 1, 1] y) {{
      c = Conv <group = 16, pads = [1, 1, 1, 1]> (x, v) d = Relu (c) y = {mean} }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((16, 1, 3, 3), np.float32), "v"))
    made = plan(load(proto.SerializeToString(), Options()), ROWS, Options())
    assert [[n.op for n in g.nodes] for g in made.groups] == [["Conv", "Relu", mean.split()[0]]]


@pytest.mark.parametrize("side", [7, 32])
def test_a_pool_in_a_kernel_gives_what_the_runtime_gives(side: int, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(pooled(side), model)
    result = optimize(model, tmp_path / "fused.onnx", gain=False)
    assert list(result.groups[0].ops)[:3] == ["Conv", "Relu", "MaxPool"]
    assert result.output is not None
    x = np.random.default_rng(1).standard_normal((1, 3, side, side)).astype(np.float32)
    wanted = ort.InferenceSession(str(model)).run(None, {"x": x})[0]
    found = session(result.output.model).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
