"""The program `onnxfuse` as a group of verbs: suggestions for misspelled verbs, settings, `--version`."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from onnxfuse.errors import UsageError

from . import show
from .flags import sections

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_MANY = 30  # most flags of a verb that are listed without sections


class VerbCommand(click.Command):
    """A verb, whose help has examples, and sections if there are many flags."""

    def __init__(self, *arguments: Any, examples: Sequence[str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = tuple(examples)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; with --verbose, say what it took."""
        begin = time.monotonic()
        try:
            return super().invoke(ctx)
        finally:
            if ctx.params.get("verbose"):
                peak = show.bytes_text(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
                took = f"took      {time.monotonic() - begin:.2f} s; at most {peak} in this process"
                show.screen(quiet=ctx.params["quiet"]).say(took)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The flags."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        found = sections(options) if len(options) > _MANY else [("Options", options)]
        for name, those in found:
            with formatter.section(name):
                formatter.write_dl([record for each in those if (record := each.get_help_record(ctx)) is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, each in one line so that it can be copied."""
        with formatter.section("Examples"):
            for each in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}onnxfuse {self.name} {each}".rstrip() + "\n")


class Verbs(click.Group):
    """The program: verbs in the order of their definition, and suggestions for misspelled ones."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs for `--help`."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb of a command line. Raises UsageError with similar verbs."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.commands, 1)
            hint = f"did you mean {near[0]}?" if near else f"verbs are {', '.join(self.commands)}"
            raise UsageError(f"usage: there is no verb {args[0]}", hint=hint)
        if not ctx.resilient_parsing:
            self._warn_of_variables(quiet=bool({"-q", "--quiet"} & set(args)))
        return super().resolve_command(ctx, args)

    def _warn_of_variables(self, *, quiet: bool) -> None:
        """Warn of environment variables that look like flags but are not."""
        from . import settings

        for name, near in settings.unknown_variables(os.environ, self.commands):
            show.screen(quiet=quiet).warn(f"{name} sets no flag" + (f"; did you mean {near}?" if near else ""))


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


def verb(*examples: str) -> Callable[[Callable[..., None]], click.Command]:
    """A verb of the program, with the arguments of the examples that its help shows."""
    return onnxfuse.command(cls=VerbCommand, examples=examples)
