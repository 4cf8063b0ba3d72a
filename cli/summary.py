"""The summary of `optimize`: operators before and after, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.backends import TARGETS
from onnxfuse.pipeline.outputs import STREAM
from onnxfuse.report.drawing import INPUT, OUTPUT, Picture
from onnxfuse.report.result import Result
from onnxfuse.target import runs_here

from .show import bytes_text, count_text, table, terminal_width

_MOST = 10  # most operators with a line of their own
_NONE = "-"
_WIDE = 1000  # width of the label column


def summary(result: Result) -> Iterator[str]:
    """The printed lines; none if nothing was fused or written."""
    if result.drawing is None or result.output.model is None or not result.kernels:
        return
    sides = [_sums(side) for side in (result.drawing.before, result.drawing.after)]
    kinds = {g.kernel for g in result.groups}
    most = {op: max(side[op].nodes for side in sides if op in side) for op in (op for side in sides for op in side)}
    listed = sorted((op for op in most if op not in kinds), key=lambda op: -most[op])
    shown = listed if len(listed) <= _MOST + 1 else listed[:_MOST]
    rows = {op: [op] for op in shown}
    if rest := listed[len(shown) :]:
        rows[f"{len(rest)} others"] = rest
    rows[f"kernels ({len(kinds)} distinct)"] = sorted(kinds)
    rows["all nodes"] = list(most)
    sums = {name: [_total(side[op] for op in ops if op in side) for side in sides] for name, ops in rows.items()}
    yield from ("", *_lines(sums))
    yield from (f"{name:<10}{text}" for name, text in _figures(result))


@dataclass(frozen=True, slots=True)
class _Sum:
    """The nodes of an operator in a graph: their count, operations, and bytes read and written, if known."""

    nodes: int = 0
    flops: int | None = 0
    bytes: int | None = 0


def _lines(sums: Mapping[str, Sequence[_Sum]]) -> list[str]:
    """A table of sums before and after, without columns that are unknown or do not fit the terminal."""
    every = [each for pair in sums.values() for each in pair if each.nodes]
    known = [head for head, of in _COLUMNS if any(of(each) is not None for each in every)]
    width = terminal_width()
    for columns in (known, [head for head in known if head != "flops"], known[:1]):
        made = list(_table(sums, columns))
        if width is None or max(map(len, made)) <= width:
            break
    return made


def _table(sums: Mapping[str, Sequence[_Sum]], columns: Sequence[str]) -> Iterator[str]:
    heads = ["operator", *("before", "after") * len(columns)]
    above = ["", *(cell for head in columns for cell in (head, ""))]
    cells = [[name, *(_cell(head, each) for head in columns for each in pair)] for name, pair in sums.items()]
    titles = [above, heads] if len(columns) > 1 else [heads]
    return table([*titles, *cells], right=range(1, len(heads)), width=_WIDE)


_COLUMNS: tuple[tuple[str, Callable[[_Sum], int | None]], ...] = (
    ("nodes", lambda each: each.nodes),
    ("flops", lambda each: each.flops),
    ("bytes", lambda each: each.bytes),
)


def _cell(column: str, each: _Sum) -> str:
    value = dict(_COLUMNS)[column](each)
    if not each.nodes:
        return _NONE
    return "?" if value is None else str(value) if column == "nodes" else count_text(value)


def _total(those: Iterable[_Sum]) -> _Sum:
    found = list(those)
    flops, moved = [each.flops for each in found], [each.bytes for each in found]
    return _Sum(sum(each.nodes for each in found), _plus(flops), _plus(moved))


def _plus(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(value or 0 for value in values)


def _sums(side: Picture) -> dict[str, _Sum]:
    """By operator, the most frequent first."""
    found: dict[str, list[_Sum]] = {}
    for n in side.nodes:
        if n.op not in (INPUT, OUTPUT):
            found.setdefault(n.op, []).append(_Sum(1, n.flops, n.bytes))
    return {op: _total(each) for op, each in sorted(found.items(), key=lambda item: -len(item[1]))}


def _figures(result: Result) -> Iterator[tuple[str, str]]:
    """Sizes of the files, and the command that measures the speedup."""
    files = {way: bytes_text(each.bytes) for way, each in result.loading.items()}
    if result.counted_at:
        yield "sizes", f"counted at {', '.join(f'{name}={n}' for name, n in result.counted_at.items())}"
    if {"original", "with_library"} <= set(files):
        yield "files", f"{files['original']} -> {files['with_library']}, including the library"
    here = any(runs_here(TARGETS[name]) for name in result.targets)  # otherwise function bodies would be measured
    if here and result.output.model != STREAM and result.model.path is not None:
        yield "next", f"onnxfuse profile {shlex.join([result.model.path, str(result.output.model)])}"
