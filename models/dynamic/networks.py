"""The networks with mostly symbolic sizes: rows, and the sizes at which each is tested and timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from models.dynamic.ocr import BATCH, DETECTOR, HEIGHT, RECOGNIZER, TEXT_HEIGHT, WIDTH
from models.net import UNNAMED, Extent
from models.rows import Input, Network

Sizes: TypeAlias = Mapping[str, int]

_CHANNELS = 3


def _pixels(name: str, *shape: Extent) -> Input:
    return Input(name, "image", shape)


def _text(vocab: int) -> tuple[Input, ...]:
    shape = ("batch", "sequence")
    return Input("input_ids", "ids", shape, vocab), Input("attention_mask", "mask", shape)


def _typed(vocab: int) -> tuple[Input, ...]:
    return (*_text(vocab), Input("token_type_ids", "ids", ("batch", "sequence"), 2))


def _cached(vocab: int, layers: int, kept: int, head: int) -> tuple[Input, ...]:
    """Inputs of a decoder with a cache."""
    past = ("batch", kept, "past", head)
    kinds = [f"past_key_values.{number}.{kind}" for number in range(layers) for kind in ("key", "value")]
    return (
        Input("input_ids", "ids", ("batch", "sequence"), vocab),
        Input("attention_mask", "mask", ("batch", "past + sequence")),
        Input("position_ids", "places", ("batch", "sequence")),
        *(Input(name, "image", past) for name in kinds),
    )


def _spoken(hidden: int, rate: int = 16000) -> tuple[Input, ...]:
    wave, state = ("batch", "samples"), (2, "batch", hidden)
    return Input("input", "image", wave), Input("state", "image", state), Input("sr", "number", (), rate)


def _tagged(words: int, characters: int) -> tuple[Input, ...]:
    return (
        Input("words", "ids", ("batch", "length"), words),
        Input("characters", "ids", ("batch", "length", "letters"), characters),
    )


def _boxes(batch: str, height: str, width: str, *sizes: tuple[int, int, int]) -> tuple[Sizes, ...]:
    """Sizes of images."""
    return tuple({batch: n, height: h, width: w} for n, h, w in sizes)


def _each(names: tuple[str, ...], *sizes: tuple[int, ...], **known: int) -> tuple[Sizes, ...]:
    return tuple({**dict(zip(names, each, strict=True)), **known} for each in sizes)


_OCR = _pixels("x", BATCH, _CHANNELS, HEIGHT, WIDTH)
_LINE = _pixels("x", BATCH, _CHANNELS, UNNAMED, HEIGHT)  # the second name is of the width here
_PHOTO = _pixels("images", "batch", _CHANNELS, "height", "width")
_COLUMNS = _pixels("x", "batch", 1, 32, "width")
_TALL = {UNNAMED: TEXT_HEIGHT}
_WORDS = ("batch", "sequence")
_SPELLED = ("batch", "length", "letters")
_WAVE = ("batch", "samples")

# By network: where it is built small, what it is tried at (1, 2 and primes among them; some of these the original
# refuses, and so must what is made of it), and at full size, what it is timed at; the first of each is the usual one.
_IMAGES = ((1, 64, 96), (2, 32, 32), (3, 96, 160), (1, 1, 1), (2, 2, 64), (1, 61, 37))
SMALL_SIZES: dict[str, tuple[Sizes, ...]] = {
    "ocr-detector": _boxes(BATCH, HEIGHT, WIDTH, *_IMAGES),
    "ocr-detector-sized": _boxes(BATCH, HEIGHT, WIDTH, *_IMAGES[:-1], (2, 61, 37)),
    "ocr-recognizer": _each((BATCH, HEIGHT), (1, 96), (2, 16), (1, 17), (3, 61), (7, 320), (1, 1), **_TALL),
    "crnn": _each(("batch", "width"), (1, 100), (2, 4), (1, 7), (3, 61), (5, 32), (1, 1)),
    "yolov8": _boxes("batch", "height", "width", *_IMAGES),
    "voice-activity": _each(
        (*_WAVE, "sr"), (1, 512, 16000), (2, 160, 8000), (3, 499, 16000), (1, 64, 8000), (7, 1024, 8000), (1, 1, 16000)
    ),
    "pyramid": _boxes(
        "batch", "height", "width", (1, 64, 80), (2, 61, 37), (1, 1, 1), (3, 16, 2), (1, 7, 97), (2, 32, 32)
    ),
    "spectrogram": _each(_WAVE, (1, 1600), (2, 64), (3, 997), (1, 84), (2, 640), (1, 1)),
    "tagger": _each(_SPELLED, (1, 12, 7), (2, 1, 1), (3, 17, 2), (1, 2, 13), (7, 5, 3), (1, 1, 16)),
    "sentences": _each(_WORDS, (1, 16), (2, 1), (3, 17), (1, 2), (8, 31), (1, 64)),
    "distilbert": _each(_WORDS, (1, 16), (2, 1), (3, 17), (1, 2), (8, 31), (1, 64)),
    "t5-encoder": _each(_WORDS, (1, 16), (2, 1), (3, 17), (1, 2), (4, 61), (1, 128)),
    "llama": _each(("batch", "past", "sequence"), (1, 15, 1), (1, 0, 16), (2, 7, 5), (1, 1, 1), (3, 13, 2), (2, 0, 1)),
}
FULL_SIZES: dict[str, tuple[Sizes, ...]] = {
    "ocr-detector": _boxes(BATCH, HEIGHT, WIDTH, (1, 736, 736), (1, 480, 640), (1, 960, 544)),
    "ocr-detector-sized": _boxes(BATCH, HEIGHT, WIDTH, (1, 736, 736), (1, 480, 640), (1, 333, 500)),
    "ocr-recognizer": _each((BATCH, HEIGHT), (1, 320), (6, 320), (1, 800), **_TALL),
    "crnn": _each(("batch", "width"), (1, 100), (8, 100), (1, 320)),
    "yolov8": _boxes("batch", "height", "width", (1, 640, 640), (1, 320, 320), (4, 384, 640)),
    "voice-activity": _each(_WAVE, (1, 1536), (1, 16000), (16, 4096)),
    "pyramid": _boxes("batch", "height", "width", (1, 256, 256), (1, 333, 500), (4, 128, 160)),
    "spectrogram": _each(_WAVE, (1, 16000), (1, 160000), (8, 48000)),
    "tagger": _each(_SPELLED, (1, 20, 12), (32, 20, 12), (1, 100, 16)),
    "sentences": _each(_WORDS, (1, 128), (1, 16), (8, 64)),
    "distilbert": _each(_WORDS, (1, 128), (1, 16), (8, 64)),
    "t5-encoder": _each(_WORDS, (1, 128), (1, 16), (8, 64)),
    "llama": _each(("batch", "past", "sequence"), (1, 0, 128), (1, 127, 1), (4, 500, 1)),
}

_BERT = {"layers": 6, "hidden": 384, "heads": 12, "intermediate": 1536, "vocab": 30522, "positions": 512}
_DISTILBERT = {"layers": 6, "hidden": 768, "heads": 12, "intermediate": 3072, "vocab": 30522, "positions": 512}
_T5 = {"layers": 6, "hidden": 512, "heads": 8, "intermediate": 2048, "vocab": 32128}
_LLAMA = {"layers": 8, "hidden": 512, "heads": 8, "kept": 4, "intermediate": 1376, "vocab": 32000}
_DETECTOR = {"blocks": DETECTOR, "first": 16, "inner": 96, "image": 160}
_RECOGNIZER = {"blocks": RECOGNIZER, "first": 16, "inner": 120, "heads": 8, "classes": 6625}
_CRNN = {"widths": (64, 128, 256, 512), "hidden": 256, "classes": 97}
_YOLOV8N = {"widths": (16, 32, 64, 128, 256), "depths": (1, 2, 2, 1), "classes": 80, "box": 64, "image": 160}
_VOICE = {"window": 256, "widths": (128, 64, 64, 128), "hidden": 128}
_PYRAMID = {"widths": (32, 64, 128, 256), "inner": 64, "depth": 2}
_SPECTROGRAM = {"window": 512, "hop": 160, "bands": 80, "widths": (256, 256)}
_TAGGER = {"words": 20000, "characters": 100, "width": 100, "letters": 30, "filters": 50, "hidden": 200, "tags": 17}


def _rows(
    name: str, what: str, function: str, inputs: tuple[tuple[Input, ...], ...], full: Mapping[str, Any],
    high: float = 10.0, **same: Any,
) -> tuple[Network, ...]:  # fmt: skip
    """A network small and at full size; one tuple of inputs serves both."""
    module, _, own = function.rpartition(".")
    extents = (SMALL_SIZES[name][0], FULL_SIZES[name][0])
    sizes = (("tiny-", inputs[0], extents[0], {}), ("", inputs[-1], extents[1], full))
    return tuple(
        Network(
            f"{prefix}{name}.dynamic", what, given, f"models.dynamic.{module}", own, {**arguments, **same}, known, high
        )
        for prefix, given, known, arguments in sizes
    )


DYNAMIC: tuple[Network, ...] = (
    *_rows("ocr-detector", "text detector, levels enlarged by factors", "ocr.detector", ((_OCR,),), _DETECTOR),
    *_rows(
        "ocr-detector-sized", "text detector, levels enlarged to sizes", "ocr.detector", ((_OCR,),), _DETECTOR,
        enlarge="sizes",
    ),
    *_rows("ocr-recognizer", "text recognizer, SVTR", "ocr.recognizer", ((_LINE,),), _RECOGNIZER),
    *_rows("crnn", "text recognizer, CNN and BiLSTM", "ocr.crnn", ((_COLUMNS,),), _CRNN),
    *_rows("yolov8", "YOLOv8n with decoded boxes", "yolo.yolov8", ((_PHOTO,),), _YOLOV8N, 1000.0),
    *_rows(
        "voice-activity", "voice activity, If and LSTM", "audio.voice_activity", (_spoken(16), _spoken(128)),
        _VOICE,
    ),
    *_rows(
        "pyramid", "feature pyramid, channels last", "pyramid.pyramid",
        ((_pixels("image", "batch", "height", "width", _CHANNELS),),), _PYRAMID,
    ),
    *_rows(
        "spectrogram", "features of speech", "audio.spectrogram", ((_pixels("waveform", *_WAVE),),),
        _SPECTROGRAM,
    ),
    *_rows(
        "tagger", "BiLSTM tagger, characters by CNN", "text.tagger", (_tagged(80, 40), _tagged(20000, 100)),
        _TAGGER,
    ),
    *_rows("sentences", "MiniLM in dynamic int8", "text.sentences", (_typed(100), _typed(30522)), _BERT, 20.0),
    *_rows("distilbert", "DistilBERT", "text.distilbert", (_text(100), _text(30522)), _DISTILBERT),
    *_rows("t5-encoder", "T5-small's encoder", "text.t5_encoder", (_text(100), _text(32128)), _T5),
    *_rows(
        "llama", "LLaMA with a cache", "llama.llama", (_cached(100, 2, 2, 16), _cached(32000, 8, 4, 64)),
        _LLAMA, 100.0,
    ),
)  # fmt: skip
