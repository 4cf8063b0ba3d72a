"""Recognises attention in the definitions of a group: scores, softmax, and the sum of values weighted by it.

Producers and consumers stay part of the match: the expressions of queries, keys and values, what is applied to a score
(scale, bias, mask) and to the result, and where the result is stored. Heads that share keys become additional rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import free_axes, inline, loads, outermost, replaced, substitute_axes, walk
from onnxfuse.ir.contraction import After, scaled_contraction
from onnxfuse.ir.dtype import BOOL, F32, DType
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.scalar import Apply, Const, Load, Reduce, Scalar, apply, const, variable
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.memory import Nest, Place, nest_of
from onnxfuse.schedule.analysis.softmax import Softmax, softmax_of

HIDES_NAN = variable("%nan", BOOL)
DOT, SUM = "%dot", "%sum"  # placeholders: product of query and key; weighted sum of values


@dataclass(frozen=True, slots=True)
class Attention:
    """For each batch and row: the sum over keys of the values, weighted by the softmax of the scores.

    A score is `score` applied to the sum over `depth` of query * key; the result is `finish` of the sum
    over `keys`. Axes are those of `nest`. Softmax weights count as 0 where `hidden` holds, or, with HIDES_NAN, where
    they are NaN. `consumed` are the names of the definitions that it replaces.
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
    def dtype(self) -> DType:
        """The storage dtype that queries, keys and values have in common; float32, that of the sums, if they differ."""
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
    shared = _weighted_sum(reduce, by_name) if reduce is not None else None
    if reduce is None or shared is None:
        return None
    weight, values, soft, hidden = shared
    consumed = {soft.high, soft.power, soft.total}
    scores = _scores(soft, weight, by_name)
    if scores is None:
        return None
    x, inlined = scores
    consumed |= inlined
    if consumed & set(outputs) or _read_outside(consumed, d, by_name):
        return None
    x = apply("select", hidden, const(0.0), x) if hidden is not None else x
    whole = Reduce("sum", reduce.ranges, (apply("mul", x, values),), F32)
    value = replaced(d.value, reduce, whole)
    made = nest_of(replace(d, value=value), places)
    return _divided(replace(made, output=d.name in outputs), frozenset(consumed), hides=hidden is not None)


def without_casts(x: Scalar) -> Scalar:
    """A value without conversions between floating types."""
    while isinstance(x, Apply) and x.fn == "cast" and x.dtype.floating and x.args[0].dtype.floating:
        x = x.args[0]
    return x


def _weighted_sum(
    reduce: Reduce, by_name: Mapping[str, Definition]
) -> tuple[Load, Scalar, Softmax, Scalar | None] | None:
    """The parts of a softmax-weighted sum: exponential, values, softmax, and the condition under which it is masked."""
    body = reduce.body[0]
    if reduce.combine != "sum" or reduce.dtype != F32 or not isinstance(body, Apply) or body.fn != "mul":
        return None
    for one, values in (body.args, body.args[::-1]):
        weight, hidden = _split_mask(without_casts(one))
        if not isinstance(weight, Apply) or weight.fn != "div":
            continue
        power, total = map(without_casts, weight.args)
        if not isinstance(power, Load) or not isinstance(total, Load) or total.source not in by_name:
            continue
        soft = softmax_of(by_name[total.source], by_name)
        in_rows = hidden is None or not free_axes(hidden) & {*reduce.ranges}
        if soft is not None and in_rows and _of_one_row(soft, power, total, reduce, by_name):
            return power, values, soft, hidden
    return None


def _split_mask(x: Scalar) -> tuple[Scalar, Scalar | None]:
    """A value without the mask that makes it 0, and that mask, None if it has none."""
    if isinstance(x, Apply) and x.fn == "select":
        test, yes, no = x.args
        if isinstance(yes, Const) and yes.value == 0:
            of_nan = isinstance(test, Apply) and test.fn == "isnan" and without_casts(test.args[0]) == without_casts(no)
            return without_casts(no), HIDES_NAN if of_nan else test
    return x, None


def _of_one_row(soft: Softmax, power: Load, total: Load, reduce: Reduce, by_name: Mapping[str, Definition]) -> bool:
    """Whether an exponential is divided by the sum of its own row, along which the reduction runs."""
    if power.source != soft.power or power.guards or total.guards:
        return False
    at = dict(zip(by_name[soft.total].axes, total.index, strict=True))
    free = [e for a, e in zip(soft.along, power.index, strict=True) if a is None]
    alike = all(a is None or at[a] == e for a, e in zip(soft.along, power.index, strict=True))
    return alike and free == [*map(Index.of, reduce.ranges)]


def _scores(soft: Softmax, weight: Load, by_name: Mapping[str, Definition]) -> tuple[Scalar, set[str]] | None:
    """The scores of a softmax at the index of a weight, and the definitions inlined into them."""
    power = by_name[soft.power]
    assert isinstance(power.value, Apply)
    difference = without_casts(power.value.args[0])
    assert isinstance(difference, Apply)
    x = without_casts(difference.args[0])
    made = {n.source for n in loads(x) if n.source in by_name}
    producers = {name: (by_name[name].axes, by_name[name].value) for name in made if _contracts(by_name[name])}
    x = substitute_axes(x, dict(zip(power.axes, weight.index, strict=True)))
    x = inline(x, producers)
    return (x, set(producers)) if outermost(x) is not None else None


def _contracts(d: Definition) -> bool:
    return any(isinstance(n, Reduce) for n in walk(d.value))


def _read_outside(consumed: set[str], d: Definition, by_name: Mapping[str, Definition]) -> bool:
    """Whether other definitions read a value that the attention would consume."""
    others = (e for e in by_name.values() if e.name not in consumed and e.name != d.name)
    return any(n.source in consumed for e in others for n in loads(e.value))


def _divided(nest: Nest, consumed: frozenset[str], *, hides: bool) -> Attention | None:
    """The attention of a nest whose axes are split; None where axes do not have the roles of rows, columns and keys."""
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
    finish = replaced(nest.value, whole, variable(SUM, F32))
    return Attention(
        nest, batch, rows, columns, whole.ranges, inner.ranges, query, key, score, value, finish, hidden, consumed
    )


def _after(x: Scalar, inner: Reduce, after: Sequence[After]) -> Scalar:
    """A score as a function of the product of query and key, which `DOT` stands for."""
    dot: Scalar = variable(DOT, F32)
    for fn, by in after:
        dot = apply(fn, dot, by)
    return replaced(x, inner, dot)
