"""Small networks of both exporters: which nodes are left after rewriting, and equal results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from models.small.bert import bert
from models.small.cnn import mobilenet_v2, resnet
from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.load import load
from tests.rules.build import Array, rewritten, run

LAYERS = 2


def loaded(model: onnx.ModelProto) -> Graph:
    return load(model.SerializeToString(), Options())


def check(before: Graph, after: Graph, feeds: dict[str, Array], symbols: dict[str, int]) -> None:
    want, got = run(before, feeds, symbols), run(after, feeds, symbols)
    for name in before.outputs:
        distance = np.linalg.norm(got[name] - want[name]) / np.linalg.norm(want[name])
        assert got[name].shape == want[name].shape and distance < 2e-6, name


def ids(batch: int, sequence: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    mask = np.ones((batch, sequence), np.int64)
    mask[:, -1:] = sequence < 3
    return {
        "input_ids": rng.integers(0, 50, (batch, sequence)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (batch, sequence)),
    }


@pytest.mark.parametrize("form", ["modern", "decomposed"])
def test_bert_of_symbolic_extents(form: str) -> None:
    before = loaded(bert(LAYERS, 16, 2, 24, 50, 16, form=form))  # type: ignore[arg-type]
    after, fired = rewritten(before)
    count = Counter(n.op for n in after.nodes)
    assert count["Slice"] >= 3 * LAYERS and fired["merged-products"] == LAYERS
    assert count["MatMul"] == LAYERS * (1 + 2 + 3)  # QKV, two of attention, three dense layers
    assert count["Transpose"] == LAYERS * 4 and count["Reshape"] - LAYERS * 4 <= 3
    modern = form == "modern"
    assert fired["scale-into-weights"] == LAYERS * (2 if modern else 1)
    assert fired["constant-reshape"] == LAYERS * 4
    if modern:
        assert "Mul" not in count and fired["movement-chain"] >= LAYERS
        assert count["IsNaN"] == 0 and fired["where-false"] == LAYERS  # the mask is finite: no row is without a place
    for batch, sequence in ((1, 4), (3, 2), (2, 1)):
        check(before, after, ids(batch, sequence), {"batch": batch, "sequence": sequence})


@pytest.mark.parametrize("form", ["modern", "decomposed"])
def test_bert_of_static_extents_has_no_shape_arithmetic(form: str) -> None:
    before = loaded(bert(LAYERS, 16, 2, 24, 50, 16, 2, 4, form=form))  # type: ignore[arg-type]
    after, _ = rewritten(before)
    count = Counter(n.op for n in after.nodes)
    assert not {"Shape", "Concat", "Unsqueeze", "Squeeze", "Identity"} & count.keys()
    assert count["Slice"] == 3 * LAYERS
    assert not [n.op for n in after.nodes if all(i in after.constants for i in n.reads)]
    check(before, after, ids(2, 4), {})


@pytest.mark.parametrize("network", [resnet, mobilenet_v2])
def test_convolutions_take_normalization_and_padding(network: object) -> None:
    small = {"width": 4, "image": 16} if network is resnet else {"stages": ((2, 4, 2, 2),), "image": 16}
    modern, decomposed = (loaded(network(form=f, **small)) for f in ("modern", "decomposed"))  # type: ignore[operator]
    apart = Options(disable=("linear-of-linear",))  # bottlenecks this small are none
    assert rewritten(modern, apart)[1] == {}
    after, fired = rewritten(decomposed, apart)
    assert {n.op for n in after.nodes} - {n.op for n in modern.nodes} == {"GlobalAveragePool", "Flatten"}
    assert (
        sum(n.op == "Conv" for n in after.nodes) == fired["affine-after"] == sum(n.op == "Conv" for n in modern.nodes)
    )
    x = np.random.default_rng(2).normal(size=(1, 3, 16, 16)).astype(np.float32)
    check(decomposed, after, {"pixel_values": x}, {})
