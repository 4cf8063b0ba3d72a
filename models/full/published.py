"""Networks that DNNFusion's table 5 counts and that `text` and `image` do not have (the extra `[models]`).

Sizes are those of the papers: EfficientNet-B0 and MobileNetV1-SSD at 224 and 300 pixels, U-Net of five levels, C3D and
S3D of 16 frames of 112 pixels, YOLOv4 at 416 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import onnx
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from models.full.exporting import Architecture, Export, exported, plain

OPSET = 12  # of the decomposed forms
Make = Callable[[], nn.Module]


def export(name: str, form: Export) -> onnx.ModelProto:
    """The network of this name in one form."""
    model = exported(ARCHITECTURES[name], form)
    model.graph.name = name
    return model


def _efficientnet_b0() -> nn.Module:
    config = transformers.EfficientNetConfig(
        num_channels=3,
        image_size=224,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        hidden_act="swish",
        id2label={number: str(number) for number in range(1000)},
    )
    return plain(transformers.EfficientNetForImageClassification(config))


def _regnet_y_400mf() -> nn.Module:
    config = transformers.RegNetConfig(
        num_channels=3,
        embedding_size=32,
        hidden_sizes=[48, 104, 208, 440],
        depths=[1, 3, 6, 6],
        groups_width=8,
        layer_type="y",
        hidden_act="relu",
        id2label={number: str(number) for number in range(1000)},
    )
    return plain(transformers.RegNetForImageClassification(config))


def _mobilevit_s() -> nn.Module:
    config = transformers.MobileViTConfig(
        num_channels=3,
        image_size=256,
        patch_size=2,
        hidden_sizes=[144, 192, 240],
        neck_hidden_sizes=[16, 32, 64, 96, 128, 160, 640],
        hidden_act="silu",
        id2label={number: str(number) for number in range(1000)},
    )
    return plain(transformers.MobileViTForImageClassification(config))


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, act: Make = nn.ReLU) -> nn.Module:
    """Conv, BatchNormalization, activation."""
    own = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(own, nn.BatchNorm2d(outputs), act())


class MobileNetSsd(nn.Module):
    """MobileNetV1 at 300 x 300 with the extra layers and the six pairs of heads of SSD; 91 classes."""

    boxes = (3, 6, 6, 6, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
        self.stem = conv(3, 32, 3, 2, act=nn.ReLU6)
        blocks, width = [], 32
        for channels, stride in plan:
            depthwise = conv(width, width, 3, stride, width, nn.ReLU6)
            blocks.append(nn.Sequential(depthwise, conv(width, channels, 1, act=nn.ReLU6)))
            width = channels
        self.blocks = nn.ModuleList(blocks)
        extras = ((1024, 256, 512), (512, 128, 256), (256, 128, 256), (256, 64, 128))
        self.extras = nn.ModuleList(
            nn.Sequential(conv(a, b, 1, act=nn.ReLU6), conv(b, c, 3, 2, act=nn.ReLU6)) for a, b, c in extras
        )
        widths = (512, 1024, 512, 256, 256, 128)
        self.places = nn.ModuleList(nn.Conv2d(w, b * 4, 1) for w, b in zip(widths, self.boxes, strict=True))
        self.classes = nn.ModuleList(nn.Conv2d(w, b * 91, 1) for w, b in zip(widths, self.boxes, strict=True))

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """Places of all boxes, and the probabilities of their classes."""
        x, seen = self.stem(pixel_values), []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in (10, 12):
                seen.append(x)
        for extra in self.extras:
            x = extra(x)
            seen.append(x)

        def joined(heads: Sequence[Any], width: int) -> Tensor:
            parts = [h(v).permute(0, 2, 3, 1).reshape(v.shape[0], -1, width) for h, v in zip(heads, seen, strict=True)]
            return torch.cat(parts, 1)

        return joined(self.places, 4), torch.sigmoid(joined(self.classes, 91))


class UNet(nn.Module):
    """U-Net with BatchNormalization and bilinear enlargement: levels of 64 to 1024 channels, two classes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = [width << k for k in range(5)]
        self.first = self.double(3, width)
        self.down = nn.ModuleList(self.double(a, b) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(self.double(a + b, b) for a, b in zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def double(inputs: int, outputs: int) -> nn.Module:
        """Two convolutions of 3 x 3."""
        return nn.Sequential(conv(inputs, outputs), conv(outputs, outputs))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits of each pixel."""
        x = self.first(pixel_values)
        seen = [x]
        for down in self.down:
            x = down(F.max_pool2d(x, 2))
            seen.append(x)
        for up, beside in zip(self.up, seen[-2::-1], strict=True):
            x = up(torch.cat((beside, F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)), 1))
        result: Tensor = self.last(x)
        return result


class C3d(nn.Module):
    """C3D: eight convolutions of 3 x 3 x 3, five pools, three products; 487 classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for number, widths in enumerate(((64,), (128,), (256, 256), (512, 512), (512, 512))):
            for w in widths:
                layers += [nn.Conv3d(width, w, 3, padding=1), nn.ReLU()]
                width = w
            size = (1, 2, 2) if number == 0 else (2, 2, 2)
            layers.append(nn.MaxPool3d(size, size, padding=(0, 1, 1) if number == 4 else 0))
        self.features = nn.Sequential(*layers)
        parts = (nn.Linear(8192, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 487))
        self.classifier = nn.Sequential(*parts)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits of clips (batch, 3, 16, 112, 112)."""
        result: Tensor = self.classifier(self.features(pixel_values).flatten(1))
        return result


class Separable3d(nn.Module):
    """A convolution in space and one in time, each with BatchNormalization and ReLU."""

    def __init__(self, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> None:
        super().__init__()
        half = size // 2
        space = nn.Conv3d(inputs, outputs, (1, size, size), (1, stride, stride), (0, half, half), bias=False)
        time = nn.Conv3d(outputs, outputs, (size, 1, 1), (stride, 1, 1), (half, 0, 0), bias=False)
        parts = (space, nn.BatchNorm3d(outputs), nn.ReLU(), time, nn.BatchNorm3d(outputs), nn.ReLU())
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        """Space first, then time."""
        result: Tensor = self.parts(x)
        return result


def _single3d(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv3d(inputs, outputs, 1, bias=False), nn.BatchNorm3d(outputs), nn.ReLU())


class Mixed(nn.Module):
    """An Inception block of separable convolutions: four branches, joined."""

    def __init__(self, inputs: int, w: Sequence[int]) -> None:
        super().__init__()
        self.one = _single3d(inputs, w[0])
        self.two = nn.Sequential(_single3d(inputs, w[1]), Separable3d(w[1], w[2]))
        self.three = nn.Sequential(_single3d(inputs, w[3]), Separable3d(w[3], w[4]))
        self.four = nn.Sequential(nn.MaxPool3d(3, 1, 1), _single3d(inputs, w[5]))

    def forward(self, x: Tensor) -> Tensor:
        """The channels of all branches."""
        return torch.cat((self.one(x), self.two(x), self.three(x), self.four(x)), 1)


class S3d(nn.Module):
    """S3D without gates: separable convolutions and nine Inception blocks; 400 classes."""

    widths = (
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        pool = (1, 3, 3), (1, 2, 2), (0, 1, 1)
        layers = [Separable3d(3, 64, 7, 2), nn.MaxPool3d(*pool), _single3d(64, 64), Separable3d(64, 192)]
        layers.append(nn.MaxPool3d(*pool))
        width = 192
        for number, w in enumerate(self.widths):
            if number == 2:
                layers.append(nn.MaxPool3d(3, 2, 1))
            if number == 7:
                layers.append(nn.MaxPool3d(2, 2))
            layers.append(Mixed(width, w))
            width = w[0] + w[2] + w[4] + w[5]
        self.features = nn.Sequential(*layers)
        self.last = nn.Conv3d(1024, 400, 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits of clips (batch, 3, 16, 112, 112)."""
        result: Tensor = self.last(self.features(pixel_values).mean((2, 3, 4), keepdim=True)).flatten(1)
        return result


class Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(conv(width, inner, 1, act=nn.Mish), conv(inner, width, 3, act=nn.Mish))

    def forward(self, x: Tensor) -> Tensor:
        """x and what the convolutions add to it."""
        result: Tensor = x + self.parts(x)
        return result


class CrossStage(nn.Module):
    """A stage of CSPDarknet53: one half of the channels goes through residual blocks, then both are joined."""

    def __init__(self, inputs: int, outputs: int, count: int) -> None:
        super().__init__()
        half = outputs if count == 1 else outputs // 2
        self.down = conv(inputs, outputs, 3, 2, act=nn.Mish)
        self.aside, self.into = conv(outputs, half, 1, act=nn.Mish), conv(outputs, half, 1, act=nn.Mish)
        inner = inputs if count == 1 else half
        self.blocks = nn.Sequential(*(Residual(half, inner) for _ in range(count)), conv(half, half, 1, act=nn.Mish))
        self.out = conv(2 * half, outputs, 1, act=nn.Mish)

    def forward(self, x: Tensor) -> Tensor:
        """Half the extents, more channels."""
        x = self.down(x)
        result: Tensor = self.out(torch.cat((self.blocks(self.into(x)), self.aside(x)), 1))
        return result


def _leaky() -> nn.Module:
    return nn.LeakyReLU(0.1)


def _five(inputs: int, width: int) -> nn.Module:
    """Convolutions of one and three by turns, five of them."""
    shapes = (
        (inputs, width, 1),
        (width, 2 * width, 3),
        (2 * width, width, 1),
        (width, 2 * width, 3),
        (2 * width, width, 1),
    )
    return nn.Sequential(*(conv(a, b, size, act=_leaky) for a, b, size in shapes))


class YoloV4(nn.Module):
    """YOLOv4: CSPDarknet53 with Mish, spatial pyramid pooling, paths down and up, three heads of 255 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 32, act=nn.Mish)
        stages = ((32, 64, 1), (64, 128, 2), (128, 256, 8), (256, 512, 8), (512, 1024, 4))
        self.stages = nn.ModuleList(CrossStage(*s) for s in stages)
        three = [conv(a, b, s, act=_leaky) for a, b, s in ((1024, 512, 1), (512, 1024, 3), (1024, 512, 1))]
        self.before = nn.Sequential(*three)
        after = [conv(a, b, s, act=_leaky) for a, b, s in ((2048, 512, 1), (512, 1024, 3), (1024, 512, 1))]
        self.after = nn.Sequential(*after)
        self.up = nn.ModuleList((conv(512, 256, 1, act=_leaky), conv(256, 128, 1, act=_leaky)))
        self.side = nn.ModuleList((conv(512, 256, 1, act=_leaky), conv(256, 128, 1, act=_leaky)))
        self.merged = nn.ModuleList((_five(512, 256), _five(256, 128)))
        self.down = nn.ModuleList((conv(128, 256, 3, 2, act=_leaky), conv(256, 512, 3, 2, act=_leaky)))
        self.joined = nn.ModuleList((_five(512, 256), _five(1024, 512)))
        self.heads = nn.ModuleList(
            nn.Sequential(conv(w, 2 * w, act=_leaky), nn.Conv2d(2 * w, 255, 1)) for w in (128, 256, 512)
        )

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """The maps of the three heads, from the finest to the coarsest."""
        x, seen = self.stem(pixel_values), []
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        x = self.before(x)
        top = self.after(torch.cat((*(F.max_pool2d(x, k, 1, k // 2) for k in (13, 9, 5)), x), 1))
        levels = [top]
        for up, side, merged, beside in zip(self.up, self.side, self.merged, (seen[3], seen[2]), strict=True):
            wide = F.interpolate(up(levels[-1]), scale_factor=2.0, mode="nearest")
            levels.append(merged(torch.cat((side(beside), wide), 1)))
        found = [levels[2]]
        for down, joined, beside in zip(self.down, self.joined, (levels[1], levels[0]), strict=True):
            found.append(joined(torch.cat((down(found[-1]), beside), 1)))
        return tuple(head(v) for head, v in zip(self.heads, found, strict=True))


def _random(*shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Normal inputs of this shape, for a batch."""

    def sample(batch: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch)),)

    return sample


def _row(make: Make, shape: tuple[int, ...], *outputs: str, calibration: int = 2) -> Architecture:
    given = outputs or ("logits",)
    return Architecture(make, _random(*shape), ("pixel_values",), given, (), OPSET, calibration)


ARCHITECTURES: dict[str, Architecture] = {
    "efficientnet-b0": _row(_efficientnet_b0, (3, 224, 224), calibration=16),
    "regnet-y-400mf": _row(_regnet_y_400mf, (3, 224, 224), calibration=16),
    "mobilevit-s": _row(_mobilevit_s, (3, 256, 256), calibration=4),
    "mobilenet-v1-ssd": _row(MobileNetSsd, (3, 300, 300), "boxes", "scores"),
    "u-net": _row(UNet, (3, 256, 256)),
    "c3d": _row(C3d, (3, 16, 112, 112)),
    "s3d": _row(S3d, (3, 16, 112, 112)),
    "yolo-v4": _row(YoloV4, (3, 416, 416), "fine", "middle", "coarse"),
}
