"""A test of ONNX's suite through the compiler: its model is optimized, and what comes out runs in ONNX Runtime."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.engine import open_session, options
from onnxfuse.pipeline import optimize
from tests.backend.suite import NodeTest

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("ONNXFUSE_CACHE_DIR", ROOT / ".cache")).absolute()


@dataclass(frozen=True)
class Outcome:
    """What became of a test: whether a kernel of ours computed the operator, else the codes of the refusals."""

    ran: bool
    refusals: tuple[str, ...]


def outcome(test: NodeTest, folder: Path) -> Outcome:
    """Optimize the test's model, run what comes out with its library, and assert that the outputs are those wanted.

    Where there is a kernel, nothing else may be left in the model than its node.
    """
    source, made = folder / "test.onnx", folder / "fused.onnx"
    source.write_bytes(test.model.SerializeToString())
    result = optimize(
        source, made, min_group=1, verify=False, gain=False, strict=True, cache_dir=str(CACHE), jobs=1, overwrite=True
    )
    if not result.kernels:
        return Outcome(False, tuple(dict.fromkeys(r.code for r in result.refusals)))
    nodes = onnx.load(made).graph.node
    assert [n.domain.startswith("onnxfuse.") for n in nodes] == [True], [n.op_type for n in nodes]
    library = result.output.library
    assert library is not None
    session = open_session(str(made), options(libraries=(library,), optimize=True, threads=1))
    compare(test, [np.asarray(y) for y in session.run(None, test.inputs)])
    return Outcome(True, ())


def compare(test: NodeTest, got: list[np.ndarray]) -> None:
    """The suite's own comparison: same types, same shapes, values within its tolerances."""
    assert len(got) == len(test.outputs)
    for have, want in zip(got, test.outputs, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(have, want, rtol=test.rtol, atol=test.atol, err_msg=test.name)
