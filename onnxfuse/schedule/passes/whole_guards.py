"""Guards that hold for a whole wide access or for none of it, tested once at its first element."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from onnxfuse.ir.compose import rebuild
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.kernel import Kernel, Loop, Phase, ReduceLoop, Stmt, When
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Scalar

COMPARED = ("less", "greater_equal")  # with 0, which whole groups of elements are on one side of


def whole_guards(kernel: Kernel, _: object) -> Kernel:
    """The kernel with guards in the wide accesses of its threads that look at the first element alone."""
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
    """Rewrites what stands in a wide access over `axis`."""

    axis: Axis
    width: int

    def statement(self, s: Stmt) -> Stmt:
        """A statement with all of its values rewritten."""
        return replace(s, **{f.name: self.part(getattr(s, f.name)) for f in fields(s)})

    def part(self, x: Any) -> Any:
        """A value of a statement, or what it holds."""
        if isinstance(x, Scalar):
            return self.scalar(x)
        if isinstance(x, tuple):
            return tuple(map(self.part, x))
        return self.statement(x) if isinstance(x, Stmt) else x

    def scalar(self, x: Scalar) -> Scalar:
        """A value whose guards, and comparisons of indices with 0, look at the first element where that says all."""

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
        """A guard of the first element, where it holds for all or none."""
        whole = g.extent.constant is not None and g.extent.constant % self.width == 0
        return replace(g, index=self.first(g.index)) if whole else g

    def first(self, e: Index) -> Index:
        """The index of the first element, where that is a multiple of the width."""
        rest = e - self.axis
        multiple = all(c % self.width == 0 for _, c in rest.terms)
        return rest if coefficient(e, self.axis) == ONE and multiple else e
