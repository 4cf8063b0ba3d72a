"""Full-size networks from the public architectures in transformers, exported by torch (the extra `[models]`)."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import onnx
import torch
import transformers
from torch import Tensor, nn

from models.weights import Gain, calibrate

Export: TypeAlias = Literal["modern", "dynamic", "decomposed"]

OPSET = 20  # of the modern forms


@dataclass(frozen=True, slots=True)
class Architecture:
    """One network: how to make it, what it reads and says, and how its weights are sized.

    `make` takes nothing from the network: the configuration is written out. `sample` gives the inputs for a batch.
    `axes` names the symbolic axes of every input, with their limits. `trace` wraps the module for the decomposed
    form, where what torch runs now differs from what real exports of the time hold.
    """

    make: Callable[[], Any]
    sample: Callable[[int], tuple[Tensor, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    gains: tuple[Gain, ...]
    decomposed_opset: int
    calibration: int
    axes: tuple[tuple[str, int], ...] = ()
    trace: Callable[[nn.Module], nn.Module] = lambda module: module


def export(name: str, form: Export) -> onnx.ModelProto:
    """The network of this name in one form."""
    model = exported(ARCHITECTURES[name], form)
    model.graph.name = name
    return model


def exported(row: Architecture, form: Export) -> onnx.ModelProto:
    """The network of this row in one form; all forms of a network have the same weights.

    `modern` and `dynamic` come from torch.export and onnxscript, `decomposed` from tracing with BatchNormalization
    kept, at an opset that has neither LayerNormalization nor Gelu.
    """
    module = row.make().eval()
    module.config.return_dict = False
    calibrate(module, row.sample(row.calibration), row.gains)
    with _quiet():
        model = _trace(module, row) if form == "decomposed" else _translate(module, row, form == "dynamic")
    return _without_traces(model)


def _translate(module: nn.Module, row: Architecture, dynamic: bool) -> onnx.ModelProto:
    shapes = None
    if dynamic:
        axes = {axis: torch.export.Dim(name, max=limit) for axis, (name, limit) in enumerate(row.axes)}
        shapes = tuple(axes for _ in row.inputs)
    program = torch.onnx.export(
        module,
        row.sample(2 if dynamic else 1),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(row.inputs),
        output_names=list(row.outputs),
        dynamic_shapes=shapes,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _trace(module: nn.Module, row: Architecture) -> onnx.ModelProto:
    file: Any = io.BytesIO()  # the signature names paths only; tracing writes to files as well
    torch.onnx.export(
        row.trace(module),
        row.sample(1),
        file,
        dynamo=False,
        opset_version=row.decomposed_opset,
        input_names=list(row.inputs),
        output_names=list(row.outputs),
        # Evaluation mode folds BatchNormalization into Conv; this keeps it, and the module is in evaluation mode.
        training=torch.onnx.TrainingMode.PRESERVE,
    )
    return onnx.load_from_string(file.getvalue())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings about tracing and deprecation, which the decomposed form wants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` without notes on the Python lines that made it: they hold paths of this machine."""
    for proto in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
        del proto.metadata_props[:]
        proto.doc_string = ""
    return model


# --- BERT ------------------------------------------------------------------------------------------------------------


class _TracedBert(nn.Module):
    """BERT as it was traced before 2023: an additive mask of -10000, softmax written out."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert
        transformers.AttentionInterface.register("primitives", _attention_of_primitives)
        bert.set_attn_implementation("primitives")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * -10000.0
        outputs = self.bert(input_ids=input_ids, attention_mask=mask, token_type_ids=token_type_ids)
        return outputs[0], outputs[1]


def _attention_of_primitives(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_options: Any
) -> tuple[Tensor, Tensor]:
    """Attention with softmax as ReduceMax, Sub, Exp, ReduceSum, Div: (batch, sequence, heads, head), weights."""
    scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.shape[-1]) + attention_mask
    powers = torch.exp(scores - torch.amax(scores, -1, keepdim=True))
    weights = powers / torch.sum(powers, -1, keepdim=True)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _bert_base() -> Any:
    return transformers.BertModel(
        transformers.BertConfig(
            vocab_size=30522,
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
            hidden_act="gelu",
            max_position_embeddings=512,
            type_vocab_size=2,
            layer_norm_eps=1e-12,
        )
    )


def tokens(vocab: int, sequence: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Random input_ids, attention_mask of ones and token_type_ids for a batch."""

    def sample(batch: int) -> tuple[Tensor, ...]:
        random = torch.Generator().manual_seed(0)
        shape = (batch, sequence)
        ids = torch.randint(0, vocab, shape, generator=random)
        return ids, torch.ones(shape, dtype=torch.int64), torch.randint(0, 2, shape, generator=random)

    return sample


# --- image classifiers -----------------------------------------------------------------------------------------------


def _resnet_50() -> Any:
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            num_channels=3,
            embedding_size=64,
            hidden_sizes=[256, 512, 1024, 2048],
            depths=[3, 4, 6, 3],
            layer_type="bottleneck",
            hidden_act="relu",
            downsample_in_first_stage=False,
            downsample_in_bottleneck=False,
            id2label=_labels(1000),
        )
    )


def _mobilenet_v2() -> Any:
    return transformers.MobileNetV2ForImageClassification(
        transformers.MobileNetV2Config(
            num_channels=3,
            image_size=224,
            depth_multiplier=1.0,
            depth_divisible_by=8,
            min_depth=8,
            expand_ratio=6.0,
            output_stride=32,
            first_layer_is_expansion=True,
            finegrained_output=True,
            hidden_act="relu6",
            tf_padding=True,
            id2label=_labels(1001),
        )
    )


def _labels(count: int) -> dict[int, str]:
    return {number: str(number) for number in range(count)}


def images(size: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Normal pixel_values for a batch."""

    def sample(batch: int) -> tuple[Tensor, ...]:
        return (torch.randn((batch, 3, size, size), generator=torch.Generator().manual_seed(0)),)

    return sample


ARCHITECTURES: dict[str, Architecture] = {
    "bert-base": Architecture(
        make=_bert_base,
        sample=tokens(30522, 128),
        inputs=("input_ids", "attention_mask", "token_type_ids"),
        outputs=("last_hidden_state", "pooler_output"),
        # Scores of deviation 1: attention neither uniform nor one-hot, and products below 10 before they are scaled.
        # What attention says is mostly the same for all tokens of a sequence: little of it, or they become equal.
        gains=(Gain(r"\.(query|key)$", 1.0), Gain(r"attention\.output\.dense$", 0.3)),
        decomposed_opset=12,
        calibration=4,
        axes=(("batch", 64), ("sequence", 512)),
        trace=_TracedBert,
    ),
    "resnet-50": Architecture(
        make=_resnet_50,
        sample=images(224),
        inputs=("pixel_values",),
        outputs=("logits",),
        # The last BatchNormalization of a block, so that the sums do not grow.
        gains=(Gain(r"layer\.2\.normalization$", 0.6),),
        decomposed_opset=11,
        calibration=8,
    ),
    "mobilenet-v2": Architecture(
        make=_mobilenet_v2,
        sample=images(224),
        inputs=("pixel_values",),
        outputs=("logits",),
        # In front of ReLU6: deviations that reach its upper bound.
        gains=(Gain(r"(first_conv|expand_1x1|conv_3x3|conv_1x1)\.normalization$", 2.2),),
        decomposed_opset=11,
        calibration=8,
    ),
}
