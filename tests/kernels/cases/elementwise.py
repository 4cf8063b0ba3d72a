"""Cases of elementwise kernels: every function, broadcasting, element types, odd numbers, sizes 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Array, Case, Feeds, Sizes
from tests.rules.build import Build, draw

FLOATS = (F32, F64, F16)
INTEGERS = (I8, U8, I16, U16, I32, U32, I64, U64)
UNARY = ("Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
         "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tanh",
         "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Celu", "ThresholdedRelu", "Shrink")  # fmt: skip
INVERSE = ("Asin", "Acos", "Atanh", "Acosh")
POSITIVE = ("Log", "Reciprocal", "Sqrt")
BINARY = ("Add", "Div", "Max", "Mean", "Min", "Mul", "Pow", "Sub")


def unary(op: str, dtype: DType = F32, *shape: int | str, **attrs: Any) -> Graph:
    b = Build(22)
    return b.graph(b.node(op, b.input("x", *(shape or (3, 37)), dtype=dtype), **attrs))


def binary(op: str, left: Any, right: Any, dtype: DType = F32, **attrs: Any) -> Graph:
    b = Build(20)
    x, y = b.input("x", *left, dtype=dtype), b.input("y", *right, dtype=dtype)
    return b.graph(b.node(op, x, y, **attrs))


def positive(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    return {k: (np.abs(v) + 0.1).astype(v.dtype) for k, v in draw(graph, rng, sizes).items()}


def inner(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Numbers between -1 and 1, or from 1 on for the function that needs them there."""
    apart = 1.0 if graph.nodes[0].op == "Acosh" else 0.0
    return {k: (np.tanh(v) + 2 * apart).astype(v.dtype) for k, v in draw(graph, rng, sizes).items()}


def whole(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """All numbers of the type for integers (no zeros on the right), halves for floats."""
    feeds = {}
    for name, value in draw(graph, rng, sizes).items():
        if value.dtype.kind in "iu":
            info = np.iinfo(value.dtype)
            drawn = rng.integers(info.min, info.max, value.shape, value.dtype, endpoint=True)
            value = np.where((drawn == 0) & (name != "x"), 1, drawn).astype(value.dtype)
        elif value.dtype.kind == "f":
            value = (np.round(value * 4) / 2).astype(value.dtype)
        feeds[name] = value
    return feeds


def small(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Integers from 1 to 9, and from 0 to 4 on the right."""
    drawn = draw(graph, rng, sizes)
    return {k: rng.integers(*((1, 10) if k == "x" else (0, 5)), v.shape).astype(v.dtype) for k, v in drawn.items()}


def to_the_power(dtype: DType, exponent: float | None) -> Graph:
    """Integers to the power of a floating number, or of as many as there are columns."""
    b = Build(20)
    x = b.input("x", 5, 33, dtype=dtype)
    return b.graph(b.node("Pow", x, b.input("y", 33) if exponent is None else b.constant(exponent)))


def divisors(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Numbers of either sign by 1, 2, 3, -2 and the like."""
    feeds = whole(graph, rng, sizes)
    least = rng.integers(1, 5, feeds["y"].shape)
    signed = np.where(rng.random(least.shape) < 0.5, -least, least) if feeds["y"].dtype.kind in "if" else least
    return feeds | {"y": signed.astype(feeds["y"].dtype)}


def odd(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """NaN, infinities, zeros of both signs, denormal and huge numbers, in every pair where there are two inputs."""
    row = np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1e38, -1e38, 1.0, -1.0, 2.5, -2.5, 0.5, 88.0, -104.0]
    )
    left, right = np.meshgrid(row, row)
    feeds = draw(graph, rng, sizes)
    for value, part in zip(feeds.values(), (left, right), strict=False):
        value.reshape(-1)[:] = part.reshape(-1)[: value.size]
    return feeds


def every_function() -> list[Case]:
    out = [
        Case(f"{op}_{t}", unary(op, t))
        for op in UNARY
        for t in FLOATS
        if t == F32 or op in ("Exp", "Gelu", "Relu", "Tanh")
    ]
    out += [Case(f"{op}_f32", unary(op), feeds=positive) for op in POSITIVE]
    out += [Case(f"{op}_{t}", unary(op, t), feeds=inner) for op in INVERSE for t in FLOATS if t == F32 or op == "Asin"]
    out += [
        Case(f"odd_{op}", unary(op, F32, 16, 16), feeds=odd)
        for op in (*UNARY, *POSITIVE, *INVERSE)
        if op not in ("Sin", "Cos")
    ]
    out += [
        Case(f"{op}_f32_same", binary(op, (3, 37), (3, 37)), feeds=positive if op == "Pow" else draw) for op in BINARY
    ]
    out += [Case(f"odd_{op}", binary(op, (16, 16), (16, 16)), feeds=odd) for op in BINARY if op != "Pow"]
    for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        out.append(Case(f"{op}_f32", binary(op, (5, 33), (33,)), feeds=whole))
        out.append(Case(f"odd_{op}", binary(op, (16, 16), (16, 16)), feeds=odd))
    for op in ("And", "Or", "Xor"):
        out.append(Case(f"{op}_bool", binary(op, (5, 33), (33,), BOOL)))
    out += [Case("Not_bool", unary("Not", BOOL)), Case("IsNaN_f32", unary("IsNaN", F32, 16, 16), feeds=odd)]
    out += [
        Case(f"IsInf_{p}{n}", unary("IsInf", F32, 16, 16, detect_positive=p, detect_negative=n), feeds=odd)
        for p in (0, 1)
        for n in (0, 1)
    ]
    out += [
        Case("Gelu_tanh", unary("Gelu", F32, approximate="tanh")),
        Case("PRelu_f32", binary("PRelu", (5, 33), (33,))),
    ]
    return out


def broadcasts() -> list[Case]:
    pairs: tuple[tuple[Any, Any], ...] = (
        ((3, 1), (1, 37)), ((37,), ()), ((), ()), ((1,), (1, 1)), ((4, 1, 5), (3, 1)),
        ((2, 3, 4, 5, 2, 3), (4, 1, 2, 1)),
        ((16,), (7, 1, 16)), ((1, 5, 1, 9), (3, 1, 4, 1)), ((0, 5), (5,)), ((4, 0), (1,)), ((1, 1), (1, 0)),
    )  # fmt: skip
    out = [Case(f"broadcast_{k}", binary("Sub", a, b)) for k, (a, b) in enumerate(pairs)]
    some = ({"A": 3, "B": 37}, {"A": 1, "B": 1}, {"A": 0, "B": 4}, {"A": 130, "B": 16})
    out.append(Case("broadcast_any_row", binary("Mul", ("A", "B"), ("B",)), some))
    out.append(Case("broadcast_any_column", binary("Mul", ("A", "B"), ("A", 1)), some))
    out.append(Case("broadcast_any_inner", binary("Mul", ("A", 1, "B"), ("A", 7, 1)), some))
    b = Build()
    x = b.node("Where", b.input("c", 4, 1, dtype=BOOL), b.input("x", 1, 33), b.constant(-1.0))
    out.append(Case("where_broadcast", b.graph(x)))
    return out


def integers() -> list[Case]:
    out: list[Case] = []

    def add(name: str, graph: Graph, feeds: Feeds = whole) -> None:
        out.append(Case(name, graph, feeds=feeds))

    for t in INTEGERS:
        for op in ("Add", "Sub", "Mul", "Max", "Min"):
            if op in ("Add", "Mul") or t in (I8, U8, I32, I64):
                add(f"{op}_{t}", binary(op, (5, 33), (33,), t))
        add(f"Div_{t}", binary("Div", (5, 33), (33,), t), divisors)
        if t in (I8, U8, I32, I64):
            add(f"Mod_{t}", binary("Mod", (5, 33), (33,), t), divisors)
            add(f"Less_{t}", binary("Less", (5, 33), (33,), t))
            add(f"Equal_{t}", binary("Equal", (5, 33), (33,), t), draw)
        for direction in ("LEFT", "RIGHT"):
            add(f"shift_{direction}_{t}", binary("BitShift", (5, 33), (33,), t, direction=direction), divisors)
        if t in (U8, I16, U32, I64):
            for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
                add(f"{op}_{t}", binary(op, (5, 33), (33,), t))
            add(f"BitwiseNot_{t}", unary("BitwiseNot", t))
        if t.kind == "i":
            add(f"Neg_{t}", unary("Neg", t), draw)
            add(f"Abs_{t}", unary("Abs", t), draw)
    add("shift_all_u8", binary("BitShift", (5, 33), (33,), U8, direction="RIGHT"))
    add("shift_all_i32", binary("BitShift", (5, 33), (33,), I32, direction="LEFT"))
    add("Shrink_i32", unary("Shrink", I32, bias=1.5, lambd=1.0), draw)
    for t in (I32, I64):
        for exponent in (2.0, 3.0, 4.0, None):
            add(f"Pow_{t}_{exponent or 'any'}".replace(".", "_"), to_the_power(t, exponent), small)
    add("fmod_i32", binary("Mod", (5, 33), (33,), I32, fmod=1), divisors)
    add("fmod_f32", binary("Mod", (5, 33), (33,), F32, fmod=1), divisors)
    return out


def casts() -> list[Case]:
    """From each type to all others, unsigned ones apart: what a negative number gives is told by the runtime alone."""
    out = []
    types = (*FLOATS, *INTEGERS, BOOL)
    for have in types:
        for name, wanted in (("unsigned", "u"), ("others", "fib")):
            b = Build(20)
            x = b.input("x", 3, 37, dtype=have)
            made = [b.node("Cast", x, to=t.onnx) for t in types if t.kind in wanted and t != have]
            out.append(Case(f"cast_{have}_{name}", b.graph(*made), feeds=positive if wanted == "u" else draw))
    return out


def chains() -> list[Case]:
    out = []
    b = Build()
    x, y = b.input("x", 5, 40), b.input("y", 40)
    small = b.node("Less", x, y)
    away = b.node("Not", small)
    out.append(Case("chain_of_truth", b.graph(away, b.node("Where", away, x, y))))
    b = Build()
    m = b.node("Unsqueeze", b.input("m", "B", "S", dtype=I64), b.ints(1, 2))
    y = b.node("Mul", b.node("Sub", b.constant(1.0), b.node("Cast", m, to=1)), b.constant(-10000.0))
    out.append(Case("chain_of_mask", b.graph(y), ({"B": 2, "S": 7}, {"B": 1, "S": 1}, {"B": 1, "S": 64})))
    b = Build()
    x = b.input("x", 7, 33)
    e = b.node("Exp", x)
    out.append(Case("chain_two_results", b.graph(e, b.node("Neg", e))))
    b = Build()
    x = b.input("x", 7, 33, dtype=F16)
    y = b.node("Sigmoid", b.node("Add", x, b.constant(b.rng.normal(size=33).astype(np.float16))))
    out.append(Case("chain_half", b.graph(b.node("Mul", y, x))))
    b = Build()
    x = b.node("Clip", b.input("x", 7, 33), b.constant(-0.5), b.constant(0.75))
    out.append(Case("chain_clip", b.graph(b.node("Sqrt", b.node("Abs", x)))))
    b = Build()
    x = b.node("Clip", b.input("x", 9, 9, dtype=I8), b.constant(-3, np.int8), b.constant(3, np.int8))
    out.append(Case("chain_clip_int8", b.graph(x), feeds=whole))
    b = Build()
    x = b.input("x", 2, 6, 5, 5)
    stats = [
        b.weights(6),
        b.weights(6),
        b.weights(6),
        b.constant(np.abs(b.rng.normal(size=6)).astype(np.float32) + 0.1),
    ]
    out.append(Case("chain_batch_norm", b.graph(b.node("Relu", b.node("BatchNormalization", x, *stats)))))
    b = Build()
    x = b.node("Pow", b.input("x", 5, 5), b.constant(3.0))
    out.append(Case("chain_cube", b.graph(b.node("Tanh", b.node("Mul", x, b.constant(0.044715))))))
    b = Build()
    y = b.node("Max", b.input("x", 4, 9), b.input("y", 9), b.input("z", 1))
    out.append(Case("chain_three_operands", b.graph(b.node("Sum", y, y, y))))
    return out


CASES: tuple[Case, ...] = (*every_function(), *broadcasts(), *integers(), *casts(), *chains())
