"""Lock files: repeats earlier measured choices, from a given file or from the result of `tune` for the model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from onnxfuse.build.cache import key_of
from onnxfuse.config import USUAL, strategy_of
from onnxfuse.errors import AnsweredNo, UsageError
from onnxfuse.ir.group import Plan
from onnxfuse.ir.kernel import Substitutions
from onnxfuse.pipeline.profile_guided import dropped
from onnxfuse.pipeline.sample_keys import Keys, database_of
from onnxfuse.pipeline.state import Build, Context, have
from onnxfuse.report.document import host
from onnxfuse.report.lock import PLANNED, FasterSchedule, Grouping, Lock, deciding, lock_in, lock_text, read_lock

_MEASURE = "measure again with --profile-guided, or with tune"


def apply_lock(context: Context, b: Build) -> Build:
    """The build with the choices of a lock file made, before it is planned. Raises AnsweredNo for `check`."""
    path = context.options.lock
    if b.choices is not None or b.grouping is not None or context.options.profile_guided:
        return b
    if path is None:
        return _as_tuned(context, b)
    lock = read_lock(Path(path))
    source = b.source
    said = lock.differs(source.sha256, context.options, context.target_names)
    there = _names(b)
    missing = sorted({name for c in lock.choices if not c.kept for name in c.nodes} - there)
    said = said or (f"there is no node {missing[0]}" if missing else "")
    if said and context.options.check:
        raise AnsweredNo(f"lock: {path} does not fit: {said}", hint=_MEASURE)
    notes = (f"{path} was made for another build: {said}",) if said else ()
    choices = tuple(replace(c, nodes=tuple(n for n in c.nodes if n in there)) for c in lock.choices)
    b = dropped(_grouped(replace(b, choices=choices, notes=(*b.notes, *notes)), lock), choices)
    return replace(b, again=False, inner=tuple(replace(each, again=False) for each in b.inner))


def _as_tuned(context: Context, b: Build) -> Build:
    """The build with the groups that `tune` found for this model, with these options on this machine."""
    database = database_of(context) if context.options.strategy is None else None
    if database is None or not database.path.is_file():
        return b
    found = database.plan(key_of_plan(context, b))
    if found is None:
        return b
    text, date = found
    try:
        lock = lock_in(text, f"what tune kept in {database.path}")
    except UsageError:
        return b
    said = f"groups as `tune` measured them on {date[:10]}: --strategy makes a new plan"
    return _grouped(replace(b, notes=tuple(dict.fromkeys((*b.notes, said)))), lock)


def _grouped(b: Build, lock: Lock) -> Build:
    """The build and its bodies with the groups and schedule candidates of a lock."""
    substitutions = substitutions_of(lock.faster_schedules)
    return replace(
        b, grouping=lock.groups, substitutions=substitutions, inner=tuple(_grouped(each, lock) for each in b.inner)
    )


def substitutions_of(found: Iterable[FasterSchedule]) -> dict[str, Substitutions]:
    """The substituted schedule candidates that a lock takes, by the operator types of the usual kernels."""
    substitutions: dict[str, Substitutions] = {}
    for each in found:
        if each.taken:
            substitutions[each.kernel] = (*substitutions.get(each.kernel, ()), (each.instead_of, each.schedule))
    return substitutions


def _names(b: Build) -> set[str]:
    return {n.name for each in b.everywhere() for n in have(each.graph).nodes}


def key_of_plan(context: Context, b: Build) -> str:
    """The key of the result of `tune` for a model: everything its plan depends on, and the machine."""
    source = b.source
    decides = json.dumps({k: v for k, v in deciding(context.options).items() if k not in PLANNED}, sort_keys=True)
    return key_of("plan", Keys(context).place, source.sha256, decides, context.target_names)


def check_lock(context: Context, b: Build) -> None:
    """For `check`: the kernels, or the groups, are those that the lock file was written with. Raises AnsweredNo."""
    if not context.options.check or context.options.lock is None or context.options.profile_guided:
        return
    lock = read_lock(Path(context.options.lock))
    here = {tuple(n.name for n in p.group.nodes) for p in b.all_parts}
    lost = next((g for g in lock.groups or () if g not in here), None)
    if lost is not None:
        raise AnsweredNo(f"lock: {context.options.lock} does not fit: {lost[0]} is in another group", hint=_MEASURE)
    if lock.domain is not None and lock.domain != b.domain:
        said = f"the kernels are {b.domain or 'none'}, not {lock.domain or 'none'}"
        raise AnsweredNo(f"lock: {context.options.lock} does not fit: {said}", hint=_MEASURE)


def lock_of(context: Context, b: Build) -> str:
    """The text of the lock file of a build that was measured.

    It has the groups, unless they follow from fixed rules: prices are those of this machine.
    """
    options, choices = context.options, (*(b.choices or ()), *b.tried)
    groups = None if strategy_of(options) == USUAL else grouping_of(b)
    lock = Lock(b.source.sha256, deciding(options), context.target_names, b.domain, choices, groups)
    return text_of_lock(context, lock)


def grouping_of(b: Build) -> Grouping:
    """The groups of a build and of its bodies, by the names of their nodes."""
    plans: list[Plan] = [have(each.plan) for each in b.everywhere()]
    return tuple(tuple(n.name for n in g.nodes) for plan in plans for g in plan.groups)


def text_of_lock(context: Context, lock: Lock) -> str:
    """The text of a lock file, with the machine that it was measured on."""
    return lock_text(lock, {**host(), "calibrated": context.measured is not None})
