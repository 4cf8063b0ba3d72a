"""Elementwise nodes and nodes that move elements: each adds one, or nothing where no value suits it."""

from __future__ import annotations

from math import e as EULER

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.graphs import (
    BOOL,
    DOUBLE,
    EXTENTS,
    FLOAT,
    HALF,
    INT32,
    INT64,
    WHOLE,
    Maker,
    Shape,
    Value,
    broadcasts,
)

BOUNDED = {"Sigmoid": 1.0, "Tanh": 1.0, "Erf": 1.0, "Softsign": 1.0, "HardSigmoid": 1.0, "Sin": 1.0, "Cos": 1.0}
KEEPING = {
    "Relu": 1, "Neg": 1, "Abs": 1, "LeakyRelu": 1, "Elu": 1, "Selu": 1, "Identity": 1, "Softplus": 1,
    "HardSwish": 14, "Mish": 18, "Gelu": 20,
}  # fmt: skip
STEPPED = ("Floor", "Ceil", "Sign")


def unary(m: Maker) -> None:
    v = m.one(m.floats())
    op = m.one([*BOUNDED, *(name for name, since in KEEPING.items() if m.opset >= since), "Exp", "Sqrt", "Clip"])
    if op in BOUNDED:
        m.node(op, [v.name], (v.shape, v.dtype, BOUNDED[op]))
    elif op == "Exp":
        if EULER**v.most <= m.limit:
            m.node(op, [v.name], (v.shape, v.dtype, EULER**v.most))
    elif op == "Sqrt":
        (a,) = m.node("Abs", [v.name], (v.shape, v.dtype, v.most))
        m.node(op, [a.name], (v.shape, v.dtype, max(1.0, v.most**0.5)))
    elif op == "Clip":
        clip(m, v)
    elif 2 * v.most + 1 <= m.limit:
        m.node(op, [v.name], (v.shape, v.dtype, 2 * v.most + 1))


def clip(m: Maker, v: Value) -> None:
    kind = np.dtype({FLOAT: np.float32, DOUBLE: np.float64, HALF: np.float16}[v.dtype])
    if m.opset < 11:
        m.node("Clip", [v.name], (v.shape, v.dtype, 1.5), min=-0.5, max=1.5)
    else:
        low = m.constant(np.array(-0.5, kind)) if m.chance() else ""
        m.node("Clip", [v.name, low, m.constant(np.array(1.5, kind))], (v.shape, v.dtype, max(v.most, 1.5)))


def binary(m: Maker) -> None:
    v = m.one([x for x in m.values if x.dtype == m.real or x.dtype in WHOLE])
    other = m.like(v)
    name, most = (other.name, other.most) if isinstance(other, Value) else (other, 5.0)
    op = m.one(("Add", "Sub", "Mul", "Max", "Min") if v.dtype == m.real else ("Add", "Sub", "Mul"))
    size = v.most * most if op == "Mul" else v.most + most
    if size <= m.limit:
        inputs = [v.name, name] if m.chance() else [name, v.name]
        if op in ("Max", "Min") and m.chance():
            inputs.append(m.weights())
        m.node(op, inputs, (v.shape, v.dtype, max(size, 3.0)))


def divide(m: Maker) -> None:
    v, w = m.one(m.floats()), m.one(m.floats())
    fits = broadcasts(w.shape, v.shape) or broadcasts(v.shape, w.shape)
    if fits and 2 * v.most <= m.limit and w.most + 0.5 <= m.limit:
        shape = v.shape if broadcasts(w.shape, v.shape) else w.shape
        (a,) = m.node("Abs", [w.name], (w.shape, w.dtype, w.most))
        half = m.constant(np.asarray(m.drawn(scale=0.0) + 0.5, m.drawn().dtype))
        (p,) = m.node("Add", [a.name, half], (w.shape, w.dtype, w.most + 0.5))
        if m.chance():
            m.node("Div", [v.name, p.name], (shape, v.dtype, v.most * 2))
        else:
            (r,) = m.node("Reciprocal", [p.name], (w.shape, w.dtype, 2.0))
            m.node("Mul", [v.name, r.name], (shape, v.dtype, v.most * 2))


def power(m: Maker) -> None:
    v = m.one(m.floats())
    exponent = m.one((2.0, 3.0, 0.5))
    if v.most**exponent <= m.limit:
        (a,) = m.node("Abs", [v.name], (v.shape, v.dtype, v.most))
        n = m.constant(np.asarray(exponent, m.drawn().dtype))
        m.node("Pow", [a.name, n], (v.shape, v.dtype, max(1.0, v.most**exponent)))


def compare(m: Maker) -> None:
    """A comparison of what has not been rounded, and a choice by it."""
    if not (exact := m.exact()):
        return
    v = m.one(exact)
    op = m.one(("Less", "Greater", "GreaterOrEqual", "LessOrEqual") if m.opset >= 12 else ("Less", "Greater"))
    (c,) = m.node(op, [v.name, m.weights()], (v.shape, BOOL, 1))
    if m.chance():
        (c,) = m.node("Not", [c.name], (v.shape, BOOL, 1))
    if m.chance():
        m.node("Where", [c.name, v.name, m.weights()], (v.shape, v.dtype, v.most + 3))
    elif m.chance():
        m.node("Cast", [c.name], (v.shape, v.dtype, 1.0), to=v.dtype)


def choose(m: Maker) -> None:
    """A choice by truth values, or truth values of two."""
    if not (truths := [v for v in m.values if v.dtype == BOOL]):
        return
    c = m.one(truths)
    if m.chance():
        other = m.like(c)
        name = other.name if isinstance(other, Value) else other
        m.node(m.one(("And", "Or", "Xor")), [c.name, name], (c.shape, BOOL, 1))
    elif fitting := [v for v in m.floats() if broadcasts(c.shape, v.shape)]:
        v = m.one(fitting)
        inputs = [v.name, m.weights()] if m.chance() else [m.weights(), v.name]
        m.node("Where", [c.name, *inputs], (v.shape, v.dtype, v.most + 3))


def step(m: Maker) -> None:
    """A function with steps, of what has not been rounded."""
    if exact := m.exact():
        v = m.one(exact)
        m.node(m.one(STEPPED), [v.name], (v.shape, v.dtype, v.most + 1))


def cast(m: Maker) -> None:
    """Whole numbers as real ones; real ones in another type and back."""
    v = m.one([x for x in m.values if x.dtype != BOOL])
    if v.dtype in WHOLE:
        to = m.one((m.real, m.real, INT32, INT64))
        m.node("Cast", [v.name], (v.shape, to, v.most), to=to)
    else:
        between = m.one((FLOAT, DOUBLE, HALF))
        (b,) = m.node("Cast", [v.name], (v.shape, between, v.most), to=between)
        m.node("Cast", [b.name], (v.shape, v.dtype, v.most + 1), to=v.dtype)


def whole(m: Maker) -> None:
    """Arithmetic of whole numbers that has no counterpart among real ones."""
    if found := [v for v in m.values if v.dtype in WHOLE]:
        v = m.one(found)
        by = m.constant(np.array(m.one((2, 3, 7)), np.int32 if v.dtype == INT32 else np.int64))
        if m.chance() and m.opset >= 10:
            m.node("Mod", [v.name, by], (v.shape, v.dtype, 7))
        else:
            m.node("Div", [v.name, by], (v.shape, v.dtype, v.most))


# Movement -------------------------------------------------------------------------------------------------------------


def transpose(m: Maker) -> None:
    v = m.one([x for x in m.values if len(x.shape) >= 2])
    perm = m.draw(st.permutations(range(len(v.shape))))
    m.node("Transpose", [v.name], (tuple(v.shape[p] for p in perm), v.dtype, v.most), perm=perm)


def reshape(m: Maker) -> None:
    """Two axes made one, or one split in two."""
    v = m.one([x for x in m.values if x.shape])
    at = m.draw(st.integers(0, len(v.shape) - 1))
    here = v.shape[at]
    if isinstance(here, int) and here in (8, 16) and len(v.shape) < 4:
        shape: Shape = (*v.shape[:at], 2, here // 2, *v.shape[at + 1 :])
    elif at + 1 < len(v.shape) and isinstance(here, int) and isinstance(following := v.shape[at + 1], int):
        shape = (*v.shape[:at], here * following, *v.shape[at + 2 :])
    else:
        return
    if sum(isinstance(x, str) for x in shape) <= 1 and not m.chance():
        wanted = m.ints(*(-1 if isinstance(x, str) else x for x in shape))
    elif shape[:at] == v.shape[:at] and at:
        wanted = extents(m, v, at, shape[at:])
    else:
        return
    m.node("Reshape", [v.name, wanted], (shape, v.dtype, v.most))


def extents(m: Maker, v: Value, count: int, rest: Shape) -> str:
    """The first extents of a value as the model itself finds them out, and then fixed ones or a rest."""
    (s,) = m.node("Shape", [v.name], ((len(v.shape),), INT64, 40))
    parts = []
    for i in range(count):
        (g,) = m.node("Gather", [s.name, m.ints(i)], ((1,), INT64, 40), axis=0)
        parts.append(g.name)
    parts.append(m.ints(*(-1 if isinstance(x, str) else x for x in rest)))
    (whole,) = m.node("Concat", parts, ((count + len(rest),), INT64, 40), axis=0)
    m.hide(s.name, *parts, whole.name)
    return whole.name


def flatten(m: Maker) -> None:
    v = m.one([x for x in m.values if len(x.shape) >= 2 and all(isinstance(e, int) for e in x.shape[1:])] or m.values)
    if len(v.shape) >= 2 and all(isinstance(e, int) for e in v.shape[1:]):
        rest = 1
        for e in v.shape[1:]:
            rest *= e if isinstance(e, int) else 1
        m.node("Flatten", [v.name], ((v.shape[0], rest), v.dtype, v.most))


def expand(m: Maker) -> None:
    """A value stretched to the extents of another."""
    v = m.one(m.values)
    if fitting := [w for w in m.values if w is not v and w.shape and broadcasts(v.shape, w.shape)]:
        w = m.one(fitting)
        (s,) = m.node("Shape", [w.name], ((len(w.shape),), INT64, 40))
        m.hide(s.name)
        m.node("Expand", [v.name, s.name], (w.shape, v.dtype, v.most))


def unit_axes(m: Maker) -> None:
    v = m.one(m.values)
    ones = [i for i, x in enumerate(v.shape) if x == 1]
    if ones and m.chance():
        at = m.one(ones)
        m.node_with("Squeeze", [v.name], ((*v.shape[:at], *v.shape[at + 1 :]), v.dtype, v.most), 13, "axes", [at])
    elif len(v.shape) < 4:
        at = m.draw(st.integers(0, len(v.shape)))
        m.node_with("Unsqueeze", [v.name], ((*v.shape[:at], 1, *v.shape[at:]), v.dtype, v.most), 13, "axes", [at])


def fixed_axes(v: Value, least: int = 2) -> list[int]:
    return [i for i, x in enumerate(v.shape) if isinstance(x, int) and x >= least]


def cut(m: Maker) -> None:
    v = m.one(m.values)
    if axes := fixed_axes(v):
        at = m.one(axes)
        have = v.shape[at]
        assert isinstance(have, int)
        first = m.draw(st.integers(0, have - 1))
        last = m.draw(st.integers(first + 1, have))
        step = m.one((1, 1, 2, -1)) if m.opset >= 10 else 1
        ends = (first, last) if step > 0 else (last - 1, first - 1 if first else -have - 1)
        count = -(-(last - first) // abs(step))
        made = ((*v.shape[:at], count, *v.shape[at + 1 :]), v.dtype, v.most)
        if m.opset < 10:
            m.node("Slice", [v.name], made, starts=[ends[0]], ends=[ends[1]], axes=[at])
        else:
            m.node("Slice", [v.name, m.ints(ends[0]), m.ints(ends[1]), m.ints(at), m.ints(step)], made)


def split(m: Maker) -> None:
    v = m.one(m.values)
    if axes := fixed_axes(v):
        at = m.one(axes)
        have = v.shape[at]
        assert isinstance(have, int)
        first = m.draw(st.integers(1, have - 1))
        parts = [((*v.shape[:at], n, *v.shape[at + 1 :]), v.dtype, v.most) for n in (first, have - first)]
        if m.opset < 13:
            m.node("Split", [v.name], *parts, axis=at, split=[first, have - first])
        else:
            m.node("Split", [v.name, m.ints(first, have - first)], *parts, axis=at)


def concat(m: Maker) -> None:
    v = m.one([x for x in m.values if x.shape])
    at = m.draw(st.integers(0, len(v.shape) - 1))
    fitting = [
        w for w in m.values
        if w.dtype == v.dtype and len(w.shape) == len(v.shape) and isinstance(w.shape[at], int)
        and all(a == b for i, (a, b) in enumerate(zip(v.shape, w.shape, strict=True)) if i != at)
    ]  # fmt: skip
    if fitting and isinstance(v.shape[at], int):
        parts = [v, *(m.one(fitting) for _ in range(m.draw(st.integers(1, 2))))]
        total = sum(p.shape[at] for p in parts if isinstance(p.shape[at], int))  # type: ignore[misc]  # all are
        shape = (*v.shape[:at], total, *v.shape[at + 1 :])
        m.node("Concat", [p.name for p in parts], (shape, v.dtype, max(p.most for p in parts)), axis=at)


def pad(m: Maker) -> None:
    v = m.one([x for x in m.floats() if x.shape])
    amounts = [(m.one((0, 0, 1, 2)), m.one((0, 1))) if isinstance(x, int) else (0, 0) for x in v.shape]
    shape = tuple(x + a + b if isinstance(x, int) else x for x, (a, b) in zip(v.shape, amounts, strict=True))
    pads = [a for a, _ in amounts] + [b for _, b in amounts]
    m.node_with("Pad", [v.name], (shape, v.dtype, v.most), 11, "pads", pads)


def gather(m: Maker) -> None:
    v = m.one(m.values)
    if axes := fixed_axes(v):
        at = m.one(axes)
        have = v.shape[at]
        assert isinstance(have, int)
        if m.chance() and len(m.inputs) < 5:
            indices = m.input((m.one(EXTENTS[:4]),), m.one(WHOLE), have - 1)
            name, shape = indices.name, indices.shape
        else:
            shape = (m.draw(st.integers(1, 3)),)
            name = m.constant(m.rng.integers(-have if m.opset >= 11 else 0, have, shape))
        m.node("Gather", [v.name, name], ((*v.shape[:at], *shape, *v.shape[at + 1 :]), v.dtype, v.most), axis=at)


def tile(m: Maker) -> None:
    v = m.one([x for x in m.values if fixed_axes(x, 1)])
    at = m.one(fixed_axes(v, 1))
    shape = tuple(x * 2 if i == at and isinstance(x, int) else x for i, x in enumerate(v.shape))
    repeats = m.ints(*(2 if i == at else 1 for i in range(len(v.shape))))
    m.node("Tile", [v.name, repeats], (shape, v.dtype, v.most))
