"""The steps from sources to a verified model: build, emit, verify, and the measurement that only reports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onnxfuse.build import Library
from onnxfuse.cache import Cache
from onnxfuse.config import default_cache_dir
from onnxfuse.emit import Emitted, Fused, Staged
from onnxfuse.emit import Library as Stated
from onnxfuse.errors import AnsweredNo, DeviceError
from onnxfuse.ir.graph import Decision
from onnxfuse.load import Source
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.groups import MOST_ROUNDS, described, longest_sums, names_of, reductions
from onnxfuse.pipeline.meter import size_of
from onnxfuse.pipeline.outputs import Places
from onnxfuse.pipeline.state import Build, Context, Part, have
from onnxfuse.render.ort_glue import Entry
from onnxfuse.report.manifest import manifest
from onnxfuse.report.result import Gain, GroupResult, Model
from onnxfuse.verify import GroupResult as Compared
from onnxfuse.verify import Verdict

_GAIN_SECONDS = 0.7  # for which each model is measured


def build(context: Context, calls: Calls, b: Build) -> Build:
    """The library of all kernels, in the folder where outputs are made."""
    if b.copy:
        return b
    options, cache = context.options, cache_of(context)
    if cache is None and not options.no_cache:
        b = replace(b, notes=(*b.notes, f"{default_cache_dir()} cannot be written: compiled without a cache"))
    toolchain = calls.find_toolchain(options.toolchain)
    entries = [Entry(b.sources[op].symbol) for op in dict.fromkeys(p.op for p in b.parts)]
    glue = calls.registration(b.domain, entries, context.target.features)
    library = calls.build_library(
        tuple(b.sources.values()),
        glue,
        context.target,
        toolchain,
        cache,
        options.jobs,
        context.folder / have(context.places).library.name,
        context.meter.left,
    )
    told = {"distinct": len(entries), "cached": min(library.cached, len(entries)), "compiler": library.compiler}
    context.tell("compile", told | {"seconds": library.seconds})
    return replace(b, library=library)


def cache_of(context: Context) -> Cache | None:
    """The cache of compiled kernels, None where it is not wanted or the usual folder cannot be written."""
    if context.options.no_cache:
        return None
    if named := context.options.cache_dir:
        return Cache(Path(named))
    usual = default_cache_dir()
    with suppress(OSError):
        usual.mkdir(parents=True, exist_ok=True)
    return Cache(usual) if os.access(usual, os.W_OK | os.X_OK) else None


def check_library(b: Build) -> None:
    """Assert that there is a library where there are kernels."""
    assert b.copy or (b.library is not None and b.library.path.is_file()), "build: there is no library"


def emit(context: Context, calls: Calls, b: Build) -> Build:
    """The model and its manifest as files in the folder where outputs are made."""
    places = have(context.places)
    source: Source = have(b.loaded).source
    if b.copy:
        emitted = calls.copied(source)
    else:
        library = have(b.library)
        fused = [Fused(p.group, have(p.kernel), have(p.body), p.op) for p in b.parts]
        stated = Stated(b.domain, places.library_name, library.sha256, places.manifest_name)
        emitted = calls.emit(have(b.plan), fused, stated)
    b = replace(
        b, emitted=emitted, groups=_groups(context, b, emitted), files=_written(context, calls, emitted, places)
    )
    _write_manifest(context, b, source)
    return b


def _written(context: Context, calls: Calls, emitted: Emitted, places: Places) -> tuple[Path, ...]:
    """The files of the model in the folder, the model last."""
    if places.model is None:
        path = context.folder / places.name
        with path.open("wb") as stream:
            calls.write_stream(emitted, stream)
        return (path,)
    for old in _model_files(context.folder, places):  # of an earlier round
        old.unlink(missing_ok=True)
    with Staged() as staged:
        external = context.options.save_as_external_data
        written: tuple[Path, ...] = calls.write(emitted, context.folder / places.name, staged, external=external)
        staged.commit()
    return written


def _model_files(folder: Path, places: Places) -> Iterable[Path]:
    return [folder / places.name, *([folder / places.data.name] if places.data is not None else [])]


def manifest_file(context: Context) -> Path:
    """Where the manifest is made."""
    return context.folder / "manifest.json"


def _write_manifest(context: Context, b: Build, source: Source) -> None:
    places, library = have(context.places), b.library
    if places.manifest is None:
        return
    how: dict[str, Any] = {"target": context.target.name, "features": list(context.target.features)}
    how |= {"compiler": library.compiler if library else None, "strategy": context.options.strategy}
    text = manifest(
        Model(None, source.sha256, source.opsets.get("", 0), source.bytes),
        Path(places.name).name,
        None if b.copy else places.library_name,
        library.sha256 if library is not None and not b.copy else None,
        b.domain or None,
        b.groups,
        how,
    )
    manifest_file(context).write_text(text, encoding="utf-8")


def _groups(context: Context, b: Build, emitted: Emitted) -> tuple[GroupResult, ...]:
    """The groups under the names that their nodes got."""
    names = {n.output[0]: n.name for n in emitted.proto.graph.node if b.domain and n.domain == b.domain}
    return tuple(described(context, p, names[have(p.kernel).outputs[0].value], have(b.plan).graph) for p in b.parts)


def check_emitted(b: Build) -> None:
    """Assert that every kernel is called by one node; emit itself checks the model."""
    nodes = have(b.emitted).proto.graph.node
    calls = sum(1 for n in nodes if b.domain and n.domain == b.domain)
    assert calls == len(b.parts), "emit: kernels and nodes differ in number"
    assert all(path.is_file() for path in b.files), "emit: a file is missing"


def verify(context: Context, calls: Calls, b: Build) -> Build:
    """The verdict on the model; where single kernels fail, they are dropped and it is planned again."""
    options = context.options
    if options.verify is False:
        return b
    if b.copy and have(b.emitted).exact is not None:
        return replace(b, verdict=Verdict(True, 0.0, 0.0, 0.0, message="the output is a copy of the input"))
    if find_spec("onnxruntime") is None:
        verdict = Verdict(None, None, None, None, message="onnxruntime is not installed")
    else:
        failed = _failing(context, calls, b) if not b.copy else []
        if failed and b.rounds < MOST_ROUNDS:
            return _dropped(b, failed)
        verdict = _compared(context, calls, b)
    told = {"ok": verdict.ok, "max_error": verdict.max_error, "limit": verdict.limit}
    context.tell("verify", told | {"inputs": verdict.inputs, "message": verdict.message})
    if verdict.ok is False and options.verify is None and not b.copy:
        return _given_up(b, verdict)
    if verdict.ok is False:
        hint = "nothing was written; --rtol allows more, --skip-node leaves nodes to ONNX Runtime"
        raise AnsweredNo(f"verify: the result differs: {verdict.message}", hint=hint)
    if verdict.ok is None and options.verify is True:
        raise DeviceError(f"verify: {verdict.message}", hint="give --inputs, or --no-verify to do without")
    return replace(b, verdict=verdict)


def _given_up(b: Build, verdict: Verdict) -> Build:
    """The build without any kernel: each was equal to its body, and the whole was not equal to the original.

    That happens to models which run only because of a fusion of the runtime's own. A copy is always right.
    """
    reason = f"the model as a whole differs: {verdict.message}"
    groups = [p.group for p in b.parts]
    decisions = tuple(Decision("E-NUMERICS", g.origin or (g.name,), reason, "--verify fails instead") for g in groups)
    out = frozenset[str]().union(*(names_of(g) for g in groups))
    return replace(b, forbidden=b.forbidden | out, refused=(*b.refused, *decisions), again=True)


def _settings(context: Context, b: Build) -> dict[str, Any]:
    """What both comparisons are told."""
    options, source = context.options, have(b.loaded).source
    return {
        "inputs": options.inputs,
        "seed": options.seed,
        "dims": source.dims,
        "custom_libraries": options.custom_ops_library,
        "time_limit": context.meter.left,
        "memory_limit": size_of(options.memory_budget) if options.memory_budget else None,
    }


def _compared(context: Context, calls: Calls, b: Build) -> Verdict:
    options, library = context.options, None if b.copy else have(b.library).path
    verdict: Verdict = calls.verify_models(
        context.original,
        b.files[-1],
        library=library,
        rtol=options.rtol,
        atol=options.atol,
        **_settings(context, b),
    )
    return verdict


def _failing(context: Context, calls: Calls, b: Build) -> list[tuple[Part, Compared]]:
    """Parts whose kernel differs from its body; none where the model does not run at all."""
    sums = longest_sums(b.parts)
    try:
        results: Iterable[Compared] = calls.verify_groups(
            b.files[-1], have(b.library).path, reductions=sums, **_settings(context, b)
        )
    except DeviceError:
        return []
    parts = {g.name: p for g, p in zip(b.groups, b.parts, strict=True)}
    return [(parts[r.name], r) for r in results if r.ok is False]


def _dropped(b: Build, failed: list[tuple[Part, Compared]]) -> Build:
    """The build without the kernels that differ from their bodies, to be planned again.

    Where numbers differ, sums may be at fault: their order tells where they cancel out. Then the rest of the group gets
    another chance without them.
    """
    decisions = tuple(
        Decision("E-NUMERICS", p.group.origin or (p.group.name,), f"{p.op}: {r.message}", "report it")
        for p, r in failed
    )
    graph = have(b.plan).graph
    sums = {p.group.name: reductions(graph, p.group) if r.error is not None else frozenset[str]() for p, r in failed}
    out = frozenset[str]().union(*(sums[p.group.name] or names_of(p.group) for p, _ in failed))
    return replace(b, forbidden=b.forbidden | out, refused=(*b.refused, *decisions), again=True)


def measured(context: Context, calls: Calls, b: Build) -> Build:
    """The gain over the original, where it is asked for and both run. It decides nothing."""
    ran = b.verdict is not None and b.verdict.ok is not None
    if not context.options.gain or b.copy or not ran:
        return b
    source: Source = have(b.loaded).source
    library: Library = have(b.library)
    try:
        found = calls.profile_models(
            [context.original, b.files[-1]],
            libraries=[None, library.path],
            custom_libraries=context.options.custom_ops_library,
            duration=_GAIN_SECONDS,
            inputs=context.options.inputs,
            seed=context.options.seed,
            dims=source.dims,
            time_limit=context.meter.left,
        )
    except DeviceError as problem:
        return replace(b, notes=(*b.notes, f"the gain was not measured: {problem.message}"))
    before, after = (model.latency_ms.min for model in found.models)
    gain = Gain(before, after, found.speedup or 1.0, found.spread or 0.0, found.threads)
    told = {"before_ms": before, "after_ms": after, "speedup": gain.speedup, "spread": gain.spread}
    context.tell("gain", told)
    return replace(b, gain=gain)
