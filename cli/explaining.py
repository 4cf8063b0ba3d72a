"""The verb `explain`: what would be fused in a model, and why not more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from onnxfuse.config import Options
from onnxfuse.errors import UsageError, counted
from onnxfuse.load import everywhere, load, simplify_shapes
from onnxfuse.pipeline import optimize
from onnxfuse.pipeline.state import Tell
from onnxfuse.report.result import CandidateResult, GroupResult, Refusal, Result, nothing_lost
from onnxfuse.rewrite import explain as rewrite_explain

from .results import Answer
from .show import count_text, sentence, table

# explain --------------------------------------------------------------------------------------------------------------


def explain(
    model: str | bytes,
    node: str | None,
    options: Options,
    tell: Tell = lambda what, facts: None,
    *,
    strict: bool,
    verbose: bool = False,
) -> Answer:
    """Plan a model without building it; the groups, and the reasons for what is not fused.

    `verbose`, or with `node`, pairs whose nodes are all in kernels are listed too.
    """
    result = optimize(model, options=replace(options, stop_after="schedule"), tell=tell, strict=strict)
    wanted = _pattern(node)
    groups = [g for g in result.groups if wanted is None or any(map(wanted.search, g.nodes))]
    refusals = [r for r in result.refusals if wanted is None or any(map(wanted.search, r.nodes))]
    candidates = [c for c in result.candidates if wanted is None or any(map(wanted.search, c.nodes))]
    rules = _rules(model, wanted, options) if wanted is not None else []
    if wanted is not None and not (groups or refusals or rules or _named(model, wanted, options)):
        raise UsageError(f"explain: no node matches --node {node}", hint="onnxfuse explain without it lists them")
    notes = (*result.notes, *_counted(result))
    result = replace(result, notes=notes, groups=tuple(groups), refusals=tuple(refusals), candidates=tuple(candidates))
    fired = result.drawing.fired if result.drawing is not None else ()
    at = Counter(f.rule for f in fired if wanted is not None and any(map(wanted.search, f.nodes)))
    shown = result if wanted is None else replace(result, rewrites=tuple(at.items()))
    made = result.to_json("explain", drawing=True)
    made["rules"] = [{"node": n, "rule": r, "reason": why} for n, r, why in rules]
    return Answer(made, tuple(_explained(shown, rules, whole=verbose or wanted is not None)))


def _counted(result: Result) -> Iterator[str]:
    """The sizes at which symbolic extents are counted."""
    if result.counted_at:
        stated = ", ".join(f"{name}={n}" for name, n in result.counted_at.items())
        named = [name for name in result.counted_at if "[" not in name]
        hint = f" (--dim-hint {named[0]}=N sets another size)" if named else ""
        yield f"symbolic sizes are counted at {stated}{hint}"


def _pattern(node: str | None) -> re.Pattern[str] | None:
    try:
        return None if node is None else re.compile(node)
    except re.error as problem:
        raise UsageError(f"explain: --node {node} is not a regular expression: {problem}") from None


def _rules(model: str | bytes, wanted: re.Pattern[str], options: Options) -> list[tuple[str, str, str]]:
    """(node, rule, why it does not fire there) for the nodes asked for; "" where it does."""
    found = []
    for graph in map(simplify_shapes, everywhere(load(model, options))):
        names = [n.name for n in graph.nodes if wanted.search(n.name)]
        found += [(name, rule, why) for name in names for rule, why in rewrite_explain(graph, name, options, near=True)]
    return found


def _named(model: str | bytes, wanted: re.Pattern[str], options: Options) -> bool:
    """Whether a node of the model, or in a subgraph, has such a name."""
    return any(wanted.search(n.name) for graph in everywhere(load(model, options)) for n in graph.nodes)


def _explained(result: Result, rules: list[tuple[str, str, str]], *, whole: bool) -> list[str]:
    """The lines; with `whole`, those about schedule candidates and what is kept apart without a loss too."""
    groups, candidates = result.groups, result.candidates
    refusals, apart = ([r for r in result.refusals if nothing_lost(r.unlock) == kept] for kept in (False, True))
    name = result.model.path or "standard input"
    lines = sentence(
        f"{name}  opset {result.model.opset}, {counted(result.nodes_before, 'node')} -> "
        f"{counted(result.kernels, 'kernel')} ({counted(result.phases, 'phase')}); "
        f"{counted(result.nodes_left, 'node')} left to ONNX Runtime"
    )
    if result.rewrites:
        lines += ["", "rewrites", *_indented(table([(rule, str(n)) for rule, n in result.rewrites], right=(1,)))]
    if groups:
        lines += ["", "kernels", *_indented(_kernels(groups))]
    listed = list(_schedules(groups))
    if listed and whole:
        said = "schedule candidates: the chosen one first (least product of times on one core, on these and on many)"
        lines += ["", said, *_indented(table(listed, right=(1,)))]
    if refusals:
        lines += ["", "refused", *_indented(table(list(_by_layer(refusals)), right=(1,)))]
    if apart and whole:
        lines += ["", "kept apart, nothing left out", *_indented(table(list(_by_layer(apart)), right=(1,)))]
    elif apart:
        lines += ["", f"{counted(len(apart), 'pair')} kept apart, nothing left out   (--verbose lists them)"]
    if candidates:
        lines += ["", "candidates", *_indented(table(list(_proposed(candidates)), right=(1, 2)))]
    if rules:
        said = "rules that match there, in the model as it was read"
        lines += ["", said, *_indented(table([(node, rule, why or "fires") for node, rule, why in rules]))]
    return lines + [line for note in result.notes for line in sentence(f"note: {note}")]


def _kernels(groups: Sequence[GroupResult]) -> Iterator[str]:
    """A row for each distinct kernel, with figures of one call; columns without values are left out."""
    calls: dict[str, list[GroupResult]] = {}
    for g in groups:
        calls.setdefault(g.kernel, []).append(g)
    rows = [["calls", "predicted", "runtime", "bound", "flops", "bytes", "kernel"]]
    for kernel, those in calls.items():
        first = those[0]
        times = (_microseconds(first.predicted_ms), _microseconds(first.runtime_ms))
        work = (count_text(first.flops), count_text(first.bytes))
        about = f"{first.mapping_type or '-'}, {first.phases} phase{'s' * (first.phases != 1)}"
        said = f"{kernel} ({about}): {_names(first.nodes)}"
        rows.append([str(len(those)), *times, first.bound or "-", *work, said])
    shown = [at for at, column in enumerate(zip(*rows[1:], strict=True)) if set(column) != {"-"}]
    figures = [place for place, at in enumerate(shown[:-1]) if rows[0][at] != "bound"]
    return table([[row[at] for at in shown] for row in rows], right=figures)


def _by_layer(refusals: Sequence[Refusal]) -> Iterator[tuple[str, str, str, str]]:
    """Refusals with their count; those that differ only in numbers, as in different layers, count as one."""
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
    """Proposed groups; those that differ only in numbers, as in different layers, count as one."""
    found: dict[tuple[str, ...], list[CandidateResult]] = {}
    for c in candidates:
        found.setdefault((*c.by, c.code, str(c.measured), *map(_any_number, (c.reason, *c.nodes))), []).append(c)
    for those in found.values():
        first = those[0]
        times = sorted(c.predicted_ms for c in those if c.predicted_ms is not None)
        shown = _microseconds(times[0]) if times else "-"
        shown += f" to {_microseconds(times[-1])}" if times and _microseconds(times[-1]) != shown else ""
        shown += " measured" if first.measured else ""
        count = f"{len(those)} x" if len(those) > 1 else ""
        why = f"{first.code} {first.reason}" + f" ({first.unlock})" * bool(first.unlock) if first.code else "taken"
        yield " ".join(first.by), count, shown, _names(first.nodes), why


def _any_number(text: str) -> str:
    return re.sub(r"\d+", "*", text)


def _schedules(groups: Sequence[GroupResult]) -> Iterator[tuple[str, str, str]]:
    """The schedule candidates of each distinct kernel."""
    for g in {g.kernel: g for g in groups}.values():
        for each in g.schedules:
            yield from ((g.kernel * (w is each[0]), _microseconds(w.predicted_ms), w.schedule) for w in each)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _microseconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms * 1e3:.3g} us" if ms < 1 else f"{ms:.3g} ms"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
