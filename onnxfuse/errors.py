"""Every way onnxfuse says no: one exception tree, each branch with the exit code that the command line returns.

OnnxFuseError            70  a broken promise inside the compiler
+-- AnsweredNo            1  the question asked was answered "no" (verify differs, gate missed)
+-- UsageError            2  a wrong flag, a missing input file, an output that exists
+-- ModelError            3  a model that cannot be read or is not valid
+-- ToolchainError        4  no compiler, or the compiler failed
+-- DeviceError           5  the runtime or the device failed
+-- BudgetError           6  a time or memory budget was exceeded
+-- OutputError           7  an output that cannot be written
"""

from __future__ import annotations

import math


def counted(number: int, noun: str) -> str:
    """A number with its noun, whose plural is formed in -s, -es or -ies: "1 kernel", "3 kernels", "2 entries"."""
    if number != 1 and noun.endswith("y"):
        noun = f"{noun[:-1]}ie"
    elif number != 1 and noun.endswith(("s", "x", "ch")):
        noun = f"{noun}e"
    return f"{number} {noun}{'s' * (number != 1)}"


def between(low: float, high: float | None, form: str = "{:.2f}x") -> str:
    """The bounds of a ratio's interval, each spelled by `form`; a `high` of infinity, or none, is no bound.

    >>> between(1.5, 1.75), between(0.0, float("inf"))
    ('1.50x to 1.75x', 'too few turns for an interval')
    """
    if high is None or math.isinf(high):
        return "too few turns for an interval"
    return f"{form.format(low)} to {form.format(high)}"


class OnnxFuseError(Exception):
    """An error with a stage, a thing, a reason and a next step, printed as one line."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class AnsweredNo(OnnxFuseError):
    """The question asked was answered "no"."""

    exit_code = 1


class UsageError(OnnxFuseError):
    """The command was called in a way it cannot serve."""

    exit_code = 2


class ModelError(OnnxFuseError):
    """The model cannot be read, or is not a valid ONNX model."""

    exit_code = 3


class ToolchainError(OnnxFuseError):
    """No compiler was found, or it failed."""

    exit_code = 4


class DeviceError(OnnxFuseError):
    """ONNX Runtime or a device failed."""

    exit_code = 5


class BudgetError(OnnxFuseError):
    """A time or memory budget was exceeded."""

    exit_code = 6


class OutputError(OnnxFuseError):
    """An output cannot be written."""

    exit_code = 7
