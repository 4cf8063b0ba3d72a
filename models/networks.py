"""The table of all networks: name, builder, inputs. A new one is a row here and, if full-size, a row of its builder.

Those with many symbolic sizes have a table of their own, `dynamic/networks.py`.
"""

from __future__ import annotations

from typing import Any

from models.dynamic.networks import DYNAMIC
from models.net import Extent
from models.rows import Input, Network


def network(name: str) -> Network:
    """The network of this name; KeyError if there is none."""
    return {row.name: row for row in NETWORKS}[name]


def _tokens(vocab: int, batch: Extent, sequence: Extent, *, types: bool = True) -> tuple[Input, ...]:
    shape = (batch, sequence)
    kinds = (Input("token_type_ids", "ids", shape, 2),) if types else ()
    return (Input("input_ids", "ids", shape, vocab), Input("attention_mask", "mask", shape), *kinds)


def _words(batch: Extent, sequence: Extent, vocab: int = 50257) -> tuple[Input, ...]:
    return _tokens(vocab, batch, sequence, types=False)


def _image(size: int, batch: Extent = 1) -> tuple[Input, ...]:
    return (Input("pixel_values", "image", (batch, 3, size, size)),)


_FULL_EXTENTS = {"batch": 1, "sequence": 128}
_SMALL_EXTENTS = {"batch": 2, "sequence": 24}


_MODULES = {
    "bert": "small.bert", "gpt2": "small.gpt2", "mobilebert": "small.mobilebert",
    "resnet": "small.cnn", "mobilenet_v2": "small.cnn", "convnext": "small.convnext",
    "vit": "small.vit", "swin": "small.swin", "segformer": "small.segformer",
}  # fmt: skip


def _small(
    name: str, what: str, inputs: tuple[Input, ...], function: str, *, traced: bool = True, **arguments: Any
) -> tuple[Network, ...]:
    """A small network in both forms, or in the modern one alone."""
    forms = {"modern": name} | ({"decomposed": f"{name}.decomposed"} if traced else {})
    module = f"models.{_MODULES[function]}"
    return tuple(
        Network(own, what, inputs, module, function, arguments | {"form": form}, _SMALL_EXTENTS)
        for form, own in forms.items()
    )


def _full(
    name: str,
    what: str,
    inputs: tuple[Input, ...],
    symbolic: tuple[Input, ...] = (),
    module: str = "",
    **limits: float,
) -> tuple[Network, ...]:
    """A full-size network in both forms, and with symbols where it has inputs for that."""
    module = module or ("models.full.text" if inputs[0].kind == "ids" else "models.full.image")
    shapes = {"modern": inputs, "decomposed": inputs} | ({"dynamic": symbolic} if symbolic else {})
    names = {"modern": name, "decomposed": f"{name}.decomposed", "dynamic": f"{name}.dynamic"}
    return tuple(
        Network(names[form], what, given, module, "export", {"name": name, "form": form}, _FULL_EXTENTS, **limits)
        for form, given in shapes.items()
    )


def _published(name: str, what: str, *shape: int) -> tuple[Network, ...]:
    """A full-size network that DNNFusion counts, of images or clips."""
    return _full(name, what, (Input("pixel_values", "image", (1, *shape)),), module="models.full.published")


def _regions(name: str, what: str) -> tuple[Network, ...]:
    """A full-size detector of regions, as it was traced: what chooses them has no modern form."""
    made = _full(name, what, _image(512), module="models.full.regions", high=1e6)  # areas in pixels
    return tuple(row for row in made if row.name.endswith(".decomposed"))


_DEMO_BERT = {"layers": 4, "hidden": 384, "heads": 6, "intermediate": 1536, "vocab": 1000, "positions": 128}
_DEMO_MOBILENET = ((6, 24, 2, 2), (6, 32, 2, 2), (6, 64, 3, 2), (6, 96, 2, 1), (6, 160, 2, 2))

NETWORKS: tuple[Network, ...] = (
    *_full("bert-base", "BERT-base, sequence 128", _tokens(30522, 1, 128), _tokens(30522, "batch", "sequence")),
    *_full("gpt2", "GPT-2 (124M), prefill 128", _words(1, 128), _words("batch", "sequence")),
    *_full("mobilebert", "MobileBERT, sequence 128", _tokens(30522, 1, 128), _tokens(30522, "batch", "sequence")),
    *_full("vit-b-16", "ViT-B/16, 224 x 224", _image(224), _image(224, "batch")),
    *_full("swin-t", "Swin-T, 224 x 224", _image(224), _image(224, "batch")),
    *_full("convnext-t", "ConvNeXt-T, 224 x 224", _image(224), _image(224, "batch")),
    *_full("resnet-50", "ResNet-50 v1.5, 224 x 224", _image(224)),
    *_full("mobilenet-v2", "MobileNetV2 1.0, 224 x 224", _image(224)),
    *_full("vgg-16", "VGG-16, 224 x 224", _image(224)),
    *_full("tinybert-4", "TinyBERT of 4 layers, sequence 128", _tokens(30522, 1, 128)),
    *_full("distilbert-base", "DistilBERT, sequence 128", _words(1, 128, 30522)),
    *_full("albert-base", "ALBERT-base v2, sequence 128", _tokens(30000, 1, 128)),
    *_published("efficientnet-b0", "EfficientNet-B0, 224 x 224", 3, 224, 224),
    *_published("regnet-y-400mf", "RegNetY-400MF, 224 x 224", 3, 224, 224),
    *_published("mobilevit-s", "MobileViT-S, 256 x 256", 3, 256, 256),
    *_full("densenet-121", "DenseNet-121, 224 x 224", _image(224), module="models.full.blocks"),
    *_full("mobilenet-v3-large", "MobileNetV3-Large, 224 x 224", _image(224), module="models.full.blocks"),
    *_full("qwen2-4-layers", "Qwen2-0.5B, 4 of its layers, sequence 128", _words(1, 128, 32000)),
    *_published("mobilenet-v1-ssd", "MobileNetV1-SSD, 300 x 300", 3, 300, 300),
    *_published("u-net", "U-Net of five levels, 256 x 256", 3, 256, 256),
    *_published("c3d", "C3D, 16 frames of 112 x 112", 3, 16, 112, 112),
    *_published("s3d", "S3D, 16 frames of 112 x 112", 3, 16, 112, 112),
    *_published("yolo-v4", "YOLOv4, 416 x 416", 3, 416, 416),
    *_full("yolo-v4-boxes", "YOLOv4 with decoded boxes", _image(416), module="models.full.detector", high=1000.0),
    *_regions("faster-r-cnn", "Faster R-CNN over a pyramid of ResNet-50, 512 x 512"),
    *_regions("mask-r-cnn", "Mask R-CNN over a pyramid of ResNet-50, 512 x 512"),
    *_full("segformer-b0", "SegFormer-B0, 256 x 256", _image(256), _image(256, "batch")),
    *_small("tiny-bert", "BERT, 2 layers of 64", _tokens(100, 1, 32), "bert", batch=1, sequence=32),
    *_small("tiny-bert.dynamic", "BERT, 2 layers of 64, symbolic", _tokens(100, "batch", "sequence"), "bert"),
    *_small("tiny-resnet", "ResNet, 2 bottlenecks of 8", _image(32), "resnet"),
    *_small("tiny-resnet.dynamic", "ResNet, 2 bottlenecks, symbolic", _image(32, "batch"), "resnet", batch="batch"),
    *_small("tiny-mobilenet", "MobileNetV2, 3 blocks", _image(32), "mobilenet_v2"),
    *_small("tiny-gpt2", "GPT-2, 2 layers of 64", _words(1, 32, 100), "gpt2", batch=1, sequence=32),
    *_small("tiny-gpt2.dynamic", "GPT-2, 2 layers of 64, symbolic", _words("batch", "sequence", 100), "gpt2"),
    *_small("tiny-mobilebert", "MobileBERT, 2 layers of 64 and 32", _tokens(100, 1, 24), "mobilebert"),
    *_small("tiny-vit", "ViT, 2 layers of 64", _image(32), "vit"),
    *_small("tiny-vit.dynamic", "ViT, symbolic", _image(32, "batch"), "vit", batch="batch", traced=False),
    *_small("tiny-swin", "Swin, windows of 5 in 2 stages", _image(40), "swin"),
    *_small("tiny-swin.dynamic", "Swin, symbolic", _image(40, "batch"), "swin", batch="batch", traced=False),
    *_small("tiny-convnext", "ConvNeXt, 2 stages", _image(36), "convnext"),
    *_small("tiny-convnext.dynamic", "ConvNeXt, symbolic", _image(36, "batch"), "convnext", batch="batch"),
    *_small("tiny-segformer", "SegFormer, 2 stages", _image(64), "segformer"),
    *_small(
        "tiny-segformer.dynamic", "SegFormer, symbolic", _image(64, "batch"), "segformer", batch="batch", traced=False
    ),
    *DYNAMIC,
    *_small("demo-bert", "BERT, 4 layers of 384", _tokens(1000, 1, 128), "bert", batch=1, sequence=128, **_DEMO_BERT),
    *_small("demo-resnet", "ResNet-26", _image(224), "resnet", blocks=(2, 2, 2, 2), width=48, image=224, classes=1000),
    *_small(
        "demo-mobilenet", "MobileNetV2, 12 blocks", _image(224), "mobilenet_v2",
        stages=_DEMO_MOBILENET, stem=32, last=1280, image=224, classes=1000,
    ),
)  # fmt: skip
