"""Device code of kernels in a folder, compiled ahead of a run on a machine where every second is the device's.

An entry for each text and flags, named by their hash and that of the headers; what is missing is compiled, as a build
does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxfuse.build import nvrtc
from onnxfuse.build.cache import Cache, key_of
from onnxfuse.build.cuda import image_in, keep_image, unspilled
from onnxfuse.build.resources import Image

FOLDER = Path(".cache/gpu-images")


def key(text: str, flags: Sequence[str]) -> str:
    """The name of the image of a translation unit."""
    headers = (t for pair in sorted(nvrtc.headers().items()) for t in pair)
    return key_of("image", text, *flags, *nvrtc.OPTIONS, *headers)


def image(text: str, flags: Sequence[str], folder: Path | None = FOLDER) -> Image:
    """The code of a translation unit: from the folder, else compiled and kept there, if there is one.

    Raises CompileFailed, and ToolchainError where it has to be compiled and there is no compiler.
    """
    name = key(text, flags)
    known = stored(name, folder)
    if known is not None:
        return known
    made = unspilled(text, flags, nvrtc.compiler())
    keep_image(_cache(folder), name, made)
    return made


def stored(name: str, folder: Path | None = FOLDER) -> Image | None:
    """The image of this name, if it is in the folder."""
    return image_in(_cache(folder), name)


def _cache(folder: Path | None) -> Cache | None:
    return Cache(folder) if folder is not None else None
