"""Cases of reductions and pooling: axes in every spelling, windows that leave the input, old opsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.case import Case, data, ints

FLOATS = ("float32", "float64", "float16")
AXES: tuple[tuple[int, ...] | None, ...] = (None, (0,), (1,), (-1,), (0, 2), (-1, -3), (0, 1, 2), (2, 1))
EMPTY_IS_UNIT = ("ReduceSum", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2")
REDUCTIONS = (*EMPTY_IS_UNIT, "ReduceMean", "ReduceMax", "ReduceMin")
STEPS = 12.0


def reductions() -> list[Case]:
    out = []
    for op in REDUCTIONS:
        newest, before = (13, 11) if op == "ReduceSum" else (18, 13)
        for axes in AXES:
            for keep in (0, 1):
                x = data(3, 5, 7, high=1.5)
                length = 105 if axes is None else int(np.prod([x.shape[a] for a in axes]))
                attrs: dict[str, Any] = {"keepdims": keep}
                given = (x,) if axes is None else (x, ints(*axes))
                note = "" if axes is None else "over" + "_".join(map(str, axes))
                out.append(Case(op, given, attrs, newest, length=length, note=note))
                old = attrs if axes is None else attrs | {"axes": list(axes)}
                out.append(Case(op, (x,), old, before, length=length))
        for shape in ((), (1,), (1, 5), (11,)):
            out.append(Case(op, (data(*shape),), {}, newest, length=11))
        out.append(Case(op, (data(3, 5),), {"noop_with_empty_axes": 1}, newest))
        out.append(Case(op, (data(3, 5), ints()), {"noop_with_empty_axes": 0}, newest, length=15, note="all"))
        out.append(Case(op, (data(3, 5), ints(1)), {"noop_with_empty_axes": 1}, newest, length=5, note="some"))
        for dtype in ("float64", "float16", "int32", "int64"):
            wrong = "onnx" if op == "ReduceSumSquare" and dtype == "int32" else ""  # its squares widen
            out.append(Case(op, (data(3, 5, dtype=dtype, high=1.2), ints(1)), {}, newest, length=5, wrong=wrong))
        out.append(Case(op, (data(4, 3),), {"axes": [0]}, 7, length=4, wrong="onnx"))
        special = np.array([[np.nan, 1], [np.inf, 2], [-np.inf, np.inf]], np.float32)
        out.append(Case(op, (special, ints(1)), {}, newest, note="special"))
    for op in EMPTY_IS_UNIT:
        newest = 13 if op == "ReduceSum" else 18
        out.append(Case(op, (data(3, 0), ints(1)), {}, newest, wrong="onnx" if op == "ReduceProd" else ""))
        out.append(Case(op, (data(0, 3), ints(1)), {}, newest))
    for op in ("ReduceMax", "ReduceMin"):
        out.append(Case(op, (data(3, 5, dtype="bool"), ints(1)), {}, 20))
        out.append(Case(op, (data(3, 5, dtype="bool"),), {"keepdims": 0}, 20))
        out.append(Case(op, (data(3, 0), ints(1)), {}, 20))
    for op in REDUCTIONS:
        out.append(Case(op, (data(3, 5),), {"axes": [1], "keepdims": -8}, 11, length=5, wrong="onnx", note="odd flag"))
        newest = 13 if op == "ReduceSum" else 18
        out.append(
            Case(op, (data(3, 5),), {"noop_with_empty_axes": 7}, newest, length=15, wrong="onnx", note="odd flag")
        )
    return out


def logarithms() -> list[Case]:
    out = []
    for op in ("ReduceLogSum", "ReduceLogSumExp"):
        low = 0.2 if op == "ReduceLogSum" else -3
        for axes in AXES:
            for keep in (0, 1):
                x = data(3, 5, 7, low=low, high=3)
                given = (x,) if axes is None else (x, ints(*axes))
                note = "" if axes is None else "over" + "_".join(map(str, axes))
                out.append(Case(op, given, {"keepdims": keep}, 18, length=105, note=note))
                old = {"keepdims": keep} if axes is None else {"keepdims": keep, "axes": list(axes)}
                out.append(Case(op, (x,), old, 13, length=105))
        out.append(Case(op, (data(3, 5, low=low), ints()), {"noop_with_empty_axes": 0}, 18, length=15, note="all"))
        out += [Case(op, (data(3, 5, dtype=t, low=0.2), ints(1)), {}, 18, length=5) for t in ("float64", "float16")]
        out.append(Case(op, (data(*(0, 3)), ints(1)), {}, 18))
    large = np.array([[100, 99, -3], [-200, -201, -202], [-np.inf, -np.inf, -np.inf], [np.inf, 0, 1]], np.float32)
    out.append(Case("ReduceLogSumExp", (large, ints(1)), {}, 18, length=3, factor=STEPS, note="large", wrong="onnx"))
    return out


def cumulations() -> list[Case]:
    out = []
    for exclusive in (0, 1):
        for reverse in (0, 1):
            attrs = {"exclusive": exclusive, "reverse": reverse}
            for have, axis in (((7,), 0), ((3, 5), 0), ((3, 5), 1), ((2, 3, 4), -2), ((1, 1), 1), ((0, 3), 1)):
                given = (data(*have), np.array(axis))
                out.append(Case("CumSum", given, attrs, 11, length=7, known=(1,), note=f"along{axis}"))
                out.append(Case("CumProd", given, attrs, 26, length=7, known=(1,), note=f"along{axis}"))
            out += [Case("CumSum", (data(3, 5, dtype=t), np.array(1)), attrs, 14, length=5, known=(1,)) for t in
                    ("float64", "int32", "int64")]  # fmt: skip
            long = data(2, 1100, 2)  # blocks of blocks, the last ones not full
            out.append(Case("CumSum", (long, np.array(1)), attrs, 14, length=1100, known=(1,)))
    out.append(Case("CumSum", (data(70), np.array(0, np.int32)), {}, 14, length=70, known=(1,)))
    out.append(Case("CumProd", (data(70, low=0.9, high=1.1), np.array(0)), {}, 26, length=70, known=(1,)))
    return out


def _noop(op: str) -> str:
    """Without axes nothing is reduced; whether the element itself is still squared or not differs between the two."""
    return "onnx" if op in ("ReduceSumSquare", "ReduceL1", "ReduceL2") else ""


def positions() -> list[Case]:
    out = []
    ties = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [-1, -5, -5, 0]], np.float32)
    for op in ("ArgMax", "ArgMin"):
        for axis in (0, 1, -1):
            for keep in (0, 1):
                out.append(Case(op, (ties,), {"axis": axis, "keepdims": keep}, 13))
                out.append(Case(op, (ties,), {"axis": axis, "keepdims": keep, "select_last_index": 1}, 13))
        out += [Case(op, (ties,), opset=o) for o in (7, 11, 12, 13)]
        out.append(Case(op, (ties,), {"axis": 1, "keepdims": -8}, 13, wrong="onnx", note="odd flag"))
        out += [Case(op, (data(3, 5, 2, dtype=t),), {"axis": 1}, 13) for t in ("float64", "int32")]
        out += [Case(op, (data(1, 5),), {"axis": 0}, 13), Case(op, (data(0, 3),), {"axis": 1}, 13)]
    return out


def pools() -> list[Case]:
    out = []
    line, plane, cube = data(2, 3, 11), data(1, 2, 7, 9), data(1, 2, 5, 4, 6)
    spelled: tuple[tuple[Any, dict[str, Any]], ...] = (
        (line, {"kernel_shape": [3]}),
        (line, {"kernel_shape": [2], "strides": [2]}),
        (line, {"kernel_shape": [4], "pads": [2, 1], "strides": [3]}),
        (plane, {"kernel_shape": [3, 3]}),
        (plane, {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 0, 1]}),
        (plane, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (plane, {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        (plane, {"kernel_shape": [2, 4], "auto_pad": "SAME_LOWER", "strides": [2, 3]}),
        (plane, {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
        (plane, {"kernel_shape": [3, 3], "auto_pad": "VALID", "strides": [2, 2]}),
        (plane, {"kernel_shape": [7, 9]}),
        (plane, {"kernel_shape": [1, 1]}),
        (plane, {"kernel_shape": [12, 14], "pads": [4, 2, 1, 3]}),
        (cube, {"kernel_shape": [2, 3, 2], "strides": [1, 1, 2], "pads": [0, 1, 1, 1, 1, 0]}),
        (data(0, 2, 5, 5), {"kernel_shape": [2, 2]}),
    )
    rounded: tuple[dict[str, Any], ...] = (
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 2], "strides": [3, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "strides": [3, 4], "ceil_mode": 1},
        {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [4, 4], "strides": [4, 4], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [40, 5], "strides": [40, 5], "ceil_mode": 1},
    )
    for op, dilated in (("MaxPool", 11), ("AveragePool", 19)):
        for x, attrs in spelled:
            length = int(np.prod(attrs["kernel_shape"]))
            # its SAME_LOWER rounds the extent down, its averages skip NaN, its global pools are for images, and
            # windows larger than the image are none
            wrong = "onnx" if attrs.get("auto_pad") == "SAME_LOWER" or attrs["kernel_shape"] == [12, 14] else ""
            out.append(Case(op, (x,), attrs, 11, length=length, wrong=wrong))
            if op == "AveragePool":
                out.append(Case(op, (x,), attrs | {"count_include_pad": 1}, 11, length=length, wrong=wrong))
        for attrs in rounded:
            wrong = "onnx" if op == "AveragePool" and attrs["kernel_shape"] == [40, 5] else ""
            out.append(Case(op, (plane,), attrs, 12, length=35, wrong=wrong))
            if op == "AveragePool":
                out.append(Case(op, (plane,), attrs | {"count_include_pad": 1}, 19, length=35, wrong=wrong))
        out.append(Case(op, (plane,), {"kernel_shape": [2, 3], "dilations": [2, 3]}, dilated, length=6))
        out.append(
            Case(op, (plane,), {"kernel_shape": [3, 2], "dilations": [2, 1], "pads": [2, 1, 1, 0]}, dilated, length=6)
        )
        out += [Case(op, (plane,), {"kernel_shape": [3, 3]}, o, length=9) for o in (7, 8, 22)]
        out.append(Case(op, (plane.astype(np.float16),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 22, length=9))
    out.append(Case("MaxPool", (plane.astype(np.float64),), {"kernel_shape": [3, 3]}, 12))
    special = np.where(plane > 1.5, np.float32(np.nan), np.where(plane < 0, np.float32(-np.inf), plane))
    out.append(Case("AveragePool", (special,), {"kernel_shape": [3, 3]}, 12, length=9, note="special", wrong="onnx"))
    for p in (1, 2, 3):
        for x, attrs in spelled:
            wrong = "onnx" if attrs.get("auto_pad") == "SAME_LOWER" or attrs["kernel_shape"] == [12, 14] else ""
            out.append(Case("LpPool", (x,), attrs | {"p": p}, 11, length=12, factor=STEPS, wrong=wrong))
        for x in (line, plane, cube):
            out.append(Case("GlobalLpPool", (x,), {"p": p}, 7, length=120, factor=STEPS, wrong="onnx"))
    for attrs in (*rounded, {"kernel_shape": [2, 3], "dilations": [2, 3]}):
        wrong = "onnx" if attrs["kernel_shape"] in ([2, 2], [4, 4], [40, 5]) else ""  # it counts what it has not padded
        out.append(Case("LpPool", (plane,), attrs, 18, length=35, factor=STEPS, wrong=wrong))
    out += [
        Case("MaxPool", (plane.astype(t),), {"kernel_shape": [3, 3], "pads": [1] * 4}, 12, wrong="onnx")
        for t in ("int8", "uint8")
    ]
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        for x in (line, plane, cube, data(0, 2, 3), data(2, 3, 1, 1), plane.astype(np.float16)):
            wrong = "" if x.ndim == 4 and x.size else "onnx"
            out += [Case(op, (x,), opset=o, length=120, wrong=wrong) for o in (7, 22)]
    return out


CASES: tuple[Case, ...] = (
    *reductions(),
    *logarithms(),
    *cumulations(),
    *positions(),
    *pools(),
)
