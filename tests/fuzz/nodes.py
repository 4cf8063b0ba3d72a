"""The nodes that random models are made of: each adds one, or nothing where no value suits it."""

from __future__ import annotations

from collections.abc import Callable
from math import e as EULER
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.graphs import (
    BOOL,
    EXTENTS,
    FLOAT,
    INT64,
    LARGEST,
    MOST,
    SYMBOLS,
    Draw,
    Extent,
    Made,
    Maker,
    Shape,
    Value,
    broadcasts,
)

Step = Callable[[Maker], None]
BOUNDED = {"Sigmoid": 1.0, "Tanh": 1.0, "Erf": 1.0, "Softsign": 1.0, "HardSigmoid": 1.0}
KEEPING = ("Relu", "Neg", "Abs", "LeakyRelu", "Elu", "HardSwish", "Gelu", "Identity", "Softplus", "Mish")


def unary(m: Maker) -> None:
    v = m.one(m.floats())
    op = m.one([*BOUNDED, *KEEPING, "Exp", "Sqrt", "Clip"])
    if op in BOUNDED:
        m.node(op, [v.name], (v.shape, FLOAT, BOUNDED[op]))
    elif op == "Exp":
        if v.most <= 6:
            m.node(op, [v.name], (v.shape, FLOAT, EULER**v.most))
    elif op == "Sqrt":
        (a,) = m.node("Abs", [v.name], (v.shape, FLOAT, v.most))
        m.node(op, [a.name], (v.shape, FLOAT, max(1.0, v.most**0.5)))
    elif op == "Clip":
        low, high = m.constant(np.array(-0.5, np.float32)), m.constant(np.array(1.5, np.float32))
        m.node(op, [v.name, low, high], (v.shape, FLOAT, 1.5))
    else:
        m.node(op, [v.name], (v.shape, FLOAT, v.most + 1))


def binary(m: Maker) -> None:
    v = m.one([x for x in m.values if x.dtype in (FLOAT, INT64)])
    other = m.like(v)
    name, most = (other.name, other.most) if isinstance(other, Value) else (other, 5.0)
    op = m.one(("Add", "Sub", "Mul", "Max", "Min") if v.dtype == FLOAT else ("Add", "Sub", "Mul"))
    size = v.most * most if op == "Mul" else v.most + most
    if size <= MOST:
        inputs = [v.name, name] if m.chance() else [name, v.name]
        m.node(op, inputs, (v.shape, v.dtype, size))


def divide(m: Maker) -> None:
    v, w = m.one(m.floats()), m.one(m.floats())
    if broadcasts(w.shape, v.shape) or broadcasts(v.shape, w.shape):
        shape = v.shape if broadcasts(w.shape, v.shape) else w.shape
        (a,) = m.node("Abs", [w.name], (w.shape, FLOAT, w.most))
        (p,) = m.node("Add", [a.name, m.constant(np.array(0.5, np.float32))], (w.shape, FLOAT, w.most + 0.5))
        m.node("Div", [v.name, p.name], (shape, FLOAT, v.most * 2))


def compare(m: Maker) -> None:
    """A comparison of what has not been rounded, and a choice by it."""
    exact = [v for v in m.inputs if v.dtype == FLOAT]
    if exact:
        v = m.one(exact)
        (c,) = m.node(m.one(("Less", "GreaterOrEqual")), [v.name, m.weights()], (v.shape, BOOL, 1))
        if m.chance():
            (c,) = m.node("Not", [c.name], (v.shape, BOOL, 1))
        if m.chance():
            m.node("Where", [c.name, v.name, m.weights()], (v.shape, FLOAT, v.most + 3))
        else:
            m.node("Cast", [c.name], (v.shape, FLOAT, 1.0), to=FLOAT)


def cast(m: Maker) -> None:
    whole = [v for v in m.values if v.dtype == INT64]
    if whole:
        v = m.one(whole)
        m.node("Cast", [v.name], (v.shape, FLOAT, v.most), to=FLOAT)


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
    if sum(isinstance(x, str) for x in shape) <= 1:
        wanted = m.ints(*(-1 if isinstance(x, str) else x for x in shape))
        m.node("Reshape", [v.name, wanted], (shape, v.dtype, v.most))


def unit_axes(m: Maker) -> None:
    v = m.one(m.values)
    ones = [i for i, x in enumerate(v.shape) if x == 1]
    if ones and m.chance():
        at = m.one(ones)
        m.node("Squeeze", [v.name, m.ints(at)], ((*v.shape[:at], *v.shape[at + 1 :]), v.dtype, v.most))
    elif len(v.shape) < 4:
        at = m.draw(st.integers(0, len(v.shape)))
        m.node("Unsqueeze", [v.name, m.ints(at)], ((*v.shape[:at], 1, *v.shape[at:]), v.dtype, v.most))


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
        step = m.one((1, 1, 2, -1))
        ends = (first, last) if step > 0 else (last - 1, first - 1 if first else -have - 1)
        count = -(-(last - first) // abs(step))
        inputs = [v.name, m.ints(ends[0]), m.ints(ends[1]), m.ints(at), m.ints(step)]
        m.node("Slice", inputs, ((*v.shape[:at], count, *v.shape[at + 1 :]), v.dtype, v.most))


def split(m: Maker) -> None:
    v = m.one(m.values)
    if axes := fixed_axes(v):
        at = m.one(axes)
        have = v.shape[at]
        assert isinstance(have, int)
        first = m.draw(st.integers(1, have - 1))
        parts = [((*v.shape[:at], n, *v.shape[at + 1 :]), v.dtype, v.most) for n in (first, have - first)]
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
    m.node("Pad", [v.name, m.ints(*pads)], (shape, FLOAT, v.most))


def gather(m: Maker) -> None:
    v = m.one(m.values)
    if axes := fixed_axes(v):
        at = m.one(axes)
        have = v.shape[at]
        assert isinstance(have, int)
        if m.chance() and len(m.inputs) < 5:
            indices = m.input((m.one(EXTENTS[:4]),), INT64, have - 1)
            name, shape = indices.name, indices.shape
        else:
            shape = (m.draw(st.integers(1, 3)),)
            name = m.constant(m.rng.integers(-have, have, shape))
        m.node("Gather", [v.name, name], ((*v.shape[:at], *shape, *v.shape[at + 1 :]), v.dtype, v.most), axis=at)


def tile(m: Maker) -> None:
    v = m.one([x for x in m.values if fixed_axes(x, 1)])
    at = m.one(fixed_axes(v, 1))
    shape = tuple(x * 2 if i == at and isinstance(x, int) else x for i, x in enumerate(v.shape))
    repeats = m.ints(*(2 if i == at else 1 for i in range(len(v.shape))))
    m.node("Tile", [v.name, repeats], (shape, v.dtype, v.most))


# Reductions and products ----------------------------------------------------------------------------------------------


def reduction(m: Maker) -> None:
    v = m.one(m.floats(1))
    op = m.one(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"))
    count = m.draw(st.integers(1, len(v.shape)))
    axes = sorted(m.draw(st.permutations(range(len(v.shape))))[:count])
    keep = m.draw(st.integers(0, 1))
    shape = tuple(1 if i in axes else x for i, x in enumerate(v.shape) if keep or i not in axes)
    length = prod(x if isinstance(x, int) else 40 for i, x in enumerate(v.shape) if i in axes)
    most = v.most * (length if op in ("ReduceSum", "ReduceL2") else 1)
    if most <= MOST:
        m.node(op, [v.name, m.ints(*axes)], (shape, FLOAT, most), keepdims=keep)


def normal(m: Maker) -> None:
    v = m.one(m.floats(1, 50.0))
    op = m.one(("Softmax", "LogSoftmax", "LayerNormalization"))
    last = v.shape[-1]
    if op == "LayerNormalization":
        if isinstance(last, int):
            m.node(op, [v.name, m.weights(last), m.weights(last)], (v.shape, FLOAT, 30.0), axis=-1, epsilon=1e-2)
    else:
        axis = m.draw(st.integers(-len(v.shape), len(v.shape) - 1))
        m.node(op, [v.name], (v.shape, FLOAT, 1.0 if op == "Softmax" else 2 * v.most + 4), axis=axis)


def matmul(m: Maker) -> None:
    v = m.one([x for x in m.floats(2) if isinstance(x.shape[-1], int)] or m.floats())
    if len(v.shape) < 2 or not isinstance(k := v.shape[-1], int):
        return
    n = m.one(EXTENTS)
    if v.most * k * 3 / k**0.5 <= MOST and v.size // k * n <= LARGEST:
        w = m.weights(k, n, scale=k**-0.5)
        (y,) = m.node("MatMul", [v.name, w], ((*v.shape[:-1], n), FLOAT, v.most * 3 * k**0.5))
        if m.chance():
            m.node("Add", [y.name, m.weights(n)], (y.shape, FLOAT, y.most + 3))


def product(m: Maker) -> None:
    """Two values, the second turned where that makes it fit."""
    v = m.one(m.floats(2) or m.floats())
    ends = (v.shape[:-2], v.shape[-1:])
    fitting = [w for w in m.floats(2) if (w.shape[:-2], w.shape[-1:]) == ends]
    if len(v.shape) >= 2 and fitting:
        w = m.one(fitting)
        perm = (*range(len(w.shape) - 2), len(w.shape) - 1, len(w.shape) - 2)
        turned = (*w.shape[:-2], w.shape[-1], w.shape[-2])
        (t,) = m.node("Transpose", [w.name], (turned, FLOAT, w.most), perm=perm)
        length = v.shape[-1] if isinstance(v.shape[-1], int) else 40
        most = v.most * w.most * length
        shape = (*v.shape[:-1], w.shape[-2])
        if most <= MOST and Value("", shape).size <= LARGEST:
            m.node("MatMul", [v.name, t.name], (shape, FLOAT, most))


# Images ---------------------------------------------------------------------------------------------------------------


def image(m: Maker) -> Value | None:
    """A value that is an image, made of an input where there is none."""
    found = [v for v in m.floats(4) if len(v.shape) == 4 and all(isinstance(x, int) for x in v.shape[1:])]
    if not found and len(m.inputs) < 4:
        batch: Extent = m.one((1, 1, 2, "N"))
        return m.input((batch, m.one((1, 3, 8, 16, 19)), m.one((5, 8, 11)), m.one((5, 8, 9))))
    return m.one(found) if found else None


def conv(m: Maker) -> None:
    v = image(m)
    if v is None:
        return
    channels, height, width = (x for x in v.shape[1:] if isinstance(x, int))
    size = m.one((1, 3))
    low, stride = m.one((0, size // 2)), m.one((1, 1, 2))
    out = [(x + 2 * low - size) // stride + 1 for x in (height, width)]
    group = m.one((1, channels))
    filters = channels if group > 1 else m.one((1, 4, 8, 16, 19))
    each = channels // group * size * size
    most = v.most * 3 * each**0.5 + 3
    if min(height, width) + 2 * low < size or most > MOST:
        return
    inputs = [v.name, m.weights(filters, channels // group, size, size, scale=each**-0.5)]
    if m.chance():
        inputs.append(m.weights(filters))
    (y,) = m.node("Conv", inputs, ((v.shape[0], filters, *out), FLOAT, most), group=group, pads=[low] * 4,
                  strides=[stride] * 2, kernel_shape=[size] * 2)  # fmt: skip
    if m.chance():
        spread = [m.weights(filters), m.weights(filters), m.weights(filters, scale=0.1)]
        variance = m.constant(np.abs(m.rng.normal(size=filters)).astype(np.float32) + 0.5)
        m.node("BatchNormalization", [y.name, *spread, variance], (y.shape, FLOAT, y.most * 6 + 6))


def pool(m: Maker) -> None:
    v = image(m)
    if v is None:
        return
    height, width = (x for x in v.shape[2:] if isinstance(x, int))
    op = m.one(("MaxPool", "AveragePool", "GlobalAveragePool"))
    if op == "GlobalAveragePool":
        m.node(op, [v.name], ((*v.shape[:2], 1, 1), FLOAT, v.most))
        return
    size, stride, low = m.one((2, 3)), m.one((1, 2)), m.one((0, 1))
    if min(height, width) + 2 * low < size:
        return
    out = [(x + 2 * low - size) // stride + 1 for x in (height, width)]
    more = {"count_include_pad": 1} if op == "AveragePool" and m.chance() else {}
    m.node(op, [v.name], ((*v.shape[:2], *out), FLOAT, v.most), kernel_shape=[size] * 2, strides=[stride] * 2,
           pads=[low] * 4, **more)  # fmt: skip


STEPS: tuple[Step, ...] = (
    unary, unary, binary, binary, divide, compare, cast, transpose, reshape, unit_axes, cut, split, concat, pad, gather,
    tile, reduction, reduction, normal, matmul, matmul, product, conv, conv, pool,
)  # fmt: skip


@st.composite
def models(draw: Draw) -> Made:
    """Models of up to nine steps over one to five inputs."""
    m = Maker(draw)
    m.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    extents = st.sampled_from((*EXTENTS, *EXTENTS, *SYMBOLS))
    for _ in range(draw(st.integers(1, 2))):
        shape = draw(st.lists(extents, max_size=4).map(tuple).filter(lambda s: Value("", s).size <= 4000))
        m.input(shape)
    if draw(st.integers(0, 3)) == 0:
        m.input(draw(st.sampled_from([(5,), (3, 8), ("N", 7)])), INT64, 4)
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=9)):
        if suits(step, m):
            step(m)
        m.values = [v for v in m.values if v.size <= LARGEST]
    if not m.nodes:
        unary(m)
    return m.finished()


def suits(step: Step, m: Maker) -> bool:
    """Whether there is a value that a step can begin with."""
    ranks = {"transpose": 2, "reshape": 1, "concat": 1}
    if step.__name__ in ranks:
        return any(len(v.shape) >= ranks[step.__name__] for v in m.values)
    needs = {"pad": 1, "reduction": 1, "normal": 1, "matmul": 0, "product": 0}
    if step is tile:
        return any(fixed_axes(v, 1) for v in m.values)
    if step is normal:
        return bool(m.floats(1, 50.0))
    return bool(m.floats(needs.get(step.__name__, 0)))
