"""The verify step: drops kernels that differ and plans again, until the model agrees with the original."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from onnxfuse.emit import Emitted
from onnxfuse.errors import AnsweredNo, DeviceError, counted
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.pipeline import finish
from onnxfuse.pipeline import steps as first
from onnxfuse.pipeline.calls import Calls, GroupSettings, ModelSettings, RunSettings, Tolerances, feed_settings
from onnxfuse.pipeline.finish import body_model
from onnxfuse.pipeline.groups import MOST_ROUNDS, forbidden, longest_sums, names_of, narrowed_ops, reductions, roundings
from onnxfuse.pipeline.meter import size_of
from onnxfuse.pipeline.state import Build, Context, GroupBuild, cache_of, have, place_of, tried_here
from onnxfuse.pipeline.verdict_cache import known_file, known_model
from onnxfuse.runtime.provider import ABSENT, CPU, INSTALL
from onnxfuse.target import unable
from onnxfuse.verify import GroupVerdict, bisected
from onnxfuse.verify.verdicts import Verdict

SMALL, LARGE = 16 << 20, 1 << 30  # bytes of a model: one more process costs half a second, and a copy in memory
_REFERENCE, _MODELS = "reference", "models"  # what is done beside the build
_KEPT = "--no-verify makes a kernel of it all the same"
_ELSEWHERE = "not verified on the GPU: "
_MOST_BUILDS, _BUILDING = 24, 30.0  # trials, and seconds, where kernels at fault are found by building again


def begin(context: Context, calls: Calls, b: Build) -> None:
    """Run the original in another process while the build goes on, if its outputs will be needed.

    It is called before the model is loaded and again after it, when what is not needed after all is ended.
    """
    if not _wanted(context, b):
        context.background.cancel(_REFERENCE)
        return
    if context.background.started(_REFERENCE):
        return
    out, precision, settings = context.folder / "reference", context.options.precision, feed_settings(context, b)

    def work(stop: threading.Event) -> Path | None:
        return calls.verify_reference(context.original, out, precision=precision, stop=stop, **settings)

    context.background.start(_REFERENCE, work)


def _wanted(context: Context, b: Build) -> bool:
    """Whether the outputs of the original will be needed and can be made beside the build, as far as is known."""
    options = context.options
    if b.copy or not options.verifies or place_of(context, b) != CPU:  # what the GPU makes of the original counts too
        return False
    if b.loaded is None and (options.dim or options.input_shape or not context.original.is_file()):
        return False  # the sizes of inputs are not known yet
    known = known_file(cache_of(context), context.original) if b.loaded is None else known_model(cache_of(context), b)
    return _beside(context, b) and (options.verify is True or not known)


def _beside(context: Context, b: Build) -> bool:
    """Whether to run the model in other processes beside the build: if that saves time and memory suffices."""
    external = b.source.external if b.loaded is not None else ()
    size = sum(path.stat().st_size for path in (context.original, *external))
    return SMALL <= size <= LARGE and context.options.memory_budget is None and find_spec("onnxruntime") is not None


def verify(context: Context, calls: Calls, b: Build) -> Build:
    """The verdict; kernels that fail alone, or put the model over its limit, are dropped for replanning."""
    options = context.options
    if options.verify is False:
        return b
    if b.copy and have(b.emitted).exact is not None:
        context.background.cancel(_REFERENCE)
        return replace(b, verdict=Verdict(True, 0.0, 0.0, 0.0, message="the output is a copy of the input"))
    b, verdict = _judged(context, calls, b)
    if verdict is None:
        return b
    if verdict.ok and not b.copy and (said := _unable(context, b)):
        b = replace(b, notes=(*b.notes, f"not verified: {said}"))
    facts = {"ok": verdict.ok, "cached": verdict.cached, "max_error": verdict.max_error, "limit": verdict.limit}
    context.tell(
        "verify",
        facts
        | {"inputs": verdict.inputs, "message": verdict.message}
        | {"informational": verdict.informational, "chosen": verdict.chosen},
    )
    if verdict.ok is False and not b.copy:
        suspects = _suspects(context, calls, b, verdict) if b.rounds < MOST_ROUNDS else []
        if suspects or options.verify is None:
            return _given_up(b, verdict, suspects or list(b.all_parts))
    if verdict.ok is False:
        hint = "nothing was written; --rtol allows more, --skip-node leaves nodes to ONNX Runtime"
        raise AnsweredNo(f"verify: the result differs: {verdict.message}", hint=hint)
    if verdict.ok is None and options.verify is True:
        way = INSTALL if verdict.message == ABSENT else "give --inputs"
        words = "; ".join((verdict.message, *(note for note in b.notes if note.startswith(_ELSEWHERE))))
        raise DeviceError(f"verify: {words}", hint=f"{way}, or --no-verify to do without")
    return replace(b, verdict=verdict)


def _judged(context: Context, calls: Calls, b: Build) -> tuple[Build, Verdict | None]:
    """The build and the verdict on it; None, and the build without them, where kernels fail alone.

    What fails in the provider of the GPU counts only while the original runs there; else it is judged without.
    """
    if find_spec("onnxruntime") is None:
        return b, Verdict(None, None, None, None, message=ABSENT)
    memory = calls.memory_of(None if context.options.verify else cache_of(context), context, b)
    if (known := memory.recall()) is not None:
        return b, known
    if b.place is None:
        wanted, b = place_of(context, b), _placed(context, calls, b)
        if b.place != wanted:
            return _judged(context, calls, b)
    if b.place == CPU and _beside(context, b):  # a GPU may take one process only
        context.background.start(_MODELS, partial(_compared, context, calls, b))
    context.tell("begin", {"step": "verify each kernel"})
    b, failed = _tried(context, calls, b)
    verdict = None
    if not failed or b.rounds >= MOST_ROUNDS:
        context.tell("begin", {"step": "verify the model"})
        verdict = context.background.result(_MODELS, partial(_compared, context, calls, b))
    context.background.cancel(_MODELS)
    if verdict is not None and verdict.ok is not False:
        memory.keep(verdict)
        return b, verdict
    moved = _placed(context, calls, b)
    if moved.place != b.place:
        return _judged(context, calls, moved)
    return (_dropped(b, failed), None) if verdict is None else (b, verdict)


def _placed(context: Context, calls: Calls, b: Build) -> Build:
    """The build with the provider in which its kernels are judged: one in which the original runs.

    Where it does not run in that of the GPU, or only without CUDA graphs, no kernel is at fault: a note says why.
    """
    place, notes = place_of(context, b), b.notes
    while place != CPU:
        said = calls.verify_place(
            context.original, place, memory_limit=_memory_limit(context), **feed_settings(context, b)
        )
        if not said:
            break
        notes = (*b.notes, f"not verified with CUDA graphs: {said}" if place.graph else f"{_ELSEWHERE}{said}")
        place = place.ungraphed if place.graph else CPU
    return replace(b, place=place, notes=notes)


def _memory_limit(context: Context) -> int | None:
    budget = context.options.memory_budget
    return size_of(budget) if budget else None


def _given_up(b: Build, verdict: Verdict, parts: list[GroupBuild]) -> Build:
    """The build without these kernels, each of which agrees with its body although the whole model fails.

    That happens to models that amplify roundings, and to those that run only because of a fusion of the runtime. If all
    kernels are dropped, the output is a copy.
    """
    reason = f"the outputs of the whole model differ: {verdict.message}"
    groups = [p.group for p in parts]
    decisions = tuple(Decision("E-NUMERICS", g.origin or (g.name,), reason, _KEPT) for g in groups)
    out = frozenset[str]().union(*(names_of(g) for g in groups))
    return forbidden(replace(b, refused=(*b.refused, *decisions)), out)


def _suspects(context: Context, calls: Calls, b: Build, verdict: Verdict) -> list[GroupBuild]:
    """The kernels without which the model passes, found by bisection; None if not found, or if none would be left."""
    if any(not run.ok and not run.with_library for run in verdict.runs):
        return _rebuilt(context, calls, b, verdict)
    kernels = tuple(dict.fromkeys(p.op for p in b.all_parts))
    files = (context.original, b.files[-1], have(b.library).path)
    try:
        dropped = calls.verify_culprits(*files, verdict, kernels, **_model_settings(context, b))
    except DeviceError:
        return []
    return [p for p in b.all_parts if p.op in dropped] if len(dropped) < len(kernels) else []


def _rebuilt(context: Context, calls: Calls, b: Build, verdict: Verdict) -> list[GroupBuild]:
    """The kernels without which a build passes, where it is wrong without its library too: their bodies are at fault,
    or what the model says of values between them. Each trial is planned and built anew.
    """
    until = time.monotonic() + _BUILDING
    quiet = replace(context, tell=lambda what, facts: None)

    def passes(used: Sequence[str]) -> bool:
        if time.monotonic() > until:
            return False
        out = [p for p in b.all_parts if p.group.nodes[0].name not in used]
        made = _given_up(replace(b, verdict=None), verdict, out)
        for step in (first.plan, first.lower, first.schedule, first.render, finish.build, finish.emit):
            made = step(quiet, calls, made)
            if made.stale:
                return False
        return _compared(context, calls, made).ok is not False

    names = [p.group.nodes[0].name for p in b.all_parts]
    kept = bisected(names, passes, _MOST_BUILDS)
    return [p for p in b.all_parts if p.group.nodes[0].name not in kept] if kept else []


def _run_settings(context: Context, b: Build) -> RunSettings:
    """The arguments that both comparisons share."""
    limit = _memory_limit(context)
    return {**feed_settings(context, b), "isas": context.here, "provider": place_of(context, b), "memory_limit": limit}


def _model_settings(context: Context, b: Build) -> ModelSettings:
    """The same with the tolerances that the user gave."""
    options = context.options
    limits: Tolerances = {"rtol": options.rtol, "atol": options.atol, "precision": options.precision}
    return {**_run_settings(context, b), **limits}


def _compared(context: Context, calls: Calls, b: Build, stop: threading.Event | None = None) -> Verdict:
    library = have(b.library).path if tried_here(context, b) and not b.copy else None
    verdict = calls.verify_models(
        context.original,
        b.files[-1],
        library=library,
        reference=context.background.result(_REFERENCE, lambda: None),
        stop=stop,
        **_model_settings(context, b),
    )
    if library is None and not b.copy and verdict.ok:
        return replace(verdict, ok=None, message=f"{_unable(context, b)}; function bodies are right")
    return verdict


def _unable(context: Context, b: Build) -> str:
    targets = {target.name: target for target in context.targets}
    if place_of(context, b) == CPU:
        return unable(targets, targets)
    left = [name for name in targets if name not in tried_here(context, b)]
    return f"kernels for {' and '.join(left)} are not run on this machine's GPU" if left else ""


def _tried(context: Context, calls: Calls, b: Build) -> tuple[Build, list[tuple[GroupBuild, GroupVerdict]]]:
    """The build, with the kernels that agree with their bodies recorded, and the parts whose kernels do not.

    Kernels that passed in an earlier round are not checked again. No kernel fails if the model does not run at all.
    """
    parts = {g.name: p for g, p in zip(b.groups, b.all_parts, strict=True)}
    known = [name for name, p in parts.items() if _key(p) in b.passed]
    here = tried_here(context, b)
    results = list(_results(context, calls, b, known)) if here and len(known) < len(parts) else []
    passed = b.passed.union(_key(parts[r.name]) for r in results if r.ok)
    seen = {*known, *(r.name for r in results if r.ok is not None)}
    inside = {g.name for g in b.groups[len(b.parts) :]}  # those of the main graph come first
    said = f"compared only as parts of the whole model: {counted(len(inside - seen), 'kernel')} in subgraphs"
    notes = (said,) if here and inside - seen and said not in b.notes else ()
    return replace(b, passed=passed, notes=(*b.notes, *notes)), [(parts[r.name], r) for r in results if r.ok is False]


def _results(context: Context, calls: Calls, b: Build, known: list[str]) -> Iterator[GroupVerdict]:
    """What became of each kernel but the known ones; in bodies with random inputs, which the user cannot give."""
    emitted, library = have(b.emitted), have(b.library).path
    narrowed = narrowed_ops(b)
    settings: GroupSettings = {
        **_run_settings(context, b),
        "reductions": longest_sums(b.all_parts),
        "roundings": roundings(b.all_parts, narrowed),
        "narrowed": narrowed,
        "skip": known,
        "reference": context.background.result(_REFERENCE, lambda: None),
    }
    if not _calls_in(emitted, b.domain) <= set(known):
        with suppress(DeviceError):
            yield from calls.verify_groups(b.files[-1], library, **settings)
    random: GroupSettings = {**settings, "inputs": None, "reference": None}
    for number, body in enumerate(emitted.bodies):
        if not _calls_in(body, b.domain) <= set(known):
            with suppress(DeviceError):  # what random inputs do not run; the whole model is compared all the same
                path = body_model(context, calls, emitted, number)
                yield from calls.verify_groups(path, library, **random)


def _calls_in(emitted: Emitted, domain: str) -> set[str]:
    """The names of the nodes of a model that call kernels."""
    return {n.name for n in emitted.proto.graph.node if n.domain == domain}


def _key(part: GroupBuild) -> tuple[str, ...]:
    """The identity of a kernel: its operator type and outputs."""
    return (part.op, part.group.nodes[0].name, *part.group.outputs)


def _dropped(b: Build, failed: list[tuple[GroupBuild, GroupVerdict]]) -> Build:
    """The build without the kernels that differ from their bodies, marked for replanning.

    Differences may come from sums, whose order matters where terms cancel; then the rest of the group is planned again
    without its reductions.
    """
    decisions = tuple(
        Decision("E-NUMERICS", p.group.origin or (p.group.name,), f"{p.op}: {r.message}", f"report it; {_KEPT}")
        for p, r in failed
    )
    out = frozenset[str]()
    for p, r in failed:
        sums = reductions(_graph_of(b, p), p.group) if r.error is not None else frozenset[str]()
        out |= sums or names_of(p.group)
    return forbidden(replace(b, refused=(*b.refused, *decisions)), out)


def _graph_of(b: Build, part: GroupBuild) -> Graph:
    """The graph that a part is of."""
    return next(have(each.plan).graph for each in b.everywhere() if any(p is part for p in each.parts))
