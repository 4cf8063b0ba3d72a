"""What a build calls, with functions of the CPU's backend replaced."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from onnxfuse.backends import BACKENDS
from onnxfuse.backends.cpu import BACKEND as CPU
from onnxfuse.pipeline.calls import Calls


def on_cpu(calls: Calls | None = None, /, **functions: Any) -> Calls:
    """The table with these functions in the row of the CPU."""
    return replace(calls or Calls(), backends={**BACKENDS, "cpu": replace(CPU, **functions)})


def planted(name: str, function: Any) -> Calls:
    """The table with one function replaced, wherever it is."""
    own = name in {f.name for f in fields(Calls)}
    return replace(Calls(), **{name: function}) if own else on_cpu(**{name: function})
