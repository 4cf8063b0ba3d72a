"""Makes loop nests affine: splits axes at the divisors of `//` and `%`, recognises bijections, decides guards."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import lru_cache

from onnxfuse.ir.compose import folded, in_guard, rebuild, substitute_axes, walk
from onnxfuse.ir.dtype import BOOL, I32, I64
from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Axis,
    Div,
    Index,
    Mod,
    atoms,
    divides,
    in_range,
    lower,
    modulo,
    nonnegative,
    upper,
)
from onnxfuse.ir.indexing import coefficient, flatten, product, substitute
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Reduce, Scalar, apply, cast, const, number


def cuts(indices: Iterable[Index]) -> dict[Axis, set[Index]]:
    """For each axis, the divisors k of `axis // k` and `axis % k` that occur."""
    found: dict[Axis, set[Index]] = {}
    for axis, divisor in dict.fromkeys(cut for e in indices for cut in _cuts(e)):
        found.setdefault(axis, set()).add(divisor)
    return found


@lru_cache(1 << 14)
def _cuts(e: Index) -> tuple[tuple[Axis, Index], ...]:
    """Each axis // k and axis % k in an index."""
    cut = (a for a in atoms(e) if isinstance(a, (Div, Mod)) and len(a.num.terms) == 1)
    whole = ((*a.num.terms[0], a.den) for a in cut)
    return tuple((mono[0], k) for mono, c, k in whole if c == 1 and len(mono) == 1 and isinstance(mono[0], Axis))


def digits(axis: Axis, divisors: set[Index]) -> tuple[tuple[Axis, ...], Index] | None:
    """The axis as a mixed-radix number with digits at the divisors, each of which must divide the next."""
    chain = sorted(divisors, key=lambda k: (sum(len(m) for m, _ in k.terms), sum(c for _, c in k.terms), repr(k)))
    chain = [ONE, *[k for k in chain if k != ONE]]
    sizes: list[Index] = []
    for small, big in zip(chain, [*chain[1:], axis.extent], strict=True):
        size = divides(small, big)
        if size is None:
            return None
        sizes.append(size)
    parts = [
        (Axis(f"{axis.name}.{len(chain) - 1 - at}", size), k)
        for at, (size, k) in enumerate(zip(sizes, chain, strict=True))
    ]
    parts = [(a, k) for a, k in reversed(parts) if a.extent != ONE]
    value = sum((Index.of(a) * k for a, k in parts), ZERO)
    return tuple(a for a, _ in parts), value


def split_axes(
    axes: tuple[Axis, ...], indices: Iterable[Index], whole: Container[Axis] = ()
) -> tuple[tuple[Axis, ...], dict[Axis, Index]]:
    """The axes, split into digits where indices divide them, and the value of each split axis; some stay `whole`."""
    where = cuts(indices)
    out: list[Axis] = []
    values: dict[Axis, Index] = {}
    for a in axes:
        made = digits(a, where[a]) if a in where and a not in whole else None
        if made is None or made[0] == (a,):
            out.append(a)
            continue
        out.extend(made[0])
        values[a] = made[1]
    return tuple(out), values


def bijective(index: tuple[Index, ...], shape: tuple[Index, ...], axes: tuple[Axis, ...]) -> bool:
    """Whether the index map from axes to shape is proven bijective (by mixed-radix digits)."""
    axes, values = split_axes(axes, index)
    flat = flatten(tuple(substitute(i, values) for i in index), shape)
    left = [a for a in axes if a.extent != ONE]
    stride = ONE
    while left:
        nxt = next((a for a in left if coefficient(flat, a) == stride), None)
        if nxt is None:
            return False
        stride = stride * nxt.extent
        left.remove(nxt)
    rest = flat - sum(((coefficient(flat, a) or ZERO) * Index.of(a) for a in axes), ZERO)
    return stride == product(shape) and rest == ZERO


def holds(guard: Guard) -> bool | None:
    """Whether a guard is proven to hold (True) or to fail (False) for all iterations; None if neither."""
    if in_range(guard.index, guard.extent):
        return True
    high, low = upper(guard.index), lower(guard.index)
    if high is not None and nonnegative(-high - 1):
        return False
    if low is not None and nonnegative(low - guard.extent):
        return False
    return None


def simplify(x: Scalar) -> Scalar:
    """x with proven guards and comparisons of indices folded, and the selections that depend on them.

    Remaining comparisons of indices are normalized to comparisons with 0.
    """

    def go(node: Scalar) -> Scalar | None:
        if isinstance(node, Apply) and node.dtype == BOOL:
            return _decided(node)
        if isinstance(node, Apply) and node.fn == "select":
            return _chosen(*node.args)
        if isinstance(node, Apply):
            return _padding(node) if node.fn == "cast" and isinstance(node.args[0], Load) else _of_numbers(node)
        if isinstance(node, Reduce) and node.combine == "max" and len(node.body) == 1:
            return _most(node)
        if not isinstance(node, (Load, FromIndex)) or not node.guards:
            return None
        states = [holds(g) for g in node.guards]
        if False in states:
            return _beyond(node)
        left = tuple(g for g, s in zip(node.guards, states, strict=True) if s is None)
        if len(left) == len(node.guards):
            return rolled(node) if isinstance(node, Load) else None
        if isinstance(node, FromIndex):
            return FromIndex(node.index, node.dtype, left)
        otherwise = simplify(node.otherwise) if left and node.otherwise is not None else None
        return Load(node.source, node.index, node.dtype, left, otherwise)

    return rebuild(x, go, lambda i: i)


def rolled(x: Load) -> Load | None:
    """A roll (two pieces of a tensor joined around the end of an axis) as one load modulo the extent.

    The first piece is read at i + b where 0 <= i < a, the second one at i - a where 0 <= i - a < b: together that is
    (i + b) % (a + b).
    """
    rest = x.otherwise
    if not isinstance(rest, Load) or rest.source != x.source or len(x.guards) != 1 or len(rest.guards) != 1:
        return None
    first, second = x.guards[0], rest.guards[0]
    apart = [at for at, (e, f) in enumerate(zip(x.index, rest.index, strict=True)) if e != f]
    whole = first.extent + second.extent
    if len(apart) != 1 or second.index != first.index - first.extent or not in_range(first.index, whole):
        return None
    at = apart[0]
    if x.index[at] != first.index + second.extent or rest.index[at] != second.index:
        return None
    index = (*x.index[:at], modulo(x.index[at], whole), *x.index[at + 1 :])
    return Load(x.source, index, x.dtype)


def _chosen(test: Scalar, yes: Scalar, no: Scalar) -> Scalar | None:
    """A simplified select: of a constant condition, one that a load guards, or a cheaper one; else None."""
    condition = simplify(test)
    if isinstance(condition, Const):
        return simplify(yes if condition.value else no)
    if _gives(yes, condition, no):
        return simplify(yes)
    if _fails(no, condition) and isinstance(no, Load) and no.otherwise == yes:
        return simplify(no)
    return apply("select", condition, simplify(yes), simplify(no)) if condition != test else None


def _gives(x: Scalar, condition: Scalar, no: Scalar) -> bool:
    """Whether x, a load or one after another where guards fail, is `no` already where a condition does not hold."""
    if not isinstance(x, Load) or not x.guards or x.otherwise is None or not _implied(condition, x.guards):
        return False
    return x.otherwise == no or _gives(x.otherwise, condition, no)


def _fails(x: Scalar, condition: Scalar) -> bool:
    """Whether x is a load with a guard that fails where a condition holds: its index is below 0 there."""
    if not isinstance(x, Load) or not isinstance(condition, Apply) or condition.fn != "less":
        return False
    place, zero = condition.args
    return zero == const(0, I64) and any(place == FromIndex(g.index, I64) for g in x.guards)


def _implied(condition: Scalar, guards: tuple[Guard, ...]) -> bool:
    """Whether a condition is made of comparisons that hold wherever the guards do."""
    if isinstance(condition, Apply) and condition.fn == "and":
        return all(_implied(each, guards) for each in condition.args)
    return any(condition in in_guard(g) for g in guards)


def _of_numbers(x: Apply) -> Scalar | None:
    """A function of constants, or of a select between constants, folded; None for others."""
    choices = [a for a in x.args if not isinstance(a, Const)]
    if not choices:
        return folded(x)
    choice = choices[0]
    if len(choices) > 1 or not isinstance(choice, Apply) or not _between_numbers(choice):
        return None
    yes, no = (folded(Apply(x.fn, tuple(n if a is choice else a for a in x.args), x.dtype)) for n in choice.args[1:])
    return simplify(apply("select", choice.args[0], yes, no))


def _padding(x: Apply) -> Scalar | None:
    """A cast of a load that is known to give a number, folded; None for others."""
    read = simplify(x.args[0])
    return cast(read, x.dtype) if isinstance(read, Const) else None


def _between_numbers(x: Scalar) -> bool:
    return isinstance(x, Apply) and x.fn == "select" and all(isinstance(a, Const) for a in x.args[1:])


def _most(x: Reduce) -> Scalar | None:
    """A maximum over -inf and one other constant that occurs at an end of each range, folded; None for others."""
    if any(isinstance(n, Load) for n in walk(x.body[0])) or not all(nonnegative(r.extent - 1) for r in x.ranges):
        return None
    body = simplify(x.body[0])
    if not _between_numbers(body):
        return None
    assert isinstance(body, Apply)
    test, yes, no = body.args
    for least, other in ((yes, no), (no, yes)):
        if isinstance(least, Const) and least.value == float("-inf"):
            for ends in (dict.fromkeys(x.ranges, ZERO), {r: r.extent - 1 for r in x.ranges}):
                if simplify(substitute_axes(test, ends)) == const(other is yes, BOOL):
                    return other
    return None


def _decided(x: Apply) -> Scalar | None:
    """A conjunction or a comparison of indices that is proven true or false, folded; None for others."""
    if x.fn == "and":
        left, right = map(simplify, x.args)
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Const):
                return other if one.value else one
        return None
    if all(isinstance(a, Const) for a in x.args):
        return folded(x)
    if x.fn not in _SIGNS:
        return None
    left_index, right_index = map(_index_of, x.args)
    if left_index is None or right_index is None:
        return None
    fn, less = _SIGNS[x.fn]
    e = left_index - right_index - less
    low, high = lower(e), upper(e)
    if low is not None and nonnegative(low):
        return const(fn == "greater_equal", BOOL)
    if high is not None and nonnegative(-high - 1):
        return const(fn == "less", BOOL)
    return Apply(fn, (FromIndex(e, I64), const(0, I64)), BOOL)


# a < b and so on as the sign of a - b or a - b - 1
_SIGNS = {
    "less": ("less", 0),
    "less_equal": ("less", 1),
    "greater": ("greater_equal", 1),
    "greater_equal": ("greater_equal", 0),
}


def _index_of(x: Scalar) -> Index | None:
    """An integer scalar as an index expression; None for others."""
    if x.dtype not in (I64, I32):
        return None
    if isinstance(x, Const):
        return Index.of(int(x.value))
    if isinstance(x, FromIndex):
        return None if x.guards else x.index
    if not isinstance(x, Apply) or x.fn not in ("add", "sub", "cast"):
        return None
    args = [_index_of(a) for a in x.args]
    if any(a is None for a in args):
        return None
    first, *rest = (a for a in args if a is not None)
    return first if not rest else first + rest[0] if x.fn == "add" else first - rest[0]


def _beyond(x: Load | FromIndex) -> Scalar:
    """The value of x where a guard fails."""
    if isinstance(x, FromIndex):
        return number(0, x.dtype)
    assert x.otherwise is not None
    return simplify(x.otherwise)
