"""Cases of ONNX Runtime's own operators, with the runtime as the only reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.case import Case, data

M = "com.microsoft::"
STEPS = 12.0


def own(op: str, *inputs: Any, attrs: dict[str, Any] | None = None, **more: Any) -> Case:
    """A case of an operator that ONNX does not know."""
    return Case(op, inputs, attrs or {}, **{"opset": 13, "factor": STEPS, "wrong": "onnx"} | more)


def activations() -> list[Case]:
    x, b = data(3, 4, 6, low=-4, high=4), data(6, seed=1)
    out = [own(M + "Gelu", x), own(M + "BiasGelu", x, b), own(M + "FastGelu", x), own(M + "FastGelu", x, b)]
    out += [own(M + "QuickGelu", x), own(M + "QuickGelu", x, attrs={"alpha": 0.5}), own(M + "Gelu", data(0, 3))]
    out.append(own("Affine", x, attrs={"alpha": 2.0, "beta": 0.5}, opset=9))
    out.append(own("ScaledTanh", x, attrs={"alpha": 2.0, "beta": 0.5}, opset=9))
    image = data(2, 3, 5, 4)
    out.append(own("ImageScaler", image, attrs={"scale": 0.25, "bias": [1.0, -2.0, 0.5]}, opset=9))
    out.append(own("Crop", data(1, 2, 7, 9), attrs={"border": [1, 2, 3, 1]}, opset=9))
    out.append(own("Crop", data(1, 2, 7, 9), attrs={"border": [1, 2, 3, 1], "scale": [3, 2]}, opset=9))
    return out


def features() -> list[Case]:
    op, table = "ai.onnx.ml::ArrayFeatureExtractor", data(3, 7)
    row = np.array([[4, 0, 4]])
    out = [own(op, table, at) for at in (row, row[0], row.T, np.array([[6]]))]
    return [*out, own(op, data(2, 3, 7), row), own(op, data(7), row), own(op, np.arange(7)[None], row.T)]


def products() -> list[Case]:
    out = []
    a, b, c = data(3, 4, 5), data(3, 5, 6, seed=1), data(6, seed=2)
    out.append(own(M + "FusedMatMul", a, b, attrs={"alpha": 0.5}, length=5))
    turned = data(3, 5, 4), data(3, 6, 5, seed=1)
    for ta in (0, 1):
        for tb in (0, 1):
            given = (turned[0] if ta else a, turned[1] if tb else b)
            out.append(own(M + "FusedMatMul", *given, attrs={"transA": ta, "transB": tb}, length=5))
    spread = data(4, 3, 5), data(5, 3, 6, seed=1)
    out.append(own(M + "FusedMatMul", *spread, attrs={"transBatchA": 1, "transBatchB": 1}, length=5))
    swapped = data(5, 3, 4), data(6, 3, 5, seed=1)
    flags = {"transBatchA": 1, "transBatchB": 1, "transA": 1, "transB": 1}
    out.append(own(M + "FusedMatMul", *swapped, attrs=flags, length=5))
    out.append(own(M + "FusedMatMul", data(2, 1, 4, 5), data(3, 6, 5), attrs={"transB": 1}, length=5))
    out.append(own(M + "FusedMatMul", data(4, 5), data(5), attrs={"transB": 1}, length=5))
    for name, more in (
        ("Relu", {}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("LeakyRelu", {"activation_alpha": 0.2}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.6}),
    ):
        attrs = {"activation": name, "transB": 1, **more}
        out.append(own(M + "FusedGemm", data(4, 5), data(6, 5), c, attrs=attrs, length=5))
    image, weights, bias = data(2, 3, 6, 7), data(4, 3, 3, 3, seed=1), data(4, seed=2)
    for name, parameters in (("Relu", []), ("LeakyRelu", [0.1]), ("Clip", [-0.5, 0.75]), ("HardSigmoid", [0.1, 0.4])):
        attrs = {"activation": name, "pads": [1, 1, 1, 1], **({"activation_params": parameters} if parameters else {})}
        out.append(own(M + "FusedConv", image, weights, bias, attrs=attrs, length=27))
    more = data(2, 4, 6, 7, seed=3)
    attrs = {"activation": "Relu", "pads": [1, 1, 1, 1]}
    out.append(own(M + "FusedConv", image, weights, bias, more, attrs=attrs, length=27, constants=(1,)))
    return out


def norms() -> list[Case]:
    out = []
    x, skip, gamma, beta, bias = (
        data(2, 3, 8, low=-4, high=4),
        data(2, 3, 8, seed=1),
        *(data(8, seed=s) for s in (2, 3, 4)),
    )
    op, simple = M + "SkipLayerNormalization", M + "SkipSimplifiedLayerNormalization"
    out.append(own(op, x, skip, gamma, length=8))
    out.append(own(op, x, skip, gamma, beta, bias, attrs={"epsilon": 1e-3}, length=8))
    out.append(own(op, x, skip, gamma, None, bias, length=8))
    out.append(own(op, x, data(1, 3, 8, seed=1), gamma, beta, length=8))
    out.append(own(op, x, data(3, 8, seed=1), gamma, beta, length=8))
    out.append(own(simple, x, skip, gamma, length=8))
    out.append(own(simple, x, skip, gamma, bias, length=8, attrs={"epsilon": 1e-3}))
    words, spots, kinds = data(20, 8), data(10, 8, seed=1), data(2, 8, seed=2)
    numbers = ("3 19 0 5 7 1", "0 1 1 0 0 1", "1 1 0 1 2 -1")  # what is not 1 in a mask is as 0
    ids, segments, mask = (np.array(v.split(), np.int32).reshape(2, 3) for v in numbers)
    embed = M + "EmbedLayerNormalization"
    out.append(own(embed, ids, segments, words, spots, kinds, gamma, beta, mask, outputs=2, length=8))
    out.append(own(embed, ids, None, words, spots, None, gamma, beta, outputs=2, length=8))
    out.append(own(embed, ids, segments, words, spots, kinds, gamma, beta, outputs=2, length=8))
    return out


CASES: tuple[Case, ...] = (*activations(), *features(), *products(), *norms())
