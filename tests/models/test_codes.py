"""Networks as ONNX Runtime's own tool quantizes them: all in kernels, each within a step of its function body."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models.networks import network
from onnxfuse.pipeline import optimize
from tests.models.fused import CACHE, model_bytes
from tests.models.test_networks import needs_compiler

quantization = pytest.importorskip("onnxruntime.quantization")
DYNAMIC = "dynamic"
FORMS = (
    ("tiny-resnet", "QOperator", "QUInt8", 1),
    ("tiny-bert", "QDQ", "QInt8", 0),
    pytest.param("tiny-mobilenet", "QDQ", "QUInt8", 1, marks=pytest.mark.slow),
    pytest.param("tiny-bert", DYNAMIC, "", 0, marks=pytest.mark.slow),
)


class _Sample(quantization.CalibrationDataReader):  # type: ignore[misc]  # of a module without types
    """One set of inputs to calibrate with."""

    def __init__(self, feeds: dict[str, np.ndarray[Any, Any]]) -> None:
        self.sets: Iterator[dict[str, np.ndarray[Any, Any]]] = iter([feeds])

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        return next(self.sets, None)


def quantized(name: str, form: str, codes: str, folder: Path) -> Path:
    """A network with weights of one scale for each channel."""
    plain, made = folder / "plain.onnx", folder / "m.onnx"
    plain.write_bytes(model_bytes(name))
    if form == DYNAMIC:
        quantization.quantize_dynamic(plain, made, weight_type=quantization.QuantType.QInt8)
        return made
    quantization.quantize_static(
        plain,
        made,
        _Sample(network(name).sample()),
        quant_format=quantization.QuantFormat[form],
        activation_type=quantization.QuantType[codes],
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )
    return made


@needs_compiler
@pytest.mark.parametrize(("name", "form", "codes", "left"), FORMS)
def test_a_quantized_network_is_kernels_of_codes(name: str, form: str, codes: str, left: int, tmp_path: Path) -> None:
    original = quantized(name, form, codes, tmp_path)
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, **network(name).sample())
    result = optimize(
        original, tmp_path / "fused.onnx", verify=True, gain=False, inputs=str(inputs), cache_dir=str(CACHE), jobs=1
    )
    assert result.verify is not None and result.verify.ok is True
    assert [r for r in result.refusals if r.code == "E-NUMERICS"] == []
    kept = onnx.load(tmp_path / "fused.onnx", load_external_data=False).graph.node
    others = [n.op_type for n in kept if not n.domain.startswith("onnxfuse.")]
    assert len(others) <= left + sum(op in ("QuantizeLinear", "DequantizeLinear") for op in others), others
