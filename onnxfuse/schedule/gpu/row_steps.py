"""The steps of a phase of rows: each reduction over a row, each value of a row, and each value of a row's elements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import free_axes, loads, rebuild, substitute_axes, walk
from onnxfuse.ir.index import Axis, Index, axes_of
from onnxfuse.ir.indexing import flatten, product
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Load, Reduce, Scalar, uncast
from onnxfuse.schedule.analysis.memory import Nest
from onnxfuse.schedule.gpu.thread_mapping import Columns, ThreadMapping, columns
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.jobs import Job

MOST_TERMS = 1 << 24
FEW_LOADS = 2  # of a value that is computed again where rows are too long to keep it
CONTINUOUS = frozenset((
    "add", "sub", "mul", "rounded_mul", "div", "fma", "neg", "abs", "min", "max", "min_or_second", "max_or_second",
    "sqrt", "reciprocal", "exp", "exp_or_zero", "log", "erf", "tanh", "sigmoid", "select", "cast",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowStep:
    """A loop over the elements of a row, `columns`, or a value of the whole row.

    What it makes has a `name`: that of a job's value, or of a `reduce` over the row, whose body is over the columns.
    """

    name: str
    value: Scalar
    columns: Columns | None
    reduce: Reduce | None = None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """What is computed for each element."""
        return self.reduce.body if self.reduce is not None else (self.value,)


@dataclass(frozen=True, slots=True)
class Made:
    """A value of a phase: its nest, the axes that it has within a row, and how its elements are come by."""

    nest: Nest
    inner: tuple[Axis, ...]
    columns: Columns | None

    def position(self, load: Load) -> Index:
        """Which of its elements in the row a load reads."""
        found = self.nest.digits_at(load.index)
        return flatten(tuple(found[a] for a in self.inner), tuple(a.extent for a in self.inner))

    def is_own(self, load: Load, by: Columns | None) -> bool:
        """Whether a load of a step reads what its thread has made itself."""
        if load.guards or by is None or self.columns is None:
            return False
        return by.total == self.columns.total and self.position(load) == by.position


def steps_of(
    t: AlignedJobs, d: ThreadMapping, digits: Mapping[Axis, Index], kept: Collection[str]
) -> tuple[list[RowStep], dict[str, Made]]:
    """The steps of all jobs in order, and their values; `digits` are the values of the phase's axes.

    What is in `kept` is read outside of the phase.
    """
    near = normalizes([job.nest for job in t.jobs], kept)
    steps: list[RowStep] = []
    values: dict[str, Made] = {}
    for job in t.jobs:
        made = _made(job, t, d)
        values[job.nest.name] = made
        value = substitute_axes(job.nest.value, digits)
        found = list(_reductions(value, made, d))
        for x in found:
            across = columns(d, product([r.extent for r in x.ranges]))
            body = tuple(substitute_axes(b, across.digits(x.ranges)) for b in x.body)
            steps.append(RowStep(_name(x, steps), body[0], across, replace(x, body=body)))
        names = dict(zip(found, (s.name for s in steps[len(steps) - len(found) :]), strict=True))
        value = _named(value, names, near=near)
        if made.columns is not None:
            value = substitute_axes(value, made.columns.digits(made.inner))
        steps.append(RowStep(job.nest.name, value, made.columns))
    return steps, values


def _made(job: Job, t: AlignedJobs, d: ThreadMapping) -> Made:
    inner = tuple(a for a in job.nest.axes if a not in t.shared)
    return Made(job.nest, inner, columns(d, product([a.extent for a in inner])) if inner else None)


def _name(x: Reduce, before: Sequence[RowStep]) -> str:
    return f"{x.combine} {len(before)}"


def slot_of(name: str, slot: int) -> str:
    """The name of one of the results of a reduction."""
    return f"{name}.{slot}"


def _named(value: Scalar, names: Mapping[Reduce, str], *, near: bool) -> Scalar:
    """A value with reductions as names for their results; where `near` will do, means are by way of a reciprocal."""

    def leaf(node: Scalar) -> Scalar | None:
        if near and _mean(node):
            assert isinstance(node, Apply)
            total, count = node.args
            assert isinstance(count, Const)
            named = leaf(total)
            return named and Apply("mul", (named, Const(1 / count.value, count.dtype)), node.dtype)
        name = names.get(replace(node, slot=0)) if isinstance(node, Reduce) else None
        return Load(slot_of(name, node.slot), (), node.dtype) if name is not None and isinstance(node, Reduce) else None

    return rebuild(value, leaf, lambda e: e)


def normalizes(nests: Sequence[Nest], kept: Collection[str]) -> bool:
    """Whether nests normalize by means that need not be rounded correctly.

    A sum by the reciprocal of 41 is not 1 for 41 ones. Nothing jumps on the way to the results, such as `Floor`, which
    would make much of that, there is a square root, by which something is divided, and no mean is itself a result.
    """
    means: set[str] = set()
    for nest in nests:
        value = uncast(nest.value)
        if _mean(value) or (isinstance(value, Load) and value.source in means):
            means.add(nest.name)
            if nest.output or nest.name in kept:
                return False
    parts = {n for nest in nests for n in walk(nest.value)}
    roots = any(isinstance(n, Apply) and n.fn == "sqrt" for n in parts)
    return roots and all(map(_continuous, parts))


def _continuous(x: Scalar) -> bool:
    """Whether a node by itself makes little of a little difference."""
    if isinstance(x, Apply):
        return x.fn in CONTINUOUS and x.dtype.floating
    return not isinstance(x, Reduce) or x.combine in ("sum", "max", "min")


def _mean(x: Scalar) -> bool:
    """Whether it is a sum divided by the number of its terms, or a like number."""
    if not isinstance(x, Apply) or x.fn != "div":
        return False
    total, count = x.args
    sums = isinstance(total, Reduce) and total.combine == "sum" and total.dtype == x.dtype
    return sums and x.dtype.floating and isinstance(count, Const) and 1 <= count.value < MOST_TERMS


def _reductions(value: Scalar, made: Made, d: ThreadMapping) -> Iterator[Reduce]:
    """The outermost reductions in a value, each once, that all of the row has in common.

    A thread that is alone at a long row goes through it as the loops are, and not by these steps.
    """
    nested = {n for x in walk(value) if isinstance(x, Reduce) for b in x.body for n in walk(b)}
    seen: set[Reduce] = set()
    for x in walk(value):
        if not isinstance(x, Reduce) or x in nested:
            continue
        first = replace(x, slot=0)
        short = d.team != "thread" or columns(d, product([r.extent for r in x.ranges])).register is not None
        if first not in seen and short and not free_axes(first) & set(made.inner):
            seen.add(first)
            yield first


def recomputed(steps: Sequence[RowStep], values: Mapping[str, Made], kept: Collection[str]) -> list[RowStep]:
    """The steps without values of elements that are as cheap to compute again, from what is loaded, as to keep."""
    made = list(steps)
    for name in [step.name for step in steps]:
        at = next(n for n, step in enumerate(made) if step.name == name)
        step, later = made[at], made[at + 1 :]
        if name in kept or not _cheap(step, values):
            continue
        if all(values[name].is_own(load, each.columns) for each in later for load in reads_of(each, name)):
            made[at:] = [_with(each, _put_in(name, step.value)) for each in later]
    return made


def _cheap(step: RowStep, values: Mapping[str, Made]) -> bool:
    """Whether a step makes a value of elements, for readers in the phase alone, from few of what is loaded."""
    if step.columns is None or step.reduce is not None or step.name not in values or values[step.name].nest.output:
        return False
    alone = not any(isinstance(n, Reduce) for n in walk(step.value))
    return alone and len(_elements(step.value, step.columns)) <= FEW_LOADS


def common_value(steps: Sequence[RowStep], values: Mapping[str, Made]) -> tuple[RowStep, list[RowStep]] | None:
    """A value of several loaded elements that several steps have in common, and the steps that read it instead."""
    for step in (s for s in steps if s.columns is not None):
        across = step.columns
        assert across is not None
        for x in (n for body in step.scalars for n in walk(body)):
            if not isinstance(x, Apply) or len(_elements(x, across)) < 2 or not _of_elements(x, values, across):
                continue
            while isinstance(x, Apply) and x.fn == "cast" and x.args[0].dtype.bytes < x.dtype.bytes:
                x = x.args[0]
            users = [s for s in steps if s.columns == across and any(x in {*walk(body)} for body in s.scalars)]
            if len(users) > 1:
                name = f"value {step.name}"
                read = Load(name, (across.position,), x.dtype)
                rest = [_with(s, {x: read}.get) if s in users else s for s in steps]
                return RowStep(name, x, across), rest
    return None


def _elements(x: Scalar, across: Columns) -> set[Load]:
    """The loads of a value that differ from element to element."""
    mine = {level.axis for level in across.loops}
    return {load for load in loads(x) if any(mine & axes_of(e) for e in load.index)}


def _of_elements(x: Scalar, values: Mapping[str, Made], across: Columns) -> bool:
    """Whether a value is made of nothing but elements that are loaded whatever they are."""
    alone = not any(isinstance(n, (Reduce, FromIndex)) for n in walk(x))
    return alone and all(not n.guards and n.source not in values and n.index for n in loads(x))


def _put_in(name: str, value: Scalar) -> Callable[[Scalar], Scalar | None]:
    return lambda n: value if isinstance(n, Load) and n.source == name else None


def _with(step: RowStep, leaf: Callable[[Scalar], Scalar | None]) -> RowStep:
    """A step with other values in the place of some."""
    if step.reduce is None:
        return replace(step, value=rebuild(step.value, leaf, lambda e: e))
    body = tuple(rebuild(b, leaf, lambda e: e) for b in step.reduce.body)
    return replace(step, value=body[0], reduce=replace(step.reduce, body=body))


def reads_of(step: RowStep, name: str) -> list[Load]:
    """The loads by which a step reads a value."""
    return [load for x in step.scalars for load in loads(x) if load.source == name]
