"""Replanning: groups without a kernel, kernels with wrong results, and when a build gives up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.backends.cpu import BACKEND as CPU
from onnxfuse.config import STEPS as STEP_NAMES
from onnxfuse.emit import body
from onnxfuse.errors import AnsweredNo, DeviceError, OnnxFuseError
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.scalar import apply, const
from onnxfuse.lower import Lowered, lower
from onnxfuse.ops.spec import Definition
from onnxfuse.pipeline import STEPS, optimize
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.groups import MOST_ROUNDS
from onnxfuse.pipeline.slower_groups import _Predictor
from onnxfuse.pipeline.verdict_cache import VerdictCache
from onnxfuse.plan import plan
from onnxfuse.plan.strategies import STRATEGIES
from onnxfuse.report.result import Result
from onnxfuse.verify import GroupVerdict, verify_culprits
from onnxfuse.verify.verdicts import Verdict
from tests.calls import on_cpu
from tests.cli.conftest import files

MERGED = """<ir_version: 8, opset_import: ["" : 17]>
m (float[n, 64] x) => (float[n, 32] y, float[n, 32] z) { a = Gemm(x, u) b = Gemm(x, v) y = Exp(a) z = Tanh(b) }"""
TWO = """<ir_version: 8, opset_import: ["" : 17]>
two (float[4, 32] x, float[32, 8] z) => (float[4, 32] y, float[32, 8] w)
{ a = Abs (x)  b = Exp (a)  y = Neg (b)  c = Abs (z)  d = Tanh (c)  w = Neg (d) }"""


@pytest.fixture
def built(model: Path, kernels: Path) -> Callable[..., Result]:
    """Builds the model of this folder with functions replaced."""

    def go(calls: Calls, **changes: Any) -> Result:
        return optimize(model, "o.onnx", calls=calls, cache_dir=str(kernels), **changes)

    return go


def codes(result: Result) -> list[tuple[str, tuple[str, ...]]]:
    return [(r.code, r.nodes) for r in result.refusals]


def refusing(*names: str, what: str = "E-LAYOUT") -> Callable[..., Any]:
    """A `lower` that refuses every group with one of these nodes, and does not say which one it was."""

    def go(group: Group, made: Plan, rows: Any) -> Lowered | Decision:
        if {n.name for n in group.nodes} & set(names):
            return Decision(what, (group.name,), "not today")
        return lower(group, made, rows)

    return go


def test_a_refused_group_shrinks_until_it_can_be_built(built: Callable[..., Result]):
    result = built(Calls(lower=refusing("Sigmoid_3")), dry_run=True)
    assert [g.nodes for g in result.groups] == [("Mul_0", "Add_1", "Relu_2")]
    assert codes(result) == [("E-LAYOUT", ("Mul_0", "Add_1", "Relu_2", "Sigmoid_3"))]
    assert result.nodes_left == 1


def test_a_group_that_keeps_refusing_stays_with_the_runtime(built: Callable[..., Result], model: Path):
    result = built(Calls(lower=refusing("Mul_0")), verify=False)
    assert result.kernels <= 1 and all("Mul_0" not in g.nodes for g in result.groups)
    assert codes(result)[0] == ("E-LAYOUT", ("Mul_0", "Add_1", "Relu_2", "Sigmoid_3"))


def test_a_refusal_that_names_a_node_leaves_out_that_node_alone(built: Callable[..., Result]):
    def go(group: Group, made: Plan, rows: Any) -> Lowered | Decision:
        if any(n.name == "Relu_2" for n in group.nodes):
            return Decision("E-DTYPE", ("Relu_2",), "not this one")
        return lower(group, made, rows)

    result = built(Calls(lower=go), dry_run=True, min_group=1)
    assert sorted(g.nodes for g in result.groups) == [("Mul_0", "Add_1"), ("Sigmoid_3",)]


def test_it_ends_when_everything_refuses(built: Callable[..., Result], model: Path):
    calls = 0

    def counted(*arguments: Any) -> Plan:
        nonlocal calls
        calls += 1
        return plan(*arguments)

    result = built(Calls(plan=counted, lower=refusing("Mul_0", "Add_1", "Relu_2", "Sigmoid_3")), min_group=1)
    assert result.kernels == 0 and calls <= MOST_ROUNDS
    assert Path("o.onnx").read_bytes() == model.read_bytes()


def test_a_plan_that_ignores_what_is_forbidden_is_a_bug(built: Callable[..., Result]):
    def deaf(graph: Any, rows: Any, options: Any, forbidden: frozenset[str], *others: Any, **named: Any) -> Plan:
        return plan(graph, rows, options, frozenset(), *others, **named)

    with pytest.raises(AssertionError, match="must not have"):
        built(Calls(plan=deaf, lower=refusing("Sigmoid_3")), dry_run=True)


def test_a_bug_in_one_group_leaves_it_to_the_runtime_and_says_so(built: Callable[..., Result]):
    def broken(*_: Any, **__: Any) -> Any:
        raise IndexError("list index out of range")

    result = built(on_cpu(schedule=broken), dry_run=True)
    assert result.kernels == 0
    assert any(r.code == "E-INTERNAL" and "IndexError list index" in r.reason for r in result.refusals)
    with pytest.raises(IndexError):
        built(on_cpu(schedule=broken), dry_run=True, strict=True)


def test_an_error_of_ours_is_no_bug_of_a_group(built: Callable[..., Result]):
    def broken(*_: Any, **__: Any) -> Any:
        raise OnnxFuseError("schedule: no")

    with pytest.raises(OnnxFuseError, match="schedule: no"):
        built(on_cpu(schedule=broken), dry_run=True)


def nothing(*_: Any) -> VerdictCache:
    """A memory of no verdicts: what stands in for verification is to be asked."""
    return VerdictCache(None)


def one_percent_more(group: Group, made: Plan, rows: Any) -> Lowered | Decision:
    """A `lower` whose kernels compute one percent too much."""
    found = lower(group, made, rows)
    assert isinstance(found, Lowered)
    wrong = tuple(Definition(d.name, d.axes, apply("mul", d.value, const(1.01))) for d in found.definitions)
    return replace(found, definitions=wrong)


def test_a_planted_error_is_found_and_its_kernel_dropped(built: Callable[..., Result], model: Path):
    result = built(Calls(lower=one_percent_more))
    assert ("E-NUMERICS", ("Mul_0", "Add_1", "Relu_2", "Sigmoid_3")) in codes(result)
    assert result.kernels == 0 and result.verify is not None and result.verify.ok is True
    assert Path("o.onnx").read_bytes() == model.read_bytes()
    assert files(Path()) == {"m.onnx", "o.onnx", "o.fuse.json"}


def test_an_error_that_no_group_admits_fails_the_build_where_verification_was_demanded(
    built: Callable[..., Result], model: Path
):
    calls = Calls(lower=one_percent_more, verify_groups=lambda *_, **__: (), memory_of=nothing)
    with pytest.raises(AnsweredNo, match="the result differs"):
        built(calls, verify=True)
    assert files(Path()) == {"m.onnx"}
    result = built(calls)
    assert result.kernels == 0 and "the outputs of the whole model differ" in result.refusals[-1].reason
    assert Path("o.onnx").read_bytes() == model.read_bytes()


def test_what_a_rewrite_added_beside_others_needs_no_reason(here: Path, kernels: Path):
    """Slices of a merged product stand for no node of the model: they may stay, where all kernels are dropped."""
    made = onnx.parser.parse_model(MERGED)
    for name in ("u", "v"):
        made.graph.initializer.append(numpy_helper.from_array(np.ones((64, 32), np.float32), name))
    onnx.save(made, "m.onnx")
    right = optimize("m.onnx", "right.onnx", cache_dir=str(kernels), min_group=1)
    assert "merged-products" in dict(right.rewrites), right.rewrites
    calls = Calls(lower=one_percent_more, verify_groups=lambda *_, **__: (), memory_of=nothing)
    result = optimize("m.onnx", "o.onnx", calls=calls, cache_dir=str(kernels), min_group=1)
    assert result.kernels == 0
    assert "E-INTERNAL" not in {r.code for r in result.refusals}


def test_only_the_failing_kernel_is_dropped(here: Path, kernels: Path):
    onnx.save(onnx.parser.parse_model(TWO), "m.onnx")
    rounds: list[int] = []

    def fail_first(path: Path, library: Path, **_: Any) -> tuple[GroupVerdict, ...]:
        nodes = [n for n in onnx.load(path).graph.node if n.domain.startswith("onnxfuse.")]
        rounds.append(len(nodes))
        return tuple(GroupVerdict(n.name, n.op_type, "y" not in n.output, 1.0, 0.1, "planted") for n in nodes)

    result = optimize(
        "m.onnx", "o.onnx", calls=Calls(verify_groups=fail_first, memory_of=nothing), cache_dir=str(kernels)
    )
    assert rounds == [2]  # the other one has passed
    assert result.kernels == 1 and result.nodes_left == 3
    numerics = [r for r in result.refusals if r.code == "E-NUMERICS"]
    assert len(numerics) == 1 and len(numerics[0].nodes) == 3 and "planted" in numerics[0].reason


IMAGES = """<ir_version: 8, opset_import: ["" : 17]>
images (float[1, 16, 12, 12] x, float[64, 96] z) => (float[1, 16, 12, 12] y, float[64, 96] w)
{ a = Conv <kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1]> (x, f)  b = Relu (a)
  c = Conv <kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1]> (b, f)  y = Relu (c)
  p = Abs (z)  q = Softmax (p)  s = Exp (q)  w = Neg (s) }"""


@pytest.mark.parametrize(("lost", "again"), [("w", 0), ("y", 1)])
def test_a_kernel_that_is_dropped_costs_no_search_and_nothing_that_is_known(
    here: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch, lost: str, again: int
):
    """What the rounds after the first do, counted: no strategy runs, and kernels are those of the first round.

    A convolution beside one that is dropped gets and gives images as the runtime has them: it is another kernel.
    """
    proto = onnx.parser.parse_model(IMAGES)
    weight = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "f"))
    onnx.save(proto, "m.onnx")
    begun: list[str | None] = []
    done: list[tuple[int, str]] = []

    def noted(name: str, function: Any) -> Any:
        def go(*arguments: Any, **named: Any) -> Any:
            done.append((begun.count("plan"), name))
            return function(*arguments, **named)

        return go

    def fail_one(path: Path, library: Path, **_: Any) -> tuple[GroupVerdict, ...]:
        nodes = [n for n in onnx.load(path).graph.node if n.domain.startswith("onnxfuse.")]
        return tuple(GroupVerdict(n.name, n.op_type, lost not in n.output, None, 0.1, "planted") for n in nodes)

    for name in STRATEGIES:
        monkeypatch.setitem(STRATEGIES, name, noted("strategy", STRATEGIES[name]))
    monkeypatch.setattr(_Predictor, "losing", noted("worth", _Predictor.losing))
    calls = on_cpu(
        Calls(verify_groups=fail_one, memory_of=nothing, lower=noted("lower", lower)),
        schedule=noted("schedule", CPU.schedule),
        render=noted("render", CPU.render),
    )
    result = optimize(
        "m.onnx",
        "o.onnx",
        calls=calls,
        cache_dir=str(kernels),
        tell=lambda what, facts: begun.append(facts.get("step")),
    )
    assert begun.count("plan") == 2 and [g.nodes[-1] for g in result.groups if lost in g.nodes] == []
    first, second = ([name for at, name in done if at == n] for n in (1, 2))
    assert first.count("strategy") and first.count("worth") == first.count("render") == 3
    for name in ("schedule", "lower", "worth", "render"):
        assert second.count(name) == again, f"{name}: {second}"
    assert "strategy" not in second and len(result.groups) == 2


def wrong_y(group: Group, made: Plan, rows: Any) -> Lowered | Decision:
    """A `lower` of which the kernel that makes y computes one percent too much."""
    return one_percent_more(group, made, rows) if "y" in group.outputs else lower(group, made, rows)


def test_the_kernel_that_makes_the_whole_wrong_is_found_and_dropped(here: Path, kernels: Path):
    """No kernel fails alone; with one of them switched off the model is right."""
    onnx.save(onnx.parser.parse_model(TWO), "m.onnx")
    asked: list[tuple[str, ...]] = []

    def culprits(*arguments: Any, **settings: Any) -> Any:
        asked.append(verify_culprits(*arguments, **settings))
        return asked[-1]

    calls = Calls(lower=wrong_y, verify_groups=lambda *_, **__: (), verify_culprits=culprits)
    result = optimize("m.onnx", "o.onnx", calls=calls, cache_dir=str(kernels), verify=True)
    assert [len(each) for each in asked] == [1]
    assert result.kernels == 1 and result.nodes_left == 3
    assert result.verify is not None and result.verify.ok is True
    numerics = [r for r in result.refusals if "the outputs of the whole model differ" in r.reason]
    assert len(numerics) == 1 and "error 0.01 above" in numerics[0].reason and "seed 0" in numerics[0].reason


def test_the_group_whose_body_is_wrong_is_found_by_building_without_it(here: Path, kernels: Path):
    """What is wrong without the library too cannot be switched off: halves of the groups are left out."""
    onnx.save(onnx.parser.parse_model(TWO), "m.onnx")

    def wrong_body(*arguments: Any) -> Any:
        made = body(*arguments)
        if not any(n.op == "Exp" for n in made.nodes):
            return made
        nodes = tuple(replace(n, op="Sqrt") if n.op == "Exp" else n for n in made.nodes)
        return replace(made, nodes=nodes)

    calls = Calls(body=wrong_body, verify_groups=lambda *_, **__: (), memory_of=nothing)
    result = optimize("m.onnx", "o.onnx", calls=calls, cache_dir=str(kernels))
    assert result.kernels == 1 and result.verify is not None and result.verify.ok is True
    assert {n for r in result.refusals if r.code == "E-NUMERICS" for n in r.nodes} == {"Abs_0", "Exp_0", "Neg_0"}


def test_sums_are_left_out_before_the_rest_of_their_group(here: Path, kernels: Path):
    """Where numbers differ, the order of a sum may be why; a kernel that does not run goes as a whole."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        sums (float[64, 32] x) => (float[64, 1] y)
        { a = Abs (x)  b = Exp (a)  s = ReduceMean <axes: ints = [1]> (b)  y = Sqrt (s) }"""
    )
    onnx.save(proto, "m.onnx")

    def failing(error: float | None) -> Callable[..., tuple[GroupVerdict, ...]]:
        def go(path: Path, library: Path, **_: Any) -> tuple[GroupVerdict, ...]:
            nodes = [n for n in onnx.load(path).graph.node if n.domain.startswith("onnxfuse.")]
            return tuple(GroupVerdict(n.name, n.op_type, "y" not in n.output, error, 0.1, "planted") for n in nodes)

        return go

    made = [
        optimize(
            "m.onnx",
            f"o{i}.onnx",
            calls=Calls(verify_groups=failing(e), memory_of=nothing),
            cache_dir=str(kernels),
            min_group=2,
        )
        for i, e in enumerate((1e-3, None))
    ]
    assert [(r.kernels, r.nodes_left) for r in made] == [(1, 2), (0, 4)]
    assert [g.ops for g in made[0].groups] == [("Abs", "Exp")]


def undecided(*_: Any, **__: Any) -> Verdict:
    return Verdict(None, None, None, None, message="the original does not run")


def test_what_cannot_be_verified_is_written_unless_verification_was_demanded(built: Callable[..., Result]):
    calls = Calls(verify_models=undecided, verify_groups=lambda *_, **__: (), memory_of=nothing)
    result = built(calls)
    assert result.verify is not None and result.verify.ok is None
    assert "the original does not run" in result.verify.message
    with pytest.raises(DeviceError, match="the original does not run"):
        built(calls, verify=True, overwrite=True)


def test_without_a_runtime_nothing_is_verified(built: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onnxfuse.pipeline.verdict.find_spec", lambda name: None)
    result = built(Calls())
    assert result.verify is not None and result.verify.ok is None and result.kernels == 1
    with pytest.raises(DeviceError, match="onnxruntime is not installed"):
        built(Calls(), verify=True, overwrite=True)


def test_it_can_be_switched_off(built: Callable[..., Result]):
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("verification was switched off")

    assert built(Calls(verify_models=never, verify_groups=never), verify=False).verify is None


def test_equal_groups_share_a_kernel(here: Path, kernels: Path):
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        three (float[64] x, float[64] z, float[64] u) => (float[64] p, float[64] q, float[64] r)
        { a = Abs (x)  p = Exp (a)  b = Abs (z)  q = Exp (b)  c = Abs (u)  r = Neg (c) }"""
    )
    onnx.save(proto, "m.onnx")
    result = optimize("m.onnx", "o.onnx", cache_dir=str(kernels), verify=False)
    assert (result.kernels, result.distinct_kernels) == (3, 2)
    assert len(onnx.load("o.onnx").functions) == 2


def test_the_steps_are_those_that_the_options_name():
    assert tuple(name for name, _, _ in STEPS) == STEP_NAMES
