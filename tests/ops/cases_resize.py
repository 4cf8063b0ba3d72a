"""Cases of Resize and Upsample: every way to place and round coordinates, scales and sizes, up and down, old opsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.case import Array, Case, data, ints

PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
STEPS = 16.0


def scales(*values: float) -> Array:
    return np.array(values, np.float32)


def by_scales(x: Array, factors: Array, attrs: dict[str, Any], opset: int = 13, **more: Any) -> Case:
    note = "by" + "_".join(f"{f:g}" for f in factors)
    roi = scales() if opset < 13 else None
    fixed = (1, 2) if opset < 13 else (2,)
    wrong = {"wrong": _doubted(attrs, factors)} | more
    return Case("Resize", (x, roi, factors), attrs, opset, constants=fixed, factor=STEPS, note=note, **wrong)


def to_sizes(x: Array, sizes: tuple[int, ...], attrs: dict[str, Any], opset: int = 13, **more: Any) -> Case:
    note = "to" + "_".join(map(str, sizes))
    wrong = {"wrong": _doubted(attrs, np.divide(sizes[-2:], x.shape[-2:]))} | more
    return Case("Resize", (x, None, None, ints(*sizes)), attrs, opset, constants=(3,), factor=STEPS, note=note, **wrong)


def _doubted(attrs: dict[str, Any], factors: Array) -> str:
    """ONNX's evaluator takes coordinates in double precision, where another element may be the nearest.

    It also aligns the corners of extents that it has not rounded, and has no axes from the end.
    """
    mode, place = attrs.get("mode", "nearest"), attrs.get("coordinate_transformation_mode", "half_pixel")
    fractional = any(f != int(f) for f in factors)
    aside = place == "align_corners" or min(attrs.get("axes", [0])) < 0
    aside = aside or (place == "pytorch_half_pixel" and mode == "cubic")
    return "onnx" if fractional and (mode == "nearest" or aside) else ""


def nearest() -> list[Case]:
    out = []
    x = data(1, 2, 5, 7)
    for place in PLACES:
        for rounding in ROUNDINGS:
            attrs = {"coordinate_transformation_mode": place, "nearest_mode": rounding}
            for factors in ((1, 1, 2, 3), (1, 1, 0.5, 0.6), (1, 1, 2.3, 1.4)):
                out.append(by_scales(x, scales(*factors), attrs))
            for sizes in ((1, 2, 8, 9), (1, 2, 3, 1), (1, 2, 5, 14)):
                out.append(to_sizes(x, sizes, attrs))
    for n, m, place, rounding in (  # a last bit from the middle
        (7, 2, "asymmetric", "round_prefer_ceil"), (14, 19, "half_pixel", "round_prefer_floor"),
    ):  # fmt: skip
        attrs = {"coordinate_transformation_mode": place, "nearest_mode": rounding}
        out.append(to_sizes(data(1, 1, n, n), (1, 1, m, m), attrs, wrong="onnx"))
    for t in ("float64", "float16", "int32", "uint8", "int8"):
        out.append(by_scales(data(1, 2, 3, 4, dtype=t), scales(1, 1, 2, 2), {}))
    out += [
        by_scales(data(2, 3, 4), scales(1, 2, 3), {}),
        by_scales(data(7), scales(1.5), {}),
        by_scales(data(1, 1, 2, 3, 4), scales(1, 1, 2, 1, 2), {}),
        by_scales(x, scales(1, 1, 1, 1), {}),
        by_scales(x, scales(2, 1.5, 1, 2), {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        to_sizes(x, (1, 2, 5, 7), {}),
        to_sizes(x, (10, 9), {"axes": [2, 3]}, 18),
        to_sizes(x, (9, 4), {"axes": [3, 2]}, 18),
        to_sizes(x, (8, 8), {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}, 18),
        to_sizes(x, (8, 8), {"axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"}, 18),
        by_scales(x, scales(2.3, 1.9), {"axes": [-2, -1]}, 18),
        by_scales(x, scales(1, 1, 2.3, 1.9), {"coordinate_transformation_mode": "half_pixel_symmetric"}, 19),
        by_scales(
            x, scales(1, 1, 0.7, 2), {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}, 11, wrong="onnx"
        ),
        by_scales(x, scales(1, 1, 2, 2), {}, 11),
    ]
    return out


def smooth() -> list[Case]:
    out = []
    x = data(1, 2, 5, 7)
    for place in PLACES:
        for mode in ("linear", "cubic"):
            attrs = {"coordinate_transformation_mode": place, "mode": mode}
            for factors in ((1, 1, 2, 3), (1, 1, 0.5, 0.6), (1, 1, 2.3, 1.4)):
                out.append(by_scales(x, scales(*factors), attrs))
            for sizes in ((1, 2, 8, 9), (1, 2, 3, 1), (1, 2, 5, 14)):
                out.append(to_sizes(x, sizes, attrs))
    for mode in ("linear", "cubic"):
        out += [
            by_scales(
                x, scales(1, 1, 2.3, 1.9), {"coordinate_transformation_mode": "half_pixel_symmetric", "mode": mode}, 19
            ),
            by_scales(x, scales(1, 1, 1, 1), {"mode": mode}),
            by_scales(x, scales(1, 1, 1, 2), {"mode": mode}),
            by_scales(x, scales(1, 1, 2, 2), {"mode": mode}, 11),
        ]
    out += [
        by_scales(data(5, 7), scales(2, 1.5), {"mode": "linear"}),
        by_scales(data(7), scales(2), {"mode": "linear"}, wrong="runtime"),
        by_scales(data(1, 2, 3, 4, 3), scales(1, 1, 2, 1.5, 0.7), {"mode": "linear"}),
        by_scales(x, scales(1, 1, 2.3, 1.4), {"mode": "cubic", "cubic_coeff_a": -0.5}),
        by_scales(x, scales(1, 1, 0.8, 1.4), {"mode": "cubic", "exclude_outside": 1}),
        to_sizes(x, (1, 2, 9, 9), {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}),
        by_scales(data(1, 1, 3, 4, dtype="float64"), scales(1, 1, 2, 2), {"mode": "linear"}, precision="float32"),
        by_scales(data(1, 1, 3, 4, dtype="float16"), scales(1, 1, 2, 2), {"mode": "linear"}),
    ]
    for parts in (3, 40, 240):  # whose reciprocals are rounded
        for extent in (parts, 2 * parts - 1, 3 * parts, 7 * parts + 1):
            line, factors = data(1, 2, extent), scales(1, 1, 1 / parts)
            out += [by_scales(line, factors, {"mode": mode}, wrong="onnx") for mode in ("linear", "nearest")]
    for mode in ("linear", "cubic"):
        for factors in ((1, 1, 0.6, 0.6), (1, 1, 0.3, 1.7)):
            out.append(by_scales(x, scales(*factors), {"mode": mode, "antialias": 1}, 18))
        out.append(to_sizes(data(1, 1, 17, 13), (1, 1, 3, 4), {"mode": mode, "antialias": 1}, 18))
    return out


def cropped() -> list[Case]:
    out = []
    x = data(1, 1, 4, 6)
    for mode in ("nearest", "linear"):
        for roi in ((0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8), (0, 0, 0.2, 0.3, 1, 1, 1.2, 1.4)):
            attrs = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
            given = (x, scales(*roi), None, ints(1, 1, 3, 5))
            wrong = "onnx" if mode == "nearest" else ""
            note = f"roi{roi[-1]}"
            out.append(Case("Resize", given, attrs, 13, constants=(1, 3), factor=STEPS, note=note, wrong=wrong))
    return out


def upsamples() -> list[Case]:
    out = []
    x = data(1, 2, 3, 4)
    for mode in ("nearest", "linear"):
        for factors in ((1, 1, 2, 3), (1, 1, 1.5, 2.5)):
            attrs = {"mode": mode}
            given = {"scales": list(map(float, factors))}
            out.append(Case("Upsample", (x,), attrs | given, 7, factor=STEPS, wrong="onnx"))
            out.append(Case("Upsample", (x, scales(*factors)), attrs, 9, constants=(1,), factor=STEPS, wrong="onnx"))
        for factors in ((1, 1, 2, 3), (1, 1, 0.5, 0.6), (1, 1, 1.4, 2.6)):
            note = "by" + "_".join(f"{f:g}" for f in factors)
            out.append(
                Case(
                    "Resize",
                    (data(1, 2, 5, 7), scales(*factors)),
                    {"mode": mode},
                    10,
                    constants=(1,),
                    factor=STEPS,
                    wrong="onnx",
                    note=note,
                )
            )
    return out


CASES: tuple[Case, ...] = (*nearest(), *smooth(), *cropped(), *upsamples())
