"""The whole build: the steps in order, the check after each, replanning, and the outputs."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

from onnxfuse.config import Options
from onnxfuse.errors import AnsweredNo, UsageError, counted
from onnxfuse.load.tensors import forget_pages
from onnxfuse.pipeline import finish, gain_step, lock_files, profile_guided, verdict
from onnxfuse.pipeline import steps as first
from onnxfuse.pipeline.build_drawing import drawing
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.decisions import decisions
from onnxfuse.pipeline.groups import counted_at, described, phase_bytes
from onnxfuse.pipeline.loading import loading
from onnxfuse.pipeline.meter import Meter, size_of
from onnxfuse.pipeline.outputs import STREAM, OutputPaths, deliver, places_of, refuse, workshop
from onnxfuse.pipeline.slower_groups import runtime_times
from onnxfuse.pipeline.state import Build, Context, Tell, cache_of, check_files, check_options, have, tried_here
from onnxfuse.pipeline.steps import nodes_left
from onnxfuse.pipeline.text import text_of
from onnxfuse.plan.price import PriceMemo, PriceSamples
from onnxfuse.plan.sizes import input_symbols
from onnxfuse.report.result import CandidateResult, Model, Output, Refusal, Result, Verified
from onnxfuse.runtime.background import Background

Step = tuple[str, Callable[[Context, Calls, Build], Build], Callable[[Build], None]]


def _nothing(_: Build) -> None:
    """The step checks what it makes itself."""


def _load(context: Context, calls: Calls, b: Build) -> Build:
    """The model as a graph; it is run beside the build as soon as that may be needed."""
    verdict.begin(context, calls, b)
    b = first.load(context, calls, b)
    verdict.begin(context, calls, b)
    return b


STEPS: tuple[Step, ...] = (
    ("load", _load, first.check_graph),
    ("rewrite", first.rewrite, first.check_graph),
    ("plan", first.plan, first.check_plan),
    ("lower", first.lower, first.check_lowered),
    ("schedule", first.schedule, first.check_scheduled),
    ("render", first.render, first.check_sources),
    ("build", finish.build, finish.check_library),
    ("emit", finish.emit, finish.check_emitted),
    ("verify", verdict.verify, _nothing),
    ("guide", profile_guided.guide, _nothing),
    ("gain", gain_step.gain, _nothing),
)
_NAMES = [name for name, _, _ in STEPS]
About = Callable[[Result], Mapping[Path, str]]
_ALLOCATED = 50_000  # containers that are made between two looks for cycles
_DRY = "render"  # the last step of a dry run: everything is decided, nothing is compiled


def run(context: Context, calls: Calls, last: str, show: Callable[[str, Build], None]) -> Build:
    """All steps up to `last`. A step that refuses groups, kernels that fail and slow ones lead back to `plan`."""
    b, at = Build(), 0
    while at <= _NAMES.index(last):
        name, function, check = STEPS[at]
        context.tell("begin", {"step": name})
        with context.meter.step(name):
            b = function(context, calls, b)
            check(b)
        forget_pages()
        show(name, b)
        back = b.stale and name in ("schedule", "build", "verify", "guide", "gain")
        at = _NAMES.index("plan") if back else at + 1
    return b


def optimize(
    model: str | os.PathLike[str] | bytes,
    output: str | os.PathLike[str] | None = None,
    *,
    options: Options | None = None,
    tell: Tell = lambda what, facts: None,
    stream: BinaryIO | None = None,
    show: Callable[[str], None] | None = None,
    strict: bool = False,
    calls: Calls | None = None,
    about: About | None = None,
    **changes: Any,
) -> Result:
    """Write a model whose fused groups are kernels of a library beside it.

    `model` is a path or the bytes of a model, `output` and `changes` are fields of Options. `stream` takes the model
    when the output is "-". `tell` hears how far it is, `show` gets the text that `print_step` asks for. `strict` raises
    a bug in one group, which else leaves the group to ONNX Runtime. `about` gives texts about the result by the files
    that they are for, which are outputs too where others are written. Raises OnnxFuseError; then nothing was written.
    """
    options = _options(options, output, changes)
    check_options(options)
    check_files(options)
    path = None if isinstance(model, bytes) else Path(model)
    last = options.stop_after or (_DRY if options.dry_run else _NAMES[-1])
    writes = options.stop_after is None and not options.dry_run
    places = places_of(path, options) if writes or _NAMES.index(last) >= _NAMES.index("build") else None
    there = path is None or path.exists()  # else it is `load` that has something to say
    if writes and places is not None and there:
        refuse(places, options, path)
    calls = calls or Calls()
    folder_of = places if writes and there else None
    with opened(model, options, calls, tell, places=places, beside=folder_of, strict=strict) as context:
        b = run(context, calls, last, _shower(options, show))
        if b.plan is not None:
            _enough(options, b)
        if not writes:
            return _result(context, b, Output(), last)
        return _finished(context, b, stream, about)


@contextmanager
def opened(
    model: str | os.PathLike[str] | bytes,
    options: Options,
    calls: Calls,
    tell: Tell,
    *,
    places: OutputPaths | None = None,
    beside: OutputPaths | None = None,
    strict: bool = False,
    samples: PriceSamples | None = None,
) -> Iterator[Context]:
    """What a build of a model is given, with its budgets running; outputs are made `beside` their places.

    Where there are `samples`, what prices are made of is put into them.
    """
    memory = size_of(options.memory_budget) if options.memory_budget else None
    with ExitStack() as stack:
        stack.enter_context(_few_collections())
        meter = stack.enter_context(Meter(options.time_budget, memory))
        folder = stack.enter_context(workshop(beside))
        file, source = _as_file(model, folder)
        backend = calls.backends[options.target]
        guests = [(t, calls.backends[name]) for name, found in backend.beside(options).items() for t in found]
        targets = (*backend.legality.targets(options), *(t for t, _ in guests))
        background = stack.enter_context(Background())
        memo = PriceMemo(options.plan_budget, samples=samples)
        context = Context(
            options, backend, targets, source, file, places, folder, meter, tell, background, memo, strict=strict,
            beside={t.name: row for t, row in guests},
        )  # fmt: skip
        if options.profile_guided:
            context = replace(context, measured=backend.measured(targets[0], cache_of(context)))
        yield context


@contextmanager
def _few_collections() -> Iterator[None]:
    """Runs the cyclic garbage collector less often: builds have few cycles, and it took a quarter of the time."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _ALLOCATED), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _options(options: Options | None, output: str | os.PathLike[str] | None, changes: Mapping[str, Any]) -> Options:
    """Options with changes; lists, and one text, are as good as tuples. Raises UsageError for an unknown field."""
    known = {f.name: f.metadata["many"] for f in fields(Options)}
    for name in changes:
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise UsageError(f"options: there is no {name}", hint=f"did you mean {near[0]}?" if near else "see Options")
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
    given |= {k: (v,) for k, v in given.items() if known[k] and isinstance(v, str)}
    if output is not None:
        given["output"] = os.fspath(output)
    return replace(options or Options(), **given)


def _as_file(model: str | os.PathLike[str] | bytes, folder: Path) -> tuple[Path, Path | bytes]:
    """The model as a file, and as `load` takes it."""
    if not isinstance(model, bytes):
        return Path(model), Path(model)
    path = folder / "original.onnx"
    path.write_bytes(model)
    return path, model


def _shower(options: Options, show: Callable[[str], None] | None) -> Callable[[str, Build], None]:
    """Gives `show` the text of the step that was asked for."""
    if options.print_step is None or show is None:
        return lambda step, b: None
    wanted, out = options.print_step, show
    return lambda step, b: out(text_of(step, b)) if step == wanted else None


def _enough(options: Options, b: Build) -> None:
    """Raise AnsweredNo where fewer kernels were made, or planned, than are required."""
    if len(b.all_parts) < options.require_fusion:
        made = counted(len(b.all_parts), "kernel")
        reason = f"optimize: made {made}, fewer than the {options.require_fusion} required"
        raise AnsweredNo(reason, hint="onnxfuse explain says why")


def _finished(context: Context, b: Build, stream: BinaryIO | None, about: About | None) -> Result:
    """Deliver what was made, when it has the kernels that were asked for."""
    options, places = context.options, have(context.places)
    lock_files.check_lock(context, b)
    finish.write_manifest(context, b)  # what was measured is known only now
    made: dict[Path, Path] = {}
    if places.data is not None and len(b.files) > 1:
        made[places.data] = b.files[0]
    if b.library is not None:
        made[places.library] = b.library.path
    if places.manifest is not None:
        made[places.manifest] = finish.manifest_file(context)
    if places.lock is not None and options.profile_guided:
        made[places.lock] = finish.lock_file(context, b)
    if places.model is not None:
        made[places.model] = b.files[-1]
    result = _result(context, b, _output(places, made), None)
    texts = about(result) if about is not None else {}
    made = {**_as_files(texts, context.folder), **made}
    to_stream = (b.files[-1], stream) if places.model is None and stream is not None else None
    deliver(made, options, to_stream)
    context.tell("wrote", {"paths": [path for path in astuple(result.output) if path is not None]})
    return result


def _as_files(texts: Mapping[Path, str], folder: Path) -> dict[Path, Path]:
    """Texts as files in a folder, by the files that they are for."""
    made: dict[Path, Path] = {}
    for number, (final, text) in enumerate(texts.items()):
        made[final] = folder / f"text{number}"
        made[final].write_text(text, encoding="utf-8", errors="replace")
    return made


def _output(places: OutputPaths, made: Mapping[Path, Path]) -> Output:
    """The final paths of what there is."""
    library, manifest, data, lock = (
        str(path) if path in made else None for path in (places.library, places.manifest, places.data, places.lock)
    )
    return Output(str(places.model) if places.model is not None else STREAM, library, manifest, data, lock)


def _result(context: Context, b: Build, output: Output, stopped: str | None) -> Result:
    """What is known after the last step."""
    source = b.source
    names = (part.group.name for part in b.all_parts)
    groups = b.groups or tuple(described(context, b, names, runtime_times(context, b)))
    path = str(context.model) if isinstance(context.model, Path) else None
    kernels = [part.kernel for part in b.all_parts if part.kernel is not None]
    sizes = counted_at(context, b)
    rules = Counter[str]()
    for firing in (f for each in b.everywhere() for f in each.firings):
        rules[firing.rule] += firing.count
    return Result(
        model=Model(path, source.sha256, source.opsets.get("", 0), source.bytes),
        output=output,
        nodes_before=_nodes_before(b),
        nodes_after=_nodes_after(b),
        kernels=len(kernels),
        distinct_kernels=len({part.op for part in b.all_parts if part.op}),
        phases=sum(len(kernel.phases) for kernel in kernels),
        phase_bytes=phase_bytes(b, sizes),
        counted_at={said: sizes[name] for name, said in input_symbols(have(b.loaded)).items()},
        groups=groups,
        rewrites=tuple(rules.items()),
        refusals=tuple(Refusal(d.code, d.nodes, d.reason, d.unlock) for d in decisions(b)),
        candidates=tuple(_candidates(b)),
        verify=_verified(context, b),
        loading=loading(b, b.loads or (b.verdict.loads if b.verdict is not None else ())),
        gain=b.gain,
        choices=(*(b.choices or ()), *b.tried),
        target=context.targets[0].name,
        targets=tuple(target.name for target in context.targets),
        precision=context.options.precision,
        compiler=b.library.compiler if b.library is not None else None,
        domain=b.domain or None,
        notes=b.notes,
        stopped_after=stopped,
        seconds={name: round(seconds, 4) for name, seconds in context.meter.seconds.items()},
        peak_memory_bytes=context.meter.peak,
        drawing=drawing(context, b, groups),
    )


def _candidates(b: Build) -> Iterator[CandidateResult]:
    """The groups that were proposed, of all graphs."""
    for c in (c for each in b.everywhere() if each.plan is not None for c in each.plan.candidates):
        told = (c.reason.code, c.reason.reason, c.reason.unlock) if c.reason is not None else ("", "", "")
        ms = round(c.seconds * 1e3, 6) if c.seconds is not None else None
        yield CandidateResult(c.nodes, c.by, ms, *told, c.measured)


def _nodes_before(b: Build) -> int:
    """Nodes of what was loaded, bodies that were understood included."""
    return sum(len(have(each.loaded).nodes) for each in b.everywhere())


def _nodes_after(b: Build) -> int:
    """Nodes of what is or would be run, those of the same bodies included."""
    made = [_nodes_of(each, planned=b.plan is not None and not b.copy) for each in b.everywhere()]
    emitted = b.emitted
    return sum(made) if emitted is None else len(emitted.proto.graph.node) - emitted.decoding + sum(made[1:])


def _nodes_of(b: Build, *, planned: bool) -> int:
    """Nodes of one graph."""
    return len(b.parts) + sum(1 for _ in nodes_left(b)) if planned else len(have(b.loaded).nodes)


def _verified(context: Context, b: Build) -> Verified | None:
    v = b.verdict
    ran = () if b.copy or v is None or v.inputs == 0 else tried_here(context, b)
    return None if v is None else Verified(v.ok, v.max_error, v.limit, v.inputs, v.message, v.cached, ran)
