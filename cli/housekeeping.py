"""The verbs `doctor`, `config` and `cache`."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from onnxfuse.build import nvrtc
from onnxfuse.build.cache import Cache, Info, default_cache_dir
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.config import option_fields
from onnxfuse.emit import Staged
from onnxfuse.errors import OutputError, ToolchainError, UsageError, counted
from onnxfuse.measure import machine as calibration
from onnxfuse.measure.machine import Machine
from onnxfuse.pipeline.meter import size_of
from onnxfuse.report.document import host
from onnxfuse.target import ARCHS, CPUS, ISA, cuda_driver, has_amx, runs_here, targets_of, tiles_granted

from .flags import name_of
from .results import Answer, document
from .show import bytes_text, table

_EVERYWHERE = ("debug", "json", "json-file", "quiet", "report", "verbose")  # flags of every verb


def doctor(calibrate: bool, cache_dir: str | None) -> Answer:
    """The compilers, runtime, instruction sets, GPUs and cache of this machine."""
    compilers = {name: _compiler(name) for name in ("auto", "gcc", "clang", "zig")}
    target = targets_of(("native",))[0]
    runs = {name: runs_here(each) for name, each in CPUS.items() if name in ARCHS}
    root = Path(cache_dir) if cache_dir else default_cache_dir()
    kept = Cache(root).info()
    facts: dict[str, Any] = {
        "compilers": compilers,
        "onnxruntime": _runtime(),
        "target": {
            "name": target.name,
            "processor": target.processor or None,
            "lanes": target.lanes,
            "features": target.features,
        },
        "archs": runs,
        "gpu": _gpu(),
        "cache": {"path": root, "entries": kept.entries, "bytes": kept.bytes},
    }
    measured = calibration.calibrate(target, find_toolchain(), Cache(root)) if calibrate else None
    known = measured or calibration.calibrated(target, Cache(root))
    facts["amx"] = {"here": has_amx(), "granted": has_amx() and tiles_granted()}
    facts["measured"] = {"now": calibrate, **asdict(known)} if known is not None else None
    machine = host()
    rows = [
        ("machine", f"{machine['cpu']}, {counted(machine['cores'], 'core')}, {machine['system']}"),
        ("target", f"{target.name}: {target.lanes} lanes of fp32 ({', '.join(target.features) or 'baseline'})"),
        ("predicted for", f"{target.processor or 'any of this class'}: {target.gflops:.0f} GFLOP/s a core"),
        ("amx", _amx(**facts["amx"])),
        ("runs", ", ".join(name for name, here in runs.items() if here) or "the baseline of its architecture"),
        *((("allowed", f"only {os.environ[ISA]}, by ${ISA}"),) if os.environ.get(ISA) else ()),
        *((f"compiler {name}", found["version"] or f"none: {found['reason']}") for name, found in compilers.items()),
        ("onnxruntime", facts["onnxruntime"] or "not installed: results are not verified (pip install onnxruntime)"),
        ("gpu", _about(**facts["gpu"])),
        ("compiler nvrtc", facts["gpu"]["compiler"] or "none: --target cuda needs it (pip install 'onnxfuse[cuda]')"),
        ("cache", f"{root}: {counted(kept.entries, 'entry')}, {bytes_text(kept.bytes)}"),
    ]
    rows += _measured(known)
    return Answer(document("doctor", **facts), tuple(table(rows)))


def _gpu() -> dict[str, Any]:
    """The CUDA driver and its devices, and the version of NVRTC, which needs neither."""
    driver = cuda_driver()
    devices = [asdict(each) for each in driver.devices] if driver is not None else []
    compiler = nvrtc.version() if nvrtc.libraries() else None
    return {"driver": driver.version if driver is not None else None, "devices": devices, "compiler": compiler}


def _about(driver: int | None, devices: Sequence[Mapping[str, Any]], compiler: str | None) -> str:
    """The line about GPUs."""
    if driver is None:
        return "no CUDA driver: libraries for GPUs can be built, but here only their function bodies run"
    said = f"driver for CUDA {driver // 1000}.{driver % 1000 // 10}"
    names = ", ".join(f"{d['name']} (sm_{d['capability']})" for d in devices)
    return f"{names or 'no device'}, {said}"


def _amx(*, here: bool, granted: bool) -> str:
    """The line about AMX."""
    if not here:
        return "not in this processor"
    return "tiles of bf16 and int8" if granted else "in this processor, but not enabled by the operating system"


def _measured(m: Machine | None) -> list[tuple[str, str]]:
    """The lines about calibration."""
    if m is None:
        return [("measured", "nothing yet (--calibrate measures, for --profile-guided)")]
    sizes = (bytes_text(m.l1_bytes), bytes_text(m.l2_bytes), bytes_text(m.l3_bytes))
    return [
        ("peak", f"{m.gflops:.0f} GFLOP/s a core, {counted(m.cores, 'core')} at work"),
        ("caches", f"L1 {sizes[0]}, L2 {sizes[1]}, L3 {sizes[2]}"),
        ("reads", f"L2 {m.l2_gbps:.0f}, L3 {m.l3_gbps:.0f}, memory {m.bandwidth:.0f} GB/s by one core"),
        ("", f"memory {m.memory_gbps:.0f} GB/s by all"),
        ("waiting", f"{m.dispatch_us:.2f} us for a node, {m.barrier_us:.2f} us for the last task of a phase"),
    ]


def _compiler(name: str) -> dict[str, Any]:
    try:
        return {"version": str(find_toolchain(name)), "reason": None}
    except ToolchainError as problem:
        return {"version": None, "reason": problem.message}


def _runtime() -> str | None:
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return f"{version(package)} ({package})"
        except PackageNotFoundError:
            continue
    return None


def config(
    values: Mapping[str, Any],
    sources: Mapping[str, str],
    others: Mapping[str, Mapping[str, tuple[Any, str]]],
    path: Path | None,
) -> Answer:
    """The current values of options and their sources: those of `optimize`, and of the verbs in `others`."""
    words = {"commandline": "flag", "environment": "environment", "default_map": str(path), "default": "default"}
    rows, facts = [("option", "value", "from")], {}
    for each in option_fields():
        name, value = name_of(each), values[each.name]
        origin = words.get(sources[each.name], sources[each.name])
        facts[name] = {"value": value, "from": origin}
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        rows.append((name, {"None": "-", "": "-"}.get(shown, shown), origin))
    verbs: dict[str, dict[str, Any]] = {}
    for verb, found in others.items():
        for name, (value, source) in found.items():
            origin = words.get(source, source)
            verbs.setdefault(verb, {})[name] = {"value": value, "from": origin}
            if name not in _EVERYWHERE or origin != "default":
                rows.append((f"{verb} {name}", "-" if value in (None, "") else str(value), origin))
    return Answer(document("config", file=path, options=facts, verbs=verbs), tuple(table(rows)))


def cache(action: str, file: str | None, max_size: str, cache_dir: str | None, *, overwrite: bool) -> Answer:
    """Shrink, export or import the cache; its state afterwards. Raises UsageError and OutputError."""
    kept = Cache(Path(cache_dir) if cache_dir else default_cache_dir())
    if (file is None) == (action in ("export", "import")):
        wanted = "needs the name of an archive" if file is None else f"takes no file: {file}"
        raise UsageError(f"cache: {action} {wanted}", hint="onnxfuse cache export kernels.tar")
    before = kept.info().entries
    if action == "export":
        info = _exported(kept, Path(file or ""), overwrite=overwrite)
    elif action == "import":
        info = _imported(kept, Path(file or ""))
    else:
        info = kept.gc(size_of(max_size)) if action == "gc" else kept.info()
    added = max(0, info.entries - before)
    facts = {"path": info.root, "entries": info.entries, "bytes": info.bytes, "removed": info.removed, "added": added}
    done = {"gc": f", {info.removed} removed", "import": f", {added} added", "export": f", written to {file}"}
    line = f"{info.root}: {counted(info.entries, 'entry')}, {bytes_text(info.bytes)}{done.get(action, '')}"
    return Answer(document("cache", **facts), (line,))


def _exported(kept: Cache, path: Path, *, overwrite: bool) -> Info:
    with Staged(overwrite=overwrite) as staged:
        temporary = staged.stage(path)
        try:
            with temporary.open("wb") as stream:
                info = kept.pack(stream)
        except OSError as problem:
            raise OutputError(f"write: {path} cannot be written: {problem.strerror or problem}") from None
        staged.commit()
    return info


def _imported(kept: Cache, path: Path) -> Info:
    try:
        with path.open("rb") as stream:
            return kept.unpack(stream)
    except OSError as problem:
        raise UsageError(f"read: {path} cannot be read: {problem.strerror}", hint="check the spelling") from None
    except (tarfile.TarError, EOFError) as problem:
        raise UsageError(f"cache: {path} is not a cache archive: {problem}", hint="cache export writes one") from None
