"""The small networks: both forms are valid, agree, have the operators they promise, and every activation is alive."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

from models import alive
from models.net import Form
from models.networks import NETWORKS, network
from models.small.bert import bert
from models.small.cnn import RELU6, mobilenet_v2, resnet
from models.small.convnext import convnext
from models.small.gpt2 import gpt2
from models.small.mobilebert import mobilebert
from models.small.segformer import Stage, segformer
from models.small.swin import swin
from models.small.vit import vit

pytest.importorskip("onnxruntime")

SMALL = [row.name for row in NETWORKS if not row.full]
AGREE = 2e-5  # of the output's size: about 200 float32 roundings, in networks of fewer than 60 layers


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("name", SMALL)
def test_every_activation_is_alive(name: str) -> None:
    row = network(name)
    model = row.build()
    onnx.checker.check_model(model, full_check=True)
    assert alive.dead(model, row.sample(seed=11), row.high) == []


@pytest.mark.parametrize("name", [name for name in SMALL if f"{name}.decomposed" in SMALL])
def test_forms_agree(name: str) -> None:
    feed = network(name).sample(seed=12, padding=5)
    modern, decomposed = network(name).build(), network(f"{name}.decomposed").build()
    assert alive.difference(modern, decomposed, feed) < AGREE


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-vit", "tiny-swin", "tiny-convnext", "tiny-segformer"])
def test_symbols_change_nothing(name: str) -> None:
    static, symbolic = network(name), network(f"{name}.dynamic")
    feed = static.sample(seed=13, padding=3)
    assert alive.difference(static.build(), symbolic.build(), feed) < AGREE
    several = symbolic.sample(seed=14, batch=3, sequence=7)
    out = symbolic.build().graph.output[0].name
    whole = alive.run(symbolic.build(), several, [out])[0]
    last = alive.run(symbolic.build(), {key: value[2:] for key, value in several.items()}, [out])[0]
    assert float(np.max(np.abs(whole[2:] - last))) < AGREE * alive.rms(whole)


@pytest.mark.parametrize("form", ["modern", "decomposed"])
def test_symbolic_bert_is_the_static_one(form: Form) -> None:
    symbolic = bert(form=form)
    for batch, sequence in ((1, 8), (3, 33)):
        feed = network("tiny-bert.dynamic").sample(batch=batch, sequence=sequence, padding=2)
        static = bert(batch=batch, sequence=sequence, form=form)
        assert alive.difference(static, symbolic, feed) < AGREE


def test_masked_tokens_do_not_matter() -> None:
    model = network("tiny-bert").build()
    feed = network("tiny-bert").sample(padding=4)
    before = alive.run(model, feed, ["last_hidden_state"])[0]
    feed["input_ids"][:, -4:] = (feed["input_ids"][:, -4:] + 1) % 100
    after = alive.run(model, feed, ["last_hidden_state"])[0]
    assert np.array_equal(before[:, :-4], after[:, :-4])
    assert not np.array_equal(before[:, -4:], after[:, -4:])


# Counted in what torch 2.13 exports of transformers' models, constants and symbolic shape arithmetic left out.
BERT_LAYER = {"MatMul": 8, "Reshape": 6, "Transpose": 5, "LayerNormalization": 2, "Softmax": 1, "IsNaN": 1, "Gelu": 1}
BERT_LAYER_TRACED = {
    "MatMul": 8,
    "Reshape": 4,
    "Transpose": 4,
    "Exp": 1,
    "Erf": 1,
    "ReduceMean": 4,
    "Sqrt": 2,
    "Div": 5,
}


@pytest.mark.parametrize(("form", "expected"), [("modern", BERT_LAYER), ("decomposed", BERT_LAYER_TRACED)])
def test_a_bert_layer_has_the_nodes_of_the_exports(form: Form, expected: dict[str, int]) -> None:
    one = operators(bert(layers=1, batch=1, sequence=8, form=form))
    two = operators(bert(layers=2, batch=1, sequence=8, form=form))
    layer = two - one
    assert {op: layer[op] for op in expected} == expected


def test_later_tokens_do_not_matter_to_earlier_ones() -> None:
    model = network("tiny-gpt2").build()
    feed = network("tiny-gpt2").sample()
    before = alive.run(model, feed, ["last_hidden_state"])[0]
    feed["input_ids"][:, -4:] = (feed["input_ids"][:, -4:] + 1) % 100
    after = alive.run(model, feed, ["last_hidden_state"])[0]
    assert np.array_equal(before[:, :-4], after[:, :-4])
    assert not np.array_equal(before[:, -4:], after[:, -4:])


# Nodes of what torch 2.13 exports of transformers' models, modern and traced, and with a symbolic batch.
SWIN_T = {"widths": (8, 16, 32, 64), "heads": (2, 4, 8, 16), "depths": (2, 2, 6, 2), "image": 224, "window": 7}
SEGFORMER_B0 = (Stage(8, 1, 8, 7, 4, 2), Stage(16, 2, 4, 3, 2, 2), Stage(40, 5, 2, 3, 2, 2), Stage(64, 8, 1, 3, 2, 2))


def test_full_depths_have_the_node_counts_of_the_exports() -> None:
    def nodes(build: Any, **arguments: Any) -> tuple[int, int]:
        forms = ("modern", "decomposed")
        counts = [len(build(form=form, **arguments).graph.node) for form in forms]
        return counts[0], counts[1]

    assert nodes(gpt2, layers=12, batch=1, sequence=8) == (528, 1023)
    assert len(gpt2(layers=12).graph.node) == 627
    assert nodes(mobilebert, layers=24, feed_forwards=4) == (1819, 1936)
    assert nodes(vit, layers=12) == (441, 814)
    assert len(vit(layers=12, batch="batch").graph.node) == 518
    assert nodes(swin, **SWIN_T) == (637, 3252)
    assert len(swin(**SWIN_T, batch="batch").graph.node) == 646
    assert nodes(convnext, widths=(8,) * 4, depths=(3, 3, 9, 3), image=32) == (217, 573)
    assert nodes(segformer, stages=SEGFORMER_B0, image=256) == (402, 973)
    assert len(segformer(SEGFORMER_B0, 256, batch="batch").graph.node) == 458


def test_full_sizes_have_the_node_counts_of_the_exports() -> None:
    assert len(bert(layers=12, batch=1, sequence=8).graph.node) == 445
    assert len(bert(layers=12).graph.node) == 540
    assert len(resnet((3, 4, 6, 3), 4, 64, 10).graph.node) == 122
    stages = ((6, 4, 2, 2), (6, 4, 3, 2), (6, 8, 4, 2), (6, 12, 3, 1), (6, 16, 3, 2), (6, 20, 1, 1))
    assert len(mobilenet_v2(stages, 4, 16, 64, 10).graph.node) == 100
    assert len(mobilenet_v2(stages, 4, 16, 64, 10, form="decomposed").graph.node) == 1106


def test_decomposed_forms_keep_batch_normalization_and_have_no_composites() -> None:
    for build in (resnet, mobilenet_v2):
        found = operators(build(form="decomposed"))
        assert found["BatchNormalization"] == found["Conv"] > 0
        assert operators(build(form="modern"))["BatchNormalization"] == 0
    assert not {"Softmax", "LayerNormalization", "Gelu"} & set(operators(bert(form="decomposed")))


def test_computed_statistics_are_those_of_the_images() -> None:
    """What leaves a BatchNormalization has about the deviation and mean that its gamma and beta promise."""
    model = resnet((2, 2), 16, 64, batch=4, form="decomposed")
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    images = np.random.default_rng(5).standard_normal((4, 3, 64, 64), dtype=np.float32)
    values = alive.activations(model, {"pixel_values": images})
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            value, gamma, beta = values[node.output[0]], weights[node.input[1]], weights[node.input[2]]
            ratio = alive.rms(value - value.mean(axis=(0, 2, 3), keepdims=True)) / alive.rms(gamma)
            assert 0.5 < ratio < 2, node.output[0]
            assert alive.rms(value.mean(axis=(0, 2, 3)) - beta) < alive.rms(gamma), node.output[0]


def test_the_upper_bound_of_relu6_is_reached() -> None:
    model = network("demo-mobilenet").build()
    values = alive.activations(model, network("demo-mobilenet").sample())
    clipped = [values[node.output[0]] for node in model.graph.node if node.op_type == "Clip"]
    assert min(float((value == RELU6).mean()) for value in clipped) > 1e-3


def _normalized(model: onnx.ModelProto, value: str) -> bool:
    """Whether all that reads a value is a LayerNormalization, perhaps behind Reshape and Transpose."""
    readers = [node for node in model.graph.node if value in node.input]
    moves = ("Reshape", "Transpose")
    return bool(readers) and all(
        node.op_type == "LayerNormalization" or (node.op_type in moves and _normalized(model, node.output[0]))
        for node in readers
    )


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("tiny") and "." not in name])
def test_an_error_anywhere_reaches_the_output(name: str) -> None:
    """An error of 1 % in what any contraction or activation function gives is far above rounding."""
    model = network(name).build()
    kinds = ("MatMul", "Gemm", "Conv", "Relu", "Clip", "Gelu", "Softmax", "LayerNormalization", "Tanh")
    values = [node.output[0] for node in model.graph.node if node.op_type in kinds]
    values = [value for value in values if not _normalized(model, value)]  # there a factor has no effect
    moved = alive.responses(model, network(name).sample(), values)
    assert {value: size for value, size in moved.items() if size < 10 * AGREE} == {}


def test_same_arguments_same_bytes() -> None:
    for build in (bert, gpt2, mobilebert, vit, swin, convnext, segformer, resnet, mobilenet_v2):
        assert build(seed=3).SerializeToString() == build(seed=3).SerializeToString()
        assert build(seed=3).SerializeToString() != build(seed=4).SerializeToString()


def test_degenerate_activations_are_found() -> None:
    model = network("tiny-bert").build()
    for tensor in model.graph.initializer:
        if "self.query.weight" in tensor.name:
            weight = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(weight * 0.01, tensor.name))
    lines = alive.dead(model, network("tiny-bert").sample())
    assert any("probabilities" in line for line in lines)
    assert any("root mean square" in line for line in lines)


def test_a_network_whose_products_are_all_in_branches_has_none_in_its_main_graph():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> m (float[2, 3] x) => (float[2, 3] y, float[2, 3] z)'
        "{ y = Abs (x)  z = Neg (x) }"
    )
    assert alive.gflop(model, {"x": np.zeros((2, 3), np.float32)}) == 0.0
