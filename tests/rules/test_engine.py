"""Properties of all rewrites: same interface, lower cost, termination, names, options, reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfuse.config import Options
from onnxfuse.errors import OnnxFuseError, UsageError
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Graph, Node, TensorType
from onnxfuse.ir.index import Index
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.traits import takes_a_part
from onnxfuse.rewrite import STEPS, engine, explain, rewrite
from onnxfuse.rewrite.measure import Measure
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph
from onnxfuse.rewrite.steps import NUMERICS
from tests.rules.build import Build, only, ops, rewritten, run, same


def small() -> Graph:
    b = Build()
    x = b.input("x", 3, 4)
    y = b.node("Mul", b.node("Identity", b.dense(x, 4)), b.constant(2.0))
    return b.graph(b.node("Relu", b.node("Relu", y)))


def test_the_input_is_not_changed_and_equal_inputs_give_equal_outputs() -> None:
    graph = small()
    before = (graph.nodes, dict(graph.types), dict(graph.constants), dict(graph.known))
    first, second = rewrite(graph, Options()), rewrite(graph, Options())
    assert before == (graph.nodes, dict(graph.types), dict(graph.constants), dict(graph.known))
    assert first[1] == second[1] and first[0].nodes == second[0].nodes
    assert list(first[0].constants) == list(second[0].constants)
    for name, c in first[0].constants.items():
        np.testing.assert_array_equal(c.load(), second[0].constants[name].load())


def test_rewriting_twice_changes_nothing_more() -> None:
    once, _ = rewrite(small(), Options())
    twice, trace = rewrite(once, Options())
    assert twice.nodes == once.nodes and trace == ()


def test_the_trace_names_nodes_of_the_loaded_model() -> None:
    _, trace = rewrite(small(), Options())
    assert {(f.rule, f.nodes, f.count) for f in trace} == {
        ("identity", ("Identity2",), 1),
        ("affine-after", ("Mul3",), 1),
        ("once-relu", ("Relu5",), 1),
    }


def test_new_nodes_stand_for_the_ones_they_replace() -> None:
    after, _ = rewritten(small())
    assert [(n.op, n.origin) for n in after.nodes] == [
        ("MatMul", ("MatMul0", "Mul3")),
        ("Add", ("Add1", "Mul3")),
        ("Relu", ("Relu4", "Relu5")),
    ]
    assert len({n.name for n in after.nodes}) == 3


def test_only_what_is_needed_stays() -> None:
    after, _ = rewritten(small())
    used = {*after.inputs, *after.outputs, *(v for n in after.nodes for v in (*n.reads, *n.outputs))}
    assert set(after.types) == used
    assert set(after.constants) < used


# Options --------------------------------------------------------------------------------------------------------------


def test_unknown_rules_are_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"there is no rule once-relo \(near: once-relu"):
        rewrite(small(), Options(disable=("once-relo",)))


def test_disabled_rules_do_not_fire() -> None:
    after, fired = rewritten(small(), Options(disable=("once-relu", "relu-nonnegative")))
    assert "once-relu" not in fired and ops(after).count("Relu") == 2


def factors() -> Graph:
    b = Build()
    x, y, z = (b.input(k, 3, 4) for k in "xyz")
    return b.graph(b.node("Add", b.node("Mul", x, z), b.node("Mul", z, y)))


def test_assumptions_want_fast_math_or_their_name() -> None:
    assert rewritten(factors())[1] == {}
    assert rewritten(factors(), Options(fast_math=True))[1] == {"factor-mul-add": 1}
    assert rewritten(factors(), Options(enable=("factor-mul-add",)))[1] == {"factor-mul-add": 1}
    assert rewritten(factors(), Options(enable=("factor-mul-sub",)))[1] == {}


def test_every_step_has_a_unique_name_a_law_and_numerics() -> None:
    assert len({s.name for s in STEPS}) == len(STEPS)
    assert all(s.law.count("=>") == 1 and s.numerics in NUMERICS for s in STEPS)


# Reasons --------------------------------------------------------------------------------------------------------------


def test_explain_says_why_not() -> None:
    b = Build()
    x = b.dense(b.input("x", 3, 4), 4)
    y = b.node("Mul", x, b.constant(2.0))
    graph = b.graph(y, b.node("Exp", x))
    reasons = dict(explain(graph, "mul_2", Options()))
    assert reasons["affine-after"] == "v1 has other readers"
    assert reasons["unit-mul"] == "mul_2 does not match x * 1"
    assert explain(graph, "nobody", Options()) == ()
    assert dict(explain(small(), "mul_3", Options()))["scale-into-weights"] == ""


# Chains that the runtime fuses ----------------------------------------------------------------------------------------


def gelu(b: Build, x: str, root: float = 2.0**0.5) -> str:
    bent = b.node("Add", b.node("Erf", b.node("Div", x, b.constant(root))), b.constant(1.0))
    return str(b.node("Mul", b.node("Mul", x, bent), b.constant(0.5)))


def normalization(b: Build, x: str) -> str:
    d = b.node("Sub", x, b.node("ReduceMean", x, axes=(-1,)))
    v = b.node("ReduceMean", b.node("Pow", d, b.constant(2.0)), axes=(-1,))
    n = b.node("Div", d, b.node("Sqrt", b.node("Add", v, b.constant(1e-5))))
    return str(b.node("Add", b.node("Mul", n, b.weights(8)), b.weights(8)))


def test_chains_that_the_runtime_fuses_stay() -> None:
    b = Build(13)
    x = b.input("x", 3, 8)
    graph = b.graph(b.dense(gelu(b, b.dense(normalization(b, x), 8)), 8))
    assert rewritten(graph)[1] == {}
    named = {n.op: n.name for n in graph.nodes}  # the last of each
    fused_as = {"Div": ("divide-constant", "Gelu"), "MatMul": ("affine-before", "Gelu")}
    for op, (rule, name) in fused_as.items():
        reason = dict(explain(graph, named[op], Options()))[rule]
        assert reason.endswith(f" is part of a chain that ONNX Runtime fuses as {name}")


def test_chains_that_only_look_like_it_are_rewritten() -> None:
    b = Build()
    x = b.input("x", 3, 8)
    bent = b.node("Add", b.node("Tanh", b.node("Div", x, b.constant(1.5))), b.constant(1.0))
    y = b.node("Mul", b.node("Mul", x, bent), b.constant(0.5))
    before = b.graph(b.dense(y, 8))
    after, fired = rewritten(before)
    assert fired == {"divide-constant": 1, "affine-before": 1}
    same(before, after, terms=8)


# Odd graphs -----------------------------------------------------------------------------------------------------------


def test_models_without_rows_are_left_alone() -> None:
    graph = replace(small(), opset=0)
    assert rewrite(graph, Options()) == (graph, ())


def test_values_that_subgraphs_read_keep_their_names() -> None:
    b = Build()
    x = b.input("x", 2)
    c = b.node("Add", b.constant([1.0, 2.0]), b.constant([1.0, 1.0]), out="c")
    y = b.node("Identity", b.node("Neg", x), out="y")
    b.nodes.append(Node("If", (x,), ("z",), {}, "if", captures=(c, y)))
    b.types["z"] = b.types[x]
    after, _ = rewritten(b.graph("z"))
    assert ops(after) == ["Neg", "If"]
    assert after.nodes[0].outputs == ("y",) and after.nodes[1].captures == ("c", "y")
    np.testing.assert_array_equal(after.constants["c"].load(), np.array([2, 3], np.float32))


def test_unknown_types_stop_rules_not_rewriting() -> None:
    b = Build()
    x = b.input("x", 2)
    y = b.opaque("Thing", x, "com.example")
    b.types[y] = None
    z = b.node("Neg", b.node("Neg", b.node("Identity", y)))
    after, fired = rewritten(b.graph(z))
    assert ops(after) == ["Thing", "Neg", "Neg"] and fired == {"identity": 1}


def test_types_that_the_loader_disputes_stay_unknown() -> None:
    b = Build()
    y = b.node("Exp", b.input("x", 2))
    b.types[y] = None
    after, _ = rewritten(b.graph(b.node("Exp", y)))
    assert after.types[y] is None


def test_a_broken_promise_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small()

    def wrong(self: MutableGraph) -> Graph:
        types = {**graph.types, graph.outputs[0]: TensorType(F32, (Index.of(1),))}
        return replace(graph, types=types)

    monkeypatch.setattr(MutableGraph, "freeze", wrong)
    with pytest.raises(OnnxFuseError, match="rewrite: v5 was"):
        rewrite(graph, Options())


def test_a_rule_that_does_not_terminate_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_FIRINGS_PER_NODE", 0)
    with pytest.raises(OnnxFuseError, match=r"fired 1 times \(--disable"):
        rewrite(small(), Options())


def test_every_firing_lowers_the_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    gains: list[Measure] = []
    commit = engine.commit

    def watched(work: MutableGraph, draft: engine.Draft) -> list[int]:
        gains.append(draft.gain())
        return commit(work, draft)

    monkeypatch.setattr(engine, "commit", watched)
    rewrite(small(), Options())
    assert len(gains) == 3 and all(g > Measure() for g in gains)


# Random graphs --------------------------------------------------------------------------------------------------------

UNARY = ("Neg", "Abs", "Relu", "Sigmoid", "Identity", "Exp", "Reciprocal", "Sqrt", "Floor", "Softmax", "Round")
BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow")
NUMBERS = (1.0, 0.0, 2.0, 0.5, -1.0)


def random_graph(seed: int) -> Graph:
    """A dozen nodes over few inputs and many constants, so that laws find something to do."""
    rng = np.random.default_rng(seed)
    b = Build(17)
    values = [b.input("x", 4, 6), b.input("y", 4, 6), b.weights(6), b.weights(4, 1)]
    values += [b.constant(n) for n in NUMBERS]
    while len(b.nodes) < 14:
        pick = [values[int(i)] for i in rng.integers(0, len(values), 2)]
        kind = rng.integers(0, 6)
        x = next(v for v in reversed(values) if v not in b.constants) if rng.integers(0, 2) else pick[0]
        shape = tuple(e.constant or 0 for e in (b.types[x] or TensorType(F32, ())).shape)
        if kind <= 2:
            made = b.node(BINARY[rng.integers(0, len(BINARY))], *((x, pick[1]) if rng.integers(0, 2) else (pick[1], x)))
        elif kind == 3 and shape:
            made = b.node(UNARY[rng.integers(0, len(UNARY))], x)
        elif kind == 4 and len(shape) == 2:
            made = b.dense(x, 6, bias=bool(rng.integers(0, 2)))
        elif len(shape) == 2:
            made = b.node("Transpose", x, perm=(1, 0))
        else:
            continue
        if b.types[made] is None:  # shapes that do not broadcast
            b.nodes.pop()
        else:
            values.append(made)
    made_values = [v for v in values if v not in b.constants and v not in b.inputs]
    return b.graph(*dict.fromkeys(made_values[-3:]))


def computing(graph: Graph) -> int:
    """Nodes that do more than name a part of what is there."""
    return sum(not any(map(takes_a_part, ROWS.rows[n.op])) for n in graph.nodes)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6))
def test_random_graphs_mean_the_same(seed: int) -> None:
    before = random_graph(seed)
    after, _ = rewritten(before)
    assert computing(after) <= computing(before)
    rng = np.random.default_rng(seed)
    feeds = {k: rng.uniform(0.5, 1.5, (4, 6)).astype(np.float32) for k in before.inputs}
    want, got = run(before, feeds), run(after, feeds)
    moved = run(before, {k: v * np.float32(1 + 2.0**-20) for k, v in feeds.items()})
    for name in before.outputs:
        a, b, c = (values[name].astype(np.float64) for values in (want, got, moved))
        assert got[name].shape == want[name].shape
        with np.errstate(all="ignore"):
            # what a change of the inputs in their last bits does bounds what regrouping may do
            bound = 64 * np.abs(c - a) + 1e-4 * (1 + np.abs(a))
            ok = ~np.isfinite(bound) | (np.abs(b - a) <= bound)
        jumps = any(n.op in ("Floor", "Round", "Pow") for n in before.nodes)
        assert jumps or bool(ok.all()), name


def test_random_graphs_end_in_the_same_place_twice() -> None:
    for seed in range(40):
        graph = random_graph(seed)
        once, _ = rewrite(graph, only(*(s.name for s in STEPS)))
        again, trace = rewrite(once, Options())
        assert trace == () and again.nodes == once.nodes


def test_miss_is_not_an_error_of_ours() -> None:
    assert issubclass(Miss, Exception) and not issubclass(Miss, OnnxFuseError)
