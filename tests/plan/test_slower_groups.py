"""Groups that are predicted much slower than the runtime's nodes are refused, with both times; the others stay."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from models.classes import CLASSES
from onnxfuse import optimize
from onnxfuse.backends import BACKENDS
from onnxfuse.backends.cpu import BACKEND as CPU
from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.pipeline import slower_groups
from onnxfuse.plan.kinds import convolves_variables
from onnxfuse.report.result import Result

TWO = """<ir_version: 9, opset_import: ["" : 17]>
g (float[{n}, 512] x) => (float[{n}, 512] y)
{{ a = Exp(x) b = Add(a, x) c = Tanh(b) y = Abs(c) }}"""
IMAGES = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 32, 40, 40] x) => (float[1, 32, 40, 40] y)
{ a = Conv<pads = [1, 1, 1, 1]>(x, v) b = Relu(a) c = Conv<pads = [2, 2, 2, 2]>(b, w) d = Relu(c)
  e = Conv<pads = [1, 1, 1, 1]>(d, u) y = Relu(e) }"""
WEIGHTS = {"v": (128, 32, 3, 3), "w": (256, 128, 5, 5), "u": (32, 256, 3, 3)}
VARIABLE = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 3, 224, 224] x, float[64, 3, 7, 7] w) => (float[1, 64, 112, 112] y)
{ a = Conv<pads = [3, 3, 3, 3], strides = [2, 2]>(x, w) y = Relu(a) }"""

DETECTOR = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 3, 96, 96] x, float[12] s, float[12] b, float[12] m, float[12] v) => (float[1, 12, 96, 96] y)
{ a = Conv<pads = [1, 1, 1, 1]>(x, w) n = BatchNormalization(a, s, b, m, v) y = Relu(n) }"""


SPATIAL_PYRAMID = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N, 64, H, W] x) => (float[N, 64, H, W] y)
{
  a = Conv(x, w) b = Relu(a) c = MaxPool<kernel_shape = [5, 5], pads = [2, 2, 2, 2]>(b)
  d = Concat<axis = 1>(b, c) e = Conv(d, v) y = Relu(e)
}"""
POOLED = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 8, 112, 112] x) => (float[1, 8, 56, 56] y)
{ a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b) }"""


def saved(folder: Path, text: str, **weights: tuple[int, ...]) -> Path:
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def planned(path: Path, **options: Any) -> Result:
    """A plan by fixed rules: what prices decide, `best` leaves before any group is refused."""
    return optimize(path, dry_run=True, strict=True, strategy="anchors", **options)


def fast(monkeypatch: pytest.MonkeyPatch, value: str, above: int = 0) -> None:
    """Plants a runtime that takes no time for nodes of which one makes this value of more elements than that."""
    real = CPU.group_seconds

    def seconds(nodes: Any, tensors: Any, *rest: Any) -> float:
        planted = value in [o for n in nodes for o in n.outputs] and tensors[value].elements > above
        return 1e-9 if planted else real(nodes, tensors, *rest)

    monkeypatch.setitem(cast("dict[str, Any]", BACKENDS), "cpu", replace(CPU, group_seconds=seconds))


def refusals(result: Result) -> list[str]:
    return [r.reason for r in result.refusals if "predicted to take" in r.reason]


def test_what_is_predicted_slow_stays_with_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(tmp_path, TWO.format(n=512))
    assert len(planned(path).groups) == 1
    fast(monkeypatch, "y")
    after = planned(path)
    assert not after.groups
    (refusal,) = [r for r in after.refusals if "predicted to take" in r.reason]
    assert refusal.code == "E-COST"
    assert refusal.reason.startswith("Exp, Add, Tanh, Abs: ")
    assert refusal.reason.endswith("us as a kernel, 0.001 us in ONNX Runtime")
    assert refusal.unlock == "--min-group 1 makes a kernel of it"


def test_the_named_flag_fuses_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fast(monkeypatch, "y")
    assert len(planned(saved(tmp_path, TWO.format(n=512)), min_group=1).groups) == 1


def test_what_wins_at_one_size_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(tmp_path, TWO.format(n="N").replace("512", "N"))
    fast(monkeypatch, "y", above=128 * 128)
    assert not refusals(planned(path))


def test_losses_of_microseconds_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fast(monkeypatch, "y")
    assert not refusals(planned(saved(tmp_path, TWO.format(n=1))))


def test_the_rest_of_a_network_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only the one in the middle is refused, with what the runtime takes into it."""
    path = saved(tmp_path, IMAGES, **WEIGHTS)
    assert len(planned(path).groups) == 3
    fast(monkeypatch, "d")
    after = planned(path)
    assert [g.ops for g in after.groups] == [("Conv", "Relu"), ("Conv", "Relu")]
    assert len(refusals(after)) == 1


def test_a_shared_layout_speaks_for_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its neighbours would have to turn their images round: that counts with the runtime's time."""
    found: list[slower_groups.Times] = []
    real = slower_groups._Predictor._times

    def times(self: Any, part: Any, sizes: Any) -> Any:
        for each in real(self, part, sizes):
            found.append(each)
            yield each

    monkeypatch.setattr(slower_groups._Predictor, "_times", times)
    planned(saved(tmp_path, IMAGES, **WEIGHTS))
    assert found
    assert all(each.transposing > 0 for each in found)
    turned = slower_groups.Times(kernel=9e-3, runtime=1e-3, transposing=2e-3)
    assert turned.ratio == pytest.approx(3)


def test_a_pool_beside_a_kernel_is_one_if_it_is_predicted_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(tmp_path, POOLED, w=(8, 8, 3, 3))
    assert [g.ops for g in planned(path).groups] == [("Conv", "Relu"), ("MaxPool",)]
    fast(monkeypatch, "y")
    after = planned(path)
    assert [g.ops for g in after.groups] == [("Conv", "Relu")]
    assert [r.startswith("MaxPool: ") for r in refusals(after)] == [True]


def test_a_pool_of_open_size_is_a_kernel_unless_it_loses_in_half_of_the_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = saved(tmp_path, SPATIAL_PYRAMID, w=(64, 64, 1, 1), v=(64, 128, 1, 1))
    ratios: list[float] = []
    real = slower_groups._Predictor._times

    def times(self: Any, part: Any, sizes: Any) -> Any:
        for each in real(self, part, sizes):
            if part.group.nodes[0].op == "MaxPool":
                ratios.append(each.ratio)
            yield each

    monkeypatch.setattr(slower_groups._Predictor, "_times", times)
    assert ("MaxPool",) in [g.ops for g in planned(path).groups]
    losing = sum(r > slower_groups.EVEN for r in ratios)
    assert 0 <= losing < len(ratios) / 2  # how many, the machine decides
    monkeypatch.setattr(slower_groups, "EVEN", min(ratios) / 2)
    assert ("MaxPool",) not in [g.ops for g in planned(path).groups]


def test_explain_shows_both_times(tmp_path: Path):
    (first, *_) = planned(saved(tmp_path, TWO.format(n=512))).groups
    assert first.runtime_ms is not None
    assert first.predicted_ms is not None
    assert 0 < first.predicted_ms < first.runtime_ms


def test_a_group_measured_four_times_slower_is_refused(tmp_path: Path):
    """Weights that are no constants are laid out anew in every run: measured 4 times as long as in the runtime."""
    path = saved(tmp_path, VARIABLE)
    after = planned(path)
    assert refusals(after)
    assert not after.groups
    assert len(planned(path, min_group=1).groups) == 1


def test_a_convolution_by_variable_weights_that_is_predicted_slower_stays(tmp_path: Path):
    """Slower by any factor: a whole network of them ran half as fast. Called constants, they are kernels again."""
    path = saved(tmp_path, DETECTOR, w=(12, 3, 3, 3))
    model = onnx.load(path)
    model.graph.input.extend([onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, (12, 3, 3, 3))])
    onnx.save(model, path)
    after = planned(path)
    assert [g.ops for g in after.groups] == [("BatchNormalization", "Relu")]
    (refusal,) = [r for r in after.refusals if "predicted to take" in r.reason]
    assert refusal.reason.startswith("Conv, BatchNormalization, Relu: ")
    constant = planned(path, constant_initializers=True)
    assert [g.ops for g in constant.groups] == [("Conv", "BatchNormalization", "Relu")]


@pytest.mark.parametrize(
    ("shape", "attribute"), [("12, 3, 3, 3", ""), ("3, 1, 3, 3", "group = 3, ")], ids=["dense", "depthwise"]
)
def test_which_convolutions_have_variable_weights(shape: str, attribute: str):
    """Constant biases do not make weights constant."""
    count = shape.partition(",")[0]
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[1, 3, 9, 9] x, float[{shape}] w) => (float[1, {count}, 9, 9] y, float[1, {count}, 9, 9] z) {{
      y = Conv<{attribute}pads = [1, 1, 1, 1]>(x, w, b) z = Conv<{attribute}pads = [1, 1, 1, 1]>(x, k, b) }}"""
    model = parser.parse_model(text)
    for name, extents in (("b", (int(count),)), ("k", tuple(map(int, shape.split(","))))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(extents, np.float32), name))
    graph = load(model.SerializeToString(), Options())
    assert [convolves_variables(graph, n, ROWS) for n in graph.nodes] == [True, False]


def test_a_slow_group_stays_and_its_neighbours_are_built(tmp_path: Path):
    """By prediction alone: the weights of the first convolution are laid out anew in every run, the rest pays."""
    behind = "b = Relu(a) c = Conv<pads = [3, 3, 3, 3], group = 64>(b, v) y = Tanh(c) }"
    text = VARIABLE.replace("y = Relu(a) }", behind)
    after = planned(saved(tmp_path, text, v=(64, 1, 7, 7)), gain=False)
    assert [g.ops for g in after.groups] == [("Conv", "Tanh")]
    (refusal,) = [r for r in after.refusals if "predicted to take" in r.reason]
    assert refusal.reason.startswith("Conv, Relu: ")


def test_profitable_classes_of_operators_are_built(tmp_path: Path):
    """What scans and convolutions between nodes of the runtime gain is not lost by prediction."""
    classes = ("running-lines", "running-columns", "convolution", "pool-before", "depthwise 7x7", "upwards", "wave")
    for name in classes:
        onnx.save(CLASSES[name].build(CLASSES[name].sizes[1]), tmp_path / "m.onnx")
        assert planned(tmp_path / "m.onnx", gain=False).groups, name


def test_the_times_of_a_refused_layer_are_those_where_it_loses(tmp_path: Path):
    """A layer of one unit is faster as a kernel for a few steps only, and slower in the mean."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[B, T, 4] x) => (float[1, B, 1] y) {
      t = Transpose<perm = [1, 0, 2]>(x) a, h, c = LSTM<hidden_size = 1>(t, w, r, b) y = Relu(h) }"""
    result = planned(saved(tmp_path, text, w=(1, 4, 4), r=(1, 4, 1), b=(1, 8)), gain=False, arch=("x86-64-v4",))
    (refusal,) = [r for r in result.refusals if "LSTM, Relu: predicted to take" in r.reason]
    kernel, runtime = re.findall(r"([\d.]+) us", refusal.reason)
    assert float(kernel) > float(runtime)
