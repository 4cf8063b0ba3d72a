"""Cases of quantization and dequantization: every type, ties, saturation, NaN, axes and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import F16, I16
from tests.ops.case import Array, Case, data

M = "com.microsoft::"
Q, D = "QuantizeLinear", "DequantizeLinear"
SHORT = ("int8", "uint8", "int16", "uint16")


def f32(*values: float) -> Array:
    """One scale, or several."""
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def codes(dtype: str, *shape: int) -> Array:
    """All of a type's numbers, its ends among them."""
    info = np.iinfo(dtype)
    made = np.random.default_rng(1).integers(info.min, info.max, shape, dtype, endpoint=True)
    made.reshape(-1)[:2] = info.min, info.max
    return made


def opset(dtype: str, own: str) -> dict[str, Any]:
    """The first opset that knows a type, or that of the runtime's own operator, which ONNX does not know."""
    return {"opset": 13, "wrong": "onnx"} if own else {"opset": 21 if dtype.endswith("16") else 10}


OLD = {"wrong": "onnx"}  # the reference decodes from opset 19 on


def quantizing() -> list[Case]:
    ties = np.arange(-40, 40, dtype=np.float32).reshape(8, 10) / 4
    wild = np.array([np.inf, -np.inf, 1e30, -1e30, -0.0, 0.0, 3e9, -3e9, 254.5, 255.5, 127.5, -128.5], np.float32)
    out = []
    for own in ("", M):
        for dtype in SHORT:
            more = opset(dtype, own)
            zero = np.array(3, dtype)
            out.append(Case(own + Q, (ties, f32(0.5), zero), **more))
            out.append(Case(own + Q, (wild, f32(1.0), zero), note="wild", **more | {"wrong": "onnx"}))  # int32 wraps
            out.append(Case(own + Q, (data(5, 7, high=9), f32(0.037), zero), constants=(1, 2), **more))
        out.append(Case(own + Q, (data(5, 7), f32(0.1)), note="no zero", **opset("uint8", own)))
    zeros = np.array([-3, 0, 4], np.int8)
    axis: dict[str, Any] = {"attrs": {"axis": -2}, "opset": 13}
    scales = f32(0.1, 0.25, 2)
    out.append(Case(Q, (data(2, 3, 5), scales, zeros), constants=(1, 2), **axis))
    out.append(Case(Q, (data(2, 3, 5), scales, zeros), **axis))
    out.append(Case(Q, (data(0, 3), scales, zeros), opset=13))
    out.append(Case(Q, (data(1, 1), np.array([0.1], np.float32), np.array([1], np.int8)), opset=13, note="one"))
    out.append(Case(Q, (data(3, 4), f32(0.1)), {"output_dtype": I16.onnx}, opset=21))
    blocks = np.abs(data(3, 3)) + np.float32(0.01)
    out.append(Case(Q, (data(3, 8), blocks, codes("int8", 3, 3)), {"block_size": 3, "axis": 1}, opset=21, wrong="onnx"))
    half = data(4, 6, dtype="float16"), np.array(0.1, np.float16), np.array(7, np.uint8)
    out.append(Case(Q, half, opset=19, wrong="onnx"))  # which divides in float16
    nan = np.array([np.nan, 1.0, np.nan, -1.0] * 8, np.float32)
    out.append(Case(Q, (nan, f32(0.1), np.array(3, np.int8)), opset=19, wrong="onnx", note="nan"))
    return out


def dequantizing() -> list[Case]:
    out = []
    for own in ("", M):
        for dtype in (*SHORT, "int32"):
            more = opset(dtype, own) | (OLD if not dtype.endswith("16") else {})
            zero = np.array(0 if dtype == "int32" else 3, dtype)
            out.append(Case(own + D, (codes(dtype, 5, 7), f32(0.037), zero), **more))
            out.append(Case(own + D, (codes(dtype, 5, 7), f32(0.037)), constants=(1,), **more))
            if not own:
                out.append(Case(D, (codes(dtype, 5, 7), f32(0.037), zero), opset=21))
    zeros = np.array([-3, 0, 4], np.int8)
    scales = f32(0.1, 0.25, 2)
    out.append(Case(D, (codes("int8", 5, 7), np.array([0.037], np.float32), np.array(3, np.int8)), {}, 21, **OLD))
    out.append(Case(D, (codes("int8", 2, 3, 5), scales, zeros), {"axis": -2}, constants=(1, 2), opset=19))
    out.append(Case(D, (codes("int8", 2, 3), scales), {"axis": 1}, opset=13, **OLD))
    blocks = np.abs(data(3, 3)) + np.float32(0.01)
    blocked = (codes("uint8", 3, 8), blocks, codes("uint8", 3, 3))
    out.append(Case(D, blocked, {"block_size": 3, "axis": 1}, opset=21, wrong="onnx"))
    half = codes("int8", 4, 6), np.array(0.1, np.float16), np.array(7, np.int8)
    out.append(Case(D, half, opset=19, precision="float16"))
    out.append(Case(D, (codes("uint8", 4), f32(0.1)), {"output_dtype": F16.onnx}, opset=23, precision="float16"))
    return out


def dynamically() -> list[Case]:
    """The reference gives a scale of 0 for no range, and NaN for what holds one."""
    nan, inf = np.nan, np.inf
    odd = {
        "zeros": [0.0, -0.0, 0.0],
        "constant": [5.0, 5.0],
        "negative": [-3.0, -1.0, -2.0],
        "nan": [1.0, nan, -2.0],
        "all nan": [nan, nan],
        "inf": [inf, 1.0],
        "minus inf": [-inf, 1.0],
        "subnormal": [1e-45, 0.0],
    }
    more: dict[str, Any] = {"outputs": 3, "opset": 13}
    usual = [Case("DynamicQuantizeLinear", (data(*shape),), **more) for shape in ((5, 7), (3, 40, 2), (1,))]
    return usual + [Case("DynamicQuantizeLinear", (f32(*v),), note=k, wrong="onnx", **more) for k, v in odd.items()]


CASES = (*quantizing(), *dequantizing(), *dynamically())
