"""The program `onnxfuse` as a group of verbs: near names for verbs that are not there, settings, `--version`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from onnxfuse.errors import UsageError

from . import show

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


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
        if not ctx.resilient_parsing:
            self._warn_of_variables(quiet=bool({"-q", "--quiet"} & set(args)))
        return super().resolve_command(ctx, args)

    def _warn_of_variables(self, *, quiet: bool) -> None:
        """Say which variables of the environment look like flags and are none."""
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


verb = onnxfuse.command
