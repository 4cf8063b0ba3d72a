"""On a GPU, movement that only nodes of the runtime read is stored by the kernel that makes its input."""

from __future__ import annotations

import numpy as np

from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CUDA, Legality
from tests.rules.build import Build

SIDE, CHANNELS = 32, 512


def tokens(*, fused: bool = False) -> Graph:
    """Normalized rows, read by a product, and as an image by a convolution, or else by what a kernel may have."""
    b = Build(17)
    ones = [b.constant(np.ones(CHANNELS, np.float32)) for _ in range(2)]
    y = b.node("LayerNormalization", b.input("x", 1, SIDE * SIDE, CHANNELS), *ones, axis=-1)
    image = b.node("Reshape", b.node("Transpose", y, perm=(0, 2, 1)), b.ints(1, CHANNELS, SIDE, SIDE))
    product = b.node("MatMul", y, b.weights(CHANNELS, CHANNELS))
    read = b.node("Conv", image, b.weights(CHANNELS, CHANNELS, 1, 1)) if not fused else b.node("Exp", image)
    return b.graph(product, read)


def groups(graph: Graph, legality: Legality = CUDA) -> list[list[str]]:
    made = plan(graph, ROWS, Options(target="cuda", arch=("sm_90",)), legality=legality)
    return [[n.op for n in g.nodes] for g in made.groups]


def test_it_joins_what_makes_its_input() -> None:
    assert groups(tokens()) == [["LayerNormalization", "Transpose", "Reshape"]]


def test_it_joins_its_reader_where_that_may_be_in_a_kernel() -> None:
    assert ["Transpose", "Reshape", "Exp"] in groups(tokens(fused=True))
