"""Full-size networks of images from the public architectures in transformers (the extra `[models]`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import transformers
from torch import Tensor, nn

from models.full.exporting import Architecture, Export, exported, images, plain, primitive
from models.full.weights import Gain

AXES = (("batch", 64),)


def export(name: str, form: Export) -> onnx.ModelProto:
    """The network of this name in one form."""
    model = exported(ARCHITECTURES[name], form)
    model.graph.name = name
    return model


def _labels(count: int) -> dict[int, str]:
    return {number: str(number) for number in range(count)}


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


class Vgg16(nn.Module):
    """VGG-16: thirteen convolutions of 3 x 3, five pools, three products."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for count, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        products = (nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))
        self.classifier = nn.Sequential(*products)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits of a batch of images."""
        result: Tensor = self.classifier(self.features(pixel_values).flatten(1))
        return result


def _vit_b_16() -> Any:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
            hidden_act="gelu",
            layer_norm_eps=1e-12,
            image_size=224,
            patch_size=16,
            num_channels=3,
            qkv_bias=True,
            id2label=_labels(1000),
        )
    )


def _swin_t() -> Any:
    swin = transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=224,
            patch_size=4,
            num_channels=3,
            embed_dim=96,
            depths=[2, 2, 6, 2],
            num_heads=[3, 6, 12, 24],
            window_size=7,
            mlp_ratio=4.0,
            qkv_bias=True,
            hidden_act="gelu",
            layer_norm_eps=1e-5,
            id2label=_labels(1000),
        )
    )
    swin.set_attn_implementation("eager")  # torch cannot export its other one here: it views what is not contiguous
    return swin


def _convnext_t() -> Any:
    return transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(
            num_channels=3,
            patch_size=4,
            num_stages=4,
            hidden_sizes=[96, 192, 384, 768],
            depths=[3, 3, 9, 3],
            hidden_act="gelu",
            layer_norm_eps=1e-12,
            layer_scale_init_value=1e-6,
            image_size=224,
            id2label=_labels(1000),
        )
    )


def _segformer_b0() -> Any:
    return transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(
            num_channels=3,
            num_encoder_blocks=4,
            depths=[2, 2, 2, 2],
            sr_ratios=[8, 4, 2, 1],
            hidden_sizes=[32, 64, 160, 256],
            patch_sizes=[7, 3, 3, 3],
            strides=[4, 2, 2, 2],
            num_attention_heads=[1, 2, 5, 8],
            mlp_ratios=[4, 4, 4, 4],
            hidden_act="gelu",
            layer_norm_eps=1e-6,
            decoder_hidden_size=256,
            id2label=_labels(150),
        )
    )


# What attention says is mostly the same for all places: little of it, or they become equal.
BLOCKS = (Gain(r"attention\.o_proj$", 0.3), Gain(r"mlp\.fc2$", 0.4))


class Logits(nn.Module):
    """A network that says one tensor: pixel_values to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits of a batch of images."""
        result: Tensor = self.model(pixel_values).logits
        return result


def _of_primitives(module: Any) -> nn.Module:
    primitive(module.model)
    return module  # type: ignore[no-any-return]  # transformers has no types


def _images(make: Callable[[], Any], size: int, *gains: Gain, opset: int = 12, **how: Any) -> Architecture:
    return Architecture(make, images(size), ("pixel_values",), ("logits",), gains, opset, 8, AXES, **how)


ARCHITECTURES: dict[str, Architecture] = {
    # The last BatchNormalization of a block, so that the sums do not grow.
    "resnet-50": _images(lambda: plain(_resnet_50()), 224, Gain(r"layer\.2\.normalization$", 0.6), opset=11),
    # In front of ReLU6: deviations that reach its upper bound.
    "mobilenet-v2": _images(
        lambda: plain(_mobilenet_v2()),
        224,
        Gain(r"(first_conv|expand_1x1|conv_3x3|conv_1x1)\.normalization$", 2.2),
        opset=11,
    ),
    "vgg-16": _images(Vgg16, 224),
    "vit-b-16": _images(lambda: Logits(_vit_b_16()), 224, *BLOCKS, trace=_of_primitives),
    "swin-t": _images(lambda: Logits(_swin_t()), 224, *BLOCKS, trace=_of_primitives),
    "convnext-t": _images(lambda: Logits(_convnext_t()), 224, Gain(r"pwconv2$", 0.5)),
    "segformer-b0": _images(lambda: Logits(_segformer_b0()), 256, *BLOCKS, trace=_of_primitives),
}
