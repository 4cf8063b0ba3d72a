"""The verbs that only look at a model or a library: `explain`, `inspect`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxfuse.backends import TARGETS
from onnxfuse.build.cache import file_digest
from onnxfuse.config import Options
from onnxfuse.errors import UsageError
from onnxfuse.ir.graph import Graph
from onnxfuse.load import Source, everywhere, load, simplify_shapes
from onnxfuse.pipeline import optimize
from onnxfuse.pipeline.groups import facts_of
from onnxfuse.pipeline.outputs import STREAM
from onnxfuse.report.result import CandidateResult, GroupResult, Refusal, Result
from onnxfuse.rewrite import explain as rewrite_explain

from . import show
from .results import Answer, document
from .show import bytes_text, table

# explain --------------------------------------------------------------------------------------------------------------


def explain(model: str | bytes, node: str | None, options: Options, *, strict: bool) -> Answer:
    """What would become of a model, and why not more."""
    result = optimize(model, options=replace(options, stop_after="schedule"), strict=strict)
    wanted = _pattern(node)
    groups = [g for g in result.groups if wanted is None or any(map(wanted.search, g.nodes))]
    refusals = [r for r in result.refusals if wanted is None or any(map(wanted.search, r.nodes))]
    candidates = [c for c in result.candidates if wanted is None or any(map(wanted.search, c.nodes))]
    rules = _rules(model, wanted, options) if wanted is not None else []
    if wanted is not None and not (groups or refusals or rules):
        raise UsageError(f"explain: no node matches --node {node}", hint="onnxfuse explain without it lists them")
    result = replace(result, groups=tuple(groups), refusals=tuple(refusals), candidates=tuple(candidates))
    made = result.to_json("explain", drawing=True)
    made["rules"] = [{"node": n, "rule": r, "reason": why} for n, r, why in rules]
    return Answer(made, tuple(_explained(result, groups, refusals, candidates, rules)))


def _pattern(node: str | None) -> re.Pattern[str] | None:
    try:
        return None if node is None else re.compile(node)
    except re.error as problem:
        raise UsageError(f"explain: --node {node} is no regular expression: {problem}") from None


def _rules(model: str | bytes, wanted: re.Pattern[str], options: Options) -> list[tuple[str, str, str]]:
    """(node, rule, why it does not fire there) for the nodes asked for; "" where it does."""
    found = []
    for graph in map(simplify_shapes, everywhere(load(model, options))):
        names = [n.name for n in graph.nodes if wanted.search(n.name)]
        found += [(name, rule, why) for name in names for rule, why in rewrite_explain(graph, name, options)]
    return found


def _explained(
    result: Result,
    groups: list[GroupResult],
    refusals: list[Refusal],
    candidates: list[CandidateResult],
    rules: list[tuple[str, str, str]],
) -> list[str]:
    name = result.model.path or "standard input"
    lines = [
        f"{name}  opset {result.model.opset}, {result.nodes_before} nodes -> {result.kernels} kernels "
        f"({result.phases} phases); {result.nodes_left} nodes left to ONNX Runtime"
    ]
    if result.rewrites:
        lines += ["", "rewrites", *_indented(table([(rule, str(n)) for rule, n in result.rewrites], right=(1,)))]
    if groups:
        rows = [("kernel", "mapping type", "phases", "flops", "bytes", "predicted", "runtime", "bound", "nodes")]
        for g in groups:
            times = (_microseconds(g.predicted_ms), _microseconds(g.runtime_ms))
            figures = (str(g.phases), _count(g.flops), _count(g.bytes), *times)
            rows.append((g.kernel, g.mapping_type or "-", *figures, g.bound or "-", _names(g.nodes)))
        lines += ["", "kernels", *_indented(table(rows, right=(2, 3, 4, 5, 6)))]
    ways = list(_ways(groups))
    if ways:
        lines += ["", "ways, the one taken first", *_indented(table(ways, right=(1,)))]
    if refusals:
        lines += ["", "refused", *_indented(table(list(_by_layer(refusals)), right=(1,)))]
    if candidates:
        lines += ["", "candidates", *_indented(table(list(_proposed(candidates)), right=(1, 2)))]
    if rules:
        lines += ["", "rules", *_indented(table([(node, rule, why or "fires") for node, rule, why in rules]))]
    return lines + [f"note: {note}" for note in result.notes]


def _by_layer(refusals: Sequence[Refusal]) -> Iterator[tuple[str, str, str, str]]:
    """Refusals that differ in numbers alone, as those of layers do, as one, with how many there are."""
    found: dict[tuple[str, ...], list[Refusal]] = {}
    for r in refusals:
        found.setdefault((r.code, *map(_any_number, (r.reason, r.unlock, *r.nodes[:3]))), []).append(r)
    for (code, *said), those in found.items():
        first = those[0]
        exact = (first.reason, first.unlock, *first.nodes[:3])
        reason, unlock, *nodes = (
            one if all(one == other for other in others) else any_
            for one, any_, *others in zip(
                exact, said, *((r.reason, r.unlock, *r.nodes[:3]) for r in those[1:]), strict=True
            )
        )
        count = f"{len(those)} x" if len(those) > 1 else ""
        yield code, count, " + ".join(nodes), reason + f" ({unlock})" * bool(unlock)


def _proposed(candidates: Sequence[CandidateResult]) -> Iterator[tuple[str, ...]]:
    """Groups that were proposed; those that differ in numbers alone, as those of layers do, as one."""
    found: dict[tuple[str, ...], list[CandidateResult]] = {}
    for c in candidates:
        found.setdefault((*c.by, c.code, *map(_any_number, (c.reason, *c.nodes))), []).append(c)
    for those in found.values():
        first = those[0]
        times = sorted(c.predicted_ms for c in those if c.predicted_ms is not None)
        shown = _microseconds(times[0]) if times else "-"
        shown += f" to {_microseconds(times[-1])}" if times and _microseconds(times[-1]) != shown else ""
        count = f"{len(those)} x" if len(those) > 1 else ""
        why = f"{first.code} {first.reason}" + f" ({first.unlock})" * bool(first.unlock) if first.code else "taken"
        yield " ".join(first.by), count, shown, _names(first.nodes), why


def _any_number(text: str) -> str:
    return re.sub(r"\d+", "*", text)


def _ways(groups: list[GroupResult]) -> Iterator[tuple[str, str, str]]:
    """The ways that were considered for each kernel, each kernel once."""
    for g in {g.kernel: g for g in groups}.values():
        for ways in g.ways:
            yield from ((g.kernel * (w is ways[0]), _microseconds(w.predicted_ms), w.way) for w in ways)


def _indented(lines: Any) -> list[str]:
    return [f"  {line}" for line in lines]


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else bytes_text(value).removesuffix("B").strip()


def _microseconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms * 1e3:.3g} us" if ms < 1 else f"{ms:.3g} ms"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# inspect --------------------------------------------------------------------------------------------------------------


def inspect(name: str) -> Answer:
    """What a model or a library holds; `-` is a model on standard input."""
    if name != STREAM and Path(name).is_file():
        with Path(name).open("rb") as file:
            if file.read(4) == b"\x7fELF":
                return _library(Path(name))
    graph = load(show.given() if name == STREAM else name, Options())
    source: Source = graph.source
    operators = _operators(graph)
    constants = {c for each in everywhere(graph) for c in each.constants.values()}  # those that bodies share once
    facts = {
        "path": name,
        "sha256": source.sha256,
        "bytes": source.bytes,
        "ir_version": source.ir_version,
        "opsets": source.opsets,
        "nodes": sum(len(each.nodes) for each in everywhere(graph)),
        "parameters": sum(c.size for c in constants),
        "weight_bytes": sum(c.bytes for c in constants),
        "flops": sum(o["flops"] or 0 for o in operators) if all(o["flops"] is not None for o in operators) else None,
        "inputs": {name: repr(graph.types[name]) for name in graph.inputs},
        "outputs": {name: repr(graph.types[name]) for name in graph.outputs},
        "operators": operators,
        "metadata": source.metadata,
        "notes": source.warnings,
    }
    return Answer(document("inspect", model=facts), tuple(_inspected(facts)))


def _operators(graph: Graph) -> list[dict[str, Any]]:
    """Operators with how often they occur, their mapping types and operations; "-" and None where not known."""
    count = Counter[str]()
    classes: dict[str, Counter[str]] = {}
    work: dict[str, int | None] = {}
    for within, node in ((g, n) for g in everywhere(graph) for n in g.nodes):
        name = f"{node.domain}::{node.op}" if node.domain else node.op
        facts = facts_of(within, node)
        count[name] += 1
        classes.setdefault(name, Counter())[facts.type.label if facts is not None else "-"] += 1
        each, before = facts.flops.constant if facts is not None else None, work.get(name, 0)
        work[name] = None if each is None or before is None else before + each
    return [
        {"operator": name, "count": n, "mapping_types": dict(classes[name]), "flops": work[name]}
        for name, n in count.most_common()
    ]


def _inspected(facts: Mapping[str, Any]) -> list[str]:
    opsets = ", ".join(f"{name or 'ai.onnx'} {number}" for name, number in facts["opsets"].items())
    lines = [
        f"{facts['path']}  {bytes_text(facts['bytes'])}, IR {facts['ir_version']}, opset {opsets}",
        f"{facts['nodes']} nodes, {facts['parameters']:,} parameters in {bytes_text(facts['weight_bytes'])}",
    ]
    lines += [f"input   {name}: {kind}" for name, kind in facts["inputs"].items()]
    lines += [f"output  {name}: {kind}" for name, kind in facts["outputs"].items()]
    rows = [("operator", "count", "flops", "mapping type")]
    for o in facts["operators"]:
        classes = ", ".join(o["mapping_types"])
        rows.append((o["operator"], str(o["count"]), _count(o["flops"]), classes))
    lines += ["", *table(rows, right=(1, 2))]
    lines += [f"{key} = {value}" for key, value in facts["metadata"].items() if key.startswith("onnxfuse.")]
    return lines + [f"note: {note}" for note in facts["notes"]]


def _library(path: Path) -> Answer:
    """What a library of ours says in its own text; nothing of it is run."""
    text = path.read_bytes()
    domains = sorted({m.decode() for m in re.findall(rb"onnxfuse\.[0-9a-f]{12}(?=\0)", text)})
    if not domains:
        raise UsageError(f"inspect: {path} is a library, but none of onnxfuse", hint="name a model or its library")
    found = re.findall(rb"(?<=\0)(?:onnxfuse_)?([A-Za-z]\w*_[0-9a-f]{8})(?=\0)", text)
    kernels = sorted({m.decode() for m in found})
    targets = [name for name in TARGETS if f"\0{name}\0".encode() in text]
    facts = {
        "path": str(path), "sha256": file_digest(path), "bytes": len(text), "domains": domains, "targets": targets,
        "kernels": kernels,
    }  # fmt: skip
    lines = [f"{path}  {bytes_text(len(text))}, sha256 {facts['sha256']}", f"domain  {', '.join(domains)}"]
    lines.append(f"for     {', '.join(targets)}")
    return Answer(document("inspect", library=facts), (*lines, *(f"kernel  {name}" for name in kernels)))
