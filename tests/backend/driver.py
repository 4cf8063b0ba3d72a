"""Runs tests of ONNX's backend suite through the compiler: many in one model, optimized, then run in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from onnxfuse.pipeline import optimize
from onnxfuse.runtime.engine import open_session, options
from tests.backend.suite import Array, NodeTest
from tests.calls import on_cpu
from tests.models.fused import CACHE, in_one_unit


@dataclass(frozen=True)
class Outcome:
    """What became of a test: whether kernels of ours did all of it, else the codes of refusals; how it went wrong."""

    ran: bool
    refusals: tuple[str, ...]
    wrong: str


def outcomes(tests: Sequence[NodeTest], folder: Path) -> dict[str, Outcome]:
    """The outcome of each test by its name: all of one opset go into one model and one library."""
    found: dict[str, Outcome] = {}
    for opset in sorted({t.opset for t in tests}):
        found |= _run([t for t in tests if t.opset == opset], folder, f"opset{opset}")
    return found


def _run(tests: Sequence[NodeTest], folder: Path, name: str) -> dict[str, Outcome]:
    source, made = folder / f"{name}.onnx", folder / f"{name}.fused.onnx"
    source.write_bytes(together(tests).SerializeToString())
    calls = on_cpu(build_library=in_one_unit)
    result = optimize(
        source, made, min_group=1, verify=False, gain=False, strict=True, calls=calls, cache_dir=str(CACHE)
    )
    libraries = (result.output.library,) if result.output.library is not None else ()
    session = open_session(str(made), options(libraries=libraries, optimize=True, threads=1))
    feeds = {f"{t.name}/{k}": x for t in tests for k, x in t.inputs.items()}
    got = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    graph = onnx.load(made).graph
    makers = {o: n for n in graph.node for o in n.output}
    codes: dict[str, tuple[str, ...]] = {}
    for r in result.refusals:
        for node in r.nodes:
            codes[node] = (*codes.get(node, ()), r.code)
    found: dict[str, Outcome] = {}
    for t in tests:
        outputs = [f"{t.name}/{o.name}" for o in t.graph.output]
        nodes = list(_behind(outputs, makers))
        ran = bool(nodes) and all(n.domain.startswith("onnxfuse.") for n in nodes)
        found[t.name] = Outcome(ran, codes.get(t.name, ()), difference(t, [np.asarray(got[o]) for o in outputs]))
    return found


def together(tests: Sequence[NodeTest]) -> onnx.ModelProto:
    """A model of all tests side by side; the values and the node of each are named after it."""
    whole = onnx.GraphProto(name="tests")
    for t in tests:
        part = onnx.GraphProto()
        part.CopyFrom(t.graph)
        for node in part.node:
            node.name = t.name
            node.input[:] = [f"{t.name}/{i}" if i else "" for i in node.input]
            node.output[:] = [f"{t.name}/{o}" if o else "" for o in node.output]
        for value in (*part.input, *part.output, *part.initializer):
            value.name = f"{t.name}/{value.name}"
        whole.MergeFrom(part)
    whole.name = "tests"
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", tests[0].opset)], ir_version=10)


def _behind(values: Sequence[str], makers: dict[str, onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Every node that some values come from."""
    waiting, seen = list(values), set(values)
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None:
            yield node
            waiting += [i for i in node.input if i not in seen]
            seen.update(node.input)


def difference(test: NodeTest, got: Sequence[Array]) -> str:
    """By the suite's own comparison (same types, same shapes, values within its tolerances), what is wrong, or ""."""
    for have, want in zip(got, test.outputs, strict=True):
        if (have.dtype, have.shape) != (want.dtype, want.shape):
            return f"{have.dtype}{have.shape} instead of {want.dtype}{want.shape}"
        if not np.allclose(have, want, rtol=test.rtol, atol=test.atol, equal_nan=True):
            return f"{have!r} instead of {want!r}"
    return ""
