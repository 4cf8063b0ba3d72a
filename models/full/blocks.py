"""DenseNet-121 and MobileNetV3-Large at 224 pixels, as published (the extra `[models]`)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.full.exporting import Architecture, Export, exported, images
from models.full.published import OPSET, Make, conv


def export(name: str, form: Export) -> onnx.ModelProto:
    """The network of this name in one form."""
    model = exported(ARCHITECTURES[name], form)
    model.graph.name = name
    return model


def _before(inputs: int, outputs: int, size: int) -> nn.Module:
    """BatchNormalization, ReLU, convolution."""
    own = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), own)


class DenseLayer(nn.Module):
    """A bottleneck whose channels are joined with those that it reads."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(_before(inputs, 4 * growth, 1), _before(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        """`growth` more channels."""
        return torch.cat((x, self.parts(x)), 1)


class DenseNet(nn.Module):
    """DenseNet: blocks of layers that each read all channels before them; transitions halve channels and extents."""

    def __init__(self, counts: Sequence[int] = (6, 12, 24, 16), growth: int = 32) -> None:
        super().__init__()
        width = 2 * growth
        parts: list[nn.Module] = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
        for number, count in enumerate(counts):
            if number:
                parts += [_before(width, width // 2, 1), nn.AvgPool2d(2)]
                width //= 2
            for _ in range(count):
                parts.append(DenseLayer(width, growth))
                width += growth
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU())
        self.classifier = nn.Linear(width, 1000)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits of images (batch, 3, 224, 224)."""
        result: Tensor = self.classifier(self.features(pixel_values).mean((2, 3)))
        return result


class Excite(nn.Module):
    """Squeeze and excite: channels scaled by what their means say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = -(-(width // 4) // 8) * 8
        self.parts = nn.Sequential(nn.Conv2d(width, inner, 1), nn.ReLU(), nn.Conv2d(inner, width, 1), nn.Hardsigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """x, channel by channel more or less of it."""
        result: Tensor = x * self.parts(F.adaptive_avg_pool2d(x, 1))
        return result


class Inverted(nn.Module):
    """An inverted residual of MobileNetV3: expand, depthwise, perhaps squeeze and excite, project."""

    def __init__(self, inputs: int, size: int, inner: int, outputs: int, excite: bool, act: Make, stride: int) -> None:
        super().__init__()
        parts = [conv(inputs, inner, 1, act=act)] if inner != inputs else []
        parts.append(conv(inner, inner, size, stride, inner, act))
        parts += [Excite(inner)] if excite else []
        self.parts = nn.Sequential(*parts, conv(inner, outputs, 1, act=nn.Identity))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """With the identity beside it where extents and channels stay."""
        made: Tensor = self.parts(x)
        return x + made if self.adds else made


class MobileNetV3(nn.Module):
    """MobileNetV3-Large: table 1 of Howard et al. (2019)."""

    rows = (
        (3, 16, 16, False, nn.ReLU, 1), (3, 64, 24, False, nn.ReLU, 2), (3, 72, 24, False, nn.ReLU, 1),
        (5, 72, 40, True, nn.ReLU, 2), (5, 120, 40, True, nn.ReLU, 1), (5, 120, 40, True, nn.ReLU, 1),
        (3, 240, 80, False, nn.Hardswish, 2), (3, 200, 80, False, nn.Hardswish, 1),
        (3, 184, 80, False, nn.Hardswish, 1), (3, 184, 80, False, nn.Hardswish, 1),
        (3, 480, 112, True, nn.Hardswish, 1), (3, 672, 112, True, nn.Hardswish, 1),
        (5, 672, 160, True, nn.Hardswish, 2), (5, 960, 160, True, nn.Hardswish, 1),
        (5, 960, 160, True, nn.Hardswish, 1),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [conv(3, 16, 3, 2, act=nn.Hardswish)]
        width = 16
        for size, inner, outputs, excite, act, stride in self.rows:
            parts.append(Inverted(width, size, inner, outputs, excite, act, stride))
            width = outputs
        self.features = nn.Sequential(*parts, conv(width, 960, 1, act=nn.Hardswish))
        self.classifier = nn.Sequential(nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits of images (batch, 3, 224, 224)."""
        result: Tensor = self.classifier(F.adaptive_avg_pool2d(self.features(pixel_values), 1).flatten(1))
        return result


def _row(make: Make) -> Architecture:
    return Architecture(make, images(224), ("pixel_values",), ("logits",), (), OPSET, 16)


ARCHITECTURES: dict[str, Architecture] = {"densenet-121": _row(DenseNet), "mobilenet-v3-large": _row(MobileNetV3)}
