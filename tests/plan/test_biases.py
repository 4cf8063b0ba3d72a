"""Biases of Gemm and Conv on a GPU: added by the kernel that reads the product, and the meaning stays the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnxfuse.config import Options
from onnxfuse.ir.dtype import F32, I32, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CPU, CUDA
from onnxfuse.plan.prepared.biases import biases_apart
from tests.rules.build import Build, same

LARGE = (512, 768, 1024)  # rows, depth and columns of a product that stays with the runtime


def layer(opset: int = 17, dtype: DType = F32, sizes: tuple[int, int, int] = LARGE, **attrs: float) -> Graph:
    """A Gemm, and two operators that read it."""
    rows, depth, columns = sizes
    b = Build(opset)
    shapes = {"x": (rows, depth), "w": (depth, columns), "b": (columns,), "s": (columns,)}
    x, w, c, s = (b.input(name, *shape, dtype=dtype) for name, shape in shapes.items())
    return b.graph(b.node("Mul", b.node("Neg", b.node("Gemm", x, w, c, **attrs)), s))


def test_the_kernel_that_reads_a_product_adds_its_bias() -> None:
    made = plan(layer(), ROWS, Options(target="cuda", arch=("sm_90",)), legality=CUDA)
    assert [[n.op for n in g.nodes] for g in made.groups] == [["Add", "Neg", "Mul"]]
    (gemm,) = (n for n in made.graph.nodes if n.op == "Gemm")
    assert len(gemm.inputs) == 2
    made.graph.verify()


def test_on_a_cpu_it_stays_as_it_is() -> None:
    made = plan(layer(), ROWS, Options(), legality=CPU)
    assert all(len(n.inputs) == 3 for n in made.graph.nodes if n.op == "Gemm")


@pytest.mark.parametrize("graph", [layer(9), layer(beta=0.5), layer(dtype=I32)], ids=["old", "scaled", "integers"])
def test_biases_that_are_no_plain_additions_stay(graph: Graph) -> None:
    assert biases_apart(graph) is graph


def test_the_graph_means_the_same() -> None:
    graph = layer(sizes=(6, 20, 9), alpha=0.5)
    apart = biases_apart(graph)
    assert [n.op for n in apart.nodes] == ["Gemm", "Add", "Neg", "Mul"]
    same(graph, apart, terms=20)


def convolution(*image: int, constant: bool = True) -> Graph:
    """A convolution with a bias, and two operators that read it."""
    b = Build(17)
    weight = b.constant(
        np.linspace(-1, 1, 7 * 3 * 3 ** len(image), dtype=np.float32).reshape(7, 3, *(3 for _ in image))
    )
    bias = b.constant(np.linspace(-2, 3, 7, dtype=np.float32)) if constant else b.input("b", 7)
    return b.graph(b.node("Relu", b.node("Neg", b.node("Conv", b.input("x", 2, 3, *image), weight, bias))))


@pytest.mark.parametrize("image", [(9,), (6, 5), (4, 5, 6)], ids=["signal", "image", "volume"])
def test_the_bias_of_a_convolution_is_added_to_its_channels(image: tuple[int, ...]) -> None:
    graph = convolution(*image)
    apart = biases_apart(graph)
    apart.verify()
    assert [n.op for n in apart.nodes] == ["Conv", "Add", "Neg", "Relu"]
    same(graph, apart, terms=3 * 3 ** len(image))
    made = plan(graph, ROWS, Options(target="cuda", arch=("sm_90",)), legality=CUDA)
    assert [[n.op for n in g.nodes] for g in made.groups] == [["Add", "Neg", "Relu"]]


def test_a_bias_that_is_computed_stays() -> None:
    graph = convolution(6, 5, constant=False)
    assert biases_apart(graph) is graph


def test_a_bias_of_convolutions_of_different_ranks_has_a_shape_for_each() -> None:
    b = Build(17)
    bias = b.constant(np.linspace(-2, 3, 7, dtype=np.float32))
    weights = [b.constant(np.full((7, 3, *(3 for _ in range(n))), 0.1, np.float32)) for n in (1, 2)]
    images = (b.input("x", 7, 3, 9), b.input("y", 7, 3, 6, 5))
    graph = b.graph(*(b.node("Conv", x, w, bias) for x, w in zip(images, weights, strict=True)))
    apart = biases_apart(graph)
    apart.verify()
    assert [n.op for n in apart.nodes] == ["Conv", "Add", "Conv", "Add"]
    same(graph, apart, terms=27)


def test_a_value_of_the_model_is_not_replaced() -> None:
    """Whatever its name is."""
    graph = convolution(6, 5)
    (name,) = {i for n in biases_apart(graph).nodes for i in n.inputs if i.endswith("axes")}
    taken = replace(graph, types={**graph.types, name: None})
    assert biases_apart(taken) is taken
