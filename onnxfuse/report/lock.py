"""The lock file: which areas of a model were measured to be faster as kernels, so that a later build need not measure.

It holds what the build was of (model, options, machine class), what it became (the domain, a digest of its kernels),
and every choice with its two times. Equal choices replayed on an equal model give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.config import USUAL, Options
from onnxfuse.errors import UsageError
from onnxfuse.report.document import SCHEMA_VERSION, parsed, version

_MAKE = "--profile-guided makes one, and so does tune"
# Options that decide what is fused.
DECIDING = (
    "dim", "input_shape", "strategy", "plan_budget", "min_group", "enable", "disable", "skip_node", "fast_math",
    "precision", "winograd",
)  # fmt: skip
PLANNED = ("strategy", "plan_budget")  # those of them by which groups are chosen


@dataclass(frozen=True, slots=True)
class Choice:
    """Kernels measured in the whole model: milliseconds of a run with them, and with function bodies in their place.

    `nodes` are those of the rewritten graph, which stay with the runtime where the kernels were not `kept`; `spread` is
    how far the model with them was from itself.
    """

    kernels: tuple[str, ...]
    nodes: tuple[str, ...]
    with_ms: float
    without_ms: float
    spread: float
    kept: bool
    low: float | None = None  # of the time without to the time with them, with 95 % confidence; None: not known
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Rival:
    """Groups that were measured in the whole model in the place of those that anchors makes, all of one kind at once.

    `groups` and `instead_of` are operators of a group each, `places` how many such areas there are, which prices say
    save so many milliseconds. The other times are of the whole model, `ratio` is the first to the second one. What is
    `taken` is in the plan.
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
class Faster:
    """A way through a contraction that took less time than that which is predicted best.

    `kernel` is the operator of the kernel as predictions make it, at so many `places` of the model. Times are of the
    kernel alone, the mean over all numbers of threads. What is `taken` made the whole model faster too.
    """

    kernel: str
    places: int
    instead_of: str
    way: str
    before_us: float
    after_us: float
    taken: bool


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file as a value; `domain` is that of the library it led to, "" where nothing was left to fuse."""

    model_sha256: str
    options: Mapping[str, Any]
    target: str
    domain: str | None  # None: no library was made
    choices: tuple[Choice, ...]
    groups: tuple[tuple[str, ...], ...] | None = None  # names of nodes, where groups were measured; None: as planned
    rivals: tuple[Rival, ...] = ()  # plans that were measured beside that of anchors
    ways: tuple[Faster, ...] = ()  # through contractions

    def differs(self, model_sha256: str, options: Options, target: str) -> str:
        """What a build has that the lock was not made for; "" where it fits."""
        if self.model_sha256 != model_sha256:
            return f"the model has sha256 {model_sha256[:12]}, not {self.model_sha256[:12]}"
        if self.target != target:
            return f"the machine class is {target}, not {self.target}"
        now = deciding(options)
        planned = PLANNED if self.groups is not None else ()  # such a build does not plan
        changed = [name for name in DECIDING if now[name] != self.options.get(name) and name not in planned]
        return f"--{changed[0].replace('_', '-')} is another" if changed else ""


def deciding(options: Options) -> dict[str, Any]:
    """The options that decide what is fused, as JSON has them."""
    found = {name: getattr(options, name) for name in DECIDING} | {"strategy": options.strategy or USUAL}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def lock_text(lock: Lock, machine: Mapping[str, Any]) -> str:
    """The text of a lock file; `machine` says where it was measured, and decides nothing."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "onnxfuse_version": version("onnxfuse") or "unknown",
        "machine": dict(machine),
        **asdict(lock),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def read_lock(path: Path) -> Lock:
    """The lock in a file. Raises UsageError where there is none."""
    try:
        return lock_in(path.read_text(encoding="utf-8"), str(path))
    except OSError as problem:
        raise UsageError(f"lock: {path} cannot be read: {problem.strerror}", hint=_MAKE) from None


def lock_in(text: str, where: str) -> Lock:
    """The lock in the text of a file. Raises UsageError where there is none."""
    try:
        d = parsed(text)
        if d["schema_version"] != SCHEMA_VERSION:
            raise UsageError(f"lock: {where} is of version {d['schema_version']}", hint="make it again")
        choices = tuple(_choice(each) for each in d["choices"])
        groups = None if d.get("groups") is None else tuple(tuple(map(str, each)) for each in d["groups"])
        domain = None if d["domain"] is None else str(d["domain"])
        ways = tuple(_faster(each) for each in d.get("ways", ()))
        return Lock(str(d["model_sha256"]), dict(d["options"]), str(d["target"]), domain, choices, groups, (), ways)
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"lock: {where} is no lock file", hint=_MAKE) from None


def _faster(d: Mapping[str, Any]) -> Faster:
    kernel, instead_of, way = (str(d[key]) for key in ("kernel", "instead_of", "way"))
    before_us, after_us = (float(d[key]) for key in ("before_us", "after_us"))
    return Faster(kernel, int(d["places"]), instead_of, way, before_us, after_us, bool(d["taken"]))


def _choice(d: Mapping[str, Any]) -> Choice:
    kernels, nodes = (tuple(map(str, d[key])) for key in ("kernels", "nodes"))
    with_ms, without_ms, spread = (float(d[key]) for key in ("with_ms", "without_ms", "spread"))
    low, high = (None if d.get(key) is None else float(d[key]) for key in ("low", "high"))
    return Choice(kernels, nodes, with_ms, without_ms, spread, bool(d["kept"]), low, high)
