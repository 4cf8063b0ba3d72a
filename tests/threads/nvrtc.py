"""NVIDIA's compiler as a library (the package nvidia-cuda-nvrtc), which needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path


def libraries() -> list[Path]:
    """The compiler and what it needs, that one first; none where the package is not installed."""
    for folder in map(Path, sys.path):
        for found in folder.glob("nvidia/*/lib/libnvrtc.so.*"):
            return [*found.parent.glob("libnvrtc-builtins.so.*"), found]
    return []


@cache
def _loaded() -> ctypes.CDLL:
    *first, last = libraries()
    for path in first:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(last))


def compiled(text: str, architecture: str) -> str:
    """The PTX of a translation unit; an error has the compiler's words."""
    lib, program, size = _loaded(), ctypes.c_void_p(), ctypes.c_size_t()
    assert lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    options = [f"--gpu-architecture=compute_{architecture}", "--std=c++17"]
    given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    failed = lib.nvrtcCompileProgram(program, len(options), given)
    what = "ProgramLog" if failed else "PTX"
    assert getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    made = ctypes.create_string_buffer(size.value)
    assert getattr(lib, f"nvrtcGet{what}")(program, made) == 0
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(made.value.decode())
    return made.value.decode()
