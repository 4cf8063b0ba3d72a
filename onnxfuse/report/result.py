"""The result of `optimize`, and its JSON document (schema: docs/schema/optimize.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from onnxfuse.report.document import envelope, plain
from onnxfuse.report.drawing import Drawing
from onnxfuse.report.lock import Choice


@dataclass(frozen=True, slots=True)
class Model:
    """The input model: `path` is None for standard input, `sha256` is that of the file without external data."""

    path: str | None
    sha256: str
    opset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Output:
    """Paths of the files written; None for those that were not. `model` is "-" for standard output."""

    model: str | None = None
    library: str | None = None
    manifest: str | None = None
    data: str | None = None  # external data
    lock: str | None = None


@dataclass(frozen=True, slots=True)
class CandidateTime:
    """A schedule candidate of a phase, and its predicted time."""

    schedule: str
    predicted_ms: float


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A fused node of the output, which runs as a kernel, and its original nodes."""

    name: str
    kernel: str  # the operator type
    nodes: tuple[str, ...]  # names of the loaded model
    ops: tuple[str, ...]
    mapping_type: str | None
    flops: int | None  # of one run
    bytes: int | None  # of its inputs and outputs
    phases: int
    predicted_ms: float | None = None  # by the cost model, for the machine class
    runtime_ms: float | None = None  # predicted for the runtime's own nodes
    time_ms: float | None = None  # minimum of a run, at the first sizes of the gain; None if not measured
    bound: str | None = None  # what takes longest: compute, L2, L3, memory or dispatch
    schedules: tuple[tuple[CandidateTime, ...], ...] = ()  # schedule candidates of phases, the chosen one first


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nodes stay with ONNX Runtime: a stable code, a sentence, and what would change it."""

    code: str
    nodes: tuple[str, ...]
    reason: str
    unlock: str


def nothing_lost(unlock: str) -> bool:
    """Whether a refusal with this unlock leaves no node out: its nodes are in several kernels, or cost nothing."""
    return unlock.startswith("none needed")


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A group that strategies proposed: its predicted time as a kernel, and why it is not one.

    `code` is empty for groups that became kernels.
    """

    nodes: tuple[str, ...]  # of the rewritten model
    by: tuple[str, ...]  # strategies
    predicted_ms: float | None
    code: str
    reason: str
    unlock: str
    measured: bool = False  # whether the time was measured on this machine instead of predicted


@dataclass(frozen=True, slots=True)
class Verified:
    """The verdict on the output: `ok` is None if nothing could be compared; `max_error` is relative, in the L2 norm."""

    ok: bool | None
    max_error: float | None = None
    limit: float | None = None
    inputs: int = 0
    message: str = ""
    cached: bool = False  # found before for the same bytes, runtime and kind of machine
    targets: tuple[str, ...] = ()  # machine classes whose kernels ran


@dataclass(frozen=True, slots=True)
class Loading:
    """The cost of loading a model; None for what was not measured."""

    bytes: int  # of all files, external data and the library included
    seconds: float | None = None
    peak_bytes: int | None = None  # of a process that loads and runs it once, without clean file pages


@dataclass(frozen=True, slots=True)
class GainAt:
    """Times of both models at one set of sizes."""

    shapes: Mapping[str, tuple[int, ...]]
    before_ms: float
    after_ms: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Gain:
    """The speedup over the original, measured in turns, with its 95 % confidence interval (`low`, `high`).

    It is the geometric mean over all sizes of the ratio by `statistic`. Milliseconds are minima at the first of the
    sizes; `spread` is the relative spread between repetitions of the original.
    """

    before_ms: float
    after_ms: float
    speedup: float
    low: float
    high: float
    spread: float
    threads: int
    statistic: str
    busy: bool
    sizes: tuple[GainAt, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of `optimize`. `stopped_after` is the last step, if it was told to stop there."""

    model: Model
    output: Output
    nodes_before: int
    nodes_after: int
    kernels: int
    distinct_kernels: int
    phases: int
    phase_bytes: int | None  # stored by phases, for later phases and other nodes
    groups: tuple[GroupResult, ...]
    rewrites: tuple[tuple[str, int], ...]  # rule, count
    refusals: tuple[Refusal, ...]
    candidates: tuple[CandidateResult, ...]  # of strategies that choose by predicted times
    verify: Verified | None
    loading: Mapping[str, Loading]  # of original, with_library and without_library, if written
    gain: Gain | None
    choices: tuple[Choice, ...]  # measured, or those of a lock file
    target: str  # the best of `targets`
    targets: tuple[str, ...]
    counted_at: Mapping[str, int]  # values of symbols in the shapes of inputs, at which figures are counted
    precision: str  # storage type of float32 weights of products
    compiler: str | None
    domain: str | None
    notes: tuple[str, ...] = ()
    stopped_after: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    drawing: Drawing | None = None

    @property
    def nodes_left(self) -> int:
        """Nodes of the output that stay with ONNX Runtime."""
        return self.nodes_after - self.kernels

    def to_json(self, command: str = "optimize", *, drawing: bool = False) -> dict[str, Any]:
        """Plain values for a JSON document; `drawing` adds the graphs for a page, which are most of the bytes."""
        fields = asdict(self if drawing else replace(self, drawing=None))
        if not drawing:
            del fields["drawing"]
        fields["rewrites"] = [{"rule": rule, "count": count} for rule, count in self.rewrites]
        fields["nodes_left"] = self.nodes_left
        return dict(plain(envelope(command) | fields))
