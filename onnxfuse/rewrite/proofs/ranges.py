"""Value range analysis of a graph, for arbitrary inputs."""

from __future__ import annotations

from collections import ChainMap

from onnxfuse.ir.compose import sources, substitute_axes
from onnxfuse.ir.ranges import ANY, Range, of_array, range_of, wrapped
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import SMALL, Definitions, Miss, MutableGraph

NEAR = 64 * SMALL  # largest constant, in elements, that is read by default
FAR = 1 << 27  # total number of elements of constants that are read with `far`


class Ranges:
    """Ranges of the values of a graph, computed on demand and cached; those of a draft's new nodes are not cached.

    `far`: large constants are read as well. Rewrites do not change values, so cached ranges stay valid.
    """

    def __init__(self, work: MutableGraph, draft: Draft | None = None, *, far: bool = False) -> None:
        self.work = work
        self.far = far
        self.kept = work.ranges[far]
        self.new = {d.name: d for made in (draft.meanings if draft else {}).values() for d in made}
        self.constants = ChainMap(draft.constants if draft else {}, work.constants)
        self.own: dict[str, Range] = {}

    def of(self, value: str) -> Range:
        """The range of a value."""
        stack = [value]
        while stack:
            v = stack[-1]
            if self._found(v) is not None:
                stack.pop()
                continue
            made = self._made(v)
            missing = [
                s for d in made for s in sources(d.value) if self._found(s) is None and not self._inside(s, made)
            ]
            if missing and len(stack) < 1 << 14:
                stack.extend(missing)
                continue
            stack.pop()
            self._keep(v, self._computed(v, made))
        return self._found(value) or ANY

    def _found(self, v: str) -> Range | None:
        return self.kept.get(v) or self.own.get(v)

    def _keep(self, v: str, found: Range) -> None:
        fresh = v in self.new or (v in self.constants and v not in self.work.constants)
        (self.own if fresh else self.kept)[v] = found

    @staticmethod
    def _inside(s: str, made: Definitions) -> bool:
        return any(d.name == s for d in made)

    def _made(self, v: str) -> Definitions:
        """The definitions of the node that makes a value; () for inputs and constants."""
        if v in self.new:
            return tuple(self.new.values())
        at = self.work.maker.get(v)
        if at is None or v in self.constants or not self.work.nodes[at].standard:
            return ()
        try:
            return self.work.definitions(at)
        except Miss:
            return ()

    def _computed(self, v: str, made: Definitions) -> Range:
        constant = self.constants.get(v)
        if constant is not None:
            if constant.dtype.kind not in "fiub" or constant.size > (self._left() if self.far else NEAR):
                return ANY
            if self.far and constant.size > NEAR:
                self.work.looked_into += constant.size
            return of_array(constant.load(), constant.dtype)
        t = self.work.types.get(v)
        found = ANY if t is None else wrapped(ANY, t.dtype)
        ranges: dict[str, Range] = {}

        def of(load: Load) -> Range:
            return ranges.get(load.source) or self._found(load.source) or ANY

        for d in made:
            ranges[d.name] = range_of(d.value, of, lambda load: self._unfold(load, made))
            if d.name == v:
                return ranges[v]
        return found

    def _left(self) -> int:
        return FAR - self.work.looked_into

    def _unfold(self, load: Load, made: Definitions) -> Scalar | None:
        known = made if self._inside(load.source, made) else self._made(load.source)
        for d in known:
            if d.name == load.source and len(d.axes) == len(load.index):
                return substitute_axes(d.value, dict(zip(d.axes, load.index, strict=True)))
        return None
