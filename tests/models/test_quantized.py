"""Networks quantized by ONNX Runtime's tool: everything becomes kernels, with the runtime's quantized values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from models.networks import network
from onnxfuse.pipeline import optimize
from onnxfuse.runtime.engine import open_session, options, output_names, run
from onnxfuse.verify import pieces_child
from tests.models.fused import CACHE, model_bytes
from tests.models.test_networks import needs_compiler

quantized = pytest.importorskip("models.quantized")
DYNAMIC = "dynamic"
FORMS = (
    ("tiny-resnet", "QOperator", "QUInt8", 1),
    ("tiny-bert", "QDQ", "QInt8", 0),
    pytest.param("tiny-mobilenet", "QDQ", "QUInt8", 1, marks=pytest.mark.slow),
    pytest.param("tiny-bert", DYNAMIC, "", 2, marks=pytest.mark.slow),
)
IMAGES = (
    ("tiny-resnet", "QDQ", "QUInt8"),
    ("tiny-mobilenet", "QDQ", "QUInt8"),
    pytest.param("tiny-resnet", "QOperator", "QUInt8", marks=pytest.mark.slow),
    pytest.param("tiny-mobilenet", "QDQ", "QInt8", marks=pytest.mark.slow),
)


def coded(name: str, form: str, codes: str, folder: Path) -> Path:
    """A network with weights of one scale for each channel."""
    plain, made = onnx.load_from_string(model_bytes(name)), folder / "m.onnx"
    feed = network(name).sample()
    dynamic = form == DYNAMIC
    onnx.save(
        quantized.dynamically_quantized(plain) if dynamic else quantized.quantized(plain, feed, form=form, codes=codes),
        made,
    )
    return made


@needs_compiler
@pytest.mark.parametrize(("name", "form", "codes", "left"), FORMS)
def test_a_quantized_network_is_kernels_of_codes(name: str, form: str, codes: str, left: int, tmp_path: Path) -> None:
    """And `bisect` finds no piece of it wrong, also where sessions without exact products would saturate."""
    original = coded(name, form, codes, tmp_path)
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
    pieces = pieces_child.errors(
        str(original), str(result.output.model), [str(result.output.library)], [], str(inputs), 0, {}, None
    )
    assert len(pieces) > 5 and [piece["nodes"] for piece in pieces if piece["wrong"]] == []


@needs_compiler
@pytest.mark.parametrize(("name", "form", "codes"), IMAGES)
def test_a_network_of_convolutions_gives_the_codes_of_the_runtime(
    name: str, form: str, codes: str, tmp_path: Path
) -> None:
    """Bit by bit: where a code is a step off, a network of random weights ends elsewhere. Both do not saturate."""
    original = coded(name, form, codes, tmp_path)
    result = optimize(original, tmp_path / "fused.onnx", verify=False, gain=False, cache_dir=str(CACHE), jobs=1)
    assert result.output.library is not None
    first, last = (
        open_session(original, options(lean=True)),
        open_session(tmp_path / "fused.onnx", options(libraries=(str(result.output.library),), lean=True)),
    )
    for seed in range(5):
        rng = np.random.default_rng(seed)
        feed = {k: rng.standard_normal(v.shape).astype(v.dtype) for k, v in network(name).sample().items()}
        want, got = (run(s, feed, output_names(s)) for s in (first, last))
        for w, g in zip(want, got, strict=True):
            assert np.array_equal(w, g), (seed, np.abs(w - g).max())
