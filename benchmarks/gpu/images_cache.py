"""Device code of kernels in a folder, compiled ahead of a run on a machine where every second is the device's.

A file for each text and flags, named by their hash and that of the headers; what is missing is compiled. In it are, as
JSON in the first line, the resources of the functions, and then the code.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from threading import get_ident

from onnxfuse.build.cuda import unspilled
from onnxfuse.build.nvrtc import compiler, headers
from onnxfuse.build.resources import Image, Resources

FOLDER = Path(".cache/gpu-images")


def key(text: str, flags: Sequence[str]) -> str:
    """The name of the image of a translation unit."""
    parts = [text, *flags, *(t for pair in sorted(headers().items()) for t in pair)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def image(text: str, flags: Sequence[str], folder: Path = FOLDER) -> Image:
    """The code of a translation unit as a build has it: from the folder, else compiled and kept there.

    Raises CompileFailed, and ToolchainError where it has to be compiled and there is no compiler.
    """
    name = key(text, flags)
    known = stored(name, folder)
    if known is not None:
        return known
    made = unspilled(text, flags, compiler())
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{name}.{os.getpid()}.{get_ident()}"
    functions = json.dumps([asdict(each) for each in made.functions])
    temporary.write_bytes(lzma.compress(functions.encode() + b"\n" + made.code))
    temporary.replace(folder / name)
    return made


def stored(name: str, folder: Path = FOLDER) -> Image | None:
    """The image of this name, if it is in the folder."""
    path = folder / name
    if not path.exists():
        return None
    functions, _, code = lzma.decompress(path.read_bytes()).partition(b"\n")
    return Image(code, tuple(Resources(**each) for each in json.loads(functions)))
