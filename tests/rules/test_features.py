"""What prepares features, and linear models, of ai.onnx.ml: the arithmetic that they become, against the runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxfuse import optimize
from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.rewrite import rewrite
from onnxfuse.runtime.session import session
from tests.load.models import parse

RULE = "features-as-arithmetic"
ROW = "0.5, -1.0, 2.0"
COEFFICIENTS = "1.0, -2.0, 0.5, 0.25, 3.0, -1.0"
CALLS = {  # by what is tried: the type of the features, and the nodes that make y
    "scaler": ("float", f"y = ai.onnx.ml.Scaler<offset = [{ROW}], scale = [{ROW}]>(x)"),
    "scaler of whole numbers": ("int64", "y = ai.onnx.ml.Scaler<offset = [0.5], scale = [2.0]>(x)"),
    "imputer of a number": (
        "float",
        f"y = ai.onnx.ml.Imputer<imputed_value_floats = [{ROW}], replaced_value_float = 1.0>(x)",
    ),
    "binarizer": ("float", "y = ai.onnx.ml.Binarizer<threshold = 0.5>(x)"),
    "largest": ("float", 'y = ai.onnx.ml.Normalizer<norm = "MAX">(x)'),
    "sum": ("float", 'y = ai.onnx.ml.Normalizer<norm = "L1">(x)'),
    "length": ("float", 'y = ai.onnx.ml.Normalizer<norm = "L2">(x)'),
    "length of whole numbers": ("int64", 'y = ai.onnx.ml.Normalizer<norm = "L2">(x)'),
    "regression": (
        "float",
        f"y = ai.onnx.ml.LinearRegressor<coefficients = [{COEFFICIENTS}], intercepts = [1.0, -1.0], targets = 2>(x)",
    ),
    "regression without intercepts": ("float", f"y = ai.onnx.ml.LinearRegressor<coefficients = [{ROW}]>(x)"),
    **{
        f"classifier, {then}": (
            kind,
            f"l, y = ai.onnx.ml.LinearClassifier<classlabels_ints = [7, -3], coefficients = [{COEFFICIENTS}], "
            f'intercepts = [1.0, -1.0], post_transform = "{then}">(x)',
        )
        for then, kind in (("NONE", "float"), ("LOGISTIC", "int64"), ("SOFTMAX", "float"))
    },
}
LEFT = {  # what the rule does not do
    "labels that are strings": (
        f'l, y = ai.onnx.ml.LinearClassifier<classlabels_strings = ["a", "b"], coefficients = [{COEFFICIENTS}], '
        "intercepts = [1.0, -1.0]>(x)"
    ),
    "one column of scores for two labels": (
        f"l, y = ai.onnx.ml.LinearClassifier<classlabels_ints = [7, -3], coefficients = [{ROW}], intercepts = [1.0]>(x)"
    ),
    "transformed results": f'y = ai.onnx.ml.LinearRegressor<coefficients = [{ROW}], post_transform = "LOGISTIC">(x)',
    "values for other features": f"y = ai.onnx.ml.Scaler<offset = [{ROW}, 1.0], scale = [{ROW}, 1.0]>(x)",
}


def model(kind: str, calls: str) -> onnx.ModelProto:
    """A model of these calls, with two operators behind them; labels are a result too, where there are whole ones."""
    labels = ", int64[N] l" if calls.startswith("l,") and "strings" not in calls else ""
    body = f"g ({kind}[N, 3] x) => (float[N, M] z{labels}) {{ {calls} a = Abs(y) z = Neg(a) }}"
    return parse(body, imports=', "ai.onnx.ml": 3')


def features(kind: str, rows: int) -> np.ndarray:
    """Numbers with ties, zeros, whole rows of zeros and a NaN where there can be one."""
    x = np.random.default_rng(rows).integers(-3, 4, (rows, 3)) * (0.5 if kind == "float" else 1)
    x[::3] = 0
    return x.astype(np.float32 if kind == "float" else np.int64)


@pytest.mark.parametrize("what", CALLS)
def test_it_gives_the_results_of_the_runtime(what: str, tmp_path: Path) -> None:
    kind, calls = CALLS[what]
    before = model(kind, calls)
    made = optimize(before.SerializeToString(), tmp_path / "f.onnx", gain=False, min_group=1)
    assert made.kernels > 0 and made.verify is not None and made.verify.ok
    assert "E-OPAQUE" not in {r.code for r in made.refusals}
    theirs, ours = ort.InferenceSession(before.SerializeToString()), session(tmp_path / "f.onnx")
    for rows in (1, 2, 7, 64):
        x = features(kind, rows)
        for want, got in zip(theirs.run(None, {"x": x}), ours.run(None, {"x": x}), strict=True):
            assert want.dtype == got.dtype
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("what", LEFT)
def test_it_leaves_what_is_not_arithmetic(what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model("float", LEFT[what]).SerializeToString())
    assert not [f for f in rewrite(load(path, Options()), Options())[1] if f.rule == RULE]


def test_missing_values_are_found_as_nan(tmp_path: Path) -> None:
    calls = f"y = ai.onnx.ml.Imputer<imputed_value_floats = [{ROW}], replaced_value_float = nan>(x)"
    call = model("float", calls.replace("nan", "0.0"))
    next(a for a in call.graph.node[0].attribute if a.name == "replaced_value_float").f = float("nan")
    optimize(call.SerializeToString(), tmp_path / "f.onnx", gain=False, min_group=1)
    x = features("float", 7)
    x[1, 2] = x[4] = np.nan
    (want,) = ort.InferenceSession(call.SerializeToString()).run(None, {"x": x})
    (got,) = session(tmp_path / "f.onnx").run(None, {"x": x})
    np.testing.assert_array_equal(got, want)
    assert not np.isnan(got).any()
