"""Algebraic laws, one row each; laws of single functions are generated from the table of scalar functions.

A law is `exact` if both sides give the same number (zeros may differ in sign), `reassociates` if only rounding differs,
and `assumes` if the sides also differ where a value is negative, or where an intermediate result overflows. Regrouping
products of variables is of the last kind; regrouping constants is not, because the folded constant is checked. The rows
named `dnnfusion-*` are from DNNFusion (PLDI 2021, table 4); of that table, commutativity is part of matching, and the
laws of BitShift are left out.
"""

from __future__ import annotations

from onnxfuse.ir.functions import FUNCTIONS, Function
from onnxfuse.rewrite.operators import operator_of
from onnxfuse.rewrite.steps import Rule, rule

# Functions g that distribute over f: g(a, c) f g(b, c) = g(a f b, c).
_DISTRIBUTES = (("mul", "add"), ("mul", "sub"), ("div", "add"), ("div", "sub"))
_FIXED = "constant(a) constant(b)"
_ROUNDED = ("add", "mul")  # associative over the reals, not over rounded numbers


def generated() -> tuple[Rule, ...]:
    """Unit, idempotence, associativity with constants, distributivity: for every function that has them."""
    operators = operator_of()
    binary = [f for f in FUNCTIONS.values() if f.arity == 2 and f.name in operators]
    rules = [law for f in binary for law in _of_function(f, operators[f.name])]
    for g, f in _DISTRIBUTES:
        outer, inner = operators[f], operators[g]
        law = f"{outer}({inner}(a, c), {inner}(b, c)) => {inner}({outer}(a, b), c)"
        rules.append(rule(f"factor-{g}-{f}", law, "assumes", assume="bounded(a, b, c)"))
    return tuple(rules)


def _of_function(f: Function, op: str) -> list[Rule]:
    rules = []
    if f.unit is not None:
        rules.append(rule(f"unit-{f.name}", f"{op}(x, {f.unit:g}) => x"))
    if "i" in f.laws:
        rules.append(rule(f"idempotent-{f.name}", f"{op}(x, x) => x"))
    if "a" in f.laws and "c" in f.laws:
        numerics = "reassociates" if f.name in _ROUNDED else "exact"
        law = f"{op}({op}(x, a), b) => {op}(x, {op}(a, b))"
        rules.append(rule(f"constants-{f.name}", law, numerics, f"variable(x) {_FIXED}"))
    return rules


_ONCE = ("Relu", "Abs", "Floor", "Ceil", "Round", "Sign")  # f(f(x)) = f(x)

LISTED: tuple[Rule, ...] = (
    *(rule(f"once-{op.lower()}", f"{op}({op}(x)) => {op}(x)") for op in _ONCE),
    *(rule(f"twice-{op.lower()}", f"{op}({op}(x)) => x") for op in ("Neg", "Not")),
    rule("twice-reciprocal", "Reciprocal(Reciprocal(x)) => x", "assumes", assume="bounded(x)"),
    rule("relu-nonnegative", "Relu(x) => x", "exact", "nonnegative(x)"),
    rule("abs-nonnegative", "Abs(x) => x", "exact", "unsigned(x)"),
    rule("abs-negated", "Abs(Neg(x)) => Abs(x)"),
    rule("abs-product", "Abs(a) * Abs(b) => Abs(a*b)"),
    rule("abs-squared", "Abs(x) * Abs(x) => x * x"),
    rule("abs-power", "Abs(x) ** 2 => x ** 2"),
    rule("max-above", "Max(x, y) => x", "exact", "at_least(x, y)"),
    rule("min-below", "Min(x, y) => x", "exact", "at_most(x, y)"),
    *(rule(f"{op.lower()}-whole", f"{op}(x) => x", "exact", "integral(x)") for op in ("Floor", "Ceil", "Round")),
    rule("where-true", "Where(c, a, b) => a", "exact", "always_true(c) not_dequantized(a)"),
    rule("where-false", "Where(c, a, b) => b", "exact", "always_false(c) not_dequantized(b)"),
    rule("max-relu", "ReduceMax(Relu(x), **k) => Relu(ReduceMax(x, **k))"),
    rule("negated-difference", "Neg(a - b) => b - a", "exact", "floating(a)"),
    rule("from-zero", "0 - x => Neg(x)", "exact", "floating(x)"),
    rule("negative-one", "x * -1 => Neg(x)", "exact", "floating(x)"),
    rule("unit-and", "And(x, 1) => x"),
    rule("unit-or", "Or(x, 0) => x"),
    rule("where-same", "Where(c, a, a) => a"),
    rule("add-negative", "a + Neg(b) => a - b"),
    rule("subtract-negative", "a - Neg(b) => a + b"),
    rule("multiply-negatives", "Neg(a) * Neg(b) => a * b"),
    rule("constants-sub-add", "(x - a) + b => x + (b - a)", "reassociates", f"{_FIXED} variable(x)"),
    rule("constants-add-sub", "(x + a) - b => x + (a - b)", "reassociates", f"{_FIXED} variable(x)"),
    rule("constants-sub-sub", "(x - a) - b => x - (a + b)", "reassociates", f"{_FIXED} variable(x)"),
    rule("one-over", "1 / x => Reciprocal(x)", "exact", "floating(x)"),
    rule("divide-constant", "x / c => x * Reciprocal(c)", "reassociates", "constant(c) variable(x) floating(x)"),
    rule("multiply-reciprocal", "x * Reciprocal(y) => x / y", "reassociates", "variable(y) same_shape(x, y)"),
    rule("inverse-power", "x ** -1 => Reciprocal(x)", "reassociates", "floating(x)"),
    rule("half-power", "x ** 0.5 => Sqrt(x)", "assumes", "floating(x)", "nonnegative(x)"),
    rule("power-of-power", "(x ** a) ** b => x ** (a*b)", "assumes", "scalar(a) scalar(b)", "unsigned(x) bounded(x)"),
    rule("root-squared", "Sqrt(x) * Sqrt(x) => x", "assumes", assume="nonnegative(x)"),
    rule("root-power", "Sqrt(x) ** 2 => x", "assumes", assume="nonnegative(x)"),
    rule("roots", "Sqrt(a) * Sqrt(b) => Sqrt(a*b)", "assumes", assume="nonnegative(a) nonnegative(b) bounded(a, b)"),
    rule(
        "root-quotient",
        "Sqrt(a) / Sqrt(b) => Sqrt(a/b)",
        "assumes",
        assume="nonnegative(a) nonnegative(b) bounded(a, b)",
    ),
    rule("square-root-power", "Sqrt(x ** 2) => Abs(x)", "assumes", assume="bounded(x)"),
    rule("exp-product", "Exp(a) * Exp(b) => Exp(a + b)", "assumes", assume="bounded(a, b)"),
    rule("exp-quotient", "Exp(a) / Exp(b) => Exp(a - b)", "assumes", assume="bounded(a, b)"),
    rule("log-sum", "Log(a) + Log(b) => Log(a*b)", "assumes", assume="one_sided(a, b) bounded(a, b)"),
    rule("softplus", "Log(Exp(x) + 1) => Softplus(x)", "assumes", assume="bounded(x)"),
    rule("logistic", "Reciprocal(Exp(Neg(x)) + 1) => Sigmoid(x)", "reassociates"),
    rule(
        "sum-scaled",
        "ReduceSum(x*c, **k) => ReduceSum(x, **k)*c",
        "reassociates",
        "magnitude_at_least_one(c) variable(x) floating(x)",
    ),
    rule(
        "mean-scaled",
        "ReduceMean(x*c, **k) => ReduceMean(x, **k)*c",
        "reassociates",
        "magnitude_at_least_one(c) variable(x) floating(x)",
    ),
    rule(
        "sums-joined",
        "ReduceSum(a, **k) + ReduceSum(b, **k) => ReduceSum(a + b, **k)",
        "assumes",
        "same_shape(a, b)",
        "bounded(a, b)",
    ),
    rule("products-left", "a @ (b @ c) => (a @ b) @ c", "assumes", assume="bounded(a, b, c)"),
    rule("products-right", "(a @ b) @ c => a @ (b @ c)", "assumes", assume="bounded(a, b, c)"),
    rule("square-root", "Sqrt(x * x) => Abs(x)", "assumes", assume="bounded(x)"),
    rule("log-exp", "Log(Exp(x)) => x", "assumes", assume="bounded(x)"),
    rule("exp-log", "Exp(Log(x)) => x", "assumes", assume="nonnegative(x)"),
    rule("factor-constants", "x*a + x*b => x*(a + b)", "reassociates", f"{_FIXED} variable(x) floating(x)"),
    rule(
        "factor-weights",
        "x @ a + x @ b => x @ (a + b)",
        "reassociates",
        f"{_FIXED} same_shape(a, b) unshared(a) unshared(b) floating(x)",
    ),
    rule("scales-left", "(a*c) @ (b*d) => (a*(c*d)) @ b", "reassociates", "scalar(c) scalar(d) floating(a)"),
    rule("scales-out", "(a*c) @ (b*d) => (a @ b)*(c*d)", "reassociates", "scalar(c) scalar(d) floating(a)"),
    rule(
        "dnnfusion-reciprocals",
        "Reciprocal(a) * Reciprocal(a*b) => (Reciprocal(a)*Reciprocal(a)) * Reciprocal(b)",
        "assumes",
        assume="bounded(a, b)",
    ),
    rule(
        "dnnfusion-roots",
        "(a*Sqrt(b)) * (Sqrt(b)*c) => (a*b)*c",
        "assumes",
        assume="nonnegative(b) bounded(a, b, c)",
    ),
    rule("dnnfusion-abs", "(Abs(a)*b) * Abs(c) => Abs(a*c)*b", "assumes", assume="bounded(a, b, c)"),
    rule(
        "dnnfusion-sums",
        "(a*ReduceSum(b, **k)) * (ReduceSum(b, **k)*c) => (a*(ReduceSum(b, **k)*ReduceSum(b, **k)))*c",
        "assumes",
        assume="bounded(a, b, c)",
    ),
    rule("dnnfusion-factor-one", "a + a*b => a*(b + 1)", "assumes", "floating(a)", "bounded(a, b)"),
    rule(
        "dnnfusion-square",
        "(a + b)*(a + b) - (a + b)*c => (a + b)*((a + b) - c)",
        "assumes",
        assume="bounded(a, b, c)",
    ),
    rule(
        "dnnfusion-square-power",
        "(a + b)**2 - (a + b)*c => (a + b)*((a + b) - c)",
        "assumes",
        assume="bounded(a, b, c)",
    ),
    rule(
        "dnnfusion-product-of-exp",
        "ReduceProd(Exp(x), **k) => Exp(ReduceSum(x, **k))",
        "assumes",
        "axes_alike(x)",
        "bounded(x)",
    ),
)

RULES: tuple[Rule, ...] = generated() + LISTED
