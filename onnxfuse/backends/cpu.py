"""The backend of CPUs: C++ with vectors and register tiles, in a library of ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxfuse.backends.row import Backend, Packing, ScheduleRequest
from onnxfuse.build import TILES, build_library
from onnxfuse.build.cache import Cache
from onnxfuse.build.toolchain import Toolchain
from onnxfuse.build.toolchain import find_toolchain as find_host
from onnxfuse.config import Options
from onnxfuse.cost import cost_of, handing_on
from onnxfuse.cost.fusions import group_seconds
from onnxfuse.cost.runtime import node_seconds
from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.graph import Constant, Decision
from onnxfuse.ir.kernel import Kernel, Substitutions, products_of
from onnxfuse.ir.products import HALVES
from onnxfuse.measure.machine import calibrated
from onnxfuse.plan import legality
from onnxfuse.render.cpp import kernel_text, render
from onnxfuse.render.ort_glue import registration
from onnxfuse.render.tile_units import tiles_sources
from onnxfuse.schedule.cpu import scheduler
from onnxfuse.schedule.passes.driver import Check
from onnxfuse.target import CPUS, Cpu, Target

ROUNDING = "avx512bf16"  # the feature that rounds to bfloat16
_LEAST = 2.0**-10  # a weight below which all others of their tensor would lose digits in float16


def beside(options: Options) -> Mapping[str, Sequence[Target]]:
    """No kernels for anything else."""
    return {}


def measured(target: Cpu, cache: Cache | None) -> Cpu | None:
    """The machine class with what `onnxfuse doctor --calibrate` measured here; None where nothing was."""
    machine = calibrated(target, cache)
    return None if machine is None else machine.target(target)


def points(target: Cpu) -> Sequence[Cpu]:
    """One core of a machine, and all."""
    return tuple(replace(target, cores=cores) for cores in dict.fromkeys((1, target.cores)))


def schedule(
    request: ScheduleRequest, target: Cpu, *, check: Check, measured: Substitutions | None = None
) -> Kernel | Decision:
    """The kernel, with weights packed and in 16 bits where the request allows it; by Winograd's algorithm or not."""
    lowered, constants, half = request.lowered, request.constants, None
    if packs := request.packing is not Packing.NONE:
        half = half_for(request.options, [constants[v] for v in lowered.inputs if v in constants])
    return scheduler.schedule(
        lowered,
        request.layouts,
        constants if packs else (),
        target,
        half,
        request.run_weight_bytes,
        winograd=request.options.winograd is not False,
        exchange=request.packing is Packing.OWN,
        check=check,
        measured=measured,
    )


def half_for(options: Options, weights: Iterable[Constant]) -> DType | None:
    """The 16-bit storage dtype of a group's weights; None for float32, or if their range does not fit."""
    half = HALVES[options.precision]
    if half == F16:
        most = [float(np.abs(w.load()).max(initial=0.0)) for w in weights if w.dtype == F32]
        return half if all(m == 0.0 or _LEAST <= m <= float(np.finfo(np.float16).max) for m in most) else None
    return half


def headers() -> Sequence[str]:
    """The headers of tiles and vector functions."""
    return [path.read_text(encoding="utf-8") for path in sorted(TILES.glob("*.h"))]


def flags(target: Cpu, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Those of the machine class, and that of the instruction that rounds where it is used."""
    own = (f"-m{ROUNDING}", "-DONNXFUSE_ROUNDS") if any(_rounds(target, kernel) for kernel in kernels) else ()
    return (*target.compiled, *own)


def features(target: Cpu, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Those of the machine class, and those of the kernels' own."""
    special = [name for p in products_of(kernels) for name in p.features]
    special += [ROUNDING for kernel in kernels if _rounds(target, kernel)]
    return tuple(dict.fromkeys((*target.features, *special)))


def _rounds(target: Cpu, kernel: Kernel) -> bool:
    """Whether a kernel stores numbers that an instruction of the target rounds."""
    return ROUNDING in target.extras and any(p.dtype == BF16 for p in kernel.outputs)


def find_toolchain(options: Options, target: str) -> Toolchain:
    """The C++ compiler that `--toolchain` names, for a `target` architecture. Raises ToolchainError."""
    return find_host(options.toolchain, target)


BACKEND: Backend[Cpu] = Backend(
    targets=tuple(CPUS.values()),
    legality=legality.CPU,
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
    support=tiles_sources,
    headers=headers,
    flags=flags,
    features=features,
    registration=registration,
    find_toolchain=find_toolchain,
    build_library=build_library,
)
