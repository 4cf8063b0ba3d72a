"""The result of `optimize` as a value, and as the JSON document whose schema is docs/schema/optimize.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from onnxfuse.report.document import envelope, plain
from onnxfuse.report.drawing import Drawing
from onnxfuse.report.lock import Choice


@dataclass(frozen=True, slots=True)
class Model:
    """The model that was read: `path` is None for standard input, `sha256` is of the file without external data."""

    path: str | None
    sha256: str
    opset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Output:
    """What was written; None for what was not. `model` is "-" for standard output."""

    model: str | None = None
    library: str | None = None
    manifest: str | None = None
    data: str | None = None  # external data
    lock: str | None = None


@dataclass(frozen=True, slots=True)
class WayResult:
    """A way to compute a part of a kernel, and the time that is predicted for that part."""

    way: str
    predicted_ms: float


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A node of the output that runs in the library, and what it stands for."""

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
    time_ms: float | None = None  # the least time of a run, at the first sizes of the gain; None where not measured
    bound: str | None = None  # what takes longest: compute, L2, L3, memory or dispatch
    ways: tuple[tuple[WayResult, ...], ...] = ()  # of each part that there are several for: the one taken, the others


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nodes stay with ONNX Runtime: a stable code, a sentence, and what would unlock it."""

    code: str
    nodes: tuple[str, ...]
    reason: str
    unlock: str


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A group that strategies proposed: what it is predicted to take as a kernel, and why it is none.

    `code` is empty where it is one.
    """

    nodes: tuple[str, ...]  # of the rewritten model
    by: tuple[str, ...]  # strategies
    predicted_ms: float | None
    code: str
    reason: str
    unlock: str
    measured: bool = False  # whether the time was measured on this machine, and not predicted


@dataclass(frozen=True, slots=True)
class Verified:
    """The verdict on the output: `ok` is None when the question could not be asked, `max_error` is relative (L2)."""

    ok: bool | None
    max_error: float | None = None
    limit: float | None = None
    inputs: int = 0
    message: str = ""
    cached: bool = False  # the same bytes passed before, in the same runtime and on the same kind of machine
    targets: tuple[str, ...] = ()  # those whose kernels ran


@dataclass(frozen=True, slots=True)
class Loading:
    """What loading takes in one way; None where it was not measured."""

    bytes: int  # of all files, external data and the library included
    seconds: float | None = None
    peak_bytes: int | None = (
        None  # memory of a process that loads it and runs it once, clean pages of files not counted
    )


@dataclass(frozen=True, slots=True)
class GainAt:
    """Both models at one set of sizes."""

    shapes: Mapping[str, tuple[int, ...]]
    before_ms: float
    after_ms: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as long as the result the original takes, run in turns, by `statistic`: from `low` to `high`.

    Milliseconds are least times at the first of the sizes; `spread` is how far the original is from itself. The speedup
    is the geometric mean over all sizes.
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
    """All that `optimize` has to say. `stopped_after` is the step at which it was asked to stop."""

    model: Model
    output: Output
    nodes_before: int
    nodes_after: int
    kernels: int
    distinct_kernels: int
    phases: int
    phase_bytes: int | None  # stored by phases for later ones and for other nodes
    groups: tuple[GroupResult, ...]
    rewrites: tuple[tuple[str, int], ...]  # rule, count
    refusals: tuple[Refusal, ...]
    candidates: tuple[CandidateResult, ...]  # of a strategy that chooses by prices
    verify: Verified | None
    loading: Mapping[str, Loading]  # of original, with_library and without_library, as far as there are files
    gain: Gain | None
    choices: tuple[Choice, ...]  # measured, or those of a lock file
    target: str  # the best of `targets`
    targets: tuple[str, ...]
    counted_at: Mapping[str, int]  # the values of the symbols in the shapes of inputs, for all that is counted
    precision: str  # what float32 weights of products were rounded to
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
        """Plain values for a JSON document; with the `drawing`, most of the bytes, where a page is made of it."""
        fields = asdict(self if drawing else replace(self, drawing=None))
        if not drawing:
            del fields["drawing"]
        fields["rewrites"] = [{"rule": rule, "count": count} for rule, count in self.rewrites]
        fields["nodes_left"] = self.nodes_left
        return dict(plain(envelope(command) | fields))
