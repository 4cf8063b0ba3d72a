"""Random weights for a torch module under which every activation is alive: drawn by name, then calibrated in one pass.

The pass goes through the layers in order (as layer-sequential unit-variance initialization does: Mishkin and Matas,
"All you need is a good init", 2016). Each linear layer and convolution is rescaled so that what it says about its input
has the wanted size, and its bias takes away what it says about every input: without that, random transformers make all
tokens equal within a few layers. BatchNormalization takes the statistics of the batch. Measured factors are rounded, so
that the last bits of a sum, which differ between machines, do not change the weights.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mobilebert.modeling_mobilebert import NoNorm
from transformers.pytorch_utils import Conv1D

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LINEAR = (nn.Linear, Conv1D, NoNorm)  # the last axis is the channel; NoNorm is a diagonal matrix


@dataclass(frozen=True, slots=True)
class Gain:
    """The size of the outputs of the modules whose names match `pattern` (default 1).

    For linear layers and convolutions the deviation after calibration, for normalizations the mean of gamma.
    """

    pattern: str
    size: float


def calibrate(module: nn.Module, feed: Sequence[Tensor], gains: Sequence[Gain], seed: int = 0) -> None:
    """Draw all weights of `module`, then size them in one run on `feed`; leaves the module in evaluation mode."""
    for owner, layer in module.named_modules():
        for name, parameter in layer.named_parameters(prefix=owner, recurse=False):
            _draw(layer, name, parameter, seed)
    module.eval()
    hooks = []
    for name, layer in module.named_modules():
        gain = next((gain.size for gain in gains if re.search(gain.pattern, name)), 1.0)
        if isinstance(layer, (*LINEAR, *CONVOLUTIONS)):
            hooks.append(layer.register_forward_hook(_resize(gain)))
        elif isinstance(layer, (nn.LayerNorm, *BATCH_NORMS)):
            layer.weight.data *= gain
        if isinstance(layer, BATCH_NORMS):
            layer.reset_running_stats()
            layer.momentum = None  # the plain average, which of one batch is that batch
            layer.train()
    with torch.no_grad():
        module(*feed)
    for hook in hooks:
        hook.remove()
    for layer in module.modules():
        if isinstance(layer, BATCH_NORMS) and layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.copy_(_rounded(layer.running_mean))
            layer.running_var.copy_(_rounded(layer.running_var))
    module.eval()


def _draw(layer: nn.Module, name: str, parameter: nn.Parameter, seed: int) -> None:
    """Fan-in scaled matrices, gammas around 1, and biases and betas whose mean is not zero."""
    random = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values = torch.randn(parameter.shape, generator=random)
    matrix = isinstance(layer, (*LINEAR, *CONVOLUTIONS))
    if parameter.dim() > 1 and not matrix and (isinstance(layer, nn.Embedding) or "embedding" in name):
        values = 0.6 * values + 0.1
    elif parameter.dim() > 1:
        values = values * parameter[0].numel() ** -0.5
        if isinstance(layer, nn.Linear) and layer.bias is None:
            values = values + 1 / parameter[0].numel()  # the mean that a bias would give
    elif name.endswith("bias"):
        values = 0.15 * values + 0.2
    else:
        values = (0.15 * values + 1.0).clamp(min=0.3)
    parameter.data.copy_(values)


def _resize(gain: float) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    """A hook after a linear layer or convolution that gives its output the deviation `gain` around its bias."""

    def hook(layer: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        channel = 1 if isinstance(layer, CONVOLUTIONS) else output.dim() - 1
        others = [axis for axis in range(output.dim()) if axis != channel]
        mean = output.mean(dim=others, keepdim=True)
        centred = output - mean
        # A convolution without a bias stands in front of a BatchNormalization, which centres it.
        factor = _rounded(gain / centred.square().mean().sqrt())
        weight.data *= factor
        if not isinstance(bias, Tensor):
            return output * factor
        wanted = bias.data.clone()
        bias.data = _rounded(wanted - factor * (mean.flatten() - wanted))
        shape = [-1 if axis == channel else 1 for axis in range(output.dim())]
        return factor * (output - wanted.view(shape)) + bias.data.view(shape)

    return hook


def _rounded(values: Tensor) -> Tensor:
    """`values` to three significant decimal digits."""
    digits = torch.pow(10.0, 2 - torch.floor(torch.log10(values.abs().double().clamp(min=1e-30))))
    return (torch.round(values.double() * digits) / digits).to(values.dtype)
