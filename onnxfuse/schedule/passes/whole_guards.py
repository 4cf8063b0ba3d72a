"""Tests guards that hold for all elements of a wide access or for none, once, at its first element."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from onnxfuse.ir.compose import rebuild
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.kernel import Kernel, Loop, Phase, ReduceLoop, Stmt, When
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Scalar

COMPARED = ("less", "greater_equal")  # comparisons with 0 that give the same for whole groups of elements


def whole_guards(kernel: Kernel, _: object) -> Kernel:
    """The kernel of a launch with guards of wide accesses tested at their first element only."""
    return replace(kernel, phases=tuple(_phase(p) if p.launch is not None else p for p in kernel.phases))


def _phase(phase: Phase) -> Phase:
    return replace(phase, body=_body(phase.body))


def _body(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(map(_statement, body))


def _statement(s: Stmt) -> Stmt:
    if not isinstance(s, (Loop, ReduceLoop, When)):
        return s
    if isinstance(s, Loop) and s.kind == "vector" and (width := s.axis.extent.constant) is not None:
        return replace(s, body=tuple(_Wide(s.axis, width).statement(x) for x in s.body))
    return replace(s, body=_body(s.body))


@dataclass(frozen=True, slots=True)
class _Wide:
    """Rewrites the statements of a wide access over `axis`, `width` elements long."""

    axis: Axis
    width: int

    def statement(self, s: Stmt) -> Stmt:
        """A statement with all of its values rewritten."""
        return replace(s, **{f.name: self.part(getattr(s, f.name)) for f in fields(s)})

    def part(self, x: Any) -> Any:
        """A field of a statement with the values in it rewritten."""
        if isinstance(x, Scalar):
            return self.scalar(x)
        if isinstance(x, tuple):
            return tuple(map(self.part, x))
        return self.statement(x) if isinstance(x, Stmt) else x

    def scalar(self, x: Scalar) -> Scalar:
        """A value whose guards and comparisons of indices with 0 test the first element where that suffices."""

        def leaf(node: Scalar) -> Scalar | None:
            if isinstance(node, Load) and node.guards:
                otherwise = self.scalar(node.otherwise) if node.otherwise is not None else None
                return replace(node, guards=tuple(map(self.guard, node.guards)), otherwise=otherwise)
            if isinstance(node, Apply) and node.fn in COMPARED:
                left, zero = node.args
                if isinstance(left, FromIndex) and not left.guards and zero == Const(0, left.dtype):
                    return replace(node, args=(replace(left, index=self.first(left.index)), zero))
            return None

        return rebuild(x, leaf, lambda e: e)

    def guard(self, g: Guard) -> Guard:
        """A guard tested at the first element, if it holds for all elements or none."""
        whole = g.extent.constant is not None and g.extent.constant % self.width == 0
        return replace(g, index=self.first(g.index)) if whole else g

    def first(self, e: Index) -> Index:
        """The index of the first element, where that is a multiple of the width."""
        rest = e - self.axis
        multiple = all(c % self.width == 0 for _, c in rest.terms)
        return rest if coefficient(e, self.axis) == ONE and multiple else e
