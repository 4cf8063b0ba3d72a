"""Cases of rows that move elements: shapes with zeros and ones, negative axes, steps and indices, old opsets."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.ops.case import Case, data, ints

MAX = 2**63 - 1


def reshapes() -> list[Case]:
    out = []
    for have, want in (
        ((2, 3, 4), (6, 4)),
        ((2, 3, 4), (4, 6)),
        ((2, 3, 4), (3, 2, 4)),
        ((2, 3, 4), (-1,)),
        ((2, 3, 4), (0, -1)),
        ((2, 3, 4), (0, 0, 2, -1)),
        ((2, 3, 4), (1, -1, 1, 3)),
        ((7,), (7, 1)),
        ((1,), ()),
        ((), (1, 1)),
        ((0, 3), (3, 1, -1)),
        ((0, 3), (0, 1, 3)),
        ((0, 3), (-1, 3)),
    ):
        out.append(Case("Reshape", (data(*have), ints(*want)), note=_text(want)))
    x = data(2, 6)
    out += [Case("Reshape", (x, ints(3, 4)), opset=o, note="3x4") for o in (5, 13, 14, 21)]
    out += [Case("Reshape", (data(4, dtype=t), ints(2, 2))) for t in ("float16", "int64", "bool")]
    out.append(Case("Reshape", (data(3, 0), ints(0, 5)), {"allowzero": 1}, 14))
    for at in (0, 1, 2, 3, -1, -2):
        out.append(Case("Flatten", (data(2, 3, 4),), {"axis": at}, 13))
    out += [
        Case("Flatten", (data(2, 3, 4, 5),), opset=9),
        Case("Flatten", (data(0, 3, 2),), wrong="onnx"),
        Case("Flatten", (data(7),)),
    ]
    for op, have, axes in (
        ("Squeeze", (1, 3, 1, 5), (0, 2)),
        ("Squeeze", (1, 3, 1, 5), (-2,)),
        ("Squeeze", (1, 1), (0, 1)),
        ("Squeeze", (0, 1), (1,)),
        ("Unsqueeze", (3, 5), (0, 2)),
        ("Unsqueeze", (3, 5), (-1, 0)),
        ("Unsqueeze", (), (0,)),
        ("Unsqueeze", (0, 3), (1,)),
    ):
        out.append(Case(op, (data(*have), ints(*axes)), opset=13, note=_text(axes)))
        out.append(Case(op, (data(*have),), {"axes": list(axes)}, 11))
    out += [Case("Unsqueeze", (data(3, 5), ints(2, 0)), opset=13)]
    out += [Case("Squeeze", (data(1, 3, 1),), opset=o) for o in (7, 11, 13, 21)]
    return out


def _text(values: tuple[int, ...]) -> str:
    return "to" + "_".join(map(str, values))


def transposes() -> list[Case]:
    out = [Case("Transpose", (data(2, 3, 5),), {"perm": list(p)}) for p in permutations(range(3))]
    out += [
        Case("Transpose", (data(2, 3, 1, 5),), {"perm": list(p)}) for p in ((0, 2, 3, 1), (0, 3, 1, 2), (3, 1, 0, 2))
    ]
    out += [Case("Transpose", (data(*s),), opset=o) for s, o in (((2, 3, 5), 7), ((7,), 13), ((), 17), ((0, 3), 21))]
    out += [Case("Transpose", (data(2, 3, dtype=t),)) for t in ("float16", "int64", "bool")]
    out += [Case("Transpose", (data(1, 5, 1),), {"perm": [2, 1, 0]})]
    return out


def expansions() -> list[Case]:
    out = []
    for have, want in (
        ((3, 1), (2, 3, 6)),
        ((3, 1), (3, 4)),
        ((3, 4), (1,)),
        ((3, 4), (2, 1, 1)),
        ((), (2, 3)),
        ((1,), (0,)),
        ((3, 1), (1, 0)),
        ((1, 1), (1, 1)),
        ((5,), (5,)),
    ):
        out.append(Case("Expand", (data(*have), ints(*want)), opset=8, note=_text(want)))
    out.append(Case("Expand", (data(3, 1, dtype="bool"), ints(3, 2)), opset=13))
    for have, repeats in (
        ((2, 3), (2, 2)),
        ((2, 3), (1, 3)),
        ((1, 3), (4, 1)),
        ((7,), (3,)),
        ((2, 3), (0, 2)),
        ((0, 3), (2, 2)),
    ):
        out.append(Case("Tile", (data(*have), ints(*repeats)), opset=13, note=_text(repeats)))
    out.append(Case("Tile", (data(2, 1, 3, dtype="int64"), ints(2, 3, 1)), opset=6))
    return out


def slices() -> list[Case]:
    out = []
    x = data(7, 5, 3)
    for starts, ends, axes, steps in (
        ((1,), (4,), (0,), None),
        ((1, 0), (4, 2), None, None),
        ((0,), (MAX,), (1,), None),
        ((-3,), (-1,), (0,), None),
        ((-3,), (MAX,), (-3,), None),
        ((2,), (100,), (0,), None),
        ((-100,), (3,), (0,), None),
        ((5,), (2,), (0,), None),
        ((0,), (7,), (0,), (2,)),
        ((1,), (MAX,), (0,), (3,)),
        ((0, 1), (6, 5), (0, 1), (2, 2)),
        ((-1,), (-MAX,), (0,), (-1,)),
        ((6,), (1,), (0,), (-2,)),
        ((-1, -1), (-100, 0), (0, 1), (-1, -2)),
        ((1, 2, 0), (2, 4, 3), (2, 0, 1), (1, 1, 2)),
        ((4,), (MAX,), (1,), None),
        ((-1,), (MAX,), (1,), None),
        ((0,), (1,), (1,), None),
        ((0,), (-1,), (1,), None),
        ((1,), (-1,), (1,), None),
        ((0,), (0,), (1,), None),
    ):
        given: list[Any] = [x, ints(*starts), ints(*ends), ints(*axes) if axes is not None else None]
        if steps is not None:
            given.append(ints(*steps))
        note = _text(starts) + _text(ends) + _text(axes or ()) + _text(steps or ())
        out += [Case("Slice", tuple(given), opset=o, note=note) for o in (10, 13)]
        if steps is None:
            attrs = {"starts": list(starts), "ends": list(ends)} | ({"axes": list(axes)} if axes is not None else {})
            out.append(Case("Slice", (x,), attrs, 9, wrong="onnx", note=note))
    out.append(Case("Slice", (data(0, 3), ints(0), ints(2)), note="empty"))
    out.append(Case("Slice", (data(4, 3, dtype="int64"), ints(1, dtype="int32"), ints(3, dtype="int32")), note="int32"))
    return out


def splits() -> list[Case]:
    out = [
        Case("Split", (data(6, 4),), {"axis": 0}, 13, outputs=2),
        Case("Split", (data(6, 4),), {"axis": -1}, 13, outputs=4),
        Case("Split", (data(6, 4), ints(1, 2, 3)), {"axis": 0}, 13, outputs=3),
        Case("Split", (data(6, 4), ints(0, 6)), {}, 13, outputs=2),
        Case("Split", (data(6, 4), ints(3, 1)), {"axis": 1}, 18, outputs=2),
        Case("Split", (data(7, 4),), {"num_outputs": 3}, 18, outputs=3),
        Case("Split", (data(7, 4),), {"num_outputs": 4, "axis": 1}, 18, outputs=4),
        Case("Split", (data(7),), {"num_outputs": 1}, 18, outputs=1),
        Case("Split", (data(6, 4),), {"split": [2, 4]}, 2, outputs=2, wrong="onnx"),
        Case("Split", (data(6, 4),), {"split": [2, 4], "axis": 0}, 11, outputs=2),
        Case("Split", (data(6, 4),), {"axis": -2}, 11, outputs=3),
        Case("Split", (data(0, 4),), {"axis": 1}, 13, outputs=2),
    ]
    return out


def joins() -> list[Case]:
    a, b, c = data(2, 3, seed=1), data(2, 5, seed=2), data(2, 1, seed=3)
    out = [
        Case("Concat", (a, b, c), {"axis": 1}),
        Case("Concat", (a, b, c), {"axis": 1}, 4, wrong="onnx"),
        Case("Concat", (a, b, c), {"axis": -1}, 11),
        Case("Concat", (a,), {"axis": 0}, 13),
        Case("Concat", (a, a, a), {"axis": 0}),
        Case("Concat", (a, data(2, 0), b), {"axis": 1}),
        Case("Concat", (data(0, 3), data(0, 3, seed=1)), {"axis": 0}),
        Case("Concat", (data(2, 3, 4), data(2, 1, 4), data(2, 2, 4)), {"axis": -2}),
        Case("Concat", (data(1, seed=1), data(3, seed=2), data(1, seed=3)), {"axis": 0}, constants=(0,)),
        Case("Concat", (data(3, seed=1), data(1, seed=2), data(2, seed=3)), {"axis": 0}, constants=(1,)),
        Case("Concat", (data(3, seed=1), data(1, seed=2)), {"axis": 0}, constants=(1,)),
        Case("Concat", (data(3, seed=1), data(1, seed=2), data(1, seed=3)), {"axis": 0}, constants=(1, 2)),
    ]
    out += [Case("Concat", (data(3, dtype=t), data(2, dtype=t)), {"axis": 0}) for t in ("int64", "bool", "float16")]
    return out


def pads() -> list[Case]:
    x = data(3, 5)
    fill = np.array(1.5, np.float32)
    out = [
        Case("Pad", (x, ints(1, 0, 0, 2)), opset=11, note="a"),
        Case("Pad", (x, ints(0, 0, 0, 0)), opset=13, note="b"),
        Case("Pad", (x, ints(1, 2, 3, 4), fill), {"mode": "constant"}, 13),
        Case("Pad", (x, ints(-1, 1, 0, -2), fill), opset=13, wrong="onnx"),
        Case("Pad", (x, ints(1, 2, 3, 4), fill), opset=17, constants=(2,)),
        Case("Pad", (x, ints(2, 1), fill, ints(1)), opset=18),
        Case("Pad", (x, ints(2, 1), None, ints(-1)), opset=18),
        Case("Pad", (x, ints(2, 0, 1, 0), None, ints(0, 1)), opset=21),
        Case("Pad", (data(0, 2), ints(1, 0, 1, 0), fill)),
        Case("Pad", (data(1), ints(1, 2), fill), constants=(0,)),
        Case("Pad", (data(2, 3, 4), ints(0, 1, 0, 0, 0, 1)), note="c"),
        Case("Pad", (data(4, dtype="int64"), ints(1, 1), np.array(7)), opset=13),
        Case("Pad", (data(4, dtype="float16"), ints(1, 1))),
        Case("Pad", (x,), {"pads": [1, 0, 0, 2], "value": 0.5}, 2, wrong="onnx"),
        Case("Pad", (x,), {"pads": [1, 0, -1, 2]}, 10, wrong="onnx"),
    ]
    for mode in ("edge", "reflect", "wrap"):
        attrs = {"mode": mode}
        since = 19 if mode == "wrap" else 13
        for have, pads in (
            ((3, 5), (1, 2, 2, 4)),
            ((3, 5), (0, 3, 0, 0)),
            ((3, 5), (2, 0, 0, 1)),
            ((7,), (3, 6)),
            ((2, 3, 4, 5), (0, 0, 1, 2, 0, 0, 3, 1)),
            ((1, 5), (0, 1, 0, 1)),
            ((3, 5), (0, 0, 0, 0)),
        ):
            out.append(Case("Pad", (data(*have), ints(*pads)), attrs, since, note=_text(pads)))
        cut = ints(-1, 1, 0, -2)
        out.append(Case("Pad", (data(4, 5), cut), attrs, since, wrong="onnx", note="cut"))
        out.append(Case("Pad", (data(3, 5), ints(2, 3), None, ints(1)), attrs, max(since, 18), note="axes"))
        out.append(Case("Pad", (data(5, dtype="int64"), ints(2, 1)), attrs, since))
        if mode != "wrap":
            out.append(Case("Pad", (data(4, 5),), attrs | {"pads": [1, 0, 2, 3]}, 7, wrong="onnx"))
    out += [
        Case("Pad", (data(3), ints(7, 9)), {"mode": "reflect"}, constants=(0,), wrong="runtime", note="far"),
        Case("Pad", (data(1), ints(2, 3)), {"mode": "reflect"}, constants=(0,), wrong="runtime", note="one"),
        Case("Pad", (data(3), ints(7, 9)), {"mode": "wrap"}, 19, note="far"),
        Case("Pad", (data(3), ints(7, 9)), {"mode": "edge"}, note="far"),
    ]
    for have, axes, to in (
        ((6, 7), None, (4, 9)), ((6, 7), (1,), (3,)), ((6, 7), (-1, 0), (10, 3)), ((3, 20, 10), (1, 2), (10, 7)),
        ((5,), None, (5,)), ((4, 4), None, (7, 1)), ((5, 1), (1,), (3,)),
    ):  # fmt: skip
        attrs = {} if axes is None else {"axes": list(axes)}
        out.append(Case("CenterCropPad", (data(*have), ints(*to)), attrs, 18, note=_text(to)))
    return out


def triangles() -> list[Case]:
    out = []
    for have in ((4, 5), (5, 3), (2, 3, 3), (1, 4), (0, 3), (3, 1)):
        for upper in (0, 1):
            out.append(Case("Trilu", (data(*have),), {"upper": upper}, 14))
            for k in (-9, -1, 0, 1, 2, 9):
                out.append(Case("Trilu", (data(*have), np.array(k)), {"upper": upper}, 14, known=(1,), note=f"k{k}"))
    out.append(Case("Trilu", (np.full((3, 3), np.nan, np.float32),), {}, 14, note="nan"))
    out += [Case("Trilu", (data(3, 4, dtype=t),), {}, 14) for t in ("int64", "bool", "float16")]
    return out


def gathers() -> list[Case]:
    x = data(4, 5, 3)
    near, far = np.array([[0, 2], [-1, 1]]), np.array([2, -3, 0], np.int32)
    out = [Case("Gather", (x, i), {"axis": at}, o) for i in (near, far) for at, o in ((0, 11), (1, 13), (-1, 13))]
    out += [
        Case("Gather", (x, np.array(2)), {"axis": 1}),
        Case("Gather", (x, np.array(-1)), {"axis": 1}),
        Case("Gather", (x, np.array(-1)), {"axis": 1}, known=(1,), note="known"),
        Case("Gather", (x, ints(2)), {"axis": 2}, known=(1,), note="known"),
        Case("Gather", (x, ints(0, -1, 2)), known=(1,), note="known"),
        Case("Gather", (x, near), {"axis": 1}, constants=(0,)),
        Case("Gather", (x, np.zeros((0,), np.int64)), note="none"),
        Case("Gather", (data(3, dtype="int64"), np.array(1)), opset=7),
        Case("Gather", (data(7, dtype="bool"), ints(6, 0, -7))),
    ]
    square = np.array([[0, 1, -1], [2, 0, 0]])
    out += [
        Case("GatherElements", (data(3, 3), square), {"axis": 0}, 11),
        Case("GatherElements", (data(2, 3), square), {"axis": 1}, 13),
        Case("GatherElements", (data(2, 3), square), {"axis": -1}, 13),
        Case("GatherElements", (data(5, 3), square.astype(np.int32)), {"axis": 0}, 13),
        Case("GatherElements", (data(2, 3, 4), np.array([[[1], [0], [2]]])), {"axis": -2}, 13, wrong="onnx"),
        Case("GatherElements", (data(3), np.zeros((0,), np.int64)), {"axis": 0}, 13),
        Case("GatherND", (data(2, 3, 4), np.array([[0, 1], [1, -1]])), opset=11),
        Case("GatherND", (data(2, 3, 4), np.array([[[0, 1, 3]], [[1, 2, -4]]])), opset=12),
        Case("GatherND", (data(2, 3, 4), np.array([[1], [0]])), opset=13),
        Case("GatherND", (data(2, 3, 4), np.array([[2], [-1]])), {"batch_dims": 1}, 13),
        Case("GatherND", (data(2, 3, 4), np.array([[[0], [1], [3]], [[2], [2], [-4]]])), {"batch_dims": 2}, 13),
        Case("GatherND", (data(2, 3, dtype="int64"), np.array([[0, 0]])), opset=13),
    ]
    return out


def sequences() -> list[Case]:
    out = []
    x = data(4, 5, 3)
    for batch, time, lengths in ((1, 0, (1, 4, 2, 3, 1)), (0, 1, (5, 1, 3, 2)), (1, 0, (4, 4, 4, 4, 4))):
        attrs = {"batch_axis": batch, "time_axis": time}
        out.append(Case("ReverseSequence", (x, ints(*lengths)), attrs, 10, note=_text(lengths)))
    out.append(Case("ReverseSequence", (data(3, 2, dtype="int64"), ints(3, 2)), {}, 10))
    return out


def hot() -> list[Case]:
    out = []
    values = np.array([0.5, 3.0], np.float32)
    places = np.array([[0, 2, -1], [-4, 3, 9]])
    for axis in (-1, 0, 1, -2):
        out.append(Case("OneHot", (places, np.array(4), values), {"axis": axis}, 11))
    out += [
        Case("OneHot", (places, ints(4), values), {}, 9, wrong="onnx", note="rank1"),
        Case("OneHot", (places.astype(np.float32), np.array(4.0, np.float32), values), {}, 11, constants=(1,)),
        Case("OneHot", (places.astype(np.int32), np.array(4, np.int32), ints(0, 1)), {}, 11),
        Case("OneHot", (np.array(2), np.array(5), values), {}, 11, wrong="runtime"),
        Case("OneHot", (np.zeros((0, 2), np.int64), np.array(3), values), {}, 11),
        Case("OneHot", (places, np.array(1), values), {}, 11, note="1"),
    ]
    for have, k in (((3, 4), 0), ((4, 3), 1), ((3, 3), -2), ((2, 5), 7), ((1, 1), 0), ((0, 2), 0)):
        out.append(Case("EyeLike", (data(*have),), {"k": k}, 9, wrong="onnx" if abs(k) > 5 else ""))
    for number in (TensorProto.INT64, TensorProto.FLOAT16, TensorProto.BOOL):
        out.append(Case("EyeLike", (data(2, 3, dtype="int32"),), {"dtype": number}, 9))
    return out


def made() -> list[Case]:
    out = []
    for t, given in (("float32", (0.5, 3.2, 0.7)), ("float64", (5.0, 1.0, -1.5)), ("float32", (1.0, 0.0, 1.0))):
        numbers = tuple(np.array(v, t) for v in given)
        out.append(Case("Range", numbers, opset=11, constants=(0, 1, 2), note="real" + "_".join(map(str, given))))
    for t, values in (
        ("int64", ((0, 5, 1), (2, 11, 3), (10, 4, -2), (3, 3, 1), (5, 0, 1), (0, 7, 7))),
        ("int32", ((1, 8, 2),)),
    ):
        for given in values:
            inputs = tuple(np.array(v, t) for v in given)
            out.append(Case("Range", inputs, opset=11, note=_text(given)))
    for shape in ((2, 3), (0,), (2, 0), (1,), ()):
        out.append(Case("ConstantOfShape", (ints(*shape),), opset=9, note=_text(shape)))
    for value in (
        np.array([7]),
        np.array([True]),
        np.array([-1.5], np.float16),
        np.array([2.0]),
        np.array([3], np.int32),
    ):
        out.append(Case("ConstantOfShape", (ints(2, 3),), {"value": value}, 20))
    return out


def blocks() -> list[Case]:
    out = []
    for shape, b in (((1, 8, 2, 3), 2), ((2, 9, 1, 2), 3), ((1, 3, 4, 5), 1), ((0, 4, 2, 2), 2)):
        x = data(*shape)
        out += [
            Case("DepthToSpace", (x,), {"blocksize": b, "mode": mode}, o) for mode in ("DCR", "CRD") for o in (11, 13)
        ]
        out.append(Case("DepthToSpace", (x,), {"blocksize": b}, 7))
    for shape, b in (((1, 2, 4, 6), 2), ((2, 1, 3, 6), 3), ((1, 3, 4, 5), 1), ((0, 1, 2, 2), 2)):
        out += [Case("SpaceToDepth", (data(*shape),), {"blocksize": b}, o) for o in (7, 13)]
        out += [
            Case("SpaceToDepth", (data(*shape),), {"blocksize": b, "mode": mode}, 28, wrong="runtime")
            for mode in ("DCR", "CRD")
        ]
    return out


CASES: tuple[Case, ...] = (
    *reshapes(),
    *transposes(),
    *expansions(),
    *slices(),
    *splits(),
    *joins(),
    *pads(),
    *gathers(),
    *triangles(),
    *sequences(),
    *hot(),
    *made(),
    *blocks(),
)
