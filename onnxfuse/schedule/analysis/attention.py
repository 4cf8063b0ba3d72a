"""Attention in the definitions of a group: scores, their softmax, and the sum of values by shares, as one thing.

What stands around it stays in it: what queries, keys and values are made of, what is done to a score (scale, bias,
mask) and to a result, and where that is stored. Heads that share keys are rows beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import free_axes, inline, loads, rebuild, substitute_axes, walk
from onnxfuse.ir.contraction import After, scaled_contraction
from onnxfuse.ir.dtype import BOOL, F32, DType
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.scalar import Apply, Const, Load, Reduce, Scalar, apply, children, const
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.memory import Nest, Place, nest_of
from onnxfuse.schedule.analysis.softmax import Softmax, softmax_of

HIDES_NAN = Load("%nan", (), BOOL)
DOT, SUM = "%dot", "%sum"  # the product of a query and a key, and the sum of values by shares, in what follows them


@dataclass(frozen=True, slots=True)
class Attention:
    """For each batch and row: the sum over keys of values by the softmax of scores.

    A score is `score` of the sum over `depth` of query * key, the result `finish` of what is summed over `keys`. Axes
    are those of `nest`. Shares count as 0 in rows that are `hidden`, or, with HIDES_NAN, where they are no numbers.
    `consumed` are the definitions that are in it.
    """

    nest: Nest
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    keys: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    query: Scalar
    key: Scalar
    score: Scalar
    value: Scalar
    finish: Scalar
    hidden: Scalar | None
    consumed: frozenset[str]

    @property
    def reads(self) -> frozenset[str]:
        """Values that it reads."""
        parts = [self.query, self.key, self.score, self.value, self.finish]
        parts += [self.hidden] if self.hidden is not None else []
        return frozenset(x.source for part in parts for x in loads(part) if x.index)

    @property
    def held(self) -> DType:
        """The type that queries, keys and values have in memory, where they are of one; else that of the sums."""
        types = {x.dtype for part in (self.query, self.key, self.value) for x in loads(part) if x.index}
        return next(iter(types)) if len(types) == 1 else F32


def attention_of(
    definitions: Sequence[Definition], outputs: Sequence[str], places: Mapping[str, Place]
) -> Attention | None:
    """The first attention in the definitions of a group whose parts nothing else reads."""
    by_name = {d.name: d for d in definitions}
    for d in definitions:
        found = _attention(d, by_name, outputs, places)
        if found is not None:
            return found
    return None


def _attention(
    d: Definition, by_name: Mapping[str, Definition], outputs: Sequence[str], places: Mapping[str, Place]
) -> Attention | None:
    reduce = outermost(d.value)
    shared = _shares(reduce, by_name) if reduce is not None else None
    if reduce is None or shared is None:
        return None
    share, values, soft, hidden = shared
    consumed = {soft.high, soft.power, soft.total}
    scores = _scores(soft, share, by_name)
    if scores is None:
        return None
    x, inlined = scores
    consumed |= inlined
    if consumed & set(outputs) or _seen(consumed, d, by_name):
        return None
    x = apply("select", hidden, const(0.0), x) if hidden is not None else x
    whole = Reduce("sum", reduce.ranges, (apply("mul", x, values),), F32)
    value = rebuild(d.value, lambda n: whole if n == reduce else None, lambda e: e)
    made = nest_of(replace(d, value=value), places)
    return _divided(replace(made, output=d.name in outputs), frozenset(consumed), hides=hidden is not None)


def outermost(x: Scalar) -> Reduce | None:
    """The only reduction in a value that is not inside of another one."""
    found: set[Reduce] = set()
    waiting = [x]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Reduce):
            found.add(here)
        else:
            waiting.extend(children(here))
    return found.pop() if len(found) == 1 else None


def bare(x: Scalar) -> Scalar:
    """A value without conversions between floating types."""
    while isinstance(x, Apply) and x.fn == "cast" and x.dtype.floating and x.args[0].dtype.floating:
        x = x.args[0]
    return x


def _shares(reduce: Reduce, by_name: Mapping[str, Definition]) -> tuple[Load, Scalar, Softmax, Scalar | None] | None:
    """What a sum by shares is made of: a power, the values, the softmax, and where it is hidden."""
    body = reduce.body[0]
    if reduce.combine != "sum" or reduce.dtype != F32 or not isinstance(body, Apply) or body.fn != "mul":
        return None
    for one, values in (body.args, body.args[::-1]):
        share, hidden = _unhidden(bare(one))
        if not isinstance(share, Apply) or share.fn != "div":
            continue
        power, total = map(bare, share.args)
        if not isinstance(power, Load) or not isinstance(total, Load) or total.source not in by_name:
            continue
        soft = softmax_of(by_name[total.source], by_name)
        in_rows = hidden is None or not free_axes(hidden) & {*reduce.ranges}
        if soft is not None and in_rows and _of_one_row(soft, power, total, reduce, by_name):
            return power, values, soft, hidden
    return None


def _unhidden(x: Scalar) -> tuple[Scalar, Scalar | None]:
    """What counts as 0 in places, and in which."""
    if isinstance(x, Apply) and x.fn == "select":
        test, yes, no = x.args
        if isinstance(yes, Const) and yes.value == 0:
            of_nan = isinstance(test, Apply) and test.fn == "isnan" and bare(test.args[0]) == bare(no)
            return bare(no), HIDES_NAN if of_nan else test
    return x, None


def _of_one_row(soft: Softmax, power: Load, total: Load, reduce: Reduce, by_name: Mapping[str, Definition]) -> bool:
    """Whether a power is over the sum of its own row, which the reduction runs over."""
    if power.source != soft.power or power.guards or total.guards:
        return False
    at = dict(zip(by_name[soft.total].axes, total.index, strict=True))
    free = [e for a, e in zip(soft.along, power.index, strict=True) if a is None]
    alike = all(a is None or at[a] == e for a, e in zip(soft.along, power.index, strict=True))
    return alike and free == [*map(Index.of, reduce.ranges)]


def _scores(soft: Softmax, share: Load, by_name: Mapping[str, Definition]) -> tuple[Scalar, set[str]] | None:
    """The scores of a softmax as they are at a share, and the definitions that are put into them."""
    power = by_name[soft.power]
    assert isinstance(power.value, Apply)
    difference = bare(power.value.args[0])
    assert isinstance(difference, Apply)
    x = bare(difference.args[0])
    made = {n.source for n in loads(x) if n.source in by_name}
    producers = {name: (by_name[name].axes, by_name[name].value) for name in made if _contracts(by_name[name])}
    x = substitute_axes(x, dict(zip(power.axes, share.index, strict=True)))
    x = inline(x, producers)
    return (x, set(producers)) if outermost(x) is not None else None


def _contracts(d: Definition) -> bool:
    return any(isinstance(n, Reduce) for n in walk(d.value))


def _seen(consumed: set[str], d: Definition, by_name: Mapping[str, Definition]) -> bool:
    """Whether others read what would be in the attention alone."""
    others = (e for e in by_name.values() if e.name not in consumed and e.name != d.name)
    return any(n.source in consumed for e in others for n in loads(e.value))


def _divided(nest: Nest, consumed: frozenset[str], *, hides: bool) -> Attention | None:
    """The parts of an attention, once its axes are split."""
    whole = outermost(nest.value)
    assert whole is not None
    body = whole.body[0]
    assert isinstance(body, Apply)
    x, value = body.args
    hidden: Scalar | None = None
    if hides:
        assert isinstance(x, Apply)
        hidden, _, x = x.args
    inner = outermost(x)
    if inner is None or inner.dtype != F32:
        return None
    scaled = scaled_contraction(nest.axes, inner)
    if scaled is None:
        return None
    found, after = scaled
    keys, depth = frozenset(whole.ranges), frozenset(inner.ranges)
    query, key = found.left, found.right
    if free_axes(query) & keys:
        query, key = key, query
    score = _after(x, inner, after)
    of_keys, of_values = free_axes(key) - depth - keys, free_axes(value) - keys
    of_rows = (free_axes(query) | free_axes(score)) - depth - keys
    of_rows |= free_axes(hidden) if hidden is not None else frozenset()
    columns = tuple(a for a in nest.axes if a in of_values and a not in of_rows | of_keys)
    rows = tuple(a for a in nest.axes if a in of_rows and a not in of_keys | of_values)
    batch = tuple(a for a in nest.axes if a not in {*rows, *columns})
    fits = not free_axes(query) & (keys | {*columns}) and not of_keys & {*rows, *columns}
    if not fits or not free_axes(value) <= {*batch, *columns} | keys or not columns:
        return None
    finish = rebuild(nest.value, lambda n: Load(SUM, (), F32) if n == whole else None, lambda e: e)
    return Attention(
        nest, batch, rows, columns, whole.ranges, inner.ranges, query, key, score, value, finish, hidden, consumed
    )


def _after(x: Scalar, inner: Reduce, after: Sequence[After]) -> Scalar:
    """A score as what is made of a product."""
    dot: Scalar = Load(DOT, (), F32)
    for fn, by in after:
        dot = apply(fn, dot, by)
    return rebuild(x, lambda n: dot if n == inner else None, lambda e: e)
