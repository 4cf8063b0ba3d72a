"""What `optimize` ends with: the operators before and after, and what to run next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

from onnxfuse.backends import TARGETS
from onnxfuse.pipeline.outputs import STREAM
from onnxfuse.report.drawing import INPUT, OUTPUT, Picture
from onnxfuse.report.result import Result
from onnxfuse.target import runs_here

from .show import bytes_text, table

_MOST = 10  # operators of which each has a line
_NONE = "-"


def summary(result: Result) -> Iterator[str]:
    """Lines for a person; none where nothing was fused or written."""
    if result.drawing is None or result.output.model is None or not result.kernels:
        return
    before, after = _counts(result.drawing.before), _counts(result.drawing.after)
    kinds = {g.kernel for g in result.groups}
    kernels = sum(after[kind] for kind in kinds)
    listed = [op for op, _ in (before | after).most_common() if op not in kinds]
    shown = listed if len(listed) <= _MOST + 1 else listed[:_MOST]
    rows = [("operator", "before", "after")]
    rows += [(op, _number(before[op]), _number(after[op])) for op in shown]
    if rest := listed[len(shown) :]:
        others = [_number(sum(side[op] for op in rest)) for side in (before, after)]
        rows.append((f"{len(rest)} others", others[0], others[1]))
    rows.append((f"kernels ({len(kinds)} distinct)", _NONE, str(kernels)))
    rows.append(("all nodes", str(before.total()), str(after.total())))
    yield from ("", *table(rows, right=(1, 2)))
    yield from (f"{name:<10}{text}" for name, text in _figures(result))


def _counts(side: Picture) -> Counter[str]:
    return Counter(n.op for n in side.nodes if n.op not in (INPUT, OUTPUT))


def _number(count: int) -> str:
    return str(count) if count else _NONE


def _figures(result: Result) -> Iterator[tuple[str, str]]:
    """Work and bytes of all kernels, sizes of files, and the command that measures."""
    flops, moved = [g.flops for g in result.groups], [g.bytes for g in result.groups]
    if all(each is not None for each in (*flops, *moved)):
        work, size = sum(each or 0 for each in flops) / 1e9, bytes_text(sum(each or 0 for each in moved))
        yield "work", f"{work:.3g} GFLOP in kernels, which read and write {size}"
    files = {way: bytes_text(each.bytes) for way, each in result.loading.items()}
    if {"original", "with_library"} <= set(files):
        yield "files", f"{files['original']} -> {files['with_library']}, the library included"
    here = any(runs_here(TARGETS[name]) for name in result.targets)  # else function bodies would be measured
    if here and result.output.model != STREAM and result.model.path is not None:
        yield "next", f"onnxfuse profile {shlex.join([result.model.path, str(result.output.model)])}"
