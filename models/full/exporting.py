"""Networks exported by torch in three forms (the extra `[models]`): `text.py` and `image.py` say which."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import onnx
import torch
import transformers
from torch import Tensor, nn

from models.full.weights import Gain, calibrate

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
    trace: Callable[[Any], nn.Module] = lambda module: module


def exported(row: Architecture, form: Export) -> onnx.ModelProto:
    """The network of this row in one form; all forms of a network have the same weights.

    `modern` and `dynamic` come from torch.export and onnxscript, `decomposed` from tracing with BatchNormalization
    kept, at an opset that has neither LayerNormalization nor Gelu.
    """
    module = row.make().eval()
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


def plain(module: Any) -> Any:
    """`module`, saying tensors rather than a record of them."""
    module.config.return_dict = False
    return module


# --- inputs ----------------------------------------------------------------------------------------------------------


def tokens(vocab: int, sequence: int, *, types: bool = True) -> Callable[[int], tuple[Tensor, ...]]:
    """Random input_ids, attention_mask of ones and, with `types`, token_type_ids for a batch."""

    def sample(batch: int) -> tuple[Tensor, ...]:
        random = torch.Generator().manual_seed(0)
        shape = (batch, sequence)
        ids = torch.randint(0, vocab, shape, generator=random)
        kinds = (torch.randint(0, 2, shape, generator=random),) if types else ()
        return ids, torch.ones(shape, dtype=torch.int64), *kinds

    return sample


def images(size: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Normal pixel_values for a batch."""

    def sample(batch: int) -> tuple[Tensor, ...]:
        return (torch.randn((batch, 3, size, size), generator=torch.Generator().manual_seed(0)),)

    return sample


# --- attention as it was traced before 2023 --------------------------------------------------------------------------


def primitive(module: Any) -> nn.Module:
    """`module` with attention of primitive operators."""
    transformers.AttentionInterface.register("primitives", _attention)
    module.set_attn_implementation("primitives")
    return module  # type: ignore[no-any-return]  # transformers has no types


def causal(module: Any) -> nn.Module:
    """`module` with attention of primitive operators, and of each place to those before it alone."""
    transformers.AttentionInterface.register("causal primitives", _causal_attention)
    module.set_attn_implementation("causal primitives")
    return module  # type: ignore[no-any-return]  # transformers has no types


class Masked(nn.Module):
    """A transformer of tokens that is given an additive mask of -10000."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """The outputs that are tensors."""
        mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * -10000.0
        given = dict(zip(self.names, (input_ids, mask, *others), strict=True))
        outputs = self.model(**given)
        return tuple(value for value in outputs[:2] if isinstance(value, Tensor))


def _attention(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_options: Any
) -> tuple[Tensor, Tensor]:
    """Attention with softmax as ReduceMax, Sub, Exp, ReduceSum, Div: (batch, sequence, heads, head), weights."""
    scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.shape[-1])
    return _weighted(scores, value, attention_mask)


def _causal_attention(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_options: Any
) -> tuple[Tensor, Tensor]:
    """The same with a triangle of the longest sequence, sliced to this one, and Where."""
    scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.shape[-1])
    triangle = torch.tril(torch.ones((1024, 1024), dtype=torch.bool)).view(1, 1, 1024, 1024)
    rows, columns = query.shape[-2], key.shape[-2]
    seen = triangle[:, :, columns - rows : columns, :columns]
    return _weighted(torch.where(seen, scores, torch.tensor(-10000.0)), value, attention_mask)


def _weighted(scores: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    if mask is not None:
        scores = scores + mask
    powers = torch.exp(scores - torch.amax(scores, -1, keepdim=True))
    weights = powers / torch.sum(powers, -1, keepdim=True)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights
