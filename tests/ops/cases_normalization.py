"""Cases of softmax and normalizations: axes in every spelling, statistics as outputs, types, old opsets."""

from __future__ import annotations

import numpy as np

from tests.ops.case import Case, data, ints

STEPS = 12.0


def softmaxes() -> list[Case]:
    out = []
    for op in ("Softmax", "LogSoftmax"):
        for axis in (0, 1, -1):
            out.append(Case(op, (data(3, 5, 7, low=-9, high=9),), {"axis": axis}, 13, length=7, factor=STEPS))
            for opset in (7, 11):
                x = data(3, 5, 2, low=-9, high=9)
                out.append(
                    Case(
                        op,
                        (x,),
                        {"axis": axis if opset > 7 else abs(axis)},
                        opset,
                        length=30,
                        factor=STEPS,
                        wrong="onnx",
                    )
                )
        out.append(Case(op, (data(3, 5, low=50, high=100),), opset=13, length=5, factor=STEPS))
        out.append(Case(op, (data(3, 1),), opset=13, factor=STEPS))
        out.append(Case(op, (data(0, 3),), opset=13, factor=STEPS))
        out.append(Case(op, (data(2, 3, 4),), opset=11, length=12, factor=STEPS, wrong="onnx"))
        out += [Case(op, (data(3, 5, dtype=t),), opset=13, length=5, factor=STEPS) for t in ("float64", "float16")]
        masked = np.array([[0.5, -np.inf, 1.0], [-np.inf, -np.inf, 2.0]], np.float32)
        out.append(Case(op, (masked,), opset=13, length=3, factor=STEPS, note="masked"))
    out.append(Case("Softmax", (np.full((2, 3), -np.inf, np.float32),), opset=13, note="all-masked", factor=STEPS))
    return out


def normalizations() -> list[Case]:
    out = []
    for axis in (-1, 1, 0, -2):
        x = data(2, 3, 5, low=-4, high=4)
        tail = x.shape[axis:]
        length = int(np.prod(tail))
        scale, bias = data(*tail, seed=1), data(*tail, seed=2)
        for given in ((x, scale), (x, scale, bias)):
            out.append(Case("LayerNormalization", given, {"axis": axis}, 17, length=length, factor=STEPS))
        out.append(
            Case("RMSNormalization", (x, scale), {"axis": axis, "epsilon": 1e-3}, 23, length=length, factor=STEPS)
        )
    x, scale, bias = data(4, 6), data(6, seed=1), data(6, seed=2)
    out.append(Case("LayerNormalization", (x, scale, bias), {"epsilon": 0.1}, 17, length=6, factor=STEPS))
    out.append(Case("LayerNormalization", (data(4, 1), data(1), data(1, seed=1)), {}, 17, factor=STEPS))
    out.append(Case("LayerNormalization", (data(0, 3), data(3), data(3, seed=1)), {}, 17, factor=STEPS))
    half = [v.astype(np.float16) for v in (x, scale, bias)]
    out.append(Case("LayerNormalization", tuple(half), {}, 17, length=6, factor=STEPS))
    out.append(Case("RMSNormalization", tuple(half[:2]), {}, 23, length=6, factor=STEPS))
    double = [v.astype(np.float64) for v in (x, scale, bias)]
    out.append(Case("LayerNormalization", tuple(double), {}, 17, length=6, factor=STEPS, precision="float32"))
    for shape in ((2, 3, 5), (1, 3, 4, 5), (2, 1, 2, 3, 2), (2, 3, 1)):
        c, length = shape[1], int(np.prod(shape[2:]))
        given = (data(*shape), data(c, seed=1), data(c, seed=2))
        for opset, attrs in ((6, {}), (13, {"epsilon": 1e-2}), (22, {})):
            factor = STEPS if length > 1 else 400 * STEPS  # x - mean is 0, but not where it is x/s - mean/s
            out.append(Case("InstanceNormalization", given, attrs, opset, length=length, factor=factor))
    for shape in ((2, 3, 5), (1, 16, 27), (3, 2, 4, 5), (4, 3)):
        c, length = shape[1], int(np.prod(shape)) // shape[1]
        given = (data(*shape), *(data(c, seed=k) for k in (1, 2, 3)), data(c, low=0.5, high=2, seed=4))
        for opset, momentum in ((14, 0.9), (15, 1.0), (17, 0.25)):
            attrs = {"training_mode": 1, "momentum": momentum}
            out.append(Case("BatchNormalization", given, attrs, opset, 3, length=length, factor=STEPS))
    return out


def hardmaxes() -> list[Case]:
    out = []
    ties = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [-1, -5, -5, 0]], np.float32)
    for axis in (0, 1, -1):
        out.append(Case("Hardmax", (ties,), {"axis": axis}, 13))
        out.append(Case("Hardmax", (data(3, 5, 2),), {"axis": axis}, 13))
        out.append(Case("Hardmax", (data(3, 5, 2),), {"axis": abs(axis)}, 11, wrong="onnx"))
    out += [Case("Hardmax", (data(2, 3, 4),), opset=o, wrong="onnx" if o < 13 else "") for o in (7, 11, 13)]
    out += [Case("Hardmax", (data(0, 3),), opset=13), Case("Hardmax", (data(3, 1),), opset=13)]
    return out


def exponents() -> list[Case]:
    out = []
    special = np.array([[1, np.inf], [np.inf, -np.inf], [-np.inf, -np.inf], [np.nan, 1]], np.float32)
    for keep in (0, 1):
        for axes in ((0,), (1,), (0, 2), (-1, -2)):
            x = data(3, 5, 7, low=-60, high=90)
            out.append(Case("ReduceLogSumExp", (x,), {"axes": list(axes), "keepdims": keep}, 13, factor=STEPS))
            note = "over" + "_".join(map(str, axes))
            out.append(Case("ReduceLogSumExp", (x, ints(*axes)), {"keepdims": keep}, 18, factor=STEPS, note=note))
    out.append(Case("ReduceLogSumExp", (data(3, 5),), {}, 18, factor=STEPS))
    out.append(Case("ReduceLogSumExp", (special, ints(1)), {}, 18, factor=STEPS, note="special", wrong="onnx"))
    out += [
        Case("ReduceLogSumExp", (data(3, 5, dtype=t), ints(1)), {}, 18, factor=STEPS) for t in ("float64", "float16")
    ]
    return out


def statistics() -> list[Case]:
    """Mean and inverse deviation as outputs; ONNX Runtime's own spellings, which the reference does not know."""
    out = []
    x, scale, bias = data(2, 3, 5, low=-4, high=4), data(5, seed=1), data(5, seed=2)
    for axis in (-1, 1):
        tail = x.shape[axis:]
        given = (x, data(*tail, seed=1), data(*tail, seed=2))
        for outputs in (2, 3):
            out.append(Case("LayerNormalization", given, {"axis": axis}, 17, outputs, length=15, factor=STEPS))
    half = tuple(v.astype(np.float16) for v in (x, scale, bias))
    out.append(Case("LayerNormalization", half, {}, 17, 3, length=5, factor=STEPS, precision="float16", wrong="onnx"))
    own = {"length": 5, "factor": STEPS, "wrong": "onnx"}
    for opset in (9, 13, 16):
        out.append(Case("LayerNormalization", (x, scale, bias), {"epsilon": 1e-2}, opset, **own))
    out.append(Case("LayerNormalization", (x, scale), {}, 12, 3, **own))
    out.append(Case("SimplifiedLayerNormalization", (x, scale), {"axis": -1}, 13, **own))
    out.append(Case("SimplifiedLayerNormalization", (x, data(3, 5)), {"axis": 1, "stash_type": 1}, 17, **own))
    return out


def groups() -> list[Case]:
    out = []
    for shape, count in (((2, 6, 4, 5), 3), ((1, 4, 7), 4), ((3, 6, 5), 1), ((2, 4, 2, 3, 2), 2)):
        x, length = data(*shape, low=-4, high=4), int(np.prod(shape[1:])) // count
        for opset, width in ((18, count), (21, shape[1]), (23, shape[1])):
            given = (x, data(width, seed=1), data(width, seed=2))
            attrs = {"num_groups": count, "epsilon": 1e-3}
            out.append(Case("GroupNormalization", given, attrs, opset, length=length, factor=STEPS))
    half = tuple(v.astype(np.float16) for v in (data(2, 4, 5), data(4, seed=1), data(4, seed=2)))
    out.append(Case("GroupNormalization", half, {"num_groups": 2}, 21, length=10, factor=STEPS))
    return out


def others() -> list[Case]:
    out = []
    image = data(2, 3, 4, 5, low=-4, high=4)
    for attrs, length in (({}, 40), ({"axes": [2, 3]}, 20), ({"axes": [0, 1, 2, 3]}, 120), ({"axes": [1, 2, 3]}, 60)):
        for opset in (9, 13):
            out.append(Case("MeanVarianceNormalization", (image,), attrs, opset, length=length, factor=STEPS))
    holes = np.array([[3, -4, 0], [0, 0, 0], [-1e-3, 2, 5]], np.float32)
    for p in (1, 2):
        for axis in (0, 1, -1):
            for x in (holes, data(4, 3, 5)[..., 0]):
                # its odd norms take no absolute values, its axis 0 is the last
                wrong = "onnx" if p == 1 or axis == 0 else ""
                for opset in (7, 22):
                    out.append(Case("LpNormalization", (x,), {"p": p, "axis": axis}, opset, factor=STEPS, wrong=wrong))
    out.append(Case("LpNormalization", (data(3, 4, dtype="float64"),), {}, 22, factor=STEPS))
    for size in (1, 3, 5, 2, 4):
        # the runtime takes odd sizes only; the reference takes the batch for the channels
        wrong = "runtime" if size % 2 == 0 else ""
        attrs = {"size": size, "alpha": 0.3, "beta": 0.7, "bias": 1.5}
        out.append(Case("LRN", (data(5, 5, 3, 4, low=-4, high=4),), attrs, 13, length=size, factor=STEPS, wrong=wrong))
    out.append(Case("LRN", (data(1, 3, 2, 2),), {"size": 3}, 7, factor=STEPS, wrong="onnx"))
    return out


CASES: tuple[Case, ...] = (
    *softmaxes(),
    *normalizations(),
    *hardmaxes(),
    *exponents(),
    *statistics(),
    *groups(),
    *others(),
)
