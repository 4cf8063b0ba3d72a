"""The common fields of JSON results, and conversion of values to what JSON can represent."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

SCHEMA_VERSION = 2
_PACKAGES = ("onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy")

Format: TypeAlias = Literal["html", "markdown"]  # of pages
_ENDS: dict[str, Format] = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


def format_of(path: str | Path) -> Format | None:
    """The format of a page that the name of its file stands for; None if it stands for neither.

    >>> format_of("a/summary.md"), format_of("page.html"), format_of("page.txt")
    ('markdown', 'html', None)
    """
    return _ENDS.get(Path(path).suffix.lower())


def envelope(command: str) -> dict[str, Any]:
    """The common fields of a result: schema, command, versions and machine."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "onnxfuse_version": version("onnxfuse") or "unknown",
        "host": host(),
        "versions": {name: found for name in _PACKAGES if (found := version(name))},
    }


def parsed(text: str | bytes) -> Any:
    """Parse a JSON text. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def host() -> dict[str, Any]:
    """The CPU, cores, system and Python of this machine."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def plain(value: Any) -> Any:
    """A value as JSON can represent it: tuples as lists, infinities and NaN as null.

    >>> plain({"a": (1, float("inf"))})
    {'a': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
