"""The types of what trained models of ai.onnx.ml compute, and the runtime's shapes."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from tests.load.models import graph_of, parse, text

TREES = (
    "nodes_featureids = [0, 0, 0], nodes_falsenodeids = [2, 0, 0], nodes_truenodeids = [1, 0, 0], "
    'nodes_nodeids = [0, 1, 2], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_treeids = [0, 0, 0], '
    "nodes_values = [0.5, 0.0, 0.0]"
)
VOTES = "class_ids = [0, 1], class_nodeids = [1, 2], class_treeids = [0, 0], class_weights = [1.0, 1.0]"
LEAVES = (
    "n_targets = 2, target_ids = [0, 1], target_nodeids = [1, 2], target_treeids = [0, 0], target_weights = [1.0, 1.0]"
)
VECTORS = 'support_vectors = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], kernel_params = [0.5, 0.0, 3.0], kernel_type = "RBF"'
LINES = "coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], intercepts = [0.5, 1.0]"
LEARNED = {
    f"TreeEnsembleRegressor<{LEAVES}, {TREES}>": ("float32[N, 2]",),
    f"TreeEnsembleClassifier<classlabels_int64s = [3, 4], {VOTES}, {TREES}>": ("int64[N]", "float32[N, 2]"),
    f'TreeEnsembleClassifier<classlabels_strings = ["p", "q"], {VOTES}, {TREES}>': ("None", "float32[N, 2]"),
    f"SVMRegressor<n_supports = 2, rho = [0.5], coefficients = [1.0, -1.0], {VECTORS}>": ("float32[N, 1]",),
    f"LinearRegressor<targets = 2, {LINES}>": ("float32[N, 2]",),
    f'LinearClassifier<classlabels_strings = ["p", "q"], {LINES}>': ("None", "float32[N, 2]"),
    "LinearClassifier<classlabels_ints = [3, 4], coefficients = [1.0, 2.0, 3.0], intercepts = [0.5]>": (
        "int64[N]",
        "float32[N, 2]",
    ),
}


@pytest.mark.parametrize("call", LEARNED, ids=lambda call: call[: call.index(">")][:40])
def test_trained_models_make_a_row_for_each_row(call: str):
    """Else nothing behind a forest is fused: inference says nothing of these operators, or names rows anew."""
    kinds, names = LEARNED[call], ("l", "s")[2 - len(LEARNED[call]) :]
    results = ", ".join(
        f"{'string' if k == 'None' else k.split('[')[0].replace('32', '')}[R] {v}"
        for k, v in zip(kinds, names, strict=True)
    )
    body = f"g (float[N, 3] x) => ({results}) {{ {', '.join(names)} = ai.onnx.ml.{call}(x) }}"
    model = parse(body, imports=', "ai.onnx.ml": 3')
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = graph_of(model)
    assert tuple(text(graph.types.get(v)) for v in names) == kinds
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for rows in (1, 7):
        found = session.run(None, {"x": np.arange(3 * rows).reshape(rows, 3).astype(np.float32)})
        wanted = [(rows,) if k in ("None", "int64[N]") else (rows, int(k[-2])) for k in kinds]
        assert [f.shape for f in found] == wanted
