"""The front door: `optimize` a model, open it in a `session`, `verify` it; nothing is imported before it is used."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxfuse.config import Options, Target
    from onnxfuse.errors import (
        AnsweredNo,
        BudgetError,
        DeviceError,
        ModelError,
        OnnxFuseError,
        OutputError,
        ToolchainError,
        UsageError,
    )
    from onnxfuse.pipeline import optimize
    from onnxfuse.profile import profile_models as profile
    from onnxfuse.report.result import Result
    from onnxfuse.session import session
    from onnxfuse.verify import verify_models as verify

__version__ = "0.1.0"
__all__ = [
    "AnsweredNo",
    "BudgetError",
    "DeviceError",
    "ModelError",
    "OnnxFuseError",
    "Options",
    "OutputError",
    "Result",
    "Target",
    "ToolchainError",
    "UsageError",
    "__version__",
    "optimize",
    "profile",
    "session",
    "verify",
]

# Where each name comes from.
_FROM = {
    "Options": "onnxfuse.config",
    "Target": "onnxfuse.config",
    "Result": "onnxfuse.report.result",
    "optimize": "onnxfuse.pipeline",
    **{name: "onnxfuse.errors" for name in __all__ if name.endswith("Error") or name == "AnsweredNo"},
}
# Files that are functions too, and the function that each of them is.
_CALLED = {"profile": "profile_models", "session": "session", "verify": "verify_models"}


class _Called(ModuleType):
    """A file that is called as one of its functions: `onnxfuse.session(path)` is `onnxfuse.session.session(path)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives."""
        return getattr(self, _CALLED[self.__name__.rpartition(".")[2]])(*args, **kwargs)


class _Front(ModuleType):
    """This package. Python sets each file on it as it is imported; those of `_CALLED` become functions then."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute."""
        if name in _CALLED and isinstance(value, ModuleType):
            value.__class__ = _Called
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def __getattr__(name: str) -> Any:
    """The names of `__all__`, from the files that define them."""
    if name in _CALLED:
        return importlib.import_module(f"onnxfuse.{name}")
    if name not in _FROM:
        raise AttributeError(f"module 'onnxfuse' has no attribute {name!r}")
    return getattr(importlib.import_module(_FROM[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
