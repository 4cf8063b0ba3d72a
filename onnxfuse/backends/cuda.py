"""The backend of NVIDIA's GPUs: CUDA compiled by NVRTC or nvcc, in a library of ONNX Runtime's CUDA provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from onnxfuse.backends.row import Backend, ScheduleRequest
from onnxfuse.build import SUPPORT
from onnxfuse.build.cache import Cache
from onnxfuse.build.cuda import builder, find_toolchain
from onnxfuse.config import DEVICE_COMPILERS, Options
from onnxfuse.cost.gpu import cost_of, group_seconds, handing_on, node_seconds
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.kernel import Kernel, Substitutions
from onnxfuse.measure.gpu import GpuTimer
from onnxfuse.plan import legality
from onnxfuse.render import ort_glue
from onnxfuse.render.cuda_launch import code_symbol, kernel_text, render
from onnxfuse.render.ort_glue import Registration, Variant
from onnxfuse.render.source import Source
from onnxfuse.schedule.gpu import scheduler
from onnxfuse.schedule.passes.driver import Check
from onnxfuse.target import CPUS, GPUS, PORTABLE, Gpu, Target, targets_of

TARGETS = (*GPUS.values(), *PORTABLE.values())
PROVIDER = Registration(
    '#include "cuda_host.h"\n', "onnxfuse::cuda::provider(), onnxfuse::cuda::devices, onnxfuse::cuda::suits"
)


def beside(options: Options) -> Mapping[str, Sequence[Target]]:
    """The CPUs that `--arch` names, whose kernels run where no GPU does."""
    cpus = [name for name in options.arch if name in CPUS]
    return {"cpu": targets_of(cpus)} if cpus else {}


def measured(target: Gpu, cache: Cache | None) -> Gpu | None:
    """Nothing is measured on GPUs yet."""
    return None


def points(target: Gpu) -> Sequence[Gpu]:
    """The GPU as it is."""
    return (target,)


def schedule(
    request: ScheduleRequest, target: Gpu, *, check: Check, measured: Substitutions | None = None
) -> Kernel | Decision:
    """The kernel; weights stay as they are in the model, but for filters that cuDNN wants channels last."""
    lowered, layouts, constants = request.lowered, request.layouts, request.constants
    return scheduler.schedule(lowered, layouts, target, constants=constants, check=check, measured=measured)


def support(kernels: Iterable[Kernel], tail: str, flags: tuple[str, ...]) -> Sequence[Source]:
    """Kernels share headers alone."""
    return ()


def headers() -> Sequence[str]:
    """The headers of the device and of the host."""
    return [path.read_text(encoding="utf-8") for path in sorted(SUPPORT.glob("*.h"))]


def flags(target: Gpu, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """The architecture."""
    return target.flags


def features(target: Gpu, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Of the host's processor, nothing."""
    return ()


def registration(domain: str, variants: Sequence[Variant]) -> Sequence[Source]:
    """The sources that register the kernels of the best variant that the GPUs of a machine run."""
    rows = {row.name: row for row in TARGETS}

    def of(v: Variant, row: Gpu) -> Variant:
        return replace(v, capability=row.capability, portable=row.portable, alone=row.warpgroups)

    found = [of(v, rows[v.name]) if v.name in rows else v for v in variants]
    return ort_glue.registration(domain, found, PROVIDER)


BACKEND: Backend[Gpu] = Backend(
    targets=TARGETS,
    legality=legality.CUDA,
    beside=beside,
    measured=measured,
    points=points,
    schedule=schedule,
    kernel_cost=cost_of,
    node_seconds=node_seconds,
    handing_on=handing_on,
    group_seconds=group_seconds,
    kernel_text=kernel_text,
    render=render,
    support=support,
    headers=headers,
    flags=flags,
    features=features,
    registration=registration,
    find_toolchain=find_toolchain,
    build_library=builder(code_symbol),
    compilers=DEVICE_COMPILERS,
    timer=GpuTimer,
)
