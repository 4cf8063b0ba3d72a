"""Scalar expressions of the kernel IR as SIMD code: how they are printed inside vector loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import Axis, Index, greatest, least
from onnxfuse.ir.indexing import substitute
from onnxfuse.ir.lanes import cutting
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Scalar
from onnxfuse.render.c_family import COMPARE, Scalars, computed, condition, identifier, index, otherwise


@dataclass(frozen=True, slots=True)
class Vectors(Scalars):
    """Prints expressions inside a vector loop over `axis`, one iteration per lane."""

    axis: Axis
    own: frozenset[str] = frozenset()  # buffers of a task, behind which there is room for a vector
    vectors: frozenset[str] = frozenset()  # variables that are vectors
    between: Mapping[str, str] = field(default_factory=dict)  # variables of lanes, by their bounds

    def declaring(self, name: str) -> Vectors:
        """The printer behind the declaration of a vector variable."""
        return replace(self, vectors=self.vectors | {name})

    def wide(self, text: str, t: DType) -> str:
        """A broadcast."""
        return f"splat<{computed(t)}>({text})"

    def kind(self, t: DType) -> str:
        """A vector of the compute type."""
        return f"vec<{computed(t)}>"

    def back(self, text: str, t: DType) -> str:
        """Nothing to cast back: vectors are not promoted to int."""
        return f"({text})"

    def variable(self, x: Load) -> str:
        """A vector variable of this loop, or a broadcast of a scalar one from outside."""
        name = identifier(x.source)
        return name if x.source in self.vectors else self.wide(name, x.dtype)

    def from_index(self, x: FromIndex) -> str:
        """An index converted to numbers: broadcast, an iota, or one number per lane."""
        t = computed(x.dtype)
        if kind_of(x) == "broadcast":
            return self.wide(Scalars.from_index(self, x), x.dtype)
        if kind_of(x) == "vector":
            return f"(splat<{t}>(({t})({index(x.index)})) + iota<{t}>())"
        value = f"({t})({index(self.at_lane(x.index))})"
        if x.guards:
            value = f"{condition(self.guards_at_lane(x.guards))} ? {value} : ({t})0"
        return self.each_lane(t, value)

    def at_lane(self, e: Index) -> Index:
        """An index for the lane `lane`, the parameter of the printed lambda."""
        return substitute(e, {self.axis: Index.of(Axis("lane", self.axis.extent))})

    def guards_at_lane(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        """Guards for the lane `lane`."""
        return tuple(Guard(self.at_lane(g.index), g.extent) for g in guards)

    def each_lane(self, t: str, value: str) -> str:
        """A vector that is filled lane by lane."""
        return f"each_lane<{t}>({identifier(self.axis.name)}, lanes, [&](i64 lane) HOLE {{ return {value}; }})"

    def load(self, x: Load) -> str:
        """A vector load, as `legalize` chose it."""
        assert x.lanes is not None, f"render: {x!r} is not legal"
        offset, name, step = x.index[0], identifier(x.source), x.lanes.step
        match x.lanes.kind:
            case "masked":
                return self.masked_load(x, step)
            case "piecewise":
                return self.piecewise_load(x)
            case "climbing":
                text = self.climbing_load(x, step)
            case "guarded":
                return self.guarded_lanes(x)
            case "vector":
                text = f"{'own_lanes' if x.source in self.own else 'load_lanes'}({name} + {index(offset, 1)}, lanes)"
            case "broadcast":
                text = self.wide(f"get({name} + {index(offset, 1)})", x.dtype)
            case "strided":
                text = f"strided_lanes<{step}>({name} + {index(offset, 1)}, lanes)"
            case "grouped":
                part = x.lanes.part
                text = f"group_lanes<{step}>({name} + {index(offset - part, 1)}, {index(part)}, lanes)"
            case _:
                text = self.each_lane(computed(x.dtype), self.element(x))
        return self.guarded(x.guards, text, x)

    def element(self, x: Load) -> str:
        """The element loaded by the lane `lane`."""
        return f"get({identifier(x.source)} + {index(self.at_lane(x.index[0]))})"

    def guarded_lanes(self, x: Load) -> str:
        """A gather with a guard per lane."""
        name, guards = identifier(self.axis.name), condition(self.guards_at_lane(x.guards))
        return (
            f"each_lane_if<{computed(x.dtype)}>({name}, lanes, [&](i64 lane) HOLE {{ return {guards}; }}, "
            f"[&](i64 lane) HOLE {{ return {self.element(x)}; }}, {self.text(otherwise(x))})"
        )

    def piecewise_load(self, x: Load) -> str:
        """A vector where the index moves as far as the lanes do and the guards hold at both ends, else a gather."""
        name, place = identifier(self.axis.name), index(self.at_lane(x.index[0]))
        guards = condition(self.guards_at_lane(x.guards)) if x.guards else "true"
        other = self.text(otherwise(x)) if x.guards else self.wide("0", x.dtype)
        return (
            f"piecewise_lanes({identifier(x.source)}, {name}, lanes, [&](i64 lane) HOLE {{ return {guards}; }}, "
            f"[&](i64 lane) HOLE {{ return (i64)({place}); }}, {other})"
        )

    def climbing_load(self, x: Load, each: int) -> str:
        """One load that is shuffled where the index moves by 1 after every `each` lanes, else a gather."""
        place = f"[&](i64 lane) HOLE {{ return (i64)({index(self.at_lane(x.index[0]))}); }}"
        return f"climbing_lanes<{each}>({identifier(x.source)}, {identifier(self.axis.name)}, lanes, {place})"

    def masked_load(self, x: Load, apart: int) -> str:
        """A masked load: the guards hold for one contiguous range of lanes."""
        cut, other, bounds = cutting(x, self.axis), otherwise(x), self.bounds(x)
        fill = Scalars().text(other) if apart and isinstance(other, Const) else self.text(other)
        where = f"{identifier(x.source)} + {index(x.index[0], 1)}"
        if _has_mask(x) and bounds in self.between:
            text = f"lanes_held({where}, lanes, {self.between[bounds]}, {fill})"
        else:
            text = f"lanes_within<{apart}>({where}, lanes, {bounds}, {fill})"
        return self.guarded(tuple(g for g in x.guards if g not in cut), text, x)

    def bounds(self, x: Load) -> str:
        """The range of lanes in which the guards of a masked load hold."""
        cut = cutting(x, self.axis)
        first = reduce(greatest, (-g.index for g in cut))
        last = reduce(least, (g.extent - g.index for g in cut))
        return f"{index(first)}, {index(last)}"

    def shared(self, values: Iterable[Scalar]) -> tuple[str, ...]:
        """The bounds that several masked loads of the values have in common."""
        found = Counter(self.bounds(n) for n in dict.fromkeys(n for v in values for n in loads(v)) if _has_mask(n))
        return tuple(bounds for bounds, count in found.items() if count > 1 and bounds not in self.between)

    def comparison(self, x: Apply) -> str:
        """A mask. Comparing an affine index with 0 gives a mask of the first or last lanes."""
        left = x.args[0]
        if isinstance(left, FromIndex) and kind_of(left) == "boundary":
            step = left.lanes.step if left.lanes is not None else 1
            side = "from" if (x.fn == "less") == (step < 0) else "below"
            count = index(left.index - step if step < 0 else -left.index + (step - 1))
            return f"lanes_{side}({count if abs(step) == 1 else f'({count}) / {abs(step)}'})"
        return Scalars.comparison(self, x)

    def select(self, x: Apply) -> str:
        """A blend of two vectors."""
        test, yes, no = x.args
        return f"select({self.mask(test, computed(x.dtype))}, {self.text(yes)}, {self.text(no)})"

    def mask(self, test: Scalar, t: str) -> str:
        """A bool as a mask of lanes as wide as a type."""
        if isinstance(test, Apply) and test.fn == "isnan":
            inner = self.text(test.args[0])
            return f"mask_to<{t}>(ne({inner}, {inner}))"
        if isinstance(test, Apply) and test.fn in COMPARE:
            return f"mask_to<{t}>({self.comparison(test)})"
        return f"from_bool<{t}>({self.text(test)})"


def _has_mask(x: Load) -> bool:
    """Whether a load can have its mask from a variable: contiguous lanes, and a number elsewhere."""
    masked = x.lanes is not None and x.lanes.kind == "masked" and x.lanes.step == 1
    return masked and isinstance(otherwise(x), Const)


def kind_of(x: FromIndex) -> str:
    """The lane kind that `legalize` chose for an index."""
    assert x.lanes is not None, f"render: {x!r} is not legal"
    return x.lanes.kind
