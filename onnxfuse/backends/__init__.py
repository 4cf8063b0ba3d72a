"""The backends by the names that `--target` gives them: what a build calls that depends on what kernels run on.

Each file of this folder but `row.py` is one, and is found by being there: its row is called BACKEND.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from onnxfuse.backends.row import Backend
from onnxfuse.config import BACKENDS as NAMES
from onnxfuse.target import Target

__all__ = ("BACKENDS", "TARGETS", "Backend")

BACKENDS: Mapping[str, Backend[Target]] = {name: import_module(f"{__name__}.{name}").BACKEND for name in NAMES}

TARGETS: Mapping[str, Target] = {t.name: t for backend in BACKENDS.values() for t in backend.targets}
"""The machine classes of all backends, by their names."""
