"""The text of what a step made, for `--print`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from onnxfuse.ir.kernel_text import kernel_lines
from onnxfuse.ir.text import text
from onnxfuse.pipeline.state import Build, have


def text_of(step: str, b: Build) -> str:
    """What this step made, one fact per line; the same build, the same text."""
    builds = [b] if step in _WHOLE else list(b.everywhere())
    lines = [line for each in builds for line in (*_head(each), *_TEXTS[step](each))]
    return "\n".join(lines) + "\n"


def _head(b: Build) -> Iterator[str]:
    if b.node:
        yield f"body {b.node}/{b.attribute}"


def _lowered(b: Build) -> Iterator[str]:
    for part in b.parts:
        yield f"group {part.group.name}"
        yield from (f"  {text(d)}" for d in part.lowered.definitions)


def _kernels(b: Build) -> Iterator[str]:
    for part in b.parts:
        yield f"group {part.group.name}: {part.op}"
        if part.kernel is not None:
            yield from (f"  {line}" for line in kernel_lines(part.kernel))


def _sources(b: Build) -> Iterator[str]:
    for (target, op), source in b.sources.items():
        yield f"// {op} for {target}"
        yield source.file


def _library(b: Build) -> Iterator[str]:
    if b.library is not None:
        yield f"{b.library.path.name} {b.library.sha256} ({b.library.compiler})"


def _emitted(b: Build) -> Iterator[str]:
    for node in have(b.emitted).proto.graph.node:
        yield f"{', '.join(node.output)} = {node.domain}::{node.op_type}({', '.join(node.input)})"


def _verdict(b: Build) -> Iterator[str]:
    if b.verdict is not None:
        yield repr(b.verdict)


def _choices(b: Build) -> Iterator[str]:
    for c in b.choices or ():
        verb = "keeps" if c.kept else "drops"
        yield f"{verb} {', '.join(c.kernels)}: {c.with_ms} ms with, {c.without_ms} ms without"


_WHOLE = ("render", "build", "emit", "verify", "guide")  # steps that make one thing of all graphs
_TEXTS: dict[str, Callable[[Build], Iterable[str]]] = {
    "load": lambda b: [text(have(b.loaded))],
    "rewrite": lambda b: [text(have(b.graph))],
    "plan": lambda b: [text(b.plan)] if b.plan is not None else [],
    "lower": _lowered,
    "schedule": _kernels,
    "render": _sources,
    "build": _library,
    "emit": _emitted,
    "verify": _verdict,
    "guide": _choices,
}
