"""Networks quantized by ONNX Runtime's tool: 8-bit activations and weights, in QDQ or QOperator form."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from models.net import Array


class _Sample(CalibrationDataReader):  # type: ignore[misc]  # of a module without types
    """One set of inputs to calibrate with."""

    def __init__(self, feed: Mapping[str, Array]) -> None:
        self.sets: Iterator[Mapping[str, Array]] = iter([feed])

    def get_next(self) -> Mapping[str, Array] | None:
        """The set, once."""
        return next(self.sets, None)


def quantized(
    model: onnx.ModelProto, feed: Mapping[str, Array], *, form: str = "QDQ", codes: str = "QUInt8"
) -> onnx.ModelProto:
    """A model with quantized activations, calibrated with `feed`, and weights quantized per channel.

    `form` is QDQ or QOperator; `codes` the type of activations.
    """
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        plain, made = Path(folder, "plain.onnx"), Path(folder, "made.onnx")
        onnx.save(model, plain)
        kinds: dict[str, Any] = {"activation_type": QuantType[codes], "weight_type": QuantType.QInt8}
        quantize_static(plain, made, _Sample(feed), quant_format=QuantFormat[form], per_channel=True, **kinds)
        return onnx.load(made)


def dynamically_quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose products of weights code their other side when it runs."""
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        plain, made = Path(folder, "plain.onnx"), Path(folder, "made.onnx")
        onnx.save(model, plain)
        quantize_dynamic(plain, made, weight_type=QuantType.QInt8)
        return onnx.load(made)
