"""Values in 16 bits between the operators of a group, as float32: so a runtime that only stores 16 bits has them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from onnxfuse.ir.compose import rebuild
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.graph import Graph, Node
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Load, Reduce, Scalar, cast
from onnxfuse.ops.spec import Definition

EXACT = 8  # bits of integers that float16 holds


def widened(
    made: Sequence[Definition], kept: Container[str], rounding: Container[str], narrow: DType
) -> list[Definition]:
    """Definitions whose values of the type `narrow` are float32, but for those that are `kept` and for inputs.

    Values named in `rounding` are results of casts: they are rounded to `narrow`. Recurrences stay as they are.

    >>> from onnxfuse.ir.dtype import F16
    >>> from onnxfuse.ir.scalar import apply
    >>> x, y = (Load(name, (), F16) for name in "xy")
    >>> widened([Definition("y", (), apply("mul", x, x)), Definition("z", (), apply("add", y, x))], "z", "", F16)
    [y[] = mul(cast<float32>(x), cast<float32>(x)), z[] = cast<float16>(add(y, cast<float32>(x)))]
    """
    if any(d.recurrent for d in made):
        return list(made)
    inner = {d.name for d in made if d.value.dtype == narrow and d.name not in kept}
    return [replace(d, value=_value(d, inner, rounding, narrow)) for d in made]


def roundings(graph: Graph, nodes: Sequence[Node], narrow: DType) -> frozenset[str]:
    """The results of casts to the type `narrow` by which a value may change."""

    def rounds(value: str) -> bool:
        known = graph.types.get(value)
        return known is None or (known.dtype != narrow and known.dtype.bits > EXACT)

    return frozenset(o for n in nodes if n.op in ("Cast", "CastLike") and rounds(n.inputs[0]) for o in n.outputs)


def _value(d: Definition, inner: Container[str], rounding: Container[str], narrow: DType) -> Scalar:
    made = _wide(d.value, inner, narrow)
    if d.value.dtype != narrow:
        return made
    rounded = cast(made, narrow) if d.name in rounding or d.name not in inner else made
    return cast(rounded, F32) if d.name in inner else rounded


def _wide(x: Scalar, inner: Container[str], narrow: DType) -> Scalar:
    """x, float32 where it was `narrow`; values of `inner` are loaded as float32, others converted."""

    def wide(n: Scalar) -> Scalar:
        return rebuild(n, go, lambda i: i)

    def go(n: Scalar) -> Scalar | None:
        if n.dtype != narrow:
            return _over(n, wide, narrow)
        match n:
            case Const():
                return cast(n, F32)
            case Load():
                return _loaded(n, wide, inner, narrow)
            case FromIndex():
                return replace(n, dtype=F32)
            case Apply(fn="cast"):
                return cast(wide(n.args[0]), F32)
            case Apply():
                return Apply(n.fn, tuple(map(wide, n.args)), F32)
            case Reduce():
                return Reduce(n.combine, n.ranges, tuple(map(wide, n.body)), F32, n.slot)
        return None

    return wide(x)


def _over(n: Scalar, wide: Callable[[Scalar], Scalar], narrow: DType) -> Scalar | None:
    """A cast of something `narrow` that is none any more; None for everything else."""
    if isinstance(n, Apply) and n.fn == "cast" and n.args[0].dtype == narrow:
        return cast(wide(n.args[0]), n.dtype)
    return None


def _loaded(n: Load, wide: Callable[[Scalar], Scalar], inner: Container[str], narrow: DType) -> Scalar:
    otherwise = None if n.otherwise is None else wide(n.otherwise)
    if n.source in inner:
        return replace(n, dtype=F32, otherwise=otherwise)
    return cast(replace(n, otherwise=None if otherwise is None else cast(otherwise, narrow)), F32)
