"""The state of a build between its steps, as frozen values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeVar

from onnxfuse.backends import BACKENDS, Backend
from onnxfuse.build import Library
from onnxfuse.build.cache import Cache, default_cache_dir
from onnxfuse.config import NVCC, NVRTC, Options
from onnxfuse.emit import Body, Emitted
from onnxfuse.errors import DeviceError, UsageError
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel, Substitutions
from onnxfuse.load.dims import is_extent
from onnxfuse.load.source import ModelSource, source_of
from onnxfuse.lower import Lowered
from onnxfuse.pipeline.meter import Meter, size_of
from onnxfuse.pipeline.outputs import OutputPaths
from onnxfuse.plan.price import PriceMemo
from onnxfuse.render.source import Source
from onnxfuse.report.lock import Choice
from onnxfuse.report.result import Gain, GroupResult
from onnxfuse.rewrite import Firing, select
from onnxfuse.runtime.background import Background
from onnxfuse.runtime.memory import LoadCost
from onnxfuse.runtime.provider import CPU, DEVICES, Provider, provider_of
from onnxfuse.target import Target, runs_here, runs_on_gpu
from onnxfuse.verify.verdicts import Verdict

T = TypeVar("T")
Tell = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class GroupBuild:
    """A group on its way to a kernel; what is None is not made yet. `op` is the operator type of kernel and body."""

    group: Group
    lowered: Lowered
    kernel: Kernel | None = None  # for the first target
    others: tuple[Kernel | None, ...] = ()  # the same, with the same inputs and outputs, for the other targets
    body: Body | None = None
    op: str = ""
    worth: bool = False  # it is not predicted to lose: that was looked at in an earlier round

    @property
    def kernels(self) -> tuple[Kernel | None, ...]:
        """The kernels for all targets, in their order, None for one that has none; empty until they are made."""
        return (self.kernel, *self.others) if self.kernel is not None else ()


@dataclass(frozen=True, slots=True)
class Context:
    """What a build is given and what watches over it. `folder` is where outputs are made before they are delivered."""

    options: Options
    backend: Backend[Target]
    targets: tuple[Target, ...]  # all that the library is for, best first
    model: Path | bytes
    original: Path  # the model as a file, whatever it came from
    places: OutputPaths | None  # None where nothing is to be written
    folder: Path
    meter: Meter
    tell: Tell
    background: Background
    price_memo: PriceMemo
    measured: Target | None = None  # the best of them with what was measured here, where that may be looked at
    beside: Mapping[str, Backend[Target]] = field(default_factory=dict)  # of targets of other backends, by their names
    strict: bool = False  # a bug in one group ends the build instead of leaving the group to the runtime

    def part(self, done: int, of: int) -> None:
        """Tell how much of a step is done."""
        self.tell("part", {"done": done, "of": of})

    def backend_of(self, target: Target) -> Backend[Target]:
        """The backend that makes kernels for one of the targets."""
        return self.beside.get(target.name, self.backend)

    @property
    def target_names(self) -> str:
        """The targets in one word or more."""
        return " ".join(target.name for target in self.targets)

    @property
    def here(self) -> tuple[str, ...]:
        """Names of the targets that this machine can run."""
        return tuple(target.name for target in self.targets if runs_here(target))


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """Everything that the steps have made so far; a step gives a new one. None: not made yet.

    Bodies of control flow nodes have builds of their own, `inner`, in which what belongs to the whole model is empty.
    """

    loaded: Graph | None = None  # as in the file
    graph: Graph | None = None  # rewritten
    inner: tuple[Build, ...] = ()  # of the bodies of its nodes
    node: str = ""  # of an inner one, the node that holds the body, and which of its attributes that is
    attribute: str = ""
    firings: tuple[Firing, ...] = ()
    forbidden: frozenset[str] = frozenset()  # names of nodes that stay with the runtime
    plan: Plan | None = None
    copy: bool = False  # nothing is to be fused: the model is copied
    made: Mapping[object, GroupBuild] = field(default_factory=dict)  # parts of earlier rounds by what decides them
    parts: tuple[GroupBuild, ...] = ()
    refused: tuple[Decision, ...] = ()  # by steps after `plan`
    rounds: int = 0  # how often it was planned
    passed: frozenset[tuple[str, ...]] = frozenset()  # operator and outputs of kernels that equal their bodies
    again: bool = False  # `forbidden` has grown: plan again
    settled: bool = False  # all groups of a plan have become kernels worth having: no strategy runs again
    sources: Mapping[tuple[str, str], Source] = field(default_factory=dict)  # by target and operator type
    domain: str = ""
    library: Library | None = None
    emitted: Emitted | None = None
    files: tuple[Path, ...] = ()  # final paths of what lies in the folder, the model last
    groups: tuple[GroupResult, ...] = ()
    nodes_after: int = 0
    verdict: Verdict | None = None
    place: Provider | None = None  # where kernels are verified, once the original was tried there
    loads: tuple[LoadCost, ...] = ()  # for the manifest; none where equal builds are to be equal on all machines
    gain: Gain | None = None
    grouping: tuple[tuple[str, ...], ...] | None = None  # groups that a lock names, by the names of their nodes
    substitutions: Mapping[str, Substitutions] = field(default_factory=dict)  # of a lock, by usual operator type
    choices: tuple[Choice, ...] | None = None  # by measurement or a lock file; None: none were asked for yet
    tried: tuple[Choice, ...] = ()  # while the gain was measured
    gains: int = 0  # how often that was
    notes: tuple[str, ...] = ()

    def everywhere(self) -> Iterator[Build]:
        """The build itself, and those of all bodies."""
        yield self
        for each in self.inner:
            yield from each.everywhere()

    @property
    def source(self) -> ModelSource:
        """The model that was loaded, or the body in it."""
        return source_of(have(self.loaded))

    @property
    def all_parts(self) -> tuple[GroupBuild, ...]:
        """The parts of the main graph and of all bodies."""
        return tuple(part for b in self.everywhere() for part in b.parts)

    @property
    def stale(self) -> bool:
        """Whether something is to be planned again."""
        return any(b.again for b in self.everywhere())


_MOST_SIZES = 6


def have(value: T | None) -> T:
    """A value that an earlier step has made."""
    assert value is not None, "pipeline: a step ran before the one that makes what it needs"
    return value


def check_values(options: Options) -> None:
    """Raise UsageError for a value that no option has; the command line says the same of its flags."""
    for each in fields(options):
        value, choices = getattr(options, each.name), each.metadata["choices"]
        for one in (value if isinstance(value, tuple) else (value,)) if choices else ():
            if one is not None and one not in choices:
                raise UsageError(f"options: {each.name} is not {one!r}", hint=f"it is one of {', '.join(choices)}")
        if isinstance(value, int | float) and not value >= 0:
            raise UsageError(f"options: {each.name} is {value}", hint="give 0 or more")
    for pattern in options.skip_node:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise UsageError(f"options: {pattern} is not a regular expression: {problem}", hint="correct it") from None
    select(options)
    hinted(options.dim_hint)
    if options.memory_budget is not None:
        size_of(options.memory_budget)


def check_options(options: Options) -> None:
    """Raise UsageError for a value that no option has, and for options that contradict each other."""
    check_values(options)
    if options.check and (options.lock is None or options.profile_guided):
        raise UsageError("options: check wants a lock file to hold the build against", hint="name it with --lock")
    used = options.toolchain if options.nvcc is None else NVCC
    owner = next((name for name, backend in BACKENDS.items() if used in backend.compilers), options.target)
    if owner != options.target:
        raise UsageError(f"options: {used} compiles kernels of {owner}", hint=f"add --target {owner}")
    if options.nvcc is not None and options.toolchain == NVRTC:
        raise UsageError("options: nvcc is given, and toolchain is nvrtc", hint="leave one of them out")


def check_files(options: Options) -> None:
    """Raise UsageError for a file to read that is not there, before a model is read and compiled in vain."""
    named = {"custom_ops_library": options.custom_ops_library, "inputs": (options.inputs,)}
    named |= {} if options.profile_guided else {"lock": (options.lock,)}
    for flag, places in named.items():
        for place in places:
            if place is not None and not Path(place).exists():
                hint = "--profile-guided or tune writes one" if flag == "lock" else "check the spelling"
                raise UsageError(f"options: {flag} is {place}, which does not exist", hint=hint)


def hinted(texts: Sequence[str]) -> list[dict[str, int]]:
    """The combinations of the values of symbols that `--dim-hint` lists, at most six; one empty one without hints.

    Raises UsageError for what is no hint.

    >>> hinted(["batch=1,8"])
    [{'batch': 1}, {'batch': 8}]
    """
    hints: list[list[tuple[str, int]]] = []
    for text in texts:
        name, _, values = text.rpartition("=")
        listed = values.split(",")
        if not name or not all(map(is_extent, listed)):
            raise UsageError(f"usage: --dim-hint {text} is not NAME=N,N", hint="for example --dim-hint batch=1,8")
        hints.append([(name, int(value)) for value in listed])
    return [dict(each) for each in islice(product(*hints), _MOST_SIZES)]


def cache_of(context: Context) -> Cache | None:
    """The cache of compiled kernels, None where it is not wanted or the usual folder cannot be written."""
    if context.options.no_cache:
        return None
    if named := context.options.cache_dir:
        return Cache(Path(named))
    usual = default_cache_dir()
    with suppress(OSError):
        usual.mkdir(parents=True, exist_ok=True)
    return Cache(usual) if os.access(usual, os.W_OK | os.X_OK) else None


def place_of(context: Context, b: Build) -> Provider:
    """The provider of this machine's GPU if kernels of a build run there; that of the CPU otherwise.

    Kernels for CPUs beside those for GPUs are run as those of a build for CPUs. Until the original was tried there, it
    is the one to try.
    """
    if b.place is not None:
        return b.place
    options = context.options
    if options.target not in DEVICES or context.here or not _on_gpu(context):
        return CPU
    return _provider(options.target, options.cuda_graph)


def timed_in(context: Context, b: Build) -> Provider:
    """The provider in which a build is measured: that of `place_of`, as users have it, where float32 may be rounded.

    Raises DeviceError where the device is gone.
    """
    place = place_of(context, b)
    return place if place == CPU else provider_of(context.options.target, "gain", graph=place.graph)


def tried_here(context: Context, b: Build) -> tuple[str, ...]:
    """Names of the targets whose kernels are run on this machine; of several for GPUs a library chooses one."""
    return context.here if place_of(context, b) == CPU else _on_gpu(context)[:1]


def _on_gpu(context: Context) -> tuple[str, ...]:
    return tuple(target.name for target in context.targets if runs_on_gpu(target.name))


@lru_cache(1)
def _provider(target: str, graph: bool) -> Provider:
    """The provider of a target's device; that of the CPU where the runtime has none."""
    try:
        return provider_of(target, "verify", graph=graph, exact=True)
    except DeviceError:
        return CPU
