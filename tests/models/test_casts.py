"""Casts between all types give what ONNX Runtime gives, for numbers that do not fit and for NaN too."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxfuse.pipeline import optimize
from onnxfuse.runtime.engine import open_session, options
from tests.models.fused import CACHE
from tests.models.test_networks import needs_compiler

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines convert what does not fit differently"),
]

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
TYPES = (
    *(TensorProto.FLOAT, TensorProto.DOUBLE, *HALVES, TensorProto.BOOL),
    *(TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16),
    *(TensorProto.INT32, TensorProto.UINT32, TensorProto.INT64, TensorProto.UINT64),
)
SMALL = (0.0, 1e-45, 1e-40, 6e-8, 1.5, 2.5, 127.4, 128.6, 255.9, 300.0, 32768.5, 65504.0, 65520.0, 70000.0)
LARGE = (2147483520.0, 2.0**31, 3e9, 4294967040.0, 2.0**32, 1e10, 9.2e18, 9.3e18, 1.8e19, 1.9e19, 1e30, 1e39, np.inf)
LEAST_AGREED = 0.7  # of the numbers, a type that holds none of them included
WILD = np.array([*(s * e for s in (1, -1) for e in (*SMALL, *LARGE)), np.nan])


def pairs() -> Iterator[tuple[int, int]]:
    """Every type that wild numbers can be brought into, with every other one."""
    for middle in TYPES:
        yield from ((middle, to) for to in TYPES if to != middle)


def model() -> onnx.ModelProto:
    """The wild numbers in every type, each in every other one; bfloat16 comes out as float32."""
    nodes, outputs = [], []
    for middle, to in pairs():
        source, name = "y" if middle == TensorProto.DOUBLE else "x", f"{middle}_to_{to}"
        if f"m{middle}" not in {n.output[0] for n in nodes}:
            nodes.append(helper.make_node("Cast", [source], [f"m{middle}"], to=middle))
        nodes.append(helper.make_node("Cast", [f"m{middle}"], [name], to=to))
        shown = TensorProto.FLOAT if to == TensorProto.BFLOAT16 else to
        if shown != to:
            nodes.append(helper.make_node("Cast", [name], [name + "_shown"], to=shown))
        outputs.append(helper.make_tensor_value_info(name + "_shown" * (shown != to), shown, ["n"]))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"]),
    ]
    graph = helper.make_graph(nodes, "casts", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_casts_of_numbers_that_do_not_fit(tmp_path: Path) -> None:
    original, fused = tmp_path / "m.onnx", tmp_path / "fused.onnx"
    onnx.save(model(), original)
    result = optimize(original, fused, verify=False, gain=False, strict=True, cache_dir=str(CACHE), jobs=1)
    assert result.nodes_left == 0 and result.output.library is not None
    plain = open_session(str(original), options(optimize=False))
    ours = open_session(str(fused), options(libraries=(result.output.library,), optimize=False))
    wanted, got = answers(plain, WILD), answers(ours, WILD)
    alone = [answers(plain, WILD[i : i + 1]) for i in range(len(WILD))]
    for name, want in wanted.items():
        each = np.concatenate([a[name] for a in alone])
        agreed = (want == each) | ((want != want) & (each != each))  # elsewhere its vectors and its tails differ
        assert agreed.mean() > LEAST_AGREED, name
        np.testing.assert_array_equal(got[name][agreed], want[agreed], name)


def answers(session: ort.InferenceSession, x: np.ndarray) -> dict[str, np.ndarray]:
    """All outputs for some numbers."""
    with np.errstate(all="ignore"):
        feeds = {"x": x, "y": x.astype(np.float32)}
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
