"""A group may round to 16 bits between operators, though it reads and makes float32: its bound is that of 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse import optimize
from tests.models.test_networks import needs_compiler


@needs_compiler
def test_a_kernel_that_rounds_in_between_is_kept(tmp_path: Path):
    """Exports in float16 keep Resize in float32, with a Cast on either side, and their outputs."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 15]> g (float[1, 1, 32, 32] x) => (float[1, 1, 128, 128] y)
        {   r = Resize <mode = "linear"> (x, , s)
            h = Cast <to = 10> (r)
            p = Sigmoid (h)
            y = Cast <to = 1> (p) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 4, 4], np.float32), "s"))
    onnx.save(model, tmp_path / "m.onnx")
    made = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", cache_dir=tmp_path / "c", gain=False)
    assert not [refusal for refusal in made.refusals if refusal.code == "E-NUMERICS"]
    assert max(len(group.nodes) for group in made.groups) >= 3
