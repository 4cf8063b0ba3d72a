"""The cost of loading result and original: file sizes in bytes, seconds and memory.

File sizes are known for every build. Times and memory are measured during verification and cached by the bytes of the
files, so that equal builds on one machine report the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from onnxfuse.build.cache import Cache, key_of
from onnxfuse.pipeline.state import Build
from onnxfuse.pipeline.verdict_cache import keep, recalled
from onnxfuse.report.result import Loading
from onnxfuse.runtime.memory import LoadCost
from onnxfuse.verify.verdicts import ORIGINAL

_WITH, _WITHOUT = "with_library", "without_library"


def loading(b: Build, loads: Iterable[LoadCost]) -> dict[str, Loading]:
    """By way, what loading takes; of the ways with a library, of which each instruction set has one, the costliest."""
    if not b.files:
        return {}
    made = _bytes(b.files)
    sizes = {ORIGINAL: original_bytes(b)}
    if b.library is not None and not b.copy:
        sizes[_WITH] = made + _bytes([b.library.path])
    sizes[_WITHOUT] = made
    worst: dict[str, LoadCost] = {}
    for each in sorted(loads, key=lambda load: load.seconds):
        worst[_WITH if each.with_library else each.way.replace(" ", "_")] = each
    return {way: _of(size, worst.get(way)) for way, size in sizes.items()}


def original_bytes(b: Build) -> int:
    """Bytes of the files of the model that was read."""
    source = b.source
    return source.bytes + _bytes(source.external)


def _of(size: int, load: LoadCost | None) -> Loading:
    return Loading(size) if load is None else Loading(size, load.seconds, load.peak_bytes)


def _bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def remembered(cache: Cache | None, key: str, loads: tuple[LoadCost, ...]) -> tuple[LoadCost, ...]:
    """What was measured the first time that these bytes were; `key` is theirs."""
    place = key_of("loads", key)
    known = recalled(cache, place, lambda held: tuple(LoadCost(**each) for each in held))
    if known is not None:
        return known
    if loads:
        keep(cache, place, [asdict(each) for each in loads])
    return loads
