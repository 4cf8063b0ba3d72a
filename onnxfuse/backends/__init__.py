"""The backends by the names that `--target` gives them: what a build calls that depends on what kernels run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxfuse.backends.cpu import CPU
from onnxfuse.backends.row import Backend

__all__ = ("BACKENDS", "CPU", "Backend")

BACKENDS: Mapping[str, Backend[Any]] = {CPU.name: CPU}
