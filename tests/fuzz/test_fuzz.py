"""Random small models compute the same before and after, with and without library, optimized by the runtime or not."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, event, given, note, reject, settings

from onnxfuse.config import Options
from onnxfuse.errors import DeviceError
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Index, symbols_of
from onnxfuse.load import load, simplify_shapes
from onnxfuse.pipeline import optimize
from onnxfuse.runtime.engine import open_session, options, run
from tests.calls import on_cpu
from tests.fuzz.graphs import Made
from tests.fuzz.models import models
from tests.fuzz.models import settings as build_settings
from tests.kernels.rounding import check, reference
from tests.models.fused import CACHE, Array, in_one_unit
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
FEW = 12
SLACK = 4.0  # sums that a rewrite takes in another order or form
LAST = CACHE / "fuzz"  # where the model that is being tried lies, for when it ends this process


def tried(made: Made, folder: Path, **changes: Any) -> None:
    """Optimize a model and hold it in four ways against its rows in float64, within bounds from the original graph.

    So is the original itself, by the runtime alone: rows that mean something else than the runtime are found too.
    """
    original = folder / "m.onnx"
    onnx.save(made.model, original)
    try:
        alone = open_session(str(original), options(optimize=False, threads=2))
    except DeviceError:
        event("the runtime has no kernel for a type")
        reject()
    result = optimize(original, folder / "fused.onnx", verify=False, gain=False, strict=True, jobs=1,
                      cache_dir=str(CACHE), calls=on_cpu(build_library=in_one_unit), **changes)  # fmt: skip
    event(f"kernels: {min(result.kernels, 3)}{'+' * (result.kernels > 3)}")
    graph = simplify_shapes(load(original, Options()))
    library = result.output.library
    used = [(library,), ()] if library else [()]
    ways = [(libraries, optimized) for libraries in used for optimized in (True, False)]
    fused = str(folder / "fused.onnx")
    sessions = {"the original": alone}
    for few, o in ways:
        how = f"library {bool(few)}, optimizations {o}"
        sessions[how] = open_session(fused, options(libraries=few, optimize=o, threads=2))
    for sizes in made.sizes:
        feeds = made.feeds(sizes)
        wanted = reference(graph, feeds, {**sizes, **sizes_of(graph, feeds)})
        for how, session in sessions.items():
            note(f"{sizes}, {how}")
            for name, got in zip(graph.outputs, run(session, feeds, list(graph.outputs)), strict=True):
                have = graph.types[name]
                assert have is not None
                value, error = wanted[name]
                check(got, have.dtype, value, error * SLACK)


def sizes_of(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, int]:
    """The values of the symbols of inputs, each one's own where inputs whose sizes may differ share a name."""
    types = {name: t for name in graph.inputs if (t := graph.types[name]) is not None}
    pairs = [pair for name, t in types.items() for pair in zip(t.shape, feeds[name].shape, strict=True)]
    return {symbol.name: size for extent, size in pairs for symbol in symbols_of(extent) if extent == Index.of(symbol)}


def attempt(made: Made, changes: dict[str, Any]) -> None:
    note(f"{onnx.printer.to_text(made.model)}\n{changes}")
    LAST.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(made.model, LAST / "last.onnx")
        try:
            tried(made, Path(folder), **changes)
        except AssertionError:
            (LAST / "last.onnx").replace(LAST / "failed.onnx")  # the smallest one in the end
            (LAST / "failed.txt").write_text(f"{changes}, seed {made.seed}\n", encoding="utf-8")
            raise


def test_inputs_of_one_name_have_their_own_sizes() -> None:
    """A name that two inputs share, and nothing that the model computes, is two symbols."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 7] x, float[n, 5] y) => (float[n, 7] u, float[n, 5] v) { u = Exp (x)  v = Neg (y) }"""
    )
    graph = simplify_shapes(load(model.SerializeToString(), Options()))
    feeds = {"x": np.zeros((3, 7), np.float32), "y": np.zeros((3, 5), np.float32)}
    sizes = sizes_of(graph, feeds)
    assert len(sizes) == 2 and set(sizes.values()) == {3}
    assert set(reference(graph, feeds, sizes)) == {"u", "v"}


COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
}


@given(models(), build_settings())
@settings(max_examples=FEW, derandomize=True, phases=[Phase.generate], **COMMON)
def test_a_few_models(made: Made, changes: dict[str, Any]) -> None:
    attempt(made, changes)


@pytest.mark.slow
def test_many_models(request: pytest.FixtureRequest) -> None:
    many = request.config.getoption("--fuzz-examples")
    settings(max_examples=many, print_blob=True, **COMMON)(given(models(), build_settings())(attempt))()
