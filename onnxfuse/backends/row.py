"""What a backend is: a row of the functions of other rooms that a build calls, for one class of targets."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from onnxfuse.build import Library, Progress, no_progress
from onnxfuse.build.cache import Cache
from onnxfuse.build.toolchain import Toolchain
from onnxfuse.config import Options
from onnxfuse.cost import Cost
from onnxfuse.cost.nodes import Tensor
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision, Node
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.layout import Layout
from onnxfuse.lower import Lowered
from onnxfuse.plan.legality import Legality
from onnxfuse.render.ort_glue import Variant
from onnxfuse.render.source import Source
from onnxfuse.schedule.passes.driver import Check
from onnxfuse.target import Target

T = TypeVar("T", bound=Target)
T_contra = TypeVar("T_contra", bound=Target, contravariant=True)


class Schedule(Protocol[T_contra]):
    """A lowered group to a kernel for a target; weights may be stored in `half`.

    `run_weight_bytes` is the size of all weights of the model, `check` sees the kernel after each step.
    """

    def __call__(
        self,
        lowered: Lowered,
        layouts: Mapping[str, Layout],
        constants: Container[str],
        target: T_contra,
        half: DType | None,
        run_weight_bytes: float,
        *,
        winograd: bool,
        exchange: bool,
        check: Check,
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


class BuildLibrary(Protocol):
    """Sources and registration code to a library."""

    def __call__(
        self,
        sources: Sequence[Source],
        glue: Sequence[Source],
        toolchain: Toolchain,
        cache: Cache | None,
        jobs: int,
        out: Path,
        time_limit: float | None = None,
        *,
        progress: Progress = no_progress,
    ) -> Library:
        """The library at `out`; `progress` is called with the number of compiled sources and their total."""


@dataclass(frozen=True, slots=True)
class Backend(Generic[T]):
    """A row: each field is called by the pipeline, and says what the function gives.

    `targets` are all machine classes that there are rows for. The planner: `legality`, which has those of `--arch`.
    `measured` is a target with the numbers of this machine, where they were measured; `points` are those of a target
    that a prediction is made for (its numbers of cores). `beside` has the targets of other backends, by the names of
    these, for which a library has kernels of the same groups too: weights then stay as they are in the model.
    """

    targets: Sequence[T]
    legality: Legality
    beside: Callable[[Options], Mapping[str, Sequence[Target]]]
    measured: Callable[[T, Cache | None], T | None]
    points: Callable[[T], Sequence[T]]
    schedule: Schedule[T]
    kernel_cost: KernelCost[T]
    node_seconds: Callable[..., float]  # of the runtime's own nodes: of a Call on a T, after so many bytes of weights
    group_seconds: Callable[[Sequence[Node], Mapping[str, Tensor], T, float], float]
    kernel_text: Callable[[Kernel], str]  # what tells kernels apart
    render: Callable[[Kernel, str, str, tuple[str, ...]], Source]
    support: Callable[[Iterable[Kernel], str, tuple[str, ...]], Sequence[Source]]  # sources that kernels share
    headers: Callable[[], Sequence[str]]  # texts that sources include
    flags: Callable[[T, Sequence[Kernel]], tuple[str, ...]]  # of the compiler, for these kernels
    features: Callable[[T, Sequence[Kernel]], tuple[str, ...]]  # what a processor must have for these kernels
    registration: Callable[[str, Sequence[Variant]], Sequence[Source]]
    find_toolchain: Callable[[Options, str], Toolchain]  # for an architecture of the host
    build_library: BuildLibrary
