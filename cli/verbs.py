"""The verbs of the command line, one function each; each imports what it needs, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxfuse.config import Options, option_fields
from onnxfuse.errors import AnsweredNo, DeviceError, UsageError

from . import show
from .flags import DEBUG, PLANNING, Choice, Duration, Percent, common, flag, of_options

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_STRICT = "end with a bug of onnxfuse (exit code 70) instead of going around it"
_STREAM = "-"
MOST_THREADS = 1024  # of an engine that is measured: more than any machine has cores, few enough to start


class Verbs(click.Group):
    """The program itself: verbs in the order in which they are written, and near names for those that are not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs for `--help`."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb of a command line. Raises UsageError with verbs that look like what was given."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.commands, 1)
            hint = f"did you mean {near[0]}?" if near else f"verbs are {', '.join(self.commands)}"
            raise UsageError(f"usage: there is no verb {args[0]}", hint=hint)
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from onnxfuse import __version__

        show.data(f"onnxfuse {__version__}")
        ctx.exit()


@click.group(cls=Verbs, context_settings=_HELP, epilog="Every flag is also a key of [tool.onnxfuse] and ONNXFUSE_FLAG.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="show the version")
@click.pass_context
def onnxfuse(ctx: click.Context) -> None:
    """Rewrite ONNX models so that groups of operators run as fused kernels in stock ONNX Runtime."""
    from . import settings

    found = settings.find(Path.cwd())
    ctx.obj = found.path
    ctx.default_map = settings.default_map(found, onnxfuse.commands)


verb = onnxfuse.command


@verb()
@click.argument("model")
@click.argument("out", required=False)
@of_options()
@common(overwrite=False)
@click.option(
    "--list-passes",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="show the rewrite rules and end",
    callback=lambda ctx, param, wanted: _list_passes(ctx) if wanted else None,
)
@flag("strict", is_flag=True, default=False, help=_STRICT)
def optimize(
    model: str, out: str | None, as_json: bool, verbose: bool, quiet: bool, strict: bool, **values: Any
) -> None:
    """Fuse MODEL: write OUT, its kernels and a manifest."""
    from onnxfuse.pipeline import optimize as run

    from . import results

    screen = show.screen(quiet=quiet, verbose=verbose)
    named = {each: values.pop(each) for each in ("json_file", "report")}
    options = _options(values, out, screen)
    keep = results.Keeper(named, overwrite=options.overwrite, others=results.files_of(model, options))
    texts: list[str] = []
    if as_json and options.output == _STREAM:
        raise UsageError("optimize: --json and -o - both write to standard output", hint="use --json-file")
    stream = show.binary() if options.output == _STREAM else None
    source = show.given() if model == _STREAM else model
    with show.progress(screen) as tell:
        result = run(
            source,
            options=options,
            tell=tell,
            stream=stream,
            show=texts.append,
            strict=strict or _debug(),
            about=lambda made: keep.texts(made.to_json(drawing=True)),
        )
    for text in texts:
        (show.aside if as_json or stream is not None else show.data)(text.rstrip("\n"))
    document = result.to_json()
    if result.output.model is None:  # else they are outputs like the others
        keep.write(result.to_json(drawing=True))
    if as_json:
        show.document(document)
    results.after_optimize(screen, result)


def _options(values: dict[str, Any], out: str | None, screen: show.Screen) -> Options:
    """The options of a command line; OUT and -o are one and the same."""
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
    """Whether --debug was given: then a bug of ours is an error instead of a refusal, as with --strict."""
    return bool(click.get_current_context().meta.get(DEBUG))


@verb()
@click.argument("models", nargs=-1, required=True, metavar="MODEL [MODEL2]")
@flag(
    "level",
    type=Choice(["model", "op", "kernel"]),
    default="model",
    help="also the time of each node, or of each kernel",
)
@flag("trace", metavar="FILE", help="write one run of each model, node by node, for Perfetto or chrome://tracing")
@flag("library", metavar="FILE", help="the kernel library of the last model (default: the one it names)")
@flag("without-library", is_flag=True, default=False, help="run function bodies instead of kernels")
@flag("threads", type=click.IntRange(0, MOST_THREADS), default=0, help="threads of each engine (0: one per core)")
@flag("warmup", type=click.IntRange(min=1), default=3, help="runs before the first that counts")
@flag("duration", type=Duration(), default=3.0, metavar="SECONDS", help="time for which each model is measured")
@flag("baseline", metavar="FILE", help="an earlier result of `profile --json` to compare with")
@flag("fail-if-slower", type=Percent(), metavar="SHARE", help="exit 1 when slower by more than this, such as 3%")
@flag("strict", is_flag=True, default=False, help="exit 1 too when that cannot be told, as on a busy machine")
@of_options(("target", "dim", "inputs", "seed", "custom_ops_library", "time_budget"))
@common()
def profile(models: tuple[str, ...], as_json: bool, strict: bool, **values: Any) -> None:
    """Measure latency: one model, or two in turns."""
    from . import measuring, results

    screen = show.screen(quiet=values.pop("quiet"), verbose=values.pop("verbose"))
    trace = results.File("--trace", values["trace"], overwrite=values["overwrite"], others=models)
    keep = results.Keeper(values, others=(*models, trace.path))
    found = measuring.profile(screen, models, **values)
    keep.write(found.document)
    if trace.path is not None:
        trace.write(show.json_text(found.trace))
    if as_json:
        show.document(found.document)
    else:
        results.print_lines(found.lines)
    if found.verdict == measuring.SLOWER or (strict and found.verdict == measuring.INCONCLUSIVE):
        raise AnsweredNo(f"profile: {found.said}", hint="--fail-if-slower sets the limit, --duration measures longer")
    if found.verdict == measuring.INCONCLUSIVE:
        screen.warn(f"{found.said}; --duration measures longer, --strict makes it an error")


@verb()
@click.argument("a")
@click.argument("b")
@flag("library", metavar="FILE", help="the kernel library of B (default: the one it names)")
@flag("groups", is_flag=True, default=False, help="compare each fused node of B with its function body too")
@of_options(("rtol", "atol", "inputs", "seed", "dim", "custom_ops_library", "time_budget", "memory_budget"))
@common()
def verify(a: str, b: str, as_json: bool, **values: Any) -> None:
    """Compare the outputs of models A and B."""
    from . import measuring, results

    screen = show.screen(quiet=values.pop("quiet"), verbose=values.pop("verbose"))
    keep = results.Keeper(values, others=(a, b))
    found = measuring.verify(screen, a, b, **values)
    keep.write(found.document)
    if as_json:
        show.document(found.document)
    else:
        results.print_lines(found.lines)
    if found.ok is False:
        raise AnsweredNo(f"verify: {b} differs from {a}: {found.message}", hint="--rtol and --atol allow more")
    if found.ok is None:
        raise DeviceError(f"verify: {found.message}", hint="give --inputs")


@verb()
@click.argument("model")
@common()
def inspect(model: str, as_json: bool, **values: Any) -> None:
    """Show what a MODEL or a kernel library holds."""
    from . import looking, results

    show.screen(quiet=values["quiet"], verbose=values["verbose"])
    keep = results.Keeper(values, others=(model,))
    results.answer(looking.inspect(model), as_json, keep)


@verb()
@click.argument("model")
@flag("node", metavar="REGEX", help="only what is about nodes whose name matches")
@flag("strict", is_flag=True, default=False, help=_STRICT)
@of_options(PLANNING)
@common()
def explain(model: str, node: str | None, as_json: bool, strict: bool, **values: Any) -> None:
    """Show what would be fused, and why not more."""
    from . import looking, results

    show.screen(quiet=values.pop("quiet"), verbose=values.pop("verbose"))
    keep = results.Keeper(values, others=(model,))
    source = show.given() if model == _STREAM else model
    results.answer(looking.explain(source, node, Options(**values), strict=strict or _debug()), as_json, keep)


@verb()
@click.argument("a")
@click.argument("b")
@common()
def diff(a: str, b: str, as_json: bool, **values: Any) -> None:
    """Compare the graphs of models A and B: nodes, weights, inputs and outputs."""
    from . import differing, results

    keep = results.Keeper(values, others=(a, b))
    found = differing.diff(a, b)
    results.answer(results.Answer(found.document, found.lines), as_json, keep)
    if found.summary:
        raise AnsweredNo(f"diff: {b} differs from {a} in {found.summary}", hint="verify compares their numbers")


@verb()
@click.argument("result", metavar="RESULT.json")
@click.argument("out", required=False)
@flag("format", type=Choice(["html", "markdown"]), help="default: as OUT's name says, else markdown")
@flag("overwrite", is_flag=True, default=False, help="replace a page that exists")
@common(json=False)
def report(result: str, out: str | None, format: str | None, overwrite: bool, **values: Any) -> None:
    """Make a page, HTML or Markdown, of a result that any verb wrote with --json-file."""
    from . import results

    page = results.File("OUT", None if out == _STREAM else out, overwrite=overwrite, others=(result,))
    text = results.page_text(results.read_document(result), format, page.path)
    if page.path is None:
        show.data(text.rstrip("\n"))
    else:
        page.write(text)


@verb()
@flag(
    "calibrate",
    is_flag=True,
    default=False,
    help="measure this machine and remember it: peak, bandwidth of each level, waiting (10 s)",
)
@of_options(("cache_dir",))
@common()
def doctor(calibrate: bool, cache_dir: str | None, as_json: bool, **values: Any) -> None:
    """Show what this machine offers to a build."""
    from . import housekeeping, results

    keep = results.Keeper(values)
    results.answer(housekeeping.doctor(calibrate, cache_dir), as_json, keep)


@verb()
@of_options()
@common(overwrite=False)
def config(as_json: bool, **values: Any) -> None:
    """Show the options of `optimize` as they are now."""
    from . import housekeeping, results

    ctx = click.get_current_context()
    sources = {f.name: ctx.get_parameter_source(f.name) for f in option_fields()}
    names = {name: source.name.lower() if source is not None else "default" for name, source in sources.items()}
    keep = results.Keeper(values, overwrite=bool(values["overwrite"]))
    results.answer(housekeeping.config(values, names, ctx.find_root().obj), as_json, keep)


@verb()
@click.argument("action", type=Choice(["info", "gc", "export", "import"]), metavar="info|gc|export|import")
@click.argument("archive", required=False, metavar="[ARCHIVE.tar]")
@flag("max-size", metavar="BYTES", default="1GB", help="what `gc` leaves (default: 1GB)")
@of_options(("cache_dir",))
@common()
def cache(action: str, archive: str | None, max_size: str, cache_dir: str | None, as_json: bool, **values: Any) -> None:
    """Show or shrink the cache of compiled kernels, or carry it to another machine as an archive."""
    from . import housekeeping, results

    replace = bool(values["overwrite"])
    keep = results.Keeper(values, others=(archive,))
    results.answer(housekeeping.cache(action, archive, max_size, cache_dir, overwrite=replace), as_json, keep)


@verb()
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a script that completes verbs and flags."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    show.data(kind(onnxfuse, {}, "onnxfuse", "_ONNXFUSE_COMPLETE").source())
