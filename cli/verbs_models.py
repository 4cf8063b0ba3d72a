"""The verbs about models, one function each, with late imports so that `--help` is fast."""

from __future__ import annotations

from typing import Any

import click

from onnxfuse.config import CHECKS, VERIFIER, Options
from onnxfuse.errors import AnsweredNo, DeviceError, UsageError

from . import show
from .flags import DEBUG, PLANNING, TUNING, Duration, InputFile, Percent, SuggestingChoice, common, flag, of_options
from .program import verb
from .progress import Progress, progressing

_STRICT = "fail on a bug of onnxfuse (exit code 70) instead of working around it"
_STREAM = "-"
MOST_THREADS = 1024  # most threads of a measured engine


_threads = flag(
    "threads",
    type=click.IntRange(0, MOST_THREADS),
    metavar="N",
    default=0,
    help="threads of each engine (0: one per core)",
)
_duration = flag(
    "duration",
    type=Duration(),
    default=3.0,
    metavar="SECONDS",
    help="time for which each model is measured (default: 3)",
)


@verb(
    "resnet.onnx",
    "resnet.onnx out/resnet.onnx --report resnet.html",
    "bert.onnx --dim batch=8 --overwrite",
    "- -o - --lib libm.so < m.onnx > m.fused.onnx",
)
@click.argument("model", type=InputFile())
@click.argument("out", required=False)
@of_options()
@common(overwrite=False)
@click.option(
    "--list-passes",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="list the rewrite rules and exit",
    callback=lambda ctx, param, wanted: _list_passes(ctx) if wanted else None,
)
@flag("strict", is_flag=True, default=False, help=_STRICT, section=CHECKS)
@progressing
def optimize(
    model: str, out: str | None, as_json: bool, strict: bool, screen: show.Screen, at: Progress, **values: Any
) -> None:
    """Fuse MODEL: write OUT, its kernels and a manifest."""
    from onnxfuse.runtime import process

    named = {each: values.pop(each) for each in ("json_file", "report")}
    options = _options(values, out, screen)
    if options.verifies:
        process.prepare(VERIFIER)  # while the compiler is imported here
    from onnxfuse.pipeline import optimize as run

    from . import results

    keep = results.ResultFiles(named, overwrite=options.overwrite, others=results.files_of(model, options))
    texts: list[str] = []
    if as_json and options.output == _STREAM:
        raise UsageError("optimize: --json and -o - both write to standard output", hint="use --json-file")
    stream = show.binary() if options.output == _STREAM else None
    source = show.given() if model == _STREAM else model
    result = run(
        source,
        options=options,
        tell=at.tell,
        stream=stream,
        show=texts.append,
        strict=strict or _debug(),
        about=(lambda made: keep.texts(made.to_json(drawing=True))) if keep.paths else None,
    )
    at.finish()
    for text in texts:
        (show.aside if as_json or stream is not None else show.data)(text.rstrip("\n"))
    if result.output.model is None and keep.paths:  # otherwise they are outputs like the others
        keep.write(result.to_json(drawing=True))
    else:
        results.tell_written(keep.paths)
    if as_json:
        show.document(result.to_json())
    results.after_optimize(screen, result)


def _options(values: dict[str, Any], out: str | None, screen: show.Screen) -> Options:
    """The options of a command line; OUT and -o are the same. Raises UsageError if they differ."""
    if out is not None and values["output"] not in (None, out):
        source = click.get_current_context().get_parameter_source("output")
        if source is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"optimize: OUT is {out} and -o is {values['output']}", hint="name one")
    values["output"] = out if out is not None else values["output"]
    return Options(**values)


def _list_passes(ctx: click.Context) -> None:
    from onnxfuse.rewrite import STEPS

    for line in show.table([(step.name, step.numerics, step.law) for step in STEPS]):
        show.data(line)
    ctx.exit()


def _debug() -> bool:
    """Whether --debug was given: then bugs of onnxfuse are errors instead of refusals, as with --strict."""
    return bool(click.get_current_context().meta.get(DEBUG))


@verb(
    "m.onnx",
    "m.onnx m.fused.onnx --level kernel --report profile.html",
    "m.onnx m.fused.onnx --dim batch=1,8",
    "m.onnx m.fused.onnx --fail-if-slower 3% --json-file now.json",
)
@click.argument("models", type=InputFile(), nargs=-1, required=True, metavar="MODEL [MODEL2]")
@flag(
    "level",
    type=SuggestingChoice(["model", "op", "kernel"]),
    default="model",
    help="also measure each node (op), or each kernel",
)
@flag("trace", metavar="FILE", help="write one run of each model, node by node, for Perfetto or chrome://tracing")
@flag(
    "library", type=InputFile(), metavar="FILE", help="the kernel library of the last model (default: the one it names)"
)
@flag("without-library", is_flag=True, default=False, help="run function bodies instead of kernels")
@_threads
@flag(
    "warmup", type=click.IntRange(min=1), metavar="N", default=3, help="runs before the first that counts (default: 3)"
)
@_duration
@flag("baseline", type=InputFile(), metavar="FILE", help="an earlier result of `profile --json` to compare with")
@flag("fail-if-slower", type=Percent(), metavar="SHARE", help="exit 1 when slower by more than this, such as 3%")
@flag("strict", is_flag=True, default=False, help="exit 1 too when the result is inconclusive (busy machine)")
@of_options(("target", "cuda_graph", "dim", "inputs", "seed", "custom_ops_library", "time_budget", "cache_dir"))
@common()
@progressing
def profile(
    models: tuple[str, ...], as_json: bool, strict: bool, screen: show.Screen, at: Progress, **values: Any
) -> None:
    """Measure latency: one model, or two in turns.

    The speedup is the median of the ratios of minimum times of adjacent turns (Hodges-Lehmann).
    """
    from . import profiling, results

    trace = results.OutputFile("--trace", values["trace"], overwrite=values["overwrite"], others=models)
    keep = results.ResultFiles(values, others=(*models, trace.path))
    found = profiling.profile(at, models, paged=keep.paged, **values)
    at.finish()
    keep.write(found.document)
    if trace.path is not None:
        trace.write(show.json_text(found.trace))
    if as_json:
        show.document(results.printed(found.document))
    else:
        results.print_lines(found.lines)
    if found.verdict == profiling.SLOWER or (strict and found.verdict == profiling.INCONCLUSIVE):
        raise AnsweredNo(f"profile: {found.said}", hint="--fail-if-slower sets the limit, --duration measures longer")
    if found.verdict == profiling.INCONCLUSIVE:
        screen.warn(f"{found.said}; --duration measures longer, --strict makes it an error")


@verb("m.onnx m.fused.onnx", "m.onnx m.fused.onnx --groups --inputs test_data_set_0")
@click.argument("a", type=InputFile())
@click.argument("b", type=InputFile())
@flag("library", type=InputFile(), metavar="FILE", help="the kernel library of B (default: the one it names)")
@flag("groups", is_flag=True, default=False, help="compare each fused node of B with its function body too")
@of_options(
    (
        "target", "cuda_graph", "rtol", "atol", "inputs", "seed", "dim", "custom_ops_library", "time_budget",
        "memory_budget",
    )
)  # fmt: skip
@common()
@progressing
def verify(a: str, b: str, as_json: bool, screen: show.Screen, at: Progress, **values: Any) -> None:
    """Compare the outputs of models A and B."""
    from . import results, verifying

    keep = results.ResultFiles(values, others=(a, b))
    found = verifying.verify(at, a, b, **values)
    at.finish()
    keep.write(found.document)
    if as_json:
        show.document(found.document)
    else:
        results.print_lines(found.lines)
    if found.ok is False:
        measured = found.document["tolerance"] is not None
        hint = "--rtol and --atol allow more" if measured else "onnxfuse diff shows where the graphs differ"
        raise AnsweredNo(f"verify: {b} differs from {a}: {found.message}", hint=hint)
    if found.ok is None:
        raise DeviceError(f"verify: {found.message}", hint="give --inputs")


@verb("m.onnx", "libm.fused.so", "m.onnx --json")
@click.argument("model", type=InputFile())
@common()
def inspect(model: str, as_json: bool, **values: Any) -> None:
    """Show the contents of a MODEL or a kernel library."""
    from . import inspecting, results

    show.screen(quiet=values["quiet"], verbose=values["verbose"])
    keep = results.ResultFiles(values, others=(model,))
    results.answer(inspecting.inspect(model), as_json, keep)


@verb("m.onnx", "m.onnx --node 'layer.0/.*Softmax'", "m.onnx --dim batch=1 --report explain.html")
@click.argument("model", type=InputFile())
@flag("node", metavar="REGEX", help="only nodes whose name matches")
@flag("strict", is_flag=True, default=False, help=_STRICT)
@of_options((*PLANNING, "dim_hint"))
@common()
@progressing
def explain(
    model: str, node: str | None, as_json: bool, strict: bool, screen: show.Screen, at: Progress, **values: Any
) -> None:
    """Show what would be fused, and why not more."""
    from . import explaining, results

    keep = results.ResultFiles(values, others=(model,))
    source = show.given() if model == _STREAM else model
    found = explaining.explain(
        source, node, Options(**values), at.hear, strict=strict or _debug(), verbose=screen.verbose
    )
    at.finish()
    results.answer(found, as_json, keep)


@verb("m.onnx --budget 10m", "m.onnx --cluster tcp://scheduler:8786")
@click.argument("model", type=InputFile())
@flag(
    "budget",
    type=Duration(),
    default=600.0,
    metavar="SECONDS",
    help="time for measurements, such as 90 or 10m (default: 10m)",
)
@flag(
    "threads",
    type=click.IntRange(0, MOST_THREADS),
    metavar="N",
    default=0,
    help="to measure on (0: one, and one per core)",
)
@flag("cluster", metavar="ADDRESS", default=None, help="a Dask scheduler whose workers measure: tcp://HOST:PORT")
@of_options(
    (
        *TUNING, "custom_ops_library", "target", "overwrite", "inputs", "seed", "cache_dir", "jobs", "time_budget",
        "memory_budget",
    )
)  # fmt: skip
@common(overwrite=False)
@progressing
def tune(
    model: str, budget: float, threads: int, cluster: str | None, as_json: bool, at: Progress, **values: Any
) -> None:
    """Measure kernels and plans of MODEL for later builds."""
    from . import results, tuning

    keep = results.ResultFiles(values, overwrite=bool(values["overwrite"]), others=(model, values["lock"]))
    lock, _ = values.pop("lock"), values.pop("screen")
    options = Options(**values)
    answer = tuning.tune(model, options, at.tell, seconds=budget, threads=threads, lock=lock, cluster=cluster)
    at.finish()
    results.answer(answer, as_json, keep)


@verb("m.onnx m.fused.onnx", "m.onnx m.fused.onnx --report diff.html")
@click.argument("a", type=InputFile())
@click.argument("b", type=InputFile())
@common()
def diff(a: str, b: str, as_json: bool, **values: Any) -> None:
    """Compare the graphs of models A and B.

    Nodes, weights, inputs and outputs are compared; ends with 1 where they differ.
    """
    from . import differing, results

    keep = results.ResultFiles(values, others=(a, b))
    found = differing.diff(a, b)
    results.answer(results.Answer(found.document, found.lines), as_json, keep)
    if found.summary:
        raise AnsweredNo(f"diff: {b} differs from {a} in {found.summary}", hint="verify compares their numbers")


@verb("m.onnx m.fused.onnx", "m.onnx m.fused.onnx --metric latency -o slow")
@click.argument("a", type=InputFile())
@click.argument("b", type=InputFile())
@flag(
    "metric",
    type=SuggestingChoice(["error", "latency"]),
    default="error",
    help="what to look for: wrong numbers, or time",
)
@flag("output", default="bisect", metavar="NAME", help="prefix of the files written (default: bisect)")
@flag("library", type=InputFile(), metavar="FILE", help="the kernel library of B (default: the one it names)")
@_threads
@_duration
@of_options(("rtol", "inputs", "seed", "dim", "custom_ops_library", "time_budget"))
@common()
@progressing
def bisect(a: str, b: str, as_json: bool, screen: show.Screen, at: Progress, **values: Any) -> None:
    """Find the part of B that differs from A, or is slower.

    Writes the smallest pair of models that shows it.
    """
    from . import bisecting, results

    overwrite = bool(values.pop("overwrite"))
    keep = results.ResultFiles(values, overwrite=overwrite, others=(a, b))
    found = bisecting.bisect(at, a, b, overwrite=overwrite, **values)
    at.finish()
    results.answer(results.Answer(found.document, found.lines), as_json, keep)
    if found.summary:
        raise AnsweredNo(f"bisect: {found.summary}", hint="--skip-node leaves it to ONNX Runtime")
