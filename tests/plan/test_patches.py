"""Convolutions of patches that do not overlap are products on a GPU, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.config import Options
from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.graph import Attribute, Graph
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CPU, CUDA
from onnxfuse.plan.prepared.patches import patches_as_products
from tests.rules.build import Build, same

SAME = {"strides": (4, 4)}


def embedding(
    image: tuple[int, ...] = (2, 3, 12, 8), patch: int = 4, *, dtype: DType = F32, bias: bool = True, **attrs: Attribute
) -> Graph:
    """A convolution with a constant weight of 5 channels, whose result is read as tokens."""
    b = Build(17)
    rng, channels = np.random.default_rng(0), image[1] // int(attrs.get("group", 1))  # type: ignore[arg-type]
    shape = (5 if "group" not in attrs else 6, channels, *(patch for _ in image[2:]))
    weight = b.constant(rng.standard_normal(shape).astype(dtype.numpy))
    given = [b.constant(rng.standard_normal(shape[0]).astype(dtype.numpy))] if bias else []
    y = b.node("Conv", b.input("x", *image, dtype=dtype), weight, *given, **attrs)
    return b.graph(b.node("Relu", b.node("Neg", y)))


@pytest.mark.parametrize(
    "graph",
    [
        embedding(**SAME), embedding(bias=False, **SAME), embedding((1, 2, 10), 5, strides=(5,)),
        embedding((1, 2, 4, 6, 2), 2, strides=(2, 2, 2)), embedding(**SAME, auto_pad="VALID"),
        embedding((3, 1, 4, 4), **SAME),
    ],
    ids=["image", "no bias", "signal", "volume", "valid", "one patch"],
)  # fmt: skip
def test_the_product_means_the_same(graph: Graph) -> None:
    made = patches_as_products(graph)
    made.verify()
    assert [n.op for n in made.nodes if n.op in ("Conv", "MatMul")] == ["MatMul"]
    same(graph, made, terms=64)


@pytest.mark.parametrize(
    "graph",
    [
        embedding(strides=(2, 2)), embedding((2, 3, 14, 8), **SAME), embedding(**SAME, pads=(0, 0, 4, 0)),
        embedding(patch=1), embedding((2, 3, 12, 8), **SAME, dilations=(2, 1)), embedding(**SAME, group=3),
        embedding(**SAME, auto_pad="SAME_UPPER"),
    ],
    ids=["overlapping", "a rest", "padded", "pointwise", "dilated", "groups", "same"],
)  # fmt: skip
def test_other_convolutions_stay(graph: Graph) -> None:
    assert patches_as_products(graph) is graph


def test_the_runtime_multiplies_and_kernels_move() -> None:
    graph = embedding((1, 3, 224, 224), 16, strides=(16, 16), dtype=F16)
    made = plan(graph, ROWS, Options(target="cuda", arch=("sm_90",), cuda_graph=True), legality=CUDA)
    ops = {n.op for n in made.graph.nodes}
    assert "MatMul" in ops and "Conv" not in ops
    assert any({"Add", "Transpose", "Relu"} <= {n.op for n in g.nodes} for g in made.groups)
    assert "Conv" in {n.op for n in plan(graph, ROWS, Options(), legality=CPU).graph.nodes}


def test_a_convolution_stays_where_names_could_be_mistaken() -> None:
    graph = embedding(**SAME)
    (made,) = (n.outputs[0] for n in graph.nodes if n.op == "Conv")
    taken = graph.with_nodes(graph.nodes, types={**graph.types, f"{made}/rows": None})
    assert patches_as_products(taken) is taken
