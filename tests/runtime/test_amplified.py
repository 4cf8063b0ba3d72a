"""Models that amplify rounding: limits from several perturbations, and outputs of data-dependent length.

Quantized ones, whose codes move or not, and sums that cancel out, which move by the last bit of what is taken off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.runtime import engine, feed_limits, feeds
from onnxfuse.verify import original, trial
from onnxfuse.verify.run_modes import RunMode, RunOutputs, facts_of, judged
from onnxfuse.verify.verdicts import Verdict, verdict_on

KERNELS = RunMode("with library, all optimizations", (), "", True)
BODIES = RunMode("without library, no optimizations", (), "", False, like_reference=True)
OPTIMIZED_BODIES = RunMode("without library, all optimizations", (), "", True, like_reference=True)
LENGTH = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[1024] x) => (float[n] y)
    <float zero = {0}, float one = {1}>
    { q, s, z = DynamicQuantizeLinear (x) c = Cast <to = 1> (q) n = ReduceSum <keepdims = 0> (c)
      y = Range (zero, n, one) }"""
CANCELS = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[n, 64] x) => (float y)
    <float tiny = {1.6e-4}, float one = {1}>
    { p = Mul (x, w) s = Mul (p, p) a = ReduceSum <keepdims = 0> (s)
      q = Mul (x, v) r = Mul (q, q) e = ReduceMean <axes = [0], keepdims = 0> (r) b = ReduceSum <keepdims = 0> (e)
      d = Sub (a, b) m = Abs (d) t = Mul (m, tiny) u = Add (t, one) y = Sub (u, one) }"""
LAYERS, WIDTH = 6, 128


def layers(count: int = LAYERS) -> onnx.ModelProto:
    """Products of codes, normalized between: a step of one code reaches every code of the next layer."""
    text = ["a0 = Identity (x)"]
    for k in range(count):
        text.append(f"q{k}, s{k}, z{k} = DynamicQuantizeLinear (a{k})")
        text.append(f"i{k} = MatMulInteger (q{k}, w{k}, z{k}) f{k} = Cast <to = 1> (i{k})")
        text.append(f"a{k + 1} = LayerNormalization (f{k}, gain)")
    body = "\n".join(text).replace(") ", ")\n")
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        m (float[1, {WIDTH}] x) => (float[1, {WIDTH}] y) {{ {body}
        y = Identity (a{count}) }}""")
    rng = np.random.default_rng(1)
    for k in range(count):
        codes = rng.integers(-127, 128, (WIDTH, WIDTH), np.int8)
        model.graph.initializer.append(numpy_helper.from_array(codes, f"w{k}"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(WIDTH, np.float32), "gain"))
    return model


def baseline(model: onnx.ModelProto, path: Path, seed: int = 0) -> original.Original:
    onnx.save(model, path)
    skeleton = feed_limits.skeleton(path)
    return original.original(str(path), skeleton, (), trial.InputRequest(skeleton, None, seed, {}), 0.0)


def kernels(of: original.Original, seed: int) -> list[list[Any]]:
    """What kernels may answer: the model's values where each layer is as far off as a kernel may be."""
    model, rng = onnx.load(of.path), np.random.default_rng(seed)
    for each in model.graph.initializer:
        if each.data_type == onnx.TensorProto.FLOAT and each.dims:
            off = 1 + original.PERTURBATION * rng.standard_normal(tuple(each.dims)).astype(np.float32)
            each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each) * off, each.name))
    session = engine.open_session(model.SerializeToString(), engine.options(lean=True))  # exact, as kernels
    return [engine.run(session, feeds.nudged(each, seed, original.PERTURBATION), of.names) for each in of.sets]


def verdict(of: original.Original, found: list[list[Any]]) -> Verdict:
    runs = [facts_of(KERNELS, RunOutputs("", found), of), facts_of(BODIES, RunOutputs("", of.expected), of)]
    return verdict_on(of.answer() | {"runs": runs})


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Verdict], list[Verdict], list[int]]:
    """Of forty seeds: with draws, with the first draw alone, and how many draws there were."""
    folder, drawn, once, draws = tmp_path_factory.mktemp("amplified"), [], [], []
    for seed in range(40):
        of = baseline(layers(), folder / "m.onnx", seed)
        found = kernels(of, 100 + seed)
        first = [list(each) for each in of.perturbed]
        drawn.append(verdict(of, found))
        draws.append(len(of.perturbed))
        of.perturbed = first * (original._DRAWS + original._LARGER)
        once.append(verdict(of, found))
    return drawn, once, draws


def test_a_single_perturbation_would_reject_correct_kernels(
    verdicts: tuple[list[Verdict], list[Verdict], list[int]],
) -> None:
    drawn, once, draws = verdicts
    blamed = [sum(not each.ok for each in of) for of in (drawn, once)]
    assert blamed[1] >= 3, "the models amplify"
    assert blamed[0] == 0, "where small perturbations move no code, larger ones do"
    assert min(draws) == 1 < max(draws), "no more draws than needed"


def test_an_error_of_one_percent_on_all_inputs_is_found(tmp_path: Path) -> None:
    """Steps of codes are met by some inputs, a kernel that is wrong by a percent is wrong for all of them."""
    of = baseline(layers(1), tmp_path / "m.onnx")
    found = verdict(of, [[value * np.float32(1.01) for value in each] for each in of.expected])
    assert (found.ok, len(of.perturbed)) == (False, original._DRAWS) and len(of.sets) > 1


@pytest.mark.parametrize(("off", "alike"), [(0.0, True), (0.01, False)])
def test_bodies_that_are_alike_without_optimizations_may_differ_by_codes_with_them(
    tmp_path: Path, off: float, alike: bool
) -> None:
    """As where products of codes are exact with the runtime's optimizations only, which fuse other parts of bodies."""
    of = baseline(layers(), tmp_path / "m.onnx")
    bodies = layers()
    gain = next(each for each in bodies.graph.initializer if each.name == "gain")
    gain.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(gain) * np.float32(1 + off), "gain"))
    onnx.save(bodies, tmp_path / "b.onnx")
    found = RunOutputs("", next(f for f in (kernels(of, seed) for seed in range(100)) if not of.within(f)))
    mode = judged(lambda _: None, str(tmp_path / "b.onnx"), OPTIMIZED_BODIES, (), of, found)
    assert mode.like_reference != alike
    assert judged(lambda _: None, str(tmp_path / "b.onnx"), BODIES, (), of, found) == BODIES


def test_no_perturbation_accepts_another_function(tmp_path: Path) -> None:
    of = baseline(layers(), tmp_path / "m.onnx")
    found = verdict(of, [[-value for value in each] for each in of.expected])
    assert (found.ok, len(of.perturbed)) == (False, original._DRAWS)


@pytest.fixture(scope="module")
def cancels() -> onnx.ModelProto:
    """`y` is t + 1 - 1; t is a small difference of sums for one row of `x`, 2e-5, and large for many."""
    model = onnx.parser.parse_model(CANCELS)
    w = 1 + np.random.default_rng(2).random(64, np.float32)
    for name, value in {"w": w, "v": w * np.float32(1.001)}.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def test_steps_of_sums_that_cancel_out_are_no_errors(
    cancels: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, once = [], []
    for seed in range(24):
        of = baseline(cancels, tmp_path / "m.onnx", seed)
        found = kernels(of, 100 + seed)
        drawn.append(verdict(of, found).ok)
        with monkeypatch.context() as patched:
            patched.setattr(original, "_perturbed", lambda o, draw: [[0.0] * len(o.names) for _ in o.sets])
            of.perturbed.clear()
            once.append(verdict(of, found).ok)
    assert all(drawn) and once.count(False) >= 3


@pytest.mark.parametrize("factor", [1.01, 1.1, -1.0, 1e6])
def test_an_error_on_any_one_set_is_found(cancels: onnx.ModelProto, tmp_path: Path, factor: float) -> None:
    """Of a percent where nothing cancels out, of more everywhere."""
    for seed in range(4):
        of = baseline(cancels, tmp_path / "m.onnx", seed)
        found = [[value * np.float32(factor) for value in each] for each in of.expected]
        assert not verdict(of, found).ok
        for at, given in enumerate(of.sets):
            if len(given["x"]) > 1 or factor != 1.01:
                assert not verdict(of, [*of.expected[:at], found[at], *of.expected[at + 1 :]]).ok, at


def test_output_lengths_that_depend_on_quantized_values_are_not_compared(tmp_path: Path) -> None:
    of = baseline(onnx.parser.parse_model(LENGTH), tmp_path / "m.onnx")
    found = [[value[:-3] for value in each] for each in of.expected]
    said = verdict(of, found)
    assert (said.ok, said.unsteady) == (None, ("y",)) and "does not reproduce" in said.message


def test_another_length_than_the_model_ever_gives_fails(tmp_path: Path) -> None:
    of = baseline(layers(), tmp_path / "m.onnx")
    said = verdict(of, [[value[:, :-1] for value in each] for each in of.expected])
    assert said.ok is False and "instead of" in said.message
