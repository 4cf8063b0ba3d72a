"""NVIDIA's run-time compiler NVRTC (the package nvidia-cuda-nvrtc), which needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from onnxfuse.build import SUPPORT
from onnxfuse.build.resources import CompileFailed, DeviceCompiler, Image, is_ptx, resources
from onnxfuse.errors import ToolchainError

OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--device-as-default-execution-space")
_INSTALL = "pip install 'onnxfuse[cuda]' installs it"


def libraries() -> list[Path]:
    """The shared libraries of NVRTC in load order, itself last; empty if the package is not installed."""
    for folder in map(Path, sys.path):
        for found in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*")):
            if "alt" not in found.name:
                return [*sorted(found.parent.glob("libnvrtc-builtins.so.*")), found]
    return []


@cache
def _loaded() -> ctypes.CDLL:
    found = libraries()
    if not found:
        raise ToolchainError("build: NVIDIA's compiler (NVRTC) is not installed", hint=_INSTALL)
    for path in found[:-1]:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(found[-1]))


def version() -> str:
    """The version of the compiler. Raises ToolchainError if it is not installed."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert _loaded().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return f"nvrtc {major.value}.{minor.value}"


def headers() -> dict[str, str]:
    """The headers that kernels may include, by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SUPPORT.glob("cuda.h"))}


def compiler() -> DeviceCompiler:
    """NVRTC as a device compiler. Raises ToolchainError if it is not installed."""
    title = version()
    files = " ".join(f"{path.name} {path.stat().st_size}" for path in libraries())
    return DeviceCompiler(title, f"{files} {' '.join(OPTIONS)}", compiled)


def compiled(text: str, flags: Sequence[str]) -> Image:
    """The code of a translation unit, PTX where the flags name a virtual architecture. Raises CompileFailed."""
    lib, program = _loaded(), ctypes.c_void_p()
    given = headers()
    names = (ctypes.c_char_p * len(given))(*(name.encode() for name in given))
    texts = (ctypes.c_char_p * len(given))(*(t.encode() for t in given.values()))
    made = lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", len(given), texts, names)
    assert made == 0, f"nvrtc: no program, error {made}"
    try:
        options = (*flags, *OPTIONS)
        spelled = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        failed = lib.nvrtcCompileProgram(program, len(options), spelled)
        log = _output(lib, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if failed:
            raise CompileFailed(log)
        if is_ptx(flags):
            return Image(_output(lib, program, "PTX"), ())
        return Image(_output(lib, program, "CUBIN"), tuple(resources(log)))
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _output(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    made = ctypes.create_string_buffer(size.value)
    assert getattr(lib, f"nvrtcGet{what}")(program, made) == 0
    return made.raw
