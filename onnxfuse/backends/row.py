"""What a backend is: a row of the functions of other rooms that a build calls, for one class of targets."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from onnxfuse.build import BuildRequest, Library
from onnxfuse.build.cache import Cache
from onnxfuse.build.toolchain import Toolchain
from onnxfuse.config import Options
from onnxfuse.cost import Cost
from onnxfuse.cost.nodes import Call, Tensor
from onnxfuse.ir.graph import Constant, Decision, Node
from onnxfuse.ir.kernel import Kernel, Substitutions
from onnxfuse.ir.layout import Layout
from onnxfuse.lower import Lowered
from onnxfuse.plan.legality import Legality
from onnxfuse.render.ort_glue import Variant
from onnxfuse.render.source import Source
from onnxfuse.schedule.passes.driver import Check
from onnxfuse.target import Target

T_co = TypeVar("T_co", bound=Target, covariant=True)
T_contra = TypeVar("T_contra", bound=Target, contravariant=True)


class Packing(Enum):
    """How a kernel may store constants: as in the model, as all targets of the library do, or for its target alone."""

    NONE = "none"
    SHARED = "shared"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """A group to be scheduled: its definitions, the layouts of its inputs and outputs, and the model's constants.

    `run_weight_bytes` is the size of all weights of the model. What else a backend's schedules depend on are `options`.
    """

    lowered: Lowered
    layouts: Mapping[str, Layout]
    constants: Mapping[str, Constant]
    run_weight_bytes: float
    options: Options
    packing: Packing


class Schedule(Protocol[T_contra]):
    """A lowered group to a kernel for a target.

    `check` is told the kernel after each step. `measured` has schedule candidates that replace those predicted best;
    the kernel then lists all candidates.
    """

    def __call__(
        self, request: ScheduleRequest, target: T_contra, *, check: Check, measured: Substitutions | None = None
    ) -> Kernel | Decision:
        """The kernel, or why there is none."""


class KernelCost(Protocol[T_contra]):
    """The predicted cost of a kernel at extents of its symbols; `run_weight_bytes`: all weights of the model."""

    def __call__(
        self,
        kernel: Kernel,
        target: T_contra,
        constants: Container[str],
        run_weight_bytes: float,
        symbols: Mapping[str, int] | None = None,
    ) -> Cost | None:
        """The cost; None where it depends on a symbol that is not given."""


class NodeSeconds(Protocol[T_contra]):
    """The predicted seconds of a node of the runtime; `run_weight_bytes`: all weights of the model."""

    def __call__(self, call: Call, target: T_contra, run_weight_bytes: float = 0.0) -> float:
        """Seconds of one run."""


class KernelTimer(Protocol):
    """Measures kernels on a device of this machine."""

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of a run of a kernel of known sizes. Raises DeviceError where it cannot be compiled or run."""


@dataclass(frozen=True, slots=True)
class Backend(Generic[T_co]):
    """A row: each field is called by the pipeline, and says what the function gives.

    `targets` are all machine classes that there are rows for. The planner: `legality`, which has those of `--arch`.
    `measured` is a target with the numbers of this machine, where they were measured; `points` are those of a target
    that a prediction is made for (its numbers of cores). `beside` has the targets of other backends, by the names of
    these, for which a library has kernels of the same groups too: weights then stay as they are in the model.
    `compilers` are the values of `--toolchain` that only this backend has. `timer` is for backends whose kernels are
    measured by themselves on a device; without one they are measured in models of the runtime.

    Covariant, so that any row is a `Backend[Target]`: who holds one calls it only with targets that it gave.
    """

    targets: Sequence[T_co]
    legality: Legality[T_co]
    beside: Callable[[Options], Mapping[str, Sequence[Target]]]
    measured: Callable[[T_co, Cache | None], T_co | None]
    points: Callable[[T_co], Sequence[T_co]]
    schedule: Schedule[T_co]
    kernel_cost: KernelCost[T_co]
    node_seconds: NodeSeconds[T_co]
    handing_on: Callable[[float, T_co], float]  # seconds that a merge saves for a value of so many bytes, at most
    group_seconds: Callable[[Sequence[Node], Mapping[str, Tensor], T_co, float], float]
    kernel_text: Callable[[Kernel], str]  # what tells kernels apart
    render: Callable[[Kernel, str, str, tuple[str, ...]], Source]
    support: Callable[[Iterable[Kernel], str, tuple[str, ...]], Sequence[Source]]  # sources that kernels share
    headers: Callable[[], Sequence[str]]  # texts that sources include
    flags: Callable[[T_co, Sequence[Kernel]], tuple[str, ...]]  # of the compiler, for these kernels
    features: Callable[[T_co, Sequence[Kernel]], tuple[str, ...]]  # what a processor must have for these kernels
    registration: Callable[[str, Sequence[Variant]], Sequence[Source]]
    find_toolchain: Callable[[Options, str], Toolchain]  # for an architecture of the host
    build_library: Callable[[BuildRequest], Library]
    compilers: tuple[str, ...] = ()
    timer: Callable[[T_co], AbstractContextManager[KernelTimer]] | None = None
