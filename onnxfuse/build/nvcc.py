"""NVIDIA's compiler driver nvcc, of a CUDA toolkit that the user has; it needs neither a GPU nor a driver."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from onnxfuse.build import SUPPORT
from onnxfuse.build.resources import CompileFailed, DeviceCompiler, Image, is_ptx, resources
from onnxfuse.build.toolchain import Toolchain
from onnxfuse.errors import ToolchainError
from onnxfuse.runtime import process
from onnxfuse.runtime.folders import work_folder

OPTIONS = ("--std=c++17", "--ptxas-options=-v", f"--include-path={SUPPORT}")
_OLDEST = (11, 8)  # the first that compiles for sm_90
_TIMEOUT = 20.0  # seconds to print a version
_RELEASE = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")


def compiler(path: str | None, host: Toolchain) -> DeviceCompiler:
    """The nvcc at `path`, else of $CUDA_HOME, else on the path; `host` preprocesses for it.

    Raises ToolchainError if there is none, or one that cannot make what kernels need.
    """
    command = _found(path)
    said = process.run((command, "--version"), stage="build", time_limit=_TIMEOUT)
    release = _RELEASE.search(said.out)
    if said.code != 0 or release is None:
        reason = (said.err or said.out).strip().splitlines() or ["it says nothing"]
        raise ToolchainError(f"build: {command} does not report its version: {reason[-1]}", hint="give --nvcc another")
    if (int(release[1]), int(release[2])) < _OLDEST:
        raise ToolchainError(f"build: nvcc {release[3]} is older than 11.8", hint="--toolchain nvrtc needs no toolkit")
    by_host = partial(compiled, (command, *_host_compiler(host)))
    return DeviceCompiler(f"nvcc {release[3]}", f"nvcc {release[3]} {host.identity}", by_host)


def is_found() -> bool:
    """Whether there is an nvcc in $CUDA_HOME or on the path."""
    return _usual() is not None


def _usual() -> str | None:
    home = os.environ.get("CUDA_HOME")
    in_home = shutil.which("nvcc", path=str(Path(home, "bin"))) if home else None
    return in_home or shutil.which("nvcc")


def _found(path: str | None) -> str:
    """The command to start. Raises ToolchainError."""
    found = _usual() if path is None else shutil.which(path)
    if found is None:
        where = "neither in $CUDA_HOME/bin nor on the path" if path is None else "no program"
        hint = "name that of a CUDA toolkit with --nvcc; --toolchain nvrtc needs no toolkit"
        raise ToolchainError(f"build: {path or 'nvcc'} is {where}", hint=hint)
    return found


def _host_compiler(host: Toolchain) -> tuple[str, ...]:
    """How nvcc is told to preprocess by the host's compiler, where it understands that one."""
    return (f"--compiler-bindir={shutil.which(host.command[0])}",) if host.family == "gcc" else ()


def compiled(command: Sequence[str], text: str, flags: Sequence[str]) -> Image:
    """The code of a translation unit, PTX where the flags name a virtual architecture. Raises CompileFailed."""
    with work_folder() as folder:
        source, made = folder / "kernel.cu", folder / "kernel.bin"
        source.write_text(text, encoding="utf-8")
        kind = "--ptx" if is_ptx(flags) else "--cubin"
        whole = (*command, *flags, *OPTIONS, kind, "-o", str(made), str(source))
        said = process.run(whole, stage="build", cwd=folder)
        if said.code != 0:
            raise CompileFailed((said.err + said.out).replace(str(folder), ""))
        return Image(made.read_bytes(), () if is_ptx(flags) else tuple(resources(said.err)))
