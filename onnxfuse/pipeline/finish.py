"""The steps from sources to files: build and emit."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from onnxfuse.build import BuildRequest, CompileError
from onnxfuse.build.cache import default_cache_dir
from onnxfuse.config import strategy_of
from onnxfuse.emit import Emitted, Fused, LibraryEntry, Planned, Staged, outside, state_library
from onnxfuse.errors import OutputError
from onnxfuse.ir.graph import Decision
from onnxfuse.ops.spec import REPORT
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.decisions import decisions
from onnxfuse.pipeline.groups import described, forbidden, names_of
from onnxfuse.pipeline.loading import loading
from onnxfuse.pipeline.lock_files import lock_of
from onnxfuse.pipeline.outputs import OutputPaths
from onnxfuse.pipeline.slower_groups import runtime_times
from onnxfuse.pipeline.state import Build, Context, cache_of, have
from onnxfuse.pipeline.verdict_cache import digest_of
from onnxfuse.render.ort_glue import Variant
from onnxfuse.report.manifest import manifest
from onnxfuse.report.result import GroupResult, Model
from onnxfuse.runtime.graphs import all_nodes
from onnxfuse.target import Target

_MODEL = "model"  # what is done beside compilation


def build(context: Context, calls: Calls, b: Build) -> Build:
    """The library of all kernels, in the folder where outputs are made; the model is emitted beside it."""
    context.background.cancel(_MODEL)  # of an earlier round, as are files
    for old in _model_files(context.folder, have(context.places)):
        old.unlink(missing_ok=True)
    if b.copy:
        return b
    if _beside(context):
        context.background.start(_MODEL, partial(_emitted, context, calls, b))
    options, cache = context.options, cache_of(context)
    if cache is None and not options.no_cache:
        b = replace(b, notes=(*b.notes, f"{default_cache_dir()} cannot be written: compiled without a cache"))
    toolchain = context.backend.find_toolchain(options, context.targets[0].machine)
    ops = tuple(dict.fromkeys(p.op for p in b.all_parts))
    variants = [
        Variant(target.name, tuple(_symbol(b, target, op) for op in ops), features)
        for target, features in _features(context, b)
    ]
    glue = context.backend.registration(b.domain, variants)
    request = BuildRequest(
        tuple(b.sources.values()),
        glue,
        toolchain,
        cache,
        options.jobs,
        context.folder / have(context.places).library.name,
        context.meter.left,
        progress=context.part,
    )
    try:
        library = context.backend.build_library(request)
    except CompileError as problem:
        if context.strict or not problem.units:
            raise
        return _without(b, problem)
    distinct = len(ops) * len(variants)
    told = {"distinct": distinct, "cached": min(library.cached, distinct), "compiler": library.compiler}
    context.tell("compile", told | {"seconds": library.seconds})
    return replace(b, library=library)


def _symbol(b: Build, target: Target, op: str) -> str | None:
    """The symbol of a kernel for a target; None where it has none."""
    source = b.sources.get((target.name, op))
    return source.symbol if source is not None else None


def _without(b: Build, problem: CompileError) -> Build:
    """The build without the kernels that do not compile, marked for replanning."""
    said = {op: problem.units[s.symbol] for (_, op), s in b.sources.items() if s.symbol in problem.units}
    groups = [(p.group, said[p.op]) for p in b.all_parts if p.op in said]
    if not groups:  # tiles, which many kernels call
        raise problem
    told = tuple(Decision("E-INTERNAL", g.origin or (g.name,), text, REPORT) for g, text in groups)
    out = frozenset[str]().union(*(names_of(g) for g, _ in groups))
    return forbidden(replace(b, refused=(*b.refused, *told)), out)


def _features(context: Context, b: Build) -> Iterator[tuple[Target, tuple[str, ...]]]:
    """Each target of the library with what its kernels ask of a processor."""
    for at, target in enumerate(context.targets):
        kernels = [k for p in b.all_parts if p.kernels and (k := p.kernels[at]) is not None]
        yield target, context.backend_of(target).features(target, kernels)


def check_library(b: Build) -> None:
    """Assert that there is a library where there are kernels."""
    assert b.copy or b.stale or (b.library is not None and b.library.path.is_file()), "build: there is no library"


def _beside(context: Context) -> bool:
    """Whether the model is emitted while kernels are compiled: under a budget nothing is, so that it can be ended."""
    options = context.options
    return options.stop_after != "build" and options.time_budget is None and options.memory_budget is None


def _emitted(context: Context, calls: Calls, b: Build, stop: threading.Event | None = None) -> Emitted:
    """The model without the hash of its library; weights that go into a file of their own are written."""
    places = have(context.places)
    main = _planned(b)
    targets = tuple(
        "+".join([target.name, *(name for name in features if name not in target.features)])
        for target, features in _features(context, b)
    )
    stated = LibraryEntry(b.domain, places.library_name, places.manifest_name, targets)
    emitted = calls.emit(main.plan, main.fused, stated, main.inner)
    if (data := _data_of(context, emitted)) is not None:
        with _on_the_disk_of(context):
            calls.write_data(emitted, data, data, stop)
        if context.options.verifies and cache_of(context) is not None and not (stop is not None and stop.is_set()):
            digest_of(data)  # which the key of the verdict needs
    return emitted


def _data_of(context: Context, emitted: Emitted) -> Path | None:
    """The file in the folder that takes the weights of a model; None where they stay in the model."""
    places, external = have(context.places), context.options.save_as_external_data
    if places.model is None or not outside(emitted, asked=external):
        return None
    return context.folder / have(places.data).name


def emit(context: Context, calls: Calls, b: Build) -> Build:
    """The model and its manifest as files in the folder where outputs are made."""
    if b.copy:
        emitted = calls.copied(b.source)
    else:
        made = context.background.result(_MODEL, partial(_emitted, context, calls, b))
        emitted = state_library(made, have(b.library).sha256)
    files = _written(context, calls, emitted, data_there=not b.copy and _data_of(context, emitted) is not None)
    b = replace(b, emitted=emitted, groups=_groups(context, b, emitted), files=files)
    write_manifest(context, b)
    return b


def _planned(b: Build) -> Planned:
    """The graph of a build with its kernels, as emit takes it."""
    fused = tuple(Fused(p.group, have(p.kernel), have(p.body), p.op) for p in b.parts)
    return Planned(have(b.plan), fused, tuple(map(_planned, b.inner)), b.node, b.attribute)


def body_model(context: Context, calls: Calls, emitted: Emitted, number: int) -> Path:
    """A body that has kernels, as a model of its own in the folder."""
    path = context.folder / f"body_{number}.onnx"
    with Staged(overwrite=True) as staged:  # there may be one of an earlier round
        calls.write(emitted.bodies[number], path, staged)
        staged.commit()
    return path


def _written(context: Context, calls: Calls, emitted: Emitted, *, data_there: bool) -> tuple[Path, ...]:
    """The files of the model in the folder, the model last; its weights may be in theirs already."""
    places = have(context.places)
    if places.model is None:
        path = context.folder / places.name
        with path.open("wb") as stream:
            calls.write_stream(emitted, stream)
        return (path,)
    external = context.options.save_as_external_data
    with Staged() as staged, _on_the_disk_of(context):
        path = context.folder / places.name
        written: tuple[Path, ...] = calls.write(emitted, path, staged, external=external, data_there=data_there)
        staged.commit()
    return written


@contextmanager
def _on_the_disk_of(context: Context) -> Iterator[None]:
    """Names the folder of the outputs in errors: it is the same disk, and nobody knows the one where they are made."""
    try:
        yield
    except OutputError as problem:
        said = problem.message.replace(str(context.folder), str(have(context.places).folder))
        raise OutputError(said, hint=problem.hint) from None


def _model_files(folder: Path, places: OutputPaths) -> Iterable[Path]:
    return [folder / places.name, *([folder / places.data.name] if places.data is not None else [])]


def manifest_file(context: Context) -> Path:
    """Where the manifest is made."""
    return context.folder / "manifest.json"


def lock_file(context: Context, b: Build) -> Path:
    """The lock file of a build that was measured, in the folder."""
    path = context.folder / "lock.json"
    path.write_text(lock_of(context, b), encoding="utf-8")
    return path


def write_manifest(context: Context, b: Build) -> None:
    """The manifest as a file in the folder where outputs are made; what was measured is in it where it is known."""
    places, library = have(context.places), b.library
    source = b.source
    if places.manifest is None:
        return
    targets = [{"name": target.name, "features": list(features)} for target, features in _features(context, b)]
    how: dict[str, Any] = {"target": targets[0]["name"], "features": targets[0]["features"], "targets": targets}
    how |= {"compiler": library.compiler if library else None, "strategy": strategy_of(context.options)}
    how["precision"] = context.options.precision
    if library is not None and library.functions:
        how["functions"] = [asdict(each) for each in library.functions]
    if b.verdict is not None and context.options.precision != "fp32":
        how["max_error"] = b.verdict.max_error
    text = manifest(
        Model(None, source.sha256, source.opsets.get("", 0), source.bytes),
        Path(places.name).name,
        None if b.copy else places.library_name,
        library.sha256 if library is not None and not b.copy else None,
        b.domain or None,
        b.groups,
        how,
        {way: asdict(each) for way, each in loading(b, b.loads).items()},
        asdict(b.gain) if b.gain is not None else None,
        [asdict(each) for each in (*(b.choices or ()), *b.tried)],
        [asdict(d) for d in decisions(b)],
    )
    manifest_file(context).write_text(text, encoding="utf-8")


def _groups(context: Context, b: Build, emitted: Emitted) -> tuple[GroupResult, ...]:
    """The groups under the names that their nodes got."""
    names = (emitted.names[part.group.nodes[0].name] for part in b.all_parts)
    return tuple(described(context, b, names, runtime_times(context, b)))


def check_emitted(b: Build) -> None:
    """Assert that every kernel is called by one node; emit itself checks the model."""
    nodes = list(all_nodes(have(b.emitted).proto.graph))
    calls = sum(1 for n in nodes if b.domain and n.domain == b.domain)
    assert calls == len(b.all_parts), "emit: kernels and nodes differ in number"
    assert all(path.is_file() for path in b.files), "emit: a file is missing"
