"""The functions of other packages that a build calls, as a frozen table in which tests can replace entries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, TypedDict, Unpack

from onnxfuse.backends import BACKENDS, Backend
from onnxfuse.build.cache import Cache
from onnxfuse.config import Options
from onnxfuse.emit import (
    Body,
    Emitted,
    LibraryEntry,
    Staged,
    body,
    copied,
    emit,
    identity,
    write,
    write_data,
    write_stream,
)
from onnxfuse.emit.planned import Fused, Planned
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.load import ModelSource, load, simplify_shapes
from onnxfuse.lower import Lowered, lower
from onnxfuse.measure.gain import GainResult, measure_gain
from onnxfuse.measure.profile import Profile, profile_models
from onnxfuse.measure.samples import SampleTime, Task, time_samples
from onnxfuse.ops.spec import OperatorTable
from onnxfuse.pipeline.state import Build, Context
from onnxfuse.pipeline.verdict_cache import VerdictCache, memory_of
from onnxfuse.plan import plan
from onnxfuse.plan.legality import Legality
from onnxfuse.plan.price import Costing
from onnxfuse.rewrite import Firing, rewrite
from onnxfuse.runtime.provider import Provider
from onnxfuse.target import Target
from onnxfuse.verify import GroupVerdict, verify_culprits, verify_groups, verify_models, verify_place, verify_reference
from onnxfuse.verify.verdicts import Verdict


class FeedSettings(TypedDict):
    """What decides the inputs of runs that are compared or measured, and how long these may take (seconds)."""

    inputs: str | None
    seed: int
    dims: Mapping[str, int]
    custom_libraries: Sequence[str]
    time_limit: float | None


def feed_settings(context: Context, b: Build) -> FeedSettings:
    """Those of a build; before the model is loaded no size is known."""
    return {
        "inputs": context.options.inputs,
        "seed": context.options.seed,
        "dims": b.source.dims if b.loaded is not None else {},
        "custom_libraries": context.options.custom_ops_library,
        "time_limit": context.meter.left,
    }


class RunSettings(FeedSettings):
    """The same with the targets whose kernels run here and where these run, and the bytes that a process may take."""

    isas: Sequence[str]
    provider: Provider
    memory_limit: int | None


class Tolerances(TypedDict):
    """The limits of errors that the user gave, and the precision that others follow from."""

    rtol: float | None
    atol: float | None
    precision: str


class ModelSettings(RunSettings, Tolerances):
    """What two models are compared with."""


class GroupSettings(RunSettings):
    """What kernels are compared with: longest sums, roundings and narrowed operator types; `skip` are known ones.

    `reference` is what is known of the original.
    """

    reductions: Mapping[str, int]
    roundings: Mapping[str, float]
    narrowed: Collection[str]
    skip: Sequence[str]
    reference: Path | None


class ProfileSettings(FeedSettings):
    """What the profiles of a build have in common."""

    libraries: Sequence[Path]
    provider: Provider


class PlanGraph(Protocol):
    """`plan.plan`: groups of nodes that become kernels."""

    def __call__(
        self,
        graph: Graph,
        rows: OperatorTable,
        options: Options,
        forbidden: frozenset[str],
        legality: Legality[Target],
        costing: Costing | None,
        grouping: Iterable[tuple[str, ...]] | None = None,
        kept: Plan | None = None,
    ) -> Plan:
        """The plan; with `grouping` these groups, by the names of their nodes, or those of a plan that is `kept`."""


class WriteModel(Protocol):
    """`emit.write`: a model as files of a transaction."""

    def __call__(
        self, emitted: Emitted, path: Path, staged: Staged, *, external: bool = False, data_there: bool = False
    ) -> tuple[Path, ...]:
        """The final paths, the model last."""


class VerifyModels(Protocol):
    """`verify.verify_models`: two models on the same inputs."""

    def __call__(
        self,
        a: Path,
        b: Path,
        *,
        library: Path | None,
        reference: Path | None = None,
        stop: threading.Event | None = None,
        **settings: Unpack[ModelSettings],
    ) -> Verdict:
        """The verdict; `reference` has the outputs of `a` if they are known. Setting `stop` ends it early."""


class VerifyGroups(Protocol):
    """`verify.verify_groups`: each kernel against its function body."""

    def __call__(self, model: Path, library: Path, **settings: Unpack[GroupSettings]) -> Sequence[GroupVerdict]:
        """The verdicts. Raises DeviceError where the model does not run."""


class VerifyReference(Protocol):
    """`verify.verify_reference`: runs the original for a comparison that comes later."""

    def __call__(
        self,
        a: Path,
        out: Path,
        *,
        precision: str,
        stop: threading.Event | None = None,
        **settings: Unpack[FeedSettings],
    ) -> Path | None:
        """The folder with its outputs; None if it did not run."""


class VerifyPlace(Protocol):
    """`verify.verify_place`: whether the original runs in the provider of a device."""

    def __call__(
        self, a: Path, provider: Provider, *, memory_limit: int | None, **settings: Unpack[FeedSettings]
    ) -> str:
        """Why it does not; empty where it does."""


class VerifyCulprits(Protocol):
    """`verify.verify_culprits`: bisection for kernels that are at fault."""

    def __call__(
        self,
        a: Path,
        b: Path,
        library: Path,
        verdict: Verdict,
        kernels: Sequence[str],
        **settings: Unpack[ModelSettings],
    ) -> tuple[str, ...]:
        """The operator types of kernels without which the verdict is yes."""


class ProfileModels(Protocol):
    """`measure.profile_models`: times of models, interleaved."""

    def __call__(
        self,
        paths: Sequence[Path],
        *,
        disabled: Sequence[Sequence[str]] = (),
        threads: int = 0,
        duration: float = 3.0,
        repeats: int | None = None,
        a_a: bool = True,
        per_op: bool = False,
        limit: float | None = None,
        own: bool = False,
        **settings: Unpack[ProfileSettings],
    ) -> Profile:
        """The times of each model and the ratio of the first to the last one."""


class MeasureGain(Protocol):
    """`measure.measure_gain`: a build against its original."""

    def __call__(
        self,
        original: Path,
        made: Path,
        *,
        library: Path,
        kernels: Mapping[str, Sequence[str]],
        custom_libraries: Sequence[str],
        sizes: Sequence[Mapping[str, int]],
        inputs: str | None,
        seed: int,
        seconds: float,
        time_limit: float | None,
        memory_limit: int | None,
        provider: Provider,
        nodes: bool,
    ) -> GainResult:
        """The ratio of times, and kernels that lose."""


class TimeSamples(Protocol):
    """`measure.time_samples`: times of small models."""

    def __call__(
        self,
        tasks: Sequence[Task],
        *,
        libraries: Sequence[Path],
        threads: int,
        seconds: float,
        time_limit: float | None,
    ) -> Sequence[SampleTime]:
        """The time of each task, or what was wrong with it."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The functions that the steps call; their arguments and results are documented with them."""

    backends: Mapping[str, Backend[Target]] = field(default_factory=lambda: BACKENDS)
    load: Callable[[Path | bytes, Options], Graph] = load
    simplify: Callable[[Graph], Graph] = simplify_shapes
    rewrite: Callable[[Graph, Options, list[Decision] | None], tuple[Graph, tuple[Firing, ...]]] = rewrite
    plan: PlanGraph = plan
    lower: Callable[[Group, Plan, OperatorTable], Lowered | Decision] = lower
    body: Callable[[Group, Kernel, Graph], Body | Decision] = body
    identity: Callable[[str, Body], str] = identity
    emit: Callable[[Plan, Sequence[Fused], LibraryEntry, tuple[Planned, ...]], Emitted] = emit
    copied: Callable[[ModelSource], Emitted] = copied
    write: WriteModel = write
    write_data: Callable[[Emitted, Path, Path, threading.Event | None], None] = write_data
    write_stream: Callable[[Emitted, BinaryIO], None] = write_stream
    verify_groups: VerifyGroups = verify_groups
    verify_models: VerifyModels = verify_models
    verify_reference: VerifyReference = verify_reference
    verify_culprits: VerifyCulprits = verify_culprits
    verify_place: VerifyPlace = verify_place
    memory_of: Callable[[Cache | None, Context, Build], VerdictCache] = memory_of
    profile_models: ProfileModels = profile_models
    measure_gain: MeasureGain = measure_gain
    time_samples: TimeSamples = time_samples
