"""Calibration: measures the numbers of a `Cpu` row on this machine, with a kernel on the runtime's own threads."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from onnxfuse.build import BuildRequest, build_library
from onnxfuse.build.cache import Cache, key_of
from onnxfuse.build.toolchain import Toolchain
from onnxfuse.errors import OutputError
from onnxfuse.ir.dtype import F64, I64
from onnxfuse.render.ort_glue import Variant, registration
from onnxfuse.render.source import Source
from onnxfuse.runtime import process
from onnxfuse.runtime.folders import work_folder
from onnxfuse.target import Cpu

_CHILD = "onnxfuse.measure.machine_child"
DOMAIN, KERNEL = "onnxfuse.machine", "Measure"
_TEXT = f"""\
#include "machine.h"

namespace {{
const int input_types[] = {{{I64.onnx}}}, output_types[] = {{{F64.onnx}}};
}}

extern "C" const onnxfuse::Kernel onnxfuse_{KERNEL} = {{
    "{KERNEL}", 1, 1, input_types, output_types, onnxfuse::run_measure}};
"""
_LEVELS = {"1": "l1_bytes", "2": "l2_bytes", "3": "l3_bytes"}
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured values of those fields of `Cpu` that the cost model uses; see there for units."""

    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    gflops: float
    l2_gbps: float
    l3_gbps: float
    bandwidth: float
    memory_gbps: float
    dispatch_us: float
    barrier_us: float

    def target(self, row: Cpu) -> Cpu:
        """The machine class with these numbers, for predictions; kernels are still scheduled for the class."""
        return replace(row, **asdict(self))


def calibrate(
    target: Cpu,
    toolchain: Toolchain,
    cache: Cache | None,
    *,
    seconds: float = 0.7,
    time_limit: float | None = None,
) -> Machine:
    """Measure each number for `seconds`, and store all in the cache for this machine and machine class.

    The stored value is the best of all calibrations, since other work on the machine only makes it slower.

    Raises DeviceError if the runtime cannot load the library, and the errors of `build_library`.
    """
    cores, sizes = len(os.sched_getaffinity(0)), cache_sizes(target)
    with work_folder() as folder:
        library = Path(folder, "libmachine.so")
        glue = registration(DOMAIN, [Variant(target.name, (KERNEL,), target.features)])
        sources = (Source(KERNEL, _TEXT, target.compiled),)
        build_library(BuildRequest(sources, glue, toolchain, cache, 0, library, time_limit))
        asked = {"library": str(library), "cores": cores, "seconds": seconds, **sizes}
        found = process.python_child(_CHILD, asked, stage="calibrate", time_limit=time_limit)
    rounded: dict[str, Any] = {name: float(f"{value:.4g}") for name, value in found.items()}
    earlier = calibrated(target, cache)
    if earlier is not None:
        rounded = best([rounded, {name: getattr(earlier, name) for name in rounded}])
    machine = Machine(cores=cores, **sizes, **rounded)
    if cache is not None:
        _keep(machine, _place(target, cache))
    return machine


def best(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The highest rates and least times of several measurements of one machine.

    >>> best([{"gflops": 90.0, "barrier_us": 2.0}, {"gflops": 60.0, "barrier_us": 1.0}])
    {'gflops': 90.0, 'barrier_us': 1.0}
    """
    return {name: (min if name.endswith("_us") else max)(each[name] for each in found) for name in found[0]}


def calibrated(target: Cpu, cache: Cache | None) -> Machine | None:
    """The stored calibration of this machine for a machine class; None if there is none."""
    try:
        text = _place(target, cache).read_text(encoding="utf-8") if cache is not None else "{}"
        values: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        return None
    return Machine(**values) if set(values) == {f.name for f in fields(Machine)} else None


def _keep(machine: Machine, path: Path) -> None:
    """Write a file in one step. Raises OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.new")
        partial.write_text(json.dumps(asdict(machine), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as problem:
        raise OutputError(f"calibrate: {path} cannot be written: {problem.strerror}", hint="see --cache-dir") from None


def _place(target: Cpu, cache: Cache) -> Path:
    """The file that stores the calibration of this machine for a machine class."""
    key = key_of("machine", "1", target.name, *target.flags, *identity())
    return cache.root / "machines" / f"{key[:32]}.json"


def identity() -> tuple[str, ...]:
    """What identifies this machine: architecture, number of cores, and the processor according to Linux."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace") if _CPUS.exists() else ""
    same = ("vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags", "Features")
    about = sorted({line for line in lines.splitlines() if line.partition(":")[0].strip() in same})
    return platform.machine(), str(len(os.sched_getaffinity(0))), *about


def cache_sizes(target: Cpu) -> dict[str, int]:
    """Bytes of the first core's data caches according to Linux, else those of the machine class."""
    found = {name: int(getattr(target, name)) for name in _LEVELS.values()}
    for place in sorted(_CPUS.glob("cpu0/cache/index*")):
        try:
            kind, level, size = (
                (place / name).read_text(encoding="ascii").strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and level in _LEVELS and size.endswith("K"):
            found[_LEVELS[level]] = int(size[:-1]) << 10
    return found
