"""Every law: both sides are equal, it fires where it must, and not where a condition or a binding is violated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np
import pytest

from onnxfuse.ir.dtype import BOOL, F32, I32, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.rewrite.algebra import RULES
from onnxfuse.rewrite.pattern import Expr, Num, OpPattern, Var, sides, variables, walk
from onnxfuse.rewrite.proofs.conditions import CONDITIONS, Condition
from onnxfuse.rewrite.steps import NUMERICS, Rule
from tests.rules.build import Array, Build, draw, only, rewritten, run

LOGICAL = {"And", "Or", "Xor", "Not"}
BITWISE = {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}
EPSILON = float(np.finfo(np.float32).eps)
CONSTANT = {"constant", "scalar", "magnitude_at_least_one"}


def is_constant(rule: Rule, name: str) -> bool:
    return any(c.name in CONSTANT and name in c.args for c in rule.when)


def dtype_of_variable(rule: Rule, name: str) -> DType:
    calls = [e for e in walk(rule.lhs) if isinstance(e, OpPattern)]
    if any(c.op in LOGICAL for c in calls):
        return BOOL
    if any(c.op in BITWISE for c in calls):
        return I32
    condition_of_where = any(c.op == "Where" and c.args[0] == Var(name) for c in calls)
    return BOOL if condition_of_where else F32


def shape_of(rule: Rule, name: str) -> tuple[int, ...]:
    """Matrices that fit where the law multiplies matrices, one shape for all elsewhere."""
    if any(c.name in ("scalar", "magnitude_at_least_one") and name in c.args for c in rule.when):
        return ()
    if rule.name.startswith("products-"):
        return {"a": (4, 6), "b": (6, 5), "c": (5, 6 if rule.name == "products-left" else 1)}[name[0]]
    for e in walk(rule.lhs):
        if isinstance(e, OpPattern) and e.op == "MatMul" and name in variables(e.args[1]):
            return (6, 5)
    return (4, 6)


class Sample:
    """The left side of a law, or an expression that looks like it, as a graph in which the condition `broken` fails."""

    def __init__(self, rule: Rule, rng: np.random.Generator, broken: str = "", lhs: Expr | None = None) -> None:
        self.rule, self.rng, self.broken = rule, rng, broken
        reduces = any(isinstance(e, OpPattern) and e.rest for e in walk(rule.lhs))
        self.build = Build(13 if broken == "axes_alike" else 12 if reduces else 17)
        self.values: dict[str, str] = {}
        self.made: dict[Expr, str] = {}
        self.root = self.value(lhs or rule.lhs)

    def graph(self):  # type: ignore[no-untyped-def]
        return self.build.graph(self.root)

    def conditions(self, name: str) -> set[str]:
        return {c.name for c in (*self.rule.when, *self.rule.assume) if name in c.args}

    def variable(self, name: str) -> str:
        dtype, shape = dtype_of_variable(self.rule, name), shape_of(self.rule, name)
        held = self.conditions(name)
        constant = (is_constant(self.rule, name) or self.broken == "variable") and self.broken != "constant"
        if self.broken in ("scalar", "magnitude_at_least_one") and self.broken in held:
            shape = (5,) if name == "d" else (6,)
        if self.broken == "floating":
            dtype = I32
        if self.broken == "same_shape" and any(c.name == "same_shape" and name == c.args[1] for c in self.rule.when):
            shape = (1, *shape)
        if constant:
            return self.build.constant(self.array(dtype, shape), name=name)
        known = dtype is F32 and {"bounded", "at_least", "at_most"} & held - {self.broken}  # an integer is no NaN
        value = self.build.input(name, *shape, dtype=I32 if known else dtype)
        value = str(self.build.node("Cast", value, to=1)) if known else value
        return self.proven(name, value, held - {self.broken})

    def proven(self, name: str, value: str, held: set[str]) -> str:
        """What is made of an input, of which the conditions can be proven."""
        node, ordered = self.build.node, {c.name: c.args for c in self.rule.when if c.name.startswith("at_")}
        if {"bounded", *ordered} & held and self.broken != "floating":
            above = "one_sided" in held or any(a[c == "at_most"] == name for c, a in ordered.items())
            more = -0.5 if self.broken in ("nonnegative", "unsigned") else 2.5 if above else 1.0
            return str(node("Add", node("Sigmoid", value), self.build.constant(np.float32(more))))
        if "integral" in held:
            return str(node("Cast", node("Cast", value, to=7), to=1))
        if {"always_true", "always_false"} & held:
            test = node("Less", node("Sigmoid", node("Cast", value, to=1)), self.build.constant(np.float32(2.0)))
            return str(test if "always_true" in held else node("Not", test))
        return str(node("Exp", value)) if {"nonnegative", "unsigned"} & held else value

    def array(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        if dtype is BOOL:
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype is I32:
            return self.rng.integers(0, 16, shape).astype(np.int32)
        if self.broken != "magnitude_at_least_one" and any(c.name == "magnitude_at_least_one" for c in self.rule.when):
            return np.asarray(self.rng.uniform(1.0, 2.0, shape)).astype(np.float32)
        return np.asarray(self.rng.uniform(0.5, 2.0, shape)).astype(dtype.numpy)

    def value(self, e: Expr) -> str:
        if isinstance(e, Var):
            if e.name not in self.values:
                self.values[e.name] = self.variable(e.name)
            return self.values[e.name]
        if isinstance(e, Num):
            dtype = BOOL if dtype_of_variable(self.rule, "") is BOOL else I32 if self.broken == "floating" else F32
            return self.build.constant(np.asarray(e.value).astype(dtype.numpy))
        if e not in self.made:
            inputs = [self.value(a) for a in e.args]
            attrs = {"axes": (1,), "keepdims": 1} if e.rest else {}
            if e.rest and self.build.opset >= 13 and e.op == "ReduceSum":
                inputs, attrs = [*inputs, self.build.ints(1)], {"keepdims": 1}
            self.made[e] = str(self.build.node(e.op, *inputs, **attrs))
        return self.made[e]


def mutants(rule: Rule) -> Iterator[tuple[str, Callable[[np.random.Generator], Sample]]]:
    """Graphs that look almost like the law: one condition broken, one number, one name or one operator changed."""
    for condition in dict.fromkeys(c.name for c in rule.when):
        if condition not in ("unshared", "not_dequantized", "floating") or (
            condition == "floating" and accepts_integers(rule)
        ):
            yield condition, lambda rng, c=condition: Sample(rule, rng, c)  # type: ignore[misc]
    for e in walk(rule.lhs):
        if isinstance(e, Num):
            other = Num(0.0 if e.value and dtype_of_variable(rule, "") is BOOL else e.value + 1)
            yield f"{e!r}", lambda rng, e=e, o=other: Sample(rule, rng, lhs=replaced(rule.lhs, e, o))  # type: ignore[misc]
    for name in variables(rule.lhs):
        if sum(e == Var(name) for e in walk(rule.lhs)) > 1:
            yield name, lambda rng, n=name: Sample(rule, rng, lhs=split(rule.lhs, n))  # type: ignore[misc]
    inner = next((e for e in walk(rule.lhs) if isinstance(e, OpPattern) and e is not rule.lhs), None)
    if inner is not None and not inner.rest:
        logical = inner.op in LOGICAL
        op = "Identity" if logical else "Tanh"
        if len(inner.args) == 2:
            op = ("Equal" if logical else "PRelu") if inner.op != "MatMul" else "Sub"
        if inner.op != "MatMul":
            other_call = OpPattern(op, inner.args)
            yield inner.op, lambda rng, e=inner, o=other_call: Sample(rule, rng, lhs=replaced(rule.lhs, e, o))  # type: ignore[misc]


def accepts_integers(rule: Rule) -> bool:
    return not any(isinstance(e, OpPattern) and e.op in ("Sqrt", "Reciprocal", "Pow") for e in walk(rule.lhs))


def replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    if e == old:
        return new
    return OpPattern(e.op, tuple(replaced(a, old, new) for a in e.args), e.rest) if isinstance(e, OpPattern) else e


def split(e: Expr, name: str) -> Expr:
    """e with the first occurrence of a name under another name."""
    done = False

    def go(x: Expr) -> Expr:
        nonlocal done
        if x == Var(name) and not done:
            done = True
            return Var(name + "2")
        return OpPattern(x.op, tuple(go(a) for a in x.args), x.rest) if isinstance(x, OpPattern) else x

    return go(e)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_law_holds_and_fires(rule: Rule) -> None:
    assert rule.numerics in NUMERICS
    for seed in range(3):
        rng = np.random.default_rng(seed)
        before = Sample(rule, rng).graph()
        after, fired = rewritten(before, only(rule.name, enable=bool(rule.assume)))
        assert fired == {rule.name: 1}
        feeds = draw(before, rng)
        if rule.assume:
            feeds = {k: np.abs(v) + np.float32(0.1) if v.dtype.kind == "f" else v for k, v in feeds.items()}
        want, got = run(before, feeds)[before.outputs[0]], run(after, feeds)[after.outputs[0]]
        if rule.numerics == "exact":
            np.testing.assert_array_equal(got, want)
        else:
            bound = 64 * EPSILON * float(np.abs(want).max())
            np.testing.assert_allclose(got, want, 0, bound)


@pytest.mark.parametrize(("rule", "what"), [(r, w) for r in RULES for w, _ in mutants(r)], ids=str)
def test_law_does_not_fire_on_what_only_looks_like_it(rule: Rule, what: str) -> None:
    made = [make for name, make in mutants(rule) if name == what]
    assert made, what
    for make in made:
        graph = make(np.random.default_rng(0)).graph()
        result, fired = rewritten(graph, only(rule.name, enable=bool(rule.assume)))
        assert fired == {}
        assert len(result.nodes) == len(graph.nodes)


def test_every_law_has_something_it_must_not_fire_on() -> None:
    for rule in RULES:
        assert next(mutants(rule), None) is not None or rule.assume, rule.name


@pytest.mark.parametrize("rule", [r for r in RULES if r.assume], ids=lambda r: r.name)
def test_assumptions_are_off_unless_proven(rule: Rule) -> None:
    for condition in dict.fromkeys(c.name for c in rule.assume):
        unproven = Sample(rule, np.random.default_rng(0), broken=condition).graph()
        assert rewritten(unproven, only(rule.name))[1] == {}, condition
    proven = Sample(rule, np.random.default_rng(0)).graph()
    assert rewritten(proven, only(rule.name))[1] == {rule.name: 1}


def test_names_are_unique_and_laws_read_back() -> None:
    assert len({r.name for r in RULES}) == len(RULES)
    for rule in RULES:
        assert sides(rule.law) == (rule.lhs, rule.rhs)
        assert set(variables(rule.rhs)) <= set(variables(rule.lhs))
        for condition in (*rule.when, *rule.assume):
            assert Condition.all(repr(condition)) == (condition,)
            assert CONDITIONS[condition.name].__doc__


def resized(rule: Rule, shape: tuple[int, ...]) -> Graph | None:
    """A graph of the law in which one operand has this shape; None where the operators take no such shapes."""
    if 0 in shape and len(variables(rule.lhs)) != 1:
        return None
    first, original = variables(rule.lhs)[-1], shape_of
    with patch.dict(globals(), shape_of=lambda r, n: shape if n == first and r is rule else original(r, n)):
        return Sample(rule, np.random.default_rng(1)).graph()


SHAPES = ((), (1,), (6,), (4, 1), (1, 6), (4, 6), (0, 6))
PLAIN = [rule for rule in RULES if "@" not in rule.law and "**k" not in rule.law]
RESIZED = [(rule, shape) for rule in PLAIN for shape in SHAPES if resized(rule, shape) is not None]


@pytest.mark.parametrize(("rule", "shape"), RESIZED, ids=lambda x: x.name if isinstance(x, Rule) else str(x))
def test_law_never_changes_a_shape(rule: Rule, shape: tuple[int, ...]) -> None:
    """With one operand of another shape the law may fire or not; what it gives has the shape and the values."""
    before = resized(rule, shape)
    assert before is not None
    after, _ = rewritten(before, only(rule.name, enable=bool(rule.assume)))
    rng = np.random.default_rng(1)
    feeds = {k: np.abs(v) if v.dtype.kind == "f" else v for k, v in draw(before, rng).items()}
    want, got = run(before, feeds)[before.outputs[0]], run(after, feeds)[after.outputs[0]]
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(float), want.astype(float), 64 * EPSILON, 64 * EPSILON)


def test_every_law_is_tried_with_other_shapes() -> None:
    assert {rule.name for rule, _ in RESIZED} == {rule.name for rule in PLAIN}
