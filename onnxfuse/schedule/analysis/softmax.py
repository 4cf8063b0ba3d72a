"""Recognises softmax: x, its maximum h along some axes, p = exp(x - h), their sum s, and the weights p / s.

Two operations are cheaper in this context. Exponentials below exp(-87) may be 0, since the sum is at least 1. And the
maximum may ignore NaN: a NaN in x makes its own exponential NaN, hence the sum, hence all weights of the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import sources, substitute_axes, walk
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.monoid import greatest_of
from onnxfuse.ir.scalar import Apply, Load, Reduce, Scalar, children
from onnxfuse.ops.spec import Definition

POWERS = ("exp", "exp_or_zero")


@dataclass(frozen=True, slots=True)
class Softmax:
    """The names of its definitions (maximum, exponentials, sum).

    `along` has, for each axis of the exponentials, the axis of the sum, or None where it is summed over.
    """

    high: str
    power: str
    total: str
    along: tuple[Axis | None, ...]


def with_shares(definitions: Sequence[Definition], outputs: Sequence[str]) -> tuple[Definition, ...]:
    """The definitions with every softmax whose parts nothing else reads in the cheaper form."""
    by_name = {d.name: d for d in definitions}
    found = [s for d in definitions if (s := _unseen_softmax(d, by_name, outputs)) is not None]
    highs, powers = {s.high for s in found}, {s.power for s in found}
    made = []
    for d in definitions:
        if d.name in highs and isinstance(d.value, Reduce):
            d = replace(d, value=replace(d.value, combine="maxnum"))
        elif d.name in powers and isinstance(d.value, Apply):
            d = replace(d, value=replace(d.value, fn="exp_or_zero"))
        made.append(d)
    return tuple(made)


def _unseen_softmax(total: Definition, by_name: Mapping[str, Definition], outputs: Sequence[str]) -> Softmax | None:
    """The softmax whose sum a definition is, if nothing else reads its parts."""
    made = softmax_of(total, by_name)
    if made is None or {made.high, made.power} & set(outputs):
        return None
    return made if _unseen(made, total, by_name) else None


def softmax_of(total: Definition, by_name: Mapping[str, Definition]) -> Softmax | None:
    """The softmax whose sum a definition is."""
    if not isinstance(total.value, Reduce) or total.value.combine != "sum" or not isinstance(total.value.body[0], Load):
        return None
    read = total.value.body[0]
    power = by_name.get(read.source)
    if power is None or read.guards or not isinstance(power.value, Apply) or power.value.fn not in POWERS:
        return None
    of_axis = {Index.of(a): a for a in total.axes}
    along = tuple(of_axis.get(e) for e in read.index)
    summed = [a for a, whole in zip(power.axes, along, strict=True) if whole is None]
    if [e for e, whole in zip(read.index, along, strict=True) if whole is None] != [*map(Index.of, total.value.ranges)]:
        return None
    if [a.extent for a in summed] != [r.extent for r in total.value.ranges]:
        return None
    high = _highest(power.value.args[0], summed, by_name)
    return Softmax(high, power.name, total.name, along) if high is not None else None


def _highest(x: Scalar, summed: Sequence[Axis], by_name: Mapping[str, Definition]) -> str | None:
    """The maximum over the `summed` axes that x, a difference, subtracts."""
    if not isinstance(x, Apply) or x.fn != "sub" or not isinstance(x.args[1], Load):
        return None
    read = x.args[1]
    high = by_name.get(read.source)
    if high is None or read.guards or not isinstance(high.value, Reduce) or not greatest_of(high.value.combine):
        return None
    values = dict(zip(high.axes, read.index, strict=True)) | dict(
        zip(high.value.ranges, map(Index.of, summed), strict=False)
    )
    alike = [r.extent for r in high.value.ranges] == [a.extent for a in summed]
    return high.name if alike and substitute_axes(high.value.body[0], values) == x.args[0] else None


def _unseen(s: Softmax, total: Definition, by_name: Mapping[str, Definition]) -> bool:
    """Whether the maximum and the exponentials have no readers outside the softmax."""
    if any(s.high in sources(d.value) and d.name != s.power for d in by_name.values()):
        return False
    others = [d.value for d in by_name.values() if d is not total and s.power in sources(d.value)]
    seen = [*others, *(c for x in others for n in walk(x) if not _share(n, s, total) for c in children(n))]
    return not any(isinstance(x, Load) and x.source == s.power for x in seen)


def _share(n: Scalar, s: Softmax, total: Definition) -> bool:
    """Whether n is an exponential divided by the sum of its own row."""
    if not isinstance(n, Apply) or n.fn != "div" or not all(isinstance(a, Load) and not a.guards for a in n.args):
        return False
    power, whole = n.args
    assert isinstance(power, Load) and isinstance(whole, Load)
    if power.source != s.power or whole.source != s.total:
        return False
    at = dict(zip(total.axes, whole.index, strict=True))
    return all(a is None or at[a] == e for a, e in zip(s.along, power.index, strict=True))
