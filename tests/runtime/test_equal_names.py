"""Dimensions of equal names that are fed unequal sizes, as the runtime allows: every answer is that of the runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.config import Options
from onnxfuse.ir.index import Index, Symbol, symbols_of
from onnxfuse.load import load, shapes
from onnxfuse.runtime.entries import FALLBACK

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
# Model, sizes of n in x and in z, and whether a kernel relies on their being equal.
CASES = {
    "broadcast": (
        "g (float[n] x, float[n] z) => (float[m] y) { a = Exp(x) b = Tanh(z) c = Add(a, b) y = Relu(c) }",
        ((4, 1), (1, 3), (4, 4)),
        True,
    ),
    "two-inputs-later": (
        """g (float[n, 5] x, float[n, 5] z) => (float[k, 5] y, float[m, 1] w) {
            a = Exp(x) c = Add(a, z) d = Tanh(c) y = Softmax<axis = 1>(d) e = Mul(y, x) w = ReduceMax<axes = [1]>(e)
        }""",
        ((4, 1), (1, 3), (2, 2)),
        True,
    ),
    "one-input": (
        "g (float[n, n] x, float[1] z) => (float[k, m] y) { t = Transpose(x) a = Add(x, t) b = Mul(a, z) y = Exp(b) }",
        (((1, 3), 1), ((3, 1), 1), ((2, 2), 1)),
        True,
    ),
    "joined": (
        "g (float[n] x, float[n] z) => (float[m] y) { a = Exp(x) b = Tanh(z) c = Concat<axis = 0>(a, b) y = Sqrt(c) }",
        ((4, 3), (1, 3), (4, 4)),
        False,
    ),
    "apart": (
        "g (float[n] x, float[n] z) => (float[k] y, float[m] w) { a = Exp(x) y = Tanh(a) b = Sin(z) w = Neg(b) }",
        ((1, 3), (2, 3), (4, 4)),
        False,
    ),
    "read-off-the-other": (
        "g (float[n] x, float[n] z) => (float[m] w) { s = Shape(x) b = Sin(z) c = Tile(b, s) w = Neg(c) }",
        ((4, 3), (1, 3), (4, 4)),
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_unequal_sizes_of_one_name_give_what_the_runtime_gives(case: str, tmp_path: Path):
    text, sizes, relies = CASES[case]
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    result = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "f.onnx", gain=False, min_group=1)
    assert result.kernels
    fused = onnx.load(tmp_path / "f.onnx")
    assert any(a.name == FALLBACK for n in fused.graph.node for a in n.attribute) == relies
    reference = ort.InferenceSession(tmp_path / "m.onnx", _quiet())
    sessions = {"library": onnxfuse.session(tmp_path / "f.onnx", sess_options=_quiet()), "bodies": _bodies(tmp_path)}
    for a, b in sizes:
        feeds = {i.name: _values(i.shape, n) for i, n in zip(reference.get_inputs(), (a, b), strict=True)}
        try:
            want = reference.run(None, feeds)
        except Exception:
            continue  # the runtime's own plan of memory does not take every pair
        for how, session in sessions.items():
            for w, got in zip(want, session.run(None, feeds), strict=True):
                np.testing.assert_allclose(got, w, 1e-4, 1e-5, err_msg=f"{how} at {a}, {b}")


def test_what_the_original_refuses_is_refused_in_its_words(tmp_path: Path):
    onnx.save(parser.parse_model(HEAD + CASES["broadcast"][0]), tmp_path / "m.onnx")
    onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "f.onnx", gain=False, min_group=1)
    session = onnxfuse.session(tmp_path / "f.onnx", sess_options=_quiet())
    with pytest.raises(Exception, match="broadcast"):
        session.run(None, {"x": np.ones(4, np.float32), "z": np.ones(3, np.float32)})
    assert session.run(None, {"x": np.ones(3, np.float32), "z": np.ones(3, np.float32)})[0].shape == (3,)


READ = {
    "expanded": "s = Shape(z) e = Expand(c, s) f = Mul(e, x) y = Exp(f)",  # Expand is gone, as it repeats x
    "of-its-own": "s = Shape(z) e = Expand(c, s) f = Relu(e) y = Exp(f)",  # this kernel has no input but a size
    "sliced": "s = Shape(z) r = Slice(w, zero, s) f = Exp(r) y = Relu(f)",
}


@pytest.mark.parametrize("case", READ)
def test_unequal_sizes_are_refused_where_the_model_computes_with_them(case: str, tmp_path: Path):
    """A kernel that takes the size of x would make another result than Shape of z does."""
    text = f"""g (float[n] x, float[n] z, float[m] w) => (float[n] a, float[k] y)
        <float[1] c = {{2.0}}, int64[1] zero = {{0}}> {{ a = Add(x, z) {READ[case]} }}"""
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "f.onnx", gain=False, min_group=1)
    reference = ort.InferenceSession(tmp_path / "m.onnx", _quiet())
    session = onnxfuse.session(tmp_path / "f.onnx", sess_options=_quiet())
    for a, b in ((4, 4), (1, 1), (4, 1), (1, 4)):
        feeds = {"x": _values([a], a), "z": _values([b], b), "w": _values([6], 6)}
        feeds = {i.name: feeds[i.name] for i in reference.get_inputs()}
        want = reference.run(None, feeds)
        if a == b:
            for w, got in zip(want, session.run(None, feeds), strict=True):
                np.testing.assert_allclose(got, w, 1e-4, 1e-5)
        else:
            with pytest.raises(Exception, match="another shape"):
                session.run(None, feeds)


def test_names_that_meet_are_found_in_one_walk(monkeypatch: pytest.MonkeyPatch):
    """As many walks as there were names that met made loading a cache of keys and values slow."""
    names = [f"x{i}" for i in range(6)]
    sums = " ".join(f"t{i} = Add({f't{i - 1}' if i > 1 else 'x0'}, x{i})" for i in range(1, 6))
    text = f"g ({', '.join(f'float[n] {x}' for x in names)}) => (float[n] y) {{ {sums} y = Exp(t5) }}"
    walks, run = [], shapes._Pass.run
    monkeypatch.setattr(shapes._Pass, "run", lambda walk: (walks.append(walk), run(walk))[1])
    graph = load(parser.parse_model(HEAD + text).SerializeToString(), Options())
    types = [t for t in graph.types.values() if t is not None]
    assert len(walks) == 1 and {e for t in types for e in t.shape} == {Index.of(Symbol("n"))}


def test_dimensions_of_one_name_are_one_symbol_where_they_meet_and_two_elsewhere():
    for case, (text, _, relies) in CASES.items():
        graph = load(parser.parse_model(HEAD + text).SerializeToString(), Options())
        types = [t for v in graph.inputs if (t := graph.types[v]) is not None]
        assert len({s for t in types for e in t.shape for s in symbols_of(e)}) == (1 if relies else 2), case


def test_a_size_that_is_given_for_a_name_holds_for_all_its_dimensions():
    graph = load(parser.parse_model(HEAD + CASES["apart"][0]).SerializeToString(), Options(dim=("n=3",)))
    assert [t.static_shape for v in graph.inputs if (t := graph.types[v]) is not None] == [(3,), (3,)]


def _quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def _bodies(folder: Path) -> ort.InferenceSession:
    return ort.InferenceSession(folder / "f.onnx", _quiet())


def _values(declared: list[int | str], size: int | tuple[int, ...]) -> np.ndarray:
    named = iter(size if isinstance(size, tuple) else (size,))
    shape = [d if isinstance(d, int) else next(named) for d in declared]
    return np.random.default_rng(len(shape)).random(shape, np.float32)
