"""How a program that is not sanitized itself loads a library built with `sanitize`."""

from __future__ import annotations

from onnxfuse.build.toolchain import Toolchain
from onnxfuse.errors import ToolchainError
from onnxfuse.runtime import process


def sanitizer_env(toolchain: Toolchain) -> dict[str, str]:
    """The environment in which an unsanitized program (Python) can load a library built with `sanitize`."""
    if toolchain.family != "gcc":
        raise ToolchainError(f"build: sanitized kernels need gcc, not {toolchain}", hint="use --toolchain gcc")
    found = [
        process.run((*toolchain.command, f"-print-file-name={name}"), stage="build").out.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
