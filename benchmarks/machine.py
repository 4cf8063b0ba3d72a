"""Measured limits of this machine: multiply-adds per second, and read bandwidth by working set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rendered.run import race
from benchmarks.twins.run import HERE, PEAK_FLOPS, library
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.report.document import envelope
from onnxfuse.runtime import process
from onnxfuse.target import targets_of
from tests.kernels.pool_host import Pool, aligned

_CODE = ("onnxfuse", "models", "benchmarks/*.py", "benchmarks/twins", "benchmarks/rendered")
MEGABYTES = (1, 4, 64, 512)  # read over and over: from the cores' own caches, the shared one, and memory


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a number of threads: fp32 GFLOP/s, and GB/s of repeatedly reading working sets of several megabytes."""

    threads: int
    gflops: float
    gbytes: Mapping[int, float]

    def bandwidth(self, footprint: float) -> float:
        """Bytes per second for a working set of `footprint` bytes: that of the next larger measured size."""
        sizes = sorted(self.gbytes)
        size = next((s for s in sizes if footprint <= s << 20), sizes[-1])
        return self.gbytes[size] * 1e9


def limits(threads: int, seconds: float) -> Limits:
    """The best of `seconds` of each measurement."""
    built = library(HERE / "limits.cpp")
    with Pool(threads) as pool:
        (peak,) = race(pool, [(pool.load(built, "limit_multiply_add"), [[]])], seconds)
        reader, gbytes = pool.load(built, "limit_read"), {}
        for megabytes in MEGABYTES:
            data = aligned(np.ones(megabytes << 18, np.float32))
            (times,) = race(pool, [(reader, [[data]])], seconds)
            gbytes[megabytes] = data.nbytes / float(times.min()) / 1e9
    return Limits(threads, PEAK_FLOPS / float(peak.min()) / 1e9, gbytes)


def best(first: Limits, second: Limits) -> Limits:
    """The better of two measurements of the same threads: other work on the machine only lowers what is reached."""
    gbytes = {size: max(gb, second.gbytes[size]) for size, gb in first.gbytes.items()}
    return Limits(first.threads, max(first.gflops, second.gflops), gbytes)


def facts() -> dict[str, Any]:
    """Machine, versions, and the load by other work."""
    return {
        **envelope("bench"),
        "date": datetime.now(UTC).date().isoformat(),
        "revision": _revision(),
        "caches": _caches(),
        "target": targets_of(())[0].name,
        "compiler": str(find_toolchain("auto")),
        "load_average": os.getloadavg()[0],
    }


def _revision() -> str | None:
    """The last commit of the code that is measured, with `+` if it was modified since; None outside of a repository."""
    root = Path(__file__).parents[1]
    done = process.run(("git", "log", "-1", "--format=%h", "--", *_CODE), cwd=root)
    changed = process.run(("git", "status", "--porcelain", "--", *_CODE), cwd=root)
    return (done.out.strip() + "+" * bool(changed.out.strip()) or None) if done.code == 0 else None


def _caches() -> dict[str, str]:
    """Sizes of the first core's data caches by level, as reported by Linux."""
    found = {}
    for place in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = ((place / name).read_text(encoding="ascii").strip() for name in ("type", "level", "size"))
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found


def show(about: Mapping[str, Any], measured: Sequence[Limits]) -> str:
    """The limits as text."""
    host, versions = about["host"], ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    caches = ", ".join(f"{level} {size}" for level, size in about["caches"].items())
    revision = f" ({about['revision']})" if about.get("revision") else ""
    lines = [
        f"onnxfuse {about['onnxfuse_version']}{revision}, measured on {about.get('date', 'a day that was not kept')}",
        f"{host['cpu']}, {host['cores']} cores, {caches}, load average {about['load_average']:.2f}",
        f"{host['system']}, Python {host['python']}, {versions}, {about['compiler']}, kernels for {about['target']}",
    ]
    for each in measured:
        reads = ", ".join(f"{gb:.0f} from {mb} MB" for mb, gb in each.gbytes.items())
        lines.append(f"{each.threads} thread(s): {each.gflops:.0f} GFLOP/s; reads GB/s: {reads}")
    return "\n".join(lines)


def to_json(measured: Sequence[Limits]) -> list[dict[str, Any]]:
    """Plain values."""
    return [asdict(each) for each in measured]


def from_json(rows: Sequence[Mapping[str, Any]]) -> list[Limits]:
    """What `to_json` was given, whose keys JSON made text."""
    return [Limits(r["threads"], r["gflops"], {int(size): gb for size, gb in r["gbytes"].items()}) for r in rows]
