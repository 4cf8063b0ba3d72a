"""What rows build function bodies with."""

from __future__ import annotations

from typing import Protocol

from onnxfuse.ir.graph import Attribute, Constant
from onnxfuse.ir.index import Index


class Speller(Protocol):
    """A builder of function bodies; values are names."""

    @property
    def opset(self) -> int:
        """The opset of the body."""

    def add(self, op: str, *inputs: str, **attrs: Attribute) -> str:
        """Add a node of an operator by its `Node.key`; the name of its output."""

    def constant(self, constant: Constant) -> str:
        """The name of a constant."""

    def vector(self, entries: tuple[Index, ...]) -> str:
        """Extents as an int64 vector."""
