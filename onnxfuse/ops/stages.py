"""Helpers for rows of composite operators: named intermediate values, as functions of their index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onnxfuse.ir.dtype import F64, I64, DType
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import FromIndex, Load, Reduce, Scalar, apply, cast, const
from onnxfuse.ops.spec import Definition, View

At = tuple[Index, ...]
Element = Callable[[At], Scalar]
Lift = Callable[[Scalar], Scalar]


def number(extent: Index, dtype: DType) -> Scalar:
    """An extent as a number of dtype."""
    value = extent.constant
    return const(value, dtype) if value is not None else cast(FromIndex(extent, I64), dtype)


def total(combine: str, ranges: tuple[Axis, ...], body: Scalar) -> Scalar:
    """A reduction in the accumulator type of its body; over no ranges, the body itself."""
    dtype = body.dtype.accumulator
    return Reduce(combine, ranges, (cast(body, dtype),), dtype) if ranges else cast(body, dtype)


def mean_of(value: Scalar, count: Index) -> Scalar:
    """A sum as the mean of so many terms."""
    return apply("div", value, number(count, value.dtype))


def square(x: Scalar) -> Scalar:
    """x * x."""
    return apply("mul", x, x)


def root(x: Scalar) -> Scalar:
    """The square root of x; for integers computed in floating point and truncated."""
    return cast(apply("sqrt", x if x.dtype.floating else cast(x, F64)), x.dtype)


def logarithm(x: Scalar) -> Scalar:
    """The logarithm of x; for integers computed in floating point and truncated."""
    return cast(apply("log", x if x.dtype.floating else cast(x, F64)), x.dtype)


def exponential(x: Scalar) -> Scalar:
    """exp(x); for integers computed in floating point and truncated."""
    return cast(apply("exp", x if x.dtype.floating else cast(x, F64)), x.dtype)


def wide(view: View, i: int = 0) -> Element:
    """Input i in the accumulator type of sums."""
    dtype = view.dtype(i).accumulator
    return lambda at: cast(view.load(i, at), dtype)


def here(axes: Sequence[Axis]) -> At:
    """The index of an element on these axes."""
    return tuple(map(Index.of, axes))


@dataclass(slots=True)
class Stages:
    """Builder of one node's definitions. Intermediate values are named after output 0 and a tag."""

    view: View
    made: list[Definition] = field(default_factory=list)

    def value(self, tag: str, shape: At, body: Element) -> Element:
        """An intermediate value of this shape, computed once per element."""
        axes = self.view.axes(shape, tag)
        d = Definition(self.view.out() + tag, axes, body(here(axes)))
        self.made.append(d)
        return lambda at: Load(d.name, at, d.value.dtype)

    def reduced(
        self, tag: str, have: At, over: Sequence[int], combine: str, body: Element, finish: Lift | None = None
    ) -> Element:
        """`combine` of `body` over axes `over` of a tensor of shape `have`, then `finish`.

        The returned element is read at an index of the unreduced tensor.
        """
        ranges = {i: Axis(f"{self.view.out()}{tag}:r{i}", have[i]) for i in over}

        def one(at: At) -> Scalar:
            rest = iter(at)
            full = tuple(Index.of(ranges[i]) if i in ranges else next(rest) for i in range(len(have)))
            made = total(combine, tuple(ranges.values()), body(full))
            return finish(made) if finish else made

        read = self.value(tag, tuple(e for i, e in enumerate(have) if i not in ranges), one)
        return lambda at: read(tuple(e for i, e in enumerate(at) if i not in ranges))

    def output(self, shape: At, body: Element, *, k: int = 0, dtype: DType | None = None) -> None:
        """Define output k, if the node has it, cast to dtype (default: the type of input 0)."""
        if k < len(self.view.node.outputs) and self.view.node.outputs[k]:
            axes = self.view.axes(shape, output=k)
            value = cast(body(here(axes)), dtype or self.view.dtype(0))
            self.made.append(Definition(self.view.out(k), axes, value))

    def mean(self, tag: str, have: At, over: Sequence[int], body: Element) -> Element:
        """The mean of `body` over some axes, read at an index of the unreduced tensor."""
        count = product([have[i] for i in over])
        return self.reduced(tag, have, over, "sum", body, lambda v: mean_of(v, count))

    def normalized(self, have: At, over: Sequence[int], x: Element, epsilon: float, *, centred: bool = True) -> Normal:
        """x of shape `have` normalized over some axes; not `centred`: by the root mean square only."""
        mu = self.mean("%mean", have, over, x) if centred else None

        def centre(at: At) -> Scalar:
            return apply("sub", x(at), mu(at)) if mu else x(at)

        spread = self.mean("%var", have, over, lambda at: square(centre(at)))

        def deviation(at: At) -> Scalar:
            value = spread(at)
            return apply("sqrt", apply("add", value, const(epsilon, value.dtype)))

        return Normal(lambda at: apply("div", centre(at), deviation(at)), mu or centre, spread, deviation)


@dataclass(frozen=True, slots=True)
class Normal:
    """A normalized value, the mean that was subtracted, the variance and the deviation that it was divided by."""

    value: Element
    mean: Element
    variance: Element
    deviation: Element
