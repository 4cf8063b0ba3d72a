"""Fourier transforms become products: compared with NumPy's FFT, and as spectrograms in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxfuse import optimize
from onnxfuse.ir.graph import Graph
from onnxfuse.rewrite.spectrum import LONGEST, transform
from tests.emit import plans
from tests.rules.build import ops, rewritten, run

FRAMES, PRODUCT = "frames-as-convolution", "transform-as-product"
RNG = np.random.default_rng(4)


def graph_of(body: str, signal: str, opset: int = 17, **constants: Any) -> Graph:
    text = f'<ir_version: 8, opset_import: ["": {opset}]>\ng (float[{signal}] x) => (float[A, B, C, D] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    return plans.graph_of(model)


def spectrum(x: np.ndarray[Any, Any], axis: int, points: int, onesided: bool) -> np.ndarray[Any, Any]:
    """The transform of real numbers along an axis in double precision, parts last."""
    found = (np.fft.rfft if onesided else np.fft.fft)(x.astype(np.float64), points, axis)
    return np.stack([found.real, found.imag], -1)


def close(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], points: int) -> None:
    assert got.dtype == np.float32
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, 0, 2.0**-23 * (points + 8) * max(1.0, np.abs(want).max(initial=0.0)))


@pytest.mark.parametrize("points", [1, 2, 7, 16, 400, LONGEST])
def test_the_matrix_of_a_transform(points: int) -> None:
    x = RNG.standard_normal((points, 2))
    z, bins = x[:, 0] + 1j * x[:, 1], points // 2 + 1
    for inverse, fast in ((False, np.fft.fft), (True, np.fft.ifft)):
        y = np.einsum("np,npkq->kq", x, transform(points, points, inverse))
        np.testing.assert_allclose(y[:, 0] + 1j * y[:, 1], fast(z), atol=1e-11)
    y = np.einsum("n,nkq->kq", x[:, 0], transform(points, bins)[:, 0])
    np.testing.assert_allclose(y[:, 0] + 1j * y[:, 1], np.fft.rfft(x[:, 0]), atol=1e-11)


@pytest.mark.parametrize("onesided", [None, 0, 1])
@pytest.mark.parametrize(("signal", "shape"), [("N, L", (3, 50)), ("N, L, 1", (1, 31)), ("2, 37, 1", (2, 37))])
@pytest.mark.parametrize(("points", "step"), [(16, 4), (7, 7), (31, 3), (1, 1)])
def test_frames(onesided: int | None, signal: str, shape: tuple[int, int], points: int, step: int) -> None:
    window = RNG.random(points, dtype=np.float32)
    words = "" if onesided is None else f"<onesided = {onesided}>"
    before = graph_of(f"y = STFT{words}(x, step, window)", signal, step=np.int64(step), window=window)
    after, fired = rewritten(before)
    assert fired[FRAMES] == 1
    assert "STFT" not in ops(after)
    x = RNG.standard_normal(shape).astype(np.float32)
    at = np.arange((shape[1] - points) // step + 1)[:, None] * step + np.arange(points)
    want = spectrum(x[:, at] * window.astype(np.float64), -1, points, onesided != 0)
    feeds = {"x": x[..., None] if signal.endswith("1") else x}
    close(run(after, feeds, dict(zip("NL", shape, strict=True)))["y"], want, points)


def test_frames_without_a_window() -> None:
    before = graph_of("y = STFT(x, step, , size)", "1, 20", step=np.int64(5), size=np.int64(10))
    after, _ = rewritten(before)
    x = RNG.standard_normal((1, 20)).astype(np.float32)
    close(run(after, {"x": x})["y"], spectrum(np.stack([x[:, i : i + 10] for i in (0, 5, 10)], 1), -1, 10, True), 10)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("points", [None, 5, 9, 24])
@pytest.mark.parametrize("onesided", [0, 1])
def test_a_transform_of_rows(opset: int, points: int | None, onesided: int) -> None:
    axis = ", axis = -2" if opset < 20 else ""
    third = "" if opset < 20 else ", axis"
    size = {} if points is None else {"size": np.int64(points)}
    inputs = f"x, {'size' if size else ''}{third}"
    more = {} if opset < 20 else {"axis": np.int64(-2)}
    before = graph_of(f"y = DFT<onesided = {onesided}{axis}>({inputs})", "N, 4, 9, 1", opset, **size, **more)
    after, fired = rewritten(before)
    assert fired[PRODUCT] == 1
    x = RNG.standard_normal((2, 4, 9, 1)).astype(np.float32)
    close(run(after, {"x": x}, {"N": 2})["y"], spectrum(x[..., 0], -1, points or 9, bool(onesided)), points or 9)


@pytest.mark.parametrize("inverse", [0, 1])
def test_a_transform_of_complex_numbers(inverse: int) -> None:
    before = graph_of(f"y = DFT<inverse = {inverse}, axis = 2>(x)", "2, 3, 8, 2")
    x = RNG.standard_normal((2, 3, 8, 2)).astype(np.float32)
    found = (np.fft.ifft if inverse else np.fft.fft)(x[..., 0].astype(np.float64) + 1j * x[..., 1])
    close(run(rewritten(before)[0], {"x": x})["y"], np.stack([found.real, found.imag], -1), 16)


@pytest.mark.parametrize("axis", [0, 1, -3])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_transform_along_any_axis(axis: int, parts: int) -> None:
    before = graph_of(f"y = DFT<axis = {axis}>(x)", f"2, 5, N, {parts}")
    after, fired = rewritten(before)
    assert fired[PRODUCT] == 1
    x = RNG.standard_normal((2, 5, 3, parts)).astype(np.float32)
    z = np.fft.fft(x.astype(np.float64) @ [1, 1j][:parts], axis=axis % 4)
    close(run(after, {"x": x}, {"N": 3})["y"], np.stack([z.real, z.imag], -1), 5)


@pytest.mark.parametrize("part", [0, 1, -1])
@pytest.mark.parametrize("imaginary", [0.0, 0.5])
def test_parts_that_are_zero_or_that_nothing_reads_are_not_computed(part: int, imaginary: float) -> None:
    """Both axes of an image, as `torch.fft.fft2(x).real` is exported: no product with zeros, one part of the result."""
    before = graph_of(
        """c = Concat<axis = -1>(x, other)
           a = DFT<axis = 2>(c)
           b = DFT<axis = 1>(a)
           d = Gather<axis = 3>(b, part)
           y = Unsqueeze(d, axes)""",
        "2, 6, 8, 1",
        other=np.full((2, 6, 8, 1), imaginary, np.float32),
        part=np.int64(part),
        axes=np.array([3]),
    )
    after, fired = rewritten(before)
    assert fired[PRODUCT] == 2
    x = RNG.standard_normal((2, 6, 8, 1)).astype(np.float32)
    z = np.fft.fft2(x[..., 0].astype(np.float64) + 1j * imaginary)
    close(run(after, {"x": x})["y"][..., 0], z.imag if part else z.real, 48)
    sizes = {c.shape for n in after.nodes if n.op == "MatMul" for c in [after.constants[n.inputs[1]]]}
    assert sizes == {(16 if imaginary else 8, 16), (12, 6)}


def test_a_part_that_does_not_exist_is_left_to_the_runtime_to_refuse() -> None:
    body = "b = DFT<axis = 1>(x)\n d = Gather<axis = 3>(b, part)\n y = Unsqueeze(d, axes)"
    after, fired = rewritten(graph_of(body, "2, 6, 8, 2", part=np.int64(2), axes=np.array([3])))
    assert fired[PRODUCT] == 1
    assert "Gather" in ops(after)


def test_equal_transforms_share_their_matrix() -> None:
    before = graph_of("a = DFT<axis = 2>(x)\n b = Neg(a)\n y = DFT<axis = 2>(b)", "2, 3, 8, 2")
    after, _ = rewritten(before)
    assert len({n.inputs[1] for n in after.nodes if n.op == "MatMul"}) == 1


@pytest.mark.parametrize("other", ["Gather<axis = 3>(b, one)", "ReduceSum<keepdims = 0>(b)"])
def test_parts_that_are_read_elsewhere_are_computed(other: str) -> None:
    body = (
        f"b = DFT<axis = 1>(x)\n d = Gather<axis = 3>(b, zero)\n e = {other}\n f = Sub(d, e)\n y = Unsqueeze(f, axes)"
    )
    given = {"zero": np.int64(0), "one": np.int64(1), "axes": np.array([3])}
    before = graph_of(body, "2, 6, 8, 2", **given)
    after, fired = rewritten(before)
    assert fired[PRODUCT] == 1
    x = RNG.standard_normal((2, 6, 8, 2)).astype(np.float32)
    z = np.fft.fft(x[..., 0].astype(np.float64) + 1j * x[..., 1], axis=1)
    want = z.real - (z.imag if "one" in other else (z.real + z.imag).sum())
    close(run(after, {"x": x})["y"][..., 0], want, 96)


@pytest.mark.parametrize(
    ("body", "signal"),
    [
        ("y = STFT(x, step, window)", "1, 20, 2"),  # a complex signal
        ("w = ReduceMax<axes = [0, 1], keepdims = 0>(x)\n y = STFT(x, step, w)", "1, 20, 16"),  # a window of its own
        ("y = STFT(x, step, long)", "1, 9000"),
        ("y = DFT<axis = 1>(x)", "2, N, 8, 2"),
        ("y = DFT<axis = 2>(x)", "2, 3, N, 1"),
        ("y = DFT<axis = 2>(x)", "1, 1, 2000, 1"),
    ],
)
def test_what_is_no_matrix_of_constants_stays(body: str, signal: str) -> None:
    given = {"step": np.int64(4), "window": np.ones(8, np.float32), "long": np.ones(LONGEST + 1, np.float32)}
    before = graph_of(body, signal, **{k: v for k, v in given.items() if k in body})
    after, fired = rewritten(before)
    assert not {FRAMES, PRODUCT} & fired.keys()
    assert {"STFT", "DFT"} & set(ops(after))


def test_a_spectrogram_of_any_length_in_the_runtime(tmp_path: Path) -> None:
    """Nothing is left to the runtime, and what is computed is nearer to double precision than the runtime's own."""
    window, mel = np.hanning(64).astype(np.float32), RNG.random((33, 10), dtype=np.float32)
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, L] x) => (float[N, M, T] y) <int64 step = {16}, float low = {0.0000000001}>
    { image = STFT(x, step, window)
      power = ReduceSumSquare<axes = [-1], keepdims = 0>(image)
      bands = MatMul(power, mel)
      clipped = Clip(bands, low)
      logs = Log(clipped)
      y = Transpose<perm = [0, 2, 1]>(logs) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend([numpy_helper.from_array(window, "window"), numpy_helper.from_array(mel, "mel")])
    onnx.save(model, tmp_path / "m.onnx")
    optimize(tmp_path / "m.onnx", tmp_path / "f.onnx", gain=False)
    assert not any(n.op_type == "STFT" for n in onnx.load(tmp_path / "f.onnx").graph.node)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(next(tmp_path.glob("*.so"))))
    fused = ort.InferenceSession(tmp_path / "f.onnx", options)
    for length in (64, 79, 80, 1000):
        x = RNG.standard_normal((2, length)).astype(np.float32)
        at = np.arange((length - 64) // 16 + 1)[:, None] * 16 + np.arange(64)
        power = (spectrum(x[:, at] * window.astype(np.float64), -1, 64, True) ** 2).sum(-1)
        want = np.log(power @ mel).transpose(0, 2, 1)
        np.testing.assert_allclose(fused.run(None, {"x": x})[0], want, rtol=0, atol=1e-4)
