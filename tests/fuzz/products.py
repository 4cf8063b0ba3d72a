"""Reductions, products and nodes of images: each adds one, or nothing where no value suits it."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.graphs import EXTENTS, HALF, INT64, LARGEST, Extent, Maker, Value


def reduction(m: Maker) -> None:
    v = m.one(m.floats(1))
    op = m.one(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"))
    count = m.draw(st.integers(1, len(v.shape)))
    axes = sorted(m.draw(st.permutations(range(len(v.shape))))[:count])
    keep = m.draw(st.integers(0, 1))
    shape = tuple(1 if i in axes else x for i, x in enumerate(v.shape) if keep or i not in axes)
    length = prod(x if isinstance(x, int) else 40 for i, x in enumerate(v.shape) if i in axes)
    most = v.most * (length if op in ("ReduceSum", "ReduceL1", "ReduceL2") else 1)
    if op in ("ReduceL2", "ReduceSumSquare"):
        most = max(most, v.most**2 * length) if op == "ReduceSumSquare" or v.dtype == HALF else most
    if most <= m.limit:
        since = 13 if op == "ReduceSum" else 18
        m.node_with(op, [v.name], (shape, v.dtype, most), since, "axes", axes, keepdims=keep)


def position(m: Maker) -> None:
    """Where the largest or smallest is, among values that have not been rounded."""
    if exact := [v for v in m.exact() if v.shape]:
        v = m.one(exact)
        at, keep = m.draw(st.integers(0, len(v.shape) - 1)), m.draw(st.integers(0, 1))
        shape = tuple(1 if i == at else x for i, x in enumerate(v.shape) if keep or i != at)
        m.node(m.one(("ArgMax", "ArgMin")), [v.name], (shape, INT64, 40), axis=at, keepdims=keep)


def normal(m: Maker) -> None:
    v = m.one(m.floats(1, 50.0))
    op = m.one(("Softmax", "LogSoftmax", *(["LayerNormalization"] if m.opset >= 17 else [])))
    last = v.shape[-1]
    if op == "LayerNormalization":
        if isinstance(last, int) and v.dtype != HALF:
            m.node(op, [v.name, m.weights(last), m.weights(last)], (v.shape, v.dtype, 30.0), axis=-1, epsilon=1e-2)
    elif 2 * v.most + 8 <= m.limit:
        axis = m.draw(st.integers(-len(v.shape) if m.opset >= 11 else 0, len(v.shape) - 1))
        m.node(op, [v.name], (v.shape, v.dtype, 1.0 if op == "Softmax" else 2 * v.most + 8), axis=axis)


def matmul(m: Maker) -> None:
    v = m.one([x for x in m.floats(2) if isinstance(x.shape[-1], int)] or m.floats())
    if len(v.shape) < 2 or not isinstance(k := v.shape[-1], int):
        return
    n = m.one(EXTENTS)
    if v.most * 3 * k**0.5 + 3 <= m.limit and v.size // k * n <= LARGEST:
        w = m.weights(k, n, scale=k**-0.5)
        (y,) = m.node("MatMul", [v.name, w], ((*v.shape[:-1], n), v.dtype, v.most * 3 * k**0.5))
        if m.chance():
            m.node("Add", [y.name, m.weights(n)], (y.shape, v.dtype, y.most + 3))


def gemm(m: Maker) -> None:
    """A product with a weight, either of them turned, with or without something added."""
    v = m.one([x for x in m.floats(2) if len(x.shape) == 2] or m.floats())
    turned = int(m.chance())
    if len(v.shape) != 2 or not isinstance(k := v.shape[0 if turned else 1], int):
        return
    rows, n, across = v.shape[1 if turned else 0], m.one(EXTENTS), int(m.chance())
    if v.most * 3 * k**0.5 + 3 <= m.limit:
        inputs = [v.name, m.weights(*((n, k) if across else (k, n)), scale=k**-0.5)]
        if m.opset < 11 or m.chance():
            inputs.append(m.weights(*m.one(((n,), (1, n), (1,), (1, 1)))))
        made = ((rows, n), v.dtype, v.most * 3 * k**0.5 + 3)
        m.node("Gemm", inputs, made, transA=turned, transB=across, alpha=m.one((1.0, 0.5)), beta=m.one((1.0, 0.25)))


def product(m: Maker) -> None:
    """Two values, the second turned where that makes it fit."""
    v = m.one(m.floats(2) or m.floats())
    ends = (v.shape[:-2], v.shape[-1:])
    fitting = [w for w in m.floats(2) if (w.shape[:-2], w.shape[-1:]) == ends]
    if len(v.shape) >= 2 and fitting:
        w = m.one(fitting)
        perm = (*range(len(w.shape) - 2), len(w.shape) - 1, len(w.shape) - 2)
        turned = (*w.shape[:-2], w.shape[-1], w.shape[-2])
        (t,) = m.node("Transpose", [w.name], (turned, w.dtype, w.most), perm=perm)
        length = v.shape[-1] if isinstance(v.shape[-1], int) else 40
        most = v.most * w.most * length
        shape = (*v.shape[:-1], w.shape[-2])
        if most <= m.limit and Value("", shape).size <= LARGEST:
            m.node("MatMul", [v.name, t.name], (shape, v.dtype, most))


# Images ---------------------------------------------------------------------------------------------------------------


def image(m: Maker) -> Value | None:
    """A value that is an image or a row of samples, made of an input where there is none."""
    found = [v for v in m.floats(3) if len(v.shape) <= 4 and all(isinstance(x, int) for x in v.shape[1:])]
    if (not found or m.draw(st.integers(0, 3)) == 0) and len(m.inputs) < 4:
        batch: Extent = m.one((1, 1, 2, "N"))
        places = (m.one((5, 8, 11)), m.one((5, 8, 9)))[: m.one((1, 2, 2, 2))]
        return m.input((batch, m.one((1, 3, 8, 16, 19)), *places))
    return m.one(found) if found else None


def conv(m: Maker) -> None:
    v = image(m)
    if v is None:
        return
    channels, *places = (x for x in v.shape[1:] if isinstance(x, int))
    size, apart = m.one((1, 3)), m.one((1, 1, 2))
    low, high, stride = m.one((0, size // 2)), m.one((0, size // 2)), m.one((1, 1, 2))
    reach = (size - 1) * apart + 1
    if min(places) + low + high < reach:
        return
    out = [(x + low + high - reach) // stride + 1 for x in places]
    group = m.one((1, channels))
    filters = m.one((channels, 2 * channels)) if group > 1 else m.one((1, 4, 8, 16, 19))
    each = channels // group * size ** len(places)
    most = v.most * 3 * each**0.5 + 3
    if most > m.limit or filters > 40:
        return
    window = [size] * len(places)
    inputs = [v.name, m.weights(filters, channels // group, *window, scale=each**-0.5)]
    if m.chance():
        inputs.append(m.weights(filters))
    (y,) = m.node("Conv", inputs, ((v.shape[0], filters, *out), v.dtype, most), group=group,
                  pads=[low] * len(places) + [high] * len(places), strides=[stride] * len(places),
                  dilations=[apart] * len(places), kernel_shape=window)  # fmt: skip
    if m.chance() and y.most * 6 + 6 <= m.limit:
        spread = [m.weights(filters), m.weights(filters), m.weights(filters, scale=0.1)]
        variance = m.constant((np.abs(m.drawn(filters)) + np.asarray(0.5)).astype(m.drawn().dtype))
        m.node("BatchNormalization", [y.name, *spread, variance], (y.shape, v.dtype, y.most * 6 + 6))


def pool(m: Maker) -> None:
    v = image(m)
    if v is None:
        return
    places = [x for x in v.shape[2:] if isinstance(x, int)]
    op = m.one(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        m.node(op, [v.name], ((*v.shape[:2], *[1] * len(places)), v.dtype, v.most))
        return
    size, stride, low = m.one((2, 3)), m.one((1, 2)), m.one((0, 1))
    if min(places) + 2 * low < size:
        return
    out = [(x + 2 * low - size) // stride + 1 for x in places]
    more = {"count_include_pad": 1} if op == "AveragePool" and m.chance() else {}
    window, pads = [size] * len(places), [low] * 2 * len(places)
    m.node(op, [v.name], ((*v.shape[:2], *out), v.dtype, v.most), kernel_shape=window,
           strides=[stride] * len(places), pads=pads, **more)  # fmt: skip


def window(m: Maker) -> None:
    """A window over an image of open size, which keeps its extents: pads of either side in any proportion."""
    found = [v for v in m.floats(3) if len(v.shape) <= 4 and isinstance(v.shape[1], int) and "S" in v.shape[2:]]
    if not found and len(m.inputs) < 4:
        found = [m.input((m.one((1, 2, "N")), m.one((1, 3, 8)), *m.one((("S",), (5, "S"), ("S", 9), ("S", "S")))))]
    if not found:
        return
    v, op = m.one(found), m.one(("Conv", "Conv", "MaxPool", "AveragePool"))
    sizes = [m.one((2, 3, 5, 7)) for _ in v.shape[2:]]
    apart = [m.one((1, 1, 2, 3)) if op == "Conv" else 1 for _ in sizes]
    around = [d * (k - 1) for d, k in zip(apart, sizes, strict=True)]
    low = [m.draw(st.integers(0, a)) for a in around]
    pads = {"kernel_shape": sizes, "pads": low + [a - b for a, b in zip(around, low, strict=True)]}
    channels = v.shape[1]
    if op == "Conv" and isinstance(channels, int):
        taps = prod(sizes)
        most = v.most * 3 * taps**0.5
        if most <= m.limit:
            inputs = [v.name, m.weights(channels, 1, *sizes, scale=taps**-0.5)]
            m.node(op, inputs, (v.shape, v.dtype, most), group=channels, dilations=apart, **pads)
    else:
        more = {"count_include_pad": 1} if op == "AveragePool" and m.chance() else {}
        m.node(op, [v.name], (v.shape, v.dtype, v.most), **pads, **more)
