"""Models of each class of convolutions on channels-first images: kernels are made, with equal results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from models.convolutions import models
from tests.kernels.cases.winograd import WAYS
from tests.kernels.compiled import by
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
SMALLEST = {name: min(sizes) for name, (_, sizes) in models().items()}


@pytest.mark.parametrize("name", SMALLEST)
def test_a_class_has_kernels_that_are_right(name: str, tmp_path: Path) -> None:
    build, _ = models()[name]
    model = build(SMALLEST[name])
    onnx.save(model, tmp_path / "model.onnx")
    result = onnxfuse.optimize(tmp_path / "model.onnx", tmp_path / "fused.onnx", min_group=1, verify=True)
    assert result.kernels, result
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    fused = onnxfuse.session(tmp_path / "fused.onnx")
    (y,) = fused.run(None, {"x": x})
    assert np.isfinite(y).all()
    assert 0.05 < np.sqrt((y.astype(np.float64) ** 2).mean()) < 20  # alive
    if name == "detector":  # its normalization spreads what is no number over the image
        return
    x.reshape(-1)[len(x.reshape(-1)) // 3] = np.nan
    x.reshape(-1)[-1] = np.inf
    runtime = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (there,), (here,) = runtime.run(None, {"x": x}), fused.run(None, {"x": x})
    assert np.array_equal(np.isfinite(there), np.isfinite(here))
    finite = np.isfinite(there)
    steps = int(np.prod(onnx.numpy_helper.to_array(model.graph.initializer[0]).shape[1:]))
    assert np.allclose(there[finite], here[finite], rtol=0, atol=20 * np.finfo(dtype).eps * steps**0.5)


def padded(channels: int, height: int, width: int, pads: list[int]) -> onnx.ModelProto:
    """Two images through 3x3 taps."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((20, channels, 3, 3)) / 12).astype(np.float32)
    ends = [onnx.helper.make_tensor_value_info("x", 1, [2, channels, height, width])]
    ends.append(onnx.helper.make_tensor_value_info("y", 1, None))
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=pads)
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(w, "w")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


UNEVEN, EVEN = [2, 0, 1, 2], ([1, 1, 1, 1], [0, 0, 0, 0])
PADDED = [  # each way with uneven padding, and with one of the others in turn
    pytest.param(way, pads, id=f"{way}-{pads}", marks=[] if pads in (UNEVEN, EVEN[at % 2]) else [pytest.mark.slow])
    for at, way in enumerate(WAYS)
    for pads in (*EVEN, UNEVEN)
]


@pytest.mark.parametrize(("way", "pads"), PADDED)
def test_nan_in_a_pixel_reaches_no_farther_with_winograd(way: str, pads: list[int], tmp_path: Path) -> None:
    """Every result is of the kind that the runtime says: finite, NaN or an infinity; large numbers do not overflow."""
    onnx.save(padded(18, 13, 11, pads), tmp_path / "m.onnx")
    with by(WAYS[way]):
        result = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", min_group=1, verify=False, gain=False)
    assert result.kernels == 1
    fused = onnxfuse.session(tmp_path / "o.onnx")
    runtime = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    for bad in (np.nan, np.inf, -np.inf, 1e38):
        for line, column in ((0, 0), (6, 5), (12, 10), (3, 8)):
            x = np.random.default_rng(1).standard_normal((2, 18, 13, 11)).astype(np.float32)
            x[1, 7, line, column] = bad
            (there,), (here,) = runtime.run(None, {"x": x}), fused.run(None, {"x": x})
            assert np.array_equal(np.isnan(there), np.isnan(here)) and not np.isnan(there[0]).any()
            known = ~np.isnan(there)
            assert np.array_equal(there[known & np.isinf(there)], here[known & np.isinf(there)])
            finite = np.isfinite(there)
            largest = np.abs(there[finite]).max()  # the results of a tile are rounded as the largest of them is
            assert (np.abs(here[finite] - there[finite]) <= 1e-5 * largest).all()


@pytest.mark.parametrize("sizes", ['"H", "W"', "63, 95"])
def test_lines_of_three_channels_are_copied_whole(sizes: str) -> None:
    """What is computed before the first convolution lies channels last; its padding is no matter of single pixels."""
    shape = sizes.replace('"', "")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3, {shape}] x) => (float[N, 64, a, b] y) {{
        t = Tanh (x)
        c = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (t, w)
        r = Relu (c)
        y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r, v)
        }}"""
    )
    for name, channels in (("w", 3), ("v", 64)):
        values = np.random.default_rng(0).standard_normal((64, channels, 3, 3)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    shown: list[str] = []
    last = {"stop_after": "schedule", "print_step": "schedule"}
    onnxfuse.optimize(model.SerializeToString(), show=shown.append, min_group=1, **last)
    assert "for out0%pad_3*out0%pad_1" in shown[0]  # one loop over pixels and their channels


def test_volumes_larger_than_any_memory_are_no_fault() -> None:
    """Sides of eight times a symbol: bounds of loops over 10^11 elements do not fit 64 bits."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 8, D, H, W] x) => (float[N, 8, a, b, c] y)
        <float[5] scales = {1, 1, 8, 8, 8}> {
        z = Resize <mode = "nearest"> (x, , scales)
        n = Abs (z)
        m = GlobalAveragePool (n)
        s = Mul (z, m)
        t = Conv <kernel_shape = [3, 3, 3], pads = [1, 1, 1, 1, 1, 1]> (s, w)
        y = Add (t, z)
        }"""
    )
    values = np.random.default_rng(0).standard_normal((8, 8, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    made = onnxfuse.optimize(model.SerializeToString(), stop_after="schedule", strict=True)
    assert "Conv" in [op for group in made.groups for op in group.ops]


def test_initializers_that_are_inputs_too_are_none_when_called_constant(tmp_path: Path) -> None:
    """Verified against the original, whose weights nobody changes; without the flag they stay inputs."""
    model = padded(8, 9, 9, [1, 1, 1, 1])
    for tensor in model.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        model.graph.input.append(info)
    onnx.save(model, tmp_path / "model.onnx")
    for flag in (False, True):
        to = tmp_path / f"fused{flag}.onnx"
        result = onnxfuse.optimize(tmp_path / "model.onnx", to, min_group=1, verify=True, constant_initializers=flag)
        assert result.kernels == 1
        inputs = {v.name for v in onnx.load(to).graph.input}
        assert inputs == ({"x"} if flag else {v.name for v in model.graph.input})
