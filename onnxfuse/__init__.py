"""The front door: `optimize` a model, open it in a `session`, `verify` it; nothing is imported before it is used."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxfuse.config import Options
    from onnxfuse.errors import OnnxFuseError
    from onnxfuse.measure.profile import profile_models as profile
    from onnxfuse.pipeline import optimize
    from onnxfuse.report.result import Result
    from onnxfuse.runtime.session import session
    from onnxfuse.verify import verify_models as verify

__version__ = "0.1.0"
__all__ = ["OnnxFuseError", "Options", "Result", "__version__", "optimize", "profile", "session", "verify"]

# Where each name comes from, and what it is called there; kinds of errors are in onnxfuse.errors.
_FROM = {
    "OnnxFuseError": ("onnxfuse.errors", "OnnxFuseError"),
    "Options": ("onnxfuse.config", "Options"),
    "Result": ("onnxfuse.report.result", "Result"),
    "optimize": ("onnxfuse.pipeline", "optimize"),
    "profile": ("onnxfuse.measure.profile", "profile_models"),
    "session": ("onnxfuse.runtime.session", "session"),
}


class _Verify(ModuleType):
    """A package that is called as a function: `onnxfuse.verify(a, b)` is `onnxfuse.verify.verify_models(a, b)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The verdict."""
        return self.verify_models(*args, **kwargs)


class _Front(ModuleType):
    """This package. Python sets each package on it as it is imported; `verify` becomes a function then."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute."""
        if name == "verify" and isinstance(value, ModuleType):
            value.__class__ = _Verify
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def __getattr__(name: str) -> Any:
    """The names of `__all__`, from the files that define them."""
    if name == "verify":
        return importlib.import_module("onnxfuse.verify")
    if name not in _FROM:
        raise AttributeError(f"module 'onnxfuse' has no attribute {name!r}")
    module, called = _FROM[name]
    return getattr(importlib.import_module(module), called)


def __dir__() -> list[str]:
    return sorted(__all__)
