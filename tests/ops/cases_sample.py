"""Cases of GridSample and RoiAlign: every mode, padding and alignment, points and regions outside and on edges."""

from __future__ import annotations

from itertools import product

import numpy as np

from tests.ops.case import Case, data

STEPS = 32.0
OLD = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}  # the names until opset 19


def planar() -> list[Case]:
    out = []
    for mode in OLD:
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1) if (mode, padding) != ("cubic", "border") else ():
                inputs = (data(2, 3, 5, 7), data(2, 4, 3, 2, low=-1.7, high=1.7))
                attrs = {"mode": mode, "padding_mode": padding, "align_corners": corners}
                out.append(Case("GridSample", inputs, attrs, 20, factor=STEPS))
                # ONNX's evaluator does not know the old names
                out.append(Case("GridSample", inputs, attrs | {"mode": OLD[mode]}, 16, factor=STEPS, wrong="onnx"))
    attrs = {"mode": "linear", "padding_mode": "reflection"}
    out.append(Case("GridSample", (data(1, 2, 4, 3), data(1, 3, 9, 2, low=-7, high=7)), attrs, 20, factor=STEPS))
    return out


def edges() -> list[Case]:
    """Points on the centres and outer edges of elements and far away, an image of one element, an infinite element."""
    grid = np.array([-1.0, -0.5, 0.0, 0.5, 1.0, 1.25], np.float32)
    points = np.stack(np.meshgrid(grid, grid), -1)[None]
    far = np.array([0.0, 3e8, -3e8, 1e4], np.float32)
    out = []
    for padding in ("zeros", "border"):
        for corners in (0, 1):
            attrs = {"padding_mode": padding, "align_corners": corners}
            out.append(Case("GridSample", (data(1, 1, 4, 4), points), attrs, 20, factor=STEPS, note="edges"))
            out.append(Case("GridSample", (data(1, 2, 1, 1), points), attrs, 20, factor=STEPS, note="one"))
    image = data(1, 1, 3, 3)
    image[0, 0, 0, 0] = np.inf
    out.append(Case("GridSample", (image, np.float32([[[[2.0, 2.0], [-0.2, 0.3]]]])), {}, 20, factor=STEPS, note="inf"))
    places = np.stack([far, np.zeros_like(far)], -1)[None, None]
    out.append(Case("GridSample", (data(1, 1, 3, 3), places), {}, 20, factor=STEPS, note="far"))
    for mode, padding in product(("linear", "nearest"), ("zeros", "border", "reflection")):
        lost = np.array([[np.nan, np.inf, -np.inf, 1e30, -6e18, 0.25]], np.float32)
        places = np.stack([lost, np.zeros_like(lost)], -1)[None]
        for corners in (0, 1):  # the lower edge, where coordinates fit no integer: ONNX does not say
            attrs = {"mode": mode, "padding_mode": padding, "align_corners": corners}
            made = Case("GridSample", (data(1, 1, 3, 3), places), attrs, 20, factor=STEPS, wrong="onnx", note="lost")
            out.append(made)
    return out


def solid() -> list[Case]:
    out = []
    for mode in ("linear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            attrs = {"mode": mode, "padding_mode": padding}
            inputs = (data(1, 2, 3, 4, 5), data(1, 2, 3, 2, 3, low=-1.4, high=1.4))
            out.append(Case("GridSample", inputs, attrs, 20, factor=STEPS))
    return out


def regions() -> list[Case]:
    """Inside, across an edge, outside, turned round, of no size; of two images, of one element, none at all."""
    image, places = data(2, 3, 9, 13), np.array([0, 1, 1, 0, 0, 1], np.int64)
    rois = np.array([[1, 2, 9, 7], [-4, -3, 3, 2], [8, 5, 30, 20], [40, 40, 60, 60], [7, 6, 2, 1], [3, 3, 3, 3]])
    out = []
    for opset, attrs in ((10, {}), (16, {}), (16, {"coordinate_transformation_mode": "output_half_pixel"}), (22, {})):
        for samples, height, width in ((1, 2, 3), (2, 7, 7), (3, 1, 4)):
            how = {
                "sampling_ratio": samples,
                "output_height": height,
                "output_width": width,
                "spatial_scale": 0.75,
                **attrs,
            }
            inputs = (image, rois.astype(np.float32), places)
            # ONNX's evaluator centres pixels before there was an attribute for it
            wrong = "onnx" if opset == 10 else ""
            out.append(Case("RoiAlign", inputs, how, opset, length=4 * samples**2, factor=STEPS, wrong=wrong))
    how = {"sampling_ratio": 2, "output_height": 2, "output_width": 2}
    out.append(
        Case("RoiAlign", (data(1, 2, 1, 1), data(5, 4, low=-1, high=1), np.zeros(5, np.int64)), how, 16, note="one")
    )
    out.append(
        Case("RoiAlign", (data(1, 2, 4, 4), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)), how, 16, note="none")
    )
    return out


CASES = (*planar(), *edges(), *solid(), *regions())
