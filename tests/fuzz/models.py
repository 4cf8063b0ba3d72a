"""The strategy that draws models, and the options with which each is optimized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from onnxfuse.config import EXHAUSTIVE, STRATEGIES
from tests.fuzz import nodes, products
from tests.fuzz.graphs import BOOL, EXTENTS, LARGEST, OPSETS, REAL, SYMBOLS, WHOLE, Draw, Made, Maker, Value

Step = Callable[[Maker], None]

STEPS: tuple[Step, ...] = (
    nodes.unary, nodes.unary, nodes.binary, nodes.binary, nodes.divide, nodes.power, nodes.compare, nodes.choose,
    nodes.step, nodes.cast, nodes.whole, nodes.transpose, nodes.reshape, nodes.flatten, nodes.expand, nodes.unit_axes,
    nodes.cut, nodes.split, nodes.concat, nodes.pad, nodes.gather, nodes.tile, products.reduction, products.reduction,
    products.position, products.normal, products.matmul, products.matmul, products.gemm, products.product,
    products.conv, products.conv, products.pool, products.window,
)  # fmt: skip
RANKS: dict[Step, int] = {nodes.transpose: 2, nodes.reshape: 1, nodes.concat: 1}  # of any value that they begin with
REAL_RANKS: dict[Step, int] = {nodes.pad: 1, products.reduction: 1}  # of a real value


@st.composite
def models(draw: Draw) -> Made:
    """Models of up to twelve steps over one to five inputs."""
    m = Maker(draw, opset=draw(st.sampled_from(OPSETS)), real=draw(st.sampled_from(REAL)))
    m.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    extents = st.sampled_from((*EXTENTS, *EXTENTS, *SYMBOLS))
    for _ in range(draw(st.integers(1, 2))):
        shape = draw(st.lists(extents, max_size=4).map(tuple).filter(lambda s: Value("", s).size <= 4000))
        m.input(shape)
    if draw(st.integers(0, 3)) == 0:
        m.input(draw(st.sampled_from([(5,), (3, 8), ("N", 7)])), draw(st.sampled_from(WHOLE)), 4)
    if draw(st.integers(0, 3)) == 0:
        m.input(draw(st.sampled_from([(), (8,), ("N", 1), (3, 1, 8)])), BOOL, 1)
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=12)):
        if suits(step, m):
            step(m)
        m.values = [v for v in m.values if v.size <= LARGEST]
    if not m.nodes:
        nodes.unary(m)
    return m.finished()


def suits(step: Step, m: Maker) -> bool:
    """Whether there is a value that a step can begin with."""
    if step in RANKS:
        return any(len(v.shape) >= RANKS[step] for v in m.values)
    if step is nodes.tile:
        return any(nodes.fixed_axes(v, 1) for v in m.values)
    if step is products.normal:
        return bool(m.floats(1, 50.0))
    return bool(m.floats(REAL_RANKS.get(step, 0)))


def settings() -> st.SearchStrategy[dict[str, Any]]:
    """Options of `optimize`: how small a group may be, which strategy groups, which nodes stay with the runtime."""
    skipped = st.sampled_from(((), (), (), ("_[03]$",), ("Add|Transpose|Relu",), ("Reduce|Softmax|MatMul",)))
    strategy = st.sampled_from(("anchors", "anchors", *(s for s in STRATEGIES if s != EXHAUSTIVE)))
    return st.fixed_dictionaries(
        {"min_group": st.integers(1, 2), "strategy": strategy, "skip_node": skipped, "fast_math": st.booleans()}
    )
