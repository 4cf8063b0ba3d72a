"""The verbs about results, archives, this machine and settings, one function each, with late imports."""

from __future__ import annotations

from typing import Any, Literal

import click

from onnxfuse.config import Options, option_fields

from . import show
from .flags import InputFile, SuggestingChoice, common, flag, of_options
from .program import onnxfuse, verb
from .progress import Progress, progressing

_STREAM = "-"


@verb("result.json page.html", 'result.json >> "$GITHUB_STEP_SUMMARY"')
@click.argument("result", type=InputFile(), metavar="RESULT.json")
@click.argument("out", required=False)
@flag("format", type=SuggestingChoice(["html", "markdown"]), help="default: by the name of OUT, else markdown")
@flag("overwrite", is_flag=True, default=False, help="replace an existing page")
@common(json=False)
def report(
    result: str, out: str | None, format: Literal["html", "markdown"] | None, overwrite: bool, **values: Any
) -> None:
    """Make a page, HTML or Markdown, of a result.

    RESULT.json is what any verb wrote with --json-file.
    """
    from . import results

    page = results.OutputFile("OUT", None if out == _STREAM else out, overwrite=overwrite, others=(result,))
    other = "name a .html or .md file, or give --format"
    named = results.page_format(str(page.path), "OUT", other) if page.path is not None and format is None else None
    text = results.page_text(results.read_document(result), format or named or "markdown")
    if page.path is None:
        show.data(text.rstrip("\n"))
    else:
        page.write(text)


@verb("out", "out release.tar.gz")
@click.argument("place", metavar="DIR")
@click.argument("out", required=False, metavar="[OUT.tar.gz]")
@common()
def package(place: str, out: str | None, as_json: bool, **values: Any) -> None:
    """Make an archive that runs the models of a folder.

    It contains models, libraries, manifests, licences, checksums, a bill of materials, and programs that load them.
    """
    from . import packaging, results

    overwrite = bool(values.pop("overwrite"))
    keep = results.ResultFiles(values, overwrite=overwrite, others=(out,))
    results.answer(packaging.package(place, out, keep.paths, overwrite=overwrite), as_json, keep)


@verb("", "--calibrate")
@flag(
    "calibrate",
    is_flag=True,
    default=False,
    help="measure this machine and remember it: peak, bandwidth of each level, latencies (10 s)",
)
@of_options(("cache_dir",))
@common()
@progressing
def doctor(
    calibrate: bool, cache_dir: str | None, as_json: bool, screen: show.Screen, at: Progress, **values: Any
) -> None:
    """Show compilers, runtime and CPU of this machine."""
    from . import housekeeping, results

    keep = results.ResultFiles(values)
    at.begin("calibrate" if calibrate else "doctor")
    found = housekeeping.doctor(calibrate, cache_dir)
    at.finish()
    results.answer(found, as_json, keep)


@verb("", "--json")
@of_options()
@common(overwrite=False)
def config(as_json: bool, **values: Any) -> None:
    """Show the value of every option, and its source."""
    from onnxfuse.pipeline.meter import size_of
    from onnxfuse.pipeline.state import check_values

    from . import housekeeping, results, settings
    from .models import sets_of

    check_values(Options(**{f.name: values[f.name] for f in option_fields()}))
    sets_of(values["dim"])
    ctx = click.get_current_context()
    sources = {f.name: ctx.get_parameter_source(f.name) for f in option_fields()}
    names = {name: source.name.lower() if source is not None else "default" for name, source in sources.items()}
    keep = results.ResultFiles(values, overwrite=bool(values["overwrite"]))
    others = settings.of_verbs(ctx.find_root(), onnxfuse.commands, known={f.name for f in option_fields()})
    size_of(str(others["cache"]["max-size"][0]))
    results.answer(housekeeping.config(values, names, others, ctx.find_root().obj), as_json, keep)


@verb("info", "gc --max-size 500MB", "export kernels.tar")
@click.argument("action", type=SuggestingChoice(["info", "gc", "export", "import"]), metavar="info|gc|export|import")
@click.argument("archive", required=False, metavar="[ARCHIVE.tar]")
@flag("max-size", metavar="BYTES", default="1GB", help="size to which `gc` shrinks it (default: 1GB)")
@of_options(("cache_dir",))
@common()
def cache(action: str, archive: str | None, max_size: str, cache_dir: str | None, as_json: bool, **values: Any) -> None:
    """Show, shrink, export or import the cache of compiled kernels."""
    from . import housekeeping, results

    replace = bool(values["overwrite"])
    keep = results.ResultFiles(values, others=(archive,))
    results.answer(housekeeping.cache(action, archive, max_size, cache_dir, overwrite=replace), as_json, keep)


@verb("bash > ~/.local/share/bash-completion/completions/onnxfuse")
@click.argument("shell", type=SuggestingChoice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a script that completes verbs and flags."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    show.data(kind(onnxfuse, {}, "onnxfuse", "_ONNXFUSE_COMPLETE").source())
