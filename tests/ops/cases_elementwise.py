"""Cases of elementwise rows: dtypes, broadcasting both ways, sizes 0 and 1, special values, old opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from tests.ops.case import Array, Case, data, ints

SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 5), (3, 5)),
    ((3, 5), (5,)),
    ((5,), (3, 5)),
    ((3, 1), (1, 5)),
    ((), (3, 5)),
    ((2, 1, 7), (3, 1)),
    ((0, 3), (3,)),
    ((1,), (1,)),
    ((0,), (1,)),
    ((1, 1), (7,)),
    ((), ()),
)
FLOATS = ("float32", "float64", "float16")
NUMBERS = (*FLOATS, "int32", "int64")
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 88.0, -88.0], np.float32)
STEPS = 12.0  # roundings of a function that is spelled in several steps


def _pairs(op: str, dtypes: tuple[str, ...], opsets: tuple[int, ...], **more: Any) -> list[Case]:
    """A binary operator over all shapes in its first type, and over one broadcast in every type and opset."""
    first = [
        Case(op, (data(*a, dtype=dtypes[0], seed=1), data(*b, dtype=dtypes[0], seed=2)), **more) for a, b in SHAPES
    ]
    x, y = SHAPES[5]
    rest = [
        Case(op, (data(*x, dtype=t, seed=1), data(*y, dtype=t, seed=2)), opset=o, **more)
        for t in dtypes
        for o in opsets
        if (t, o) != (dtypes[0], 17)
    ]
    return first + rest


def _special_pairs(op: str, **more: Any) -> list[Case]:
    x, y = np.meshgrid(SPECIAL, SPECIAL)
    return [Case(op, (x, y), note="special", **more)]


def _nonzero(x: Array) -> Array:
    return np.where(x == 0, np.ones_like(x), x)


def arithmetic() -> list[Case]:
    out: list[Case] = []
    for op in ("Add", "Sub", "Mul"):
        out += _pairs(op, NUMBERS, (7, 13, 17)) + _special_pairs(op)
    for a, b in SHAPES:
        out.append(Case("Div", (data(*a, seed=1), _nonzero(data(*b, seed=2)))))
    for t in NUMBERS:
        y = np.sign(data(4, 5, dtype=t, seed=2)) * 3 + np.equal(data(4, 5, dtype=t, seed=2), 0)
        out.append(Case("Div", (data(4, 5, dtype=t, seed=3, high=9), y.astype(t)), opset=7))
    out += _special_pairs("Div")
    for op in ("Min", "Max"):
        out += _pairs(op, FLOATS, (8, 13)) + _pairs(op, ("int32", "int64"), (12, 13)) + _special_pairs(op)
        out.append(Case(op, (data(3, 4), data(4, seed=1), data(3, 1, seed=2))))
        out.append(Case(op, (data(3, 4),)))
    for op in ("Sum", "Mean"):
        wrong = "onnx" if op == "Mean" else ""  # its Mean adds in place and cannot broadcast
        out += _pairs(op, ("float32", "float16") if wrong else FLOATS, (8, 13), wrong=wrong)
        out.append(Case(op, (data(3, 4), data(4, seed=1), data(3, 1, seed=2), data(1, seed=3)), wrong=wrong))
        out.append(Case(op, (data(3, 4),)))
        out.append(Case(op, (data(3, 4), data(3, 4, seed=1)), opset=6))
    for t in ("int32", "int64"):
        for fmod in (0, 1):
            y = _nonzero(data(3, 5, dtype=t, seed=2))
            out.append(Case("Mod", (data(3, 5, dtype=t, seed=1, low=-9, high=9), y), {"fmod": fmod}, 13))
    out.append(Case("Mod", (data(3, 5, seed=1, low=-9, high=9), data(5, seed=2)), {"fmod": 1}, 10))
    return out


def powers() -> list[Case]:
    out: list[Case] = []
    base = np.abs(data(3, 5, seed=1)) + 0.1
    for dtype in FLOATS:
        out.append(Case("Pow", (base.astype(dtype), data(5, dtype=dtype, seed=2)), opset=13, factor=STEPS))
    for exponent in (2.0, 3.0, 1.0, 0.5, -1.0, 0.0):
        y = np.array([exponent], np.float32)
        out.append(Case("Pow", (data(3, 5), y), constants=(1,), factor=STEPS, note=f"e{exponent}"))
        out.append(Case("Pow", (data(3, 5), y), opset=7, factor=STEPS, note=f"e{exponent}"))
    out.append(Case("Pow", (SPECIAL, np.array(2.0, np.float32)), constants=(1,), note="special"))
    out.append(Case("Pow", (data(3, 5, dtype="float32"), ints(2, 3, 0, 1, 2)), opset=12, factor=STEPS))
    out.append(Case("Pow", (data(3, 5), ints(2)), opset=13, constants=(1,), factor=STEPS, note="int-square"))
    positive = np.abs(data(3, 5, dtype="int64")) + 1
    out.append(Case("Pow", (positive, np.array([2, 1, 0, 3, 2], np.int64)), opset=13))
    out.append(Case("Pow", (positive, np.array([0.5, 1.5, 2.0, 0.0, 1.0], np.float32)), opset=13))
    return out


def comparisons() -> list[Case]:
    out: list[Case] = []
    for op, opsets in (("Equal", (11, 13)), ("Less", (9, 13)), ("Greater", (9, 13))):
        out += _pairs(op, NUMBERS, opsets) + _special_pairs(op)
    out += _pairs("Equal", ("bool",), (7, 13))
    for op in ("LessOrEqual", "GreaterOrEqual"):
        out += _pairs(op, NUMBERS, (12, 16)) + _special_pairs(op)
    for op in ("And", "Or", "Xor"):
        out += _pairs(op, ("bool",), (7,))
    for a, b in SHAPES:
        out.append(Case("Where", (data(*a, dtype="bool"), data(*b, seed=1), data(*a, seed=2))))
    for t in (*NUMBERS, "bool"):
        x, y = data(3, 5, dtype=t, seed=1), data(5, dtype=t, seed=2)
        out.append(Case("Where", (data(3, 1, dtype="bool"), x, y), opset=9))
    out.append(Case("Where", (data(2, 3, dtype="bool"), np.array([-np.inf], np.float32), data(3)), constants=(1,)))
    return out


_EXACT = ["Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "Identity", "Relu"]
_CURVED = ["Exp", "Log", "Erf", "Tanh", "Sigmoid", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh"]
_INVERSE = {"Asin": (-1.0, 1.0), "Acos": (-1.0, 1.0), "Acosh": (1.0, 9.0), "Atanh": (-1.0, 1.0)}
_SPELLED = ["Elu", "Selu", "LeakyRelu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Mish", "Gelu", "Swish",
            "Celu", "ThresholdedRelu"]  # fmt: skip
_SINCE = {"Erf": 13, "Sign": 13, "Round": 22, "HardSwish": 14, "Mish": 18, "Gelu": 20, "Swish": 24, "Sin": 7, "Cos": 7,
          "Tan": 7, "Atan": 7, "Sinh": 9, "Cosh": 9, "Asinh": 9, "Celu": 28, "ThresholdedRelu": 10}  # fmt: skip


def unary() -> list[Case]:
    out: list[Case] = []
    for op in (*_EXACT, *_CURVED, *_SPELLED):
        factor = 4.0 if op in _EXACT else STEPS
        newest = _SINCE.get(op, 17)
        for shape in ((3, 5), (), (0, 4), (1, 1, 7)):
            x = data(*shape, low=0.1 if op in ("Sqrt", "Log") else -4, high=4)
            wrong = "onnx" if op == "Softsign" and not shape else ""  # its Softsign returns no array
            out.append(Case(op, (x,), opset=newest, factor=factor, wrong=wrong))
        for dtype in ("float64", "float16"):
            x = np.abs(data(11, dtype=dtype, high=3)) + np.array(0.1, dtype)
            single = (
                "float32" if op in ("Erf", "Gelu", "HardSwish") and dtype == "float64" else ""
            )  # as its body has it
            out.append(Case(op, (x,), opset=newest, factor=factor, precision=single))
        out.append(Case(op, (SPECIAL,), opset=newest, factor=factor, note="special"))
        if op == "Celu":
            out += [Case(op, (x,), {"alpha": a}, 12, factor=factor) for a in (0.3, 2.0) for x in (data(5), SPECIAL)]
        if op not in _SINCE:
            out.append(Case(op, (data(5, low=0.2),), opset=7, factor=factor))
    for op, (low, high) in _INVERSE.items():
        since = 9 if op.endswith("h") else 7
        out += [Case(op, (data(3, 5, low=low, high=high),), opset=o, factor=STEPS) for o in (since, 22)]
        out += [Case(op, (data(11, dtype=t, low=low, high=high),), opset=22, factor=STEPS) for t in FLOATS[1:]]
        out.append(Case(op, (SPECIAL,), opset=22, factor=STEPS, note="special"))
    for op in ("Abs", "Neg", "Sign"):
        out += [Case(op, (data(7, dtype=t),)) for t in ("int32", "int64")]
    out += [Case("Relu", (data(7, dtype=t),)) for t in ("int32", "int64")]
    out += [Case("Identity", (data(7, dtype=t),)) for t in ("int32", "int64", "bool")]
    out += [Case("Not", (data(*s, dtype="bool"),), opset=o) for s in ((3, 5), (), (0,)) for o in (7, 17)]
    out += [Case("IsNaN", (SPECIAL.astype(t),), opset=o) for t in FLOATS for o in (13, 20)]
    out += [Case("IsInf", (SPECIAL.astype(t),), opset=20) for t in FLOATS]
    for positive in (0, 1):
        for negative in (0, 1):
            attrs = {"detect_positive": positive, "detect_negative": negative}
            out += [Case("IsInf", (SPECIAL.astype(t),), attrs, 10) for t in FLOATS[:2]]
    for op, attrs in (
        ("Elu", {"alpha": 0.3}),
        ("Celu", {"alpha": 0.3}),
        ("Celu", {"alpha": 2.0}),
        ("ThresholdedRelu", {"alpha": 0.3}),
        ("ThresholdedRelu", {"alpha": -0.3}),
        ("Selu", {"alpha": 1.5, "gamma": 0.7}),
        ("LeakyRelu", {"alpha": 0.3}),
        ("LeakyRelu", {"alpha": -0.5}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.1}),
        ("Gelu", {"approximate": "tanh"}),
        ("Swish", {"alpha": 1.7}),
    ):
        for dtype in FLOATS:
            x = data(3, 7, dtype=dtype, low=-5, high=5)
            single = "float32" if op == "Gelu" and dtype == "float64" else ""
            out.append(Case(op, (x,), attrs, _SINCE.get(op, 17), factor=STEPS, precision=single))
    return out


def bits() -> list[Case]:
    out = []
    unsigned = ("uint8", "uint16", "uint32", "uint64")
    signed = ("int8", "int16", "int32", "int64")
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        out += [Case(op, (data(*a, dtype="int32"), data(*b, dtype="int32", seed=1)), opset=18) for a, b in SHAPES]
        for t in (*unsigned, *signed):
            out.append(Case(op, (data(2, 1, 7, dtype=t), data(3, 1, dtype=t, seed=1)), opset=18))
    out += [Case("BitwiseNot", (data(3, 5, dtype=t),), opset=18) for t in (*unsigned[:2], *signed)]
    for direction in ("LEFT", "RIGHT"):
        attrs = {"direction": direction}
        for t in unsigned:
            x, y = data(3, 5, dtype=t, low=0, high=40), data(5, dtype=t, low=0, seed=1)
            out.append(Case("BitShift", (x, y % 8), attrs, 11, note="8"))
        for t in signed:
            x, y = data(3, 5, dtype=t, low=-20, high=20), data(5, dtype=t, low=0, seed=1)
            out.append(Case("BitShift", (x, y % 8), attrs, 28))
    return out


def shrinks() -> list[Case]:
    out = []
    for t in ("float32", "float64", "float16", "int32", "uint8"):
        x = data(3, 7, dtype=t, low=0 if t == "uint8" else -2)
        for attrs in ({}, {"bias": 1.5}, {"lambd": 1.5, "bias": 1.5}, {"lambd": 0.0}):
            wrong = "onnx" if attrs.get("bias") and t in ("int32", "uint8") else ""  # it does not return to the type
            wrong += "runtime" if t == "float64" else ""  # it computes in float32
            out.append(Case("Shrink", (x,), attrs, 9, wrong=wrong))
    out.append(Case("Shrink", (SPECIAL,), {"lambd": 1.0}, 9, note="special"))
    return out


_TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}


def casts() -> list[Case]:
    out = []
    for source in _TYPES:
        for to, number in _TYPES.items():
            x = np.abs(data(3, 5, dtype=source)) if to == "uint8" and source != "bool" else data(3, 5, dtype=source)
            out.append(Case("Cast", (x,), {"to": number}, note=to))
    out.append(Case("Cast", (SPECIAL,), {"to": TensorProto.BOOL}, note="special-bool"))
    out.append(Case("Cast", (SPECIAL,), {"to": TensorProto.FLOAT16}, note="special-half"))
    out.append(Case("Cast", (data(3),), {"to": TensorProto.INT64}, 9))
    return out


def likenesses() -> list[Case]:
    """CastLike: only the element type of the second input counts, which may be anything."""
    like = {t: np.ones((2, 0) if t == "int8" else (3,), t) for t in _TYPES}
    out = [
        Case("CastLike", (data(3, 5, dtype=t), like[to]), opset=o, note=to)
        for t, to, o in (
            ("float32", "int64", 15), ("int32", "float16", 19), ("float64", "bool", 21), ("bool", "float32", 15),
            ("float32", "float32", 15), ("int64", "int8", 25),
        )
    ]  # fmt: skip
    return out


def bounded() -> list[Case]:
    low, high = np.array(-0.5, np.float32), np.array(0.75, np.float32)
    out = [
        Case("Clip", (data(3, 5), low, high)),
        Case("Clip", (data(3, 5), low, high), constants=(1, 2), opset=11),
        Case("Clip", (data(3, 5), None, high), opset=12),
        Case("Clip", (data(3, 5), low), opset=13),
        Case("Clip", (data(3, 5),), opset=13),
        Case("Clip", (data(3, 5), high, low), wrong="onnx", note="crossed"),
        Case("Clip", (SPECIAL, low, high), note="special"),
        Case("Clip", (data(0, 3), low, high)),
        Case("Clip", (data(3, 5), low.reshape(1), high.reshape(1)), constants=(1, 2), wrong="runtime", note="rank1"),
        Case("Clip", (data(3, 5),), {"min": 0.0, "max": 6.0}, 6),
        Case("Clip", (data(3, 5),), {"max": 0.5}, 6),
        Case("Clip", (data(3, 5),), opset=6),
        Case("Clip", (data(3, 5, dtype="float16"),), {"min": -1.0, "max": 3.4028234663852886e38}, 6),
    ]
    for t in ("int32", "int64", "float64", "float16"):
        out.append(Case("Clip", (data(3, 5, dtype=t), np.array(-1, t), np.array(1, t)), opset=12))
    for slope in ((3, 5), (5,), (3, 1), (1,)):
        out.append(Case("PRelu", (data(3, 5), data(*slope, seed=1)), opset=9))
    out.append(Case("PRelu", (data(2, 3, 4, 5), data(3, 1, 1, seed=1)), opset=16, constants=(1,)))
    out.append(Case("PRelu", (data(3, 5, dtype="float64"), data(5, dtype="float64", seed=1)), opset=7))
    out += [Case("Dropout", (data(3, 5, dtype=t),), {"ratio": 0.5}, 7) for t in FLOATS]
    out.append(Case("Dropout", (data(3, 5), np.array(0.5, np.float32), np.array(False)), opset=13, constants=(1, 2)))
    out.append(Case("Dropout", (data(3, 5), np.array(0.5, np.float32)), opset=12, constants=(1,)))
    return out


def batch_normalization() -> list[Case]:
    out = []
    for shape in ((2, 3, 4, 5), (2, 3), (2, 1, 7), (0, 3, 2), (1, 3, 2, 2, 2)):
        c = shape[1]
        scale, bias, mean, var = data(c, seed=1), data(c, seed=2), data(c, seed=3), np.abs(data(c, seed=4)) + 0.1
        for opset, attrs in ((7, {}), (9, {"epsilon": 1e-3}), (14, {}), (15, {"epsilon": 1e-3, "momentum": 0.5})):
            x = data(*shape)
            wrong = "onnx" if opset < 14 else ""  # its old versions train
            out.append(Case("BatchNormalization", (x, scale, bias, mean, var), attrs, opset, factor=STEPS, wrong=wrong))
    x, s, b, m = (data(*shape, dtype="float64", seed=k) for k, shape in enumerate(((2, 3, 4), (3,), (3,), (3,))))
    out.append(Case("BatchNormalization", (x, s, b, m, np.abs(s) + 1), opset=15, factor=STEPS))
    return out


CASES: tuple[Case, ...] = (
    *arithmetic(),
    *powers(),
    *comparisons(),
    *unary(),
    *bits(),
    *shrinks(),
    *casts(),
    *likenesses(),
    *bounded(),
    *batch_normalization(),
)
