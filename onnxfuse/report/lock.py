"""The lock file: choices made by measurement, so that later builds repeat them without measuring.

It has the inputs of the build (model, options, machine class), its result (the domain, which contains a digest of the
kernels), and every choice with the measured times. The same choices for the same model give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.config import Options, strategy_of
from onnxfuse.errors import UsageError
from onnxfuse.report.document import SCHEMA_VERSION, parsed, version

_MAKE = "--profile-guided or tune writes one"
# Options that decide what is fused.
DECIDING = (
    "dim", "input_shape", "strategy", "plan_budget", "min_group", "enable", "disable", "skip_node", "fast_math",
    "precision", "winograd",
)  # fmt: skip
FIRST_VERSION = 1  # of lock files that are still read; they had `ways` for `faster_schedules`
PLANNED = ("strategy", "plan_budget")  # those of them that decide how groups are chosen
Grouping = tuple[tuple[str, ...], ...]  # the groups of a plan, by the names of their nodes


@dataclass(frozen=True, slots=True)
class Choice:
    """Kernels measured in the whole model: milliseconds of a run with them, and with function bodies instead.

    `nodes` are those of the rewritten graph, which stay with the runtime unless the kernels were `kept`; `spread` is
    the relative spread between repetitions of the same model.
    """

    kernels: tuple[str, ...]
    nodes: tuple[str, ...]
    with_ms: float
    without_ms: float
    spread: float
    kept: bool
    low: float | None = None  # 95 % confidence interval of without_ms / with_ms; None: unknown
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """Groups that were measured in the whole model instead of those of `anchors`, in all equal areas at once.

    `groups` and `instead_of` have the operators of each group; `places` is the number of equal areas, and
    `predicted_ms` the predicted saving. The other times are of the whole model, `ratio` is before / after. Groups that
    are `taken` are in the plan.
    """

    groups: tuple[str, ...]
    instead_of: tuple[str, ...]
    places: int
    predicted_ms: float
    before_ms: float
    after_ms: float
    ratio: float
    low: float
    high: float
    taken: bool


@dataclass(frozen=True, slots=True)
class FasterSchedule:
    """A schedule candidate of a contraction that was measured to be faster than the one predicted best.

    `kernel` is the operator type of the kernel as scheduled by predictions, which occurs at `places` of the model.
    Times are of the kernel by itself, averaged over numbers of threads. If `taken`, it made the whole model faster.
    """

    kernel: str
    places: int
    instead_of: str
    schedule: str
    before_us: float
    after_us: float
    taken: bool


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lock file; `domain` is that of the library, "" if nothing was fused."""

    model_sha256: str
    options: Mapping[str, Any]
    target: str
    domain: str | None  # None: no library was made
    choices: tuple[Choice, ...]
    groups: Grouping | None = None  # None: as planned
    alternatives: tuple[Alternative, ...] = ()  # measured alternatives to groups of anchors
    faster_schedules: tuple[FasterSchedule, ...] = ()  # measured schedule candidates of contractions

    def differs(self, model_sha256: str, options: Options, target: str) -> str:
        """How a build differs from the one that the lock is for; "" if it does not."""
        if self.model_sha256 != model_sha256:
            return f"the model has sha256 {model_sha256[:12]}, not {self.model_sha256[:12]}"
        if self.target != target:
            return f"the machine class is {target}, not {self.target}"
        now = deciding(options)
        planned = PLANNED if self.groups is not None else ()  # such a build does not plan
        changed = [name for name in DECIDING if now[name] != self.options.get(name) and name not in planned]
        return f"--{changed[0].replace('_', '-')} has another value" if changed else ""


def deciding(options: Options) -> dict[str, Any]:
    """The options that decide what is fused, as JSON values."""
    found = {name: getattr(options, name) for name in DECIDING} | {"strategy": strategy_of(options)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def lock_text(lock: Lock, machine: Mapping[str, Any]) -> str:
    """The text of a lock file; `machine` describes where it was measured, for information only."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "onnxfuse_version": version("onnxfuse") or "unknown",
        "machine": dict(machine),
        **asdict(lock),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def read_lock(path: Path) -> Lock:
    """Read a lock file. Raises UsageError for a file that is none."""
    try:
        return lock_in(path.read_text(encoding="utf-8"), str(path))
    except OSError as problem:
        raise UsageError(f"lock: {path} cannot be read: {problem.strerror}", hint=_MAKE) from None


def lock_in(text: str, where: str) -> Lock:
    """Parse the text of a lock file. Raises UsageError for a text that is none."""
    try:
        d = parsed(text)
        if d["schema_version"] not in (FIRST_VERSION, SCHEMA_VERSION):
            raise UsageError(f"lock: {where} is of version {d['schema_version']}", hint="make it again")
        choices = tuple(_choice(each) for each in d["choices"])
        groups = None if d.get("groups") is None else tuple(tuple(map(str, each)) for each in d["groups"])
        domain = None if d["domain"] is None else str(d["domain"])
        list_key, key = ("ways", "way") if d["schema_version"] == FIRST_VERSION else ("faster_schedules", "schedule")
        faster = tuple(_faster(each, str(each[key])) for each in d.get(list_key, ()))
        return Lock(str(d["model_sha256"]), dict(d["options"]), str(d["target"]), domain, choices, groups, (), faster)
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"lock: {where} is not a lock file", hint=_MAKE) from None


def _faster(d: Mapping[str, Any], schedule: str) -> FasterSchedule:
    kernel, instead_of = (str(d[key]) for key in ("kernel", "instead_of"))
    before_us, after_us = (float(d[key]) for key in ("before_us", "after_us"))
    return FasterSchedule(kernel, int(d["places"]), instead_of, schedule, before_us, after_us, bool(d["taken"]))


def _choice(d: Mapping[str, Any]) -> Choice:
    kernels, nodes = (tuple(map(str, d[key])) for key in ("kernels", "nodes"))
    with_ms, without_ms, spread = (float(d[key]) for key in ("with_ms", "without_ms", "spread"))
    low, high = (None if d.get(key) is None else float(d[key]) for key in ("low", "high"))
    return Choice(kernels, nodes, with_ms, without_ms, spread, bool(d["kept"]), low, high)
