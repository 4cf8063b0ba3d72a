"""A bug costs a rule, a kernel or a group, is reported, and ends the build only with --strict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from onnxfuse import optimize
from onnxfuse.backends.cpu import BACKEND as CPU
from onnxfuse.backends.row import ScheduleRequest
from onnxfuse.build import CompileError
from onnxfuse.config import Options
from onnxfuse.errors import OnnxFuseError
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.index import Index
from onnxfuse.ops import spec
from onnxfuse.ops.rows import ROWS
from onnxfuse.pipeline.calls import Calls
from onnxfuse.render.cpp import render
from onnxfuse.rewrite import engine
from tests.caches import own_cache
from tests.calls import on_cpu

TWO = """<ir_version: 8, opset_import: ["" : 17]> g (float[8, 64] x) => (float[8, 64] y, float[8, 64] z) {
    a = Exp(x)\n y = Softmax<axis = 1>(a)\n b = Tanh(x)\n c = ReduceMean<axes = [1]>(b)\n z = Sub(b, c) }"""


def model() -> bytes:
    return bytes(parser.parse_model(TWO).SerializeToString())


def codes(result: Any) -> list[str]:
    return [r.code for r in result.refusals]


def test_a_rule_that_fails_is_left_out_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise IndexError("tuple index out of range")

    step = replace(engine._LOCAL[0][0], name="broken", ops=frozenset({"Exp"}), attempt=broken)
    monkeypatch.setattr(engine, "_LOCAL", ((step,), *engine._LOCAL))
    result = optimize(model(), stop_after="render", min_group=1)
    assert result.kernels
    assert [(r.code, r.reason) for r in result.refusals][-1] == (
        "E-INTERNAL",
        "rewrite: broken: IndexError tuple index out of range",
    )
    with pytest.raises(IndexError):
        optimize(model(), stop_after="render", min_group=1, strict=True)


def test_a_rule_that_breaks_the_graph_is_left_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { a = Identity(x)\n y = Exp(a) }'
    proto = parser.parse_model(text).SerializeToString()
    bugs: list[Any] = []
    monkeypatch.setattr(engine, "commit", lambda work, draft: {}["no"])
    graph = engine_graph(proto)
    made, fired = engine.rewrite(graph, Options(), bugs)
    assert (made.nodes, fired) == (graph.nodes, ())
    assert [(b.code, b.reason) for b in bugs] == [
        ("E-INTERNAL", f"rewrite: {rule}: KeyError 'no'") for rule in ("identity", "movement-chain")
    ]
    with pytest.raises(engine.Broken):
        engine.rewrite(graph, Options())


def engine_graph(proto: bytes) -> Graph:
    graphs: list[Graph] = []
    optimize(proto, stop_after="rewrite", calls=Calls(rewrite=lambda g, o, b: (graphs.append(g), (g, ()))[1]))
    return graphs[0]


def test_a_row_that_fails_is_a_bug_and_costs_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: spec.View) -> Any:
        raise TypeError("no")

    row = replace(ROWS.rows["Tanh"][0], define=broken)
    monkeypatch.setitem(ROWS.rows, "Tanh", (row,))  # type: ignore[arg-type]  # the table is a dictionary
    result = optimize(model(), stop_after="render", min_group=1)
    assert "E-INTERNAL" in codes(result)
    assert result.kernels
    with pytest.raises(OnnxFuseError, match="Tanh: TypeError"):
        optimize(model(), stop_after="render", min_group=1, strict=True)


def test_a_kernel_that_leaves_its_buffers_is_found_and_costs_its_group() -> None:
    def spoiled(request: ScheduleRequest, *rest: Any, **settings: Any) -> Any:
        made = CPU.schedule(request, *rest, **settings)
        if isinstance(made, Decision) or "z" not in request.lowered.outputs:
            return made
        (out,) = made.outputs
        return replace(made, outputs=(replace(out, shape=(Index.of(8), Index.of(63))),))

    calls = on_cpu(schedule=spoiled)
    result = optimize(model(), stop_after="render", min_group=1, calls=calls)
    (bug,) = (r for r in result.refusals if r.code == "E-INTERNAL")
    assert "stores out0[" in bug.reason
    assert result.kernels
    with pytest.raises(AssertionError, match="stores out0"):
        optimize(model(), stop_after="render", min_group=1, strict=True, calls=calls)


def test_a_kernel_that_does_not_compile_costs_itself(tmp_path: Path) -> None:
    def spoiled(kernel: Any, symbol: str, *rest: Any) -> Any:
        made = render(kernel, symbol, *rest)
        return replace(made, text=f"{made.text}\n#error spoiled\n") if "Tanh" in symbol else made

    cache = {"cache_dir": own_cache(tmp_path / "cache"), "min_group": 1}
    result = optimize(model(), tmp_path / "out.onnx", calls=on_cpu(render=spoiled), **cache)
    assert "E-INTERNAL" in codes(result)
    assert result.kernels == 1
    assert result.verify is not None
    assert result.verify.ok
    assert any("spoiled" in r.reason for r in result.refusals)
    with pytest.raises(CompileError):
        optimize(model(), tmp_path / "two.onnx", calls=on_cpu(render=spoiled), strict=True, **cache)


def test_a_compiler_that_compiles_nothing_is_no_bug_of_a_kernel(tmp_path: Path) -> None:
    def spoiled(*given: Any) -> Any:
        return [replace(made, text="#error spoiled\n") for made in CPU.registration(*given)]

    with pytest.raises(CompileError, match="spoiled") as caught:
        optimize(model(), tmp_path / "out.onnx", calls=on_cpu(registration=spoiled), no_cache=True, min_group=1)
    assert caught.value.units == {}


@pytest.mark.parametrize(
    "line",
    [
        "y = MatMul(x)",
        "y = Identity()",
        "y = Relu(x, x)",
        "y = Softmax<axes = 1>(x)",
        'y = Softmax<axis = "a">(x)',
        "y = Cast(x)",
        "y, z = Exp(x)",
        "i = Cast<to = 9>(x)\n y = Add(x, i)",
        "y = Where(x, x, x)",
        "y = Gather(x, x)",
        "b = Constant<value = bool {1}>()\n y = Clip(x, b)",
        "i = Cast<to = 10>(x)\n y = Mul(x, i)",
        "y = Pad(x, x)",
        "y = Conv(x, x)",
    ],
)
def test_a_call_that_its_operator_does_not_allow_is_not_looked_into(line: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4, 4] x) => (float[4, 4] y) {{ {line} }}'
    proto: onnx.ModelProto = parser.parse_model(text)
    result = optimize(proto.SerializeToString(), stop_after="render", min_group=1, strict=True)
    assert codes(result) == ["E-INVALID"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            'opset_import: ["" : 17]> g (float[4, 5] x, string[5] n) => (float[4, 5] y) { y = ReverseSequence(x, n) }',
            "E-SHAPE-UNKNOWN",
        ),
        ('opset_import: ["" : 7]> g (float[4, 4] x) => (float[4, 4] y) { y = Expand(x) }', "E-INVALID"),
        ('opset_import: ["" : 17, "x": 1]> g (float[4, 4] x) => (float[4, 4] y) { y = x.MatMul(x) }', "E-OPAQUE"),
        (
            'opset_import: ["" : 17]> g (float[4, 8] x) => (float[?, ?] y) '
            '<int64[4] p = {1, 1, 1, 9223372036854775807}> { a = Pad<mode = "reflect">(x, p)\n y = Abs(a) }',
            "E-RESOURCE",
        ),
    ],
)
def test_a_call_that_nobody_knows_is_left_to_the_runtime(text: str, code: str) -> None:
    proto: onnx.ModelProto = parser.parse_model(f"<ir_version: 8, {text}")
    assert code in codes(optimize(proto.SerializeToString(), stop_after="render", min_group=1, strict=True))


def test_an_operator_that_the_runtime_has_before_onnx_may_have_other_attributes() -> None:
    """As exporters wrote LayerNormalization."""
    text = """<ir_version: 6, opset_import: ["" : 12]> g (float[4, 4] x) => (float[4, 4] y) {
        s = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>()  y = LayerNormalization<epsion = 0.001>(x, s, s) }"""
    result = optimize(parser.parse_model(text).SerializeToString(), stop_after="render", min_group=1, strict=True)
    assert (result.kernels, codes(result)) == (1, [])


def test_only_calls_that_are_allowed_are_of_the_default_domain() -> None:
    node = Node("Exp", ("x",), ("y",), invalid="it has 7 inputs")
    assert (node.standard, node.key) == (False, "::Exp")
