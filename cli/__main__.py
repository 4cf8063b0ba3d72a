"""The program `onnxfuse`: parses and runs a command line; errors are one line and a documented exit code."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from onnxfuse.errors import BudgetError, OnnxFuseError, OutputError, UsageError

from . import show
from .verbs import onnxfuse

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and exit with its exit code."""
    if "_ONNXFUSE_COMPLETE" in os.environ:  # shell completion
        onnxfuse.main(prog_name="onnxfuse")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _terminated)
    code = run(sys.argv[1:] if arguments is None else list(arguments))
    show.finish()
    gc.freeze()  # no search for cycles in what ends with the process
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line; errors are printed as one line, with `--debug` their traceback too."""
    show.prepare_streams()
    if not arguments:
        show.aside(onnxfuse.get_help(click.Context(onnxfuse, info_name="onnxfuse")))
        return UsageError.exit_code
    debug = "--debug" in arguments or os.environ.get("ONNXFUSE_DEBUG", "0") not in ("", "0", "false", "no", "off")
    try:
        with onnxfuse.make_context("onnxfuse", list(arguments)) as context:
            onnxfuse.invoke(context)
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.Abort):
        show.interrupted()
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output is gone
        show.abandon_stdout()
        return OutputError.exit_code
    except Exception as problem:
        error = as_error(problem)
        if debug:
            show.trace(problem)
        show.failure(error)
        return error.exit_code


def as_error(problem: Exception) -> OnnxFuseError:
    """An exception as an error with a message for people and an exit code."""
    if isinstance(problem, OnnxFuseError):
        return problem
    if isinstance(problem, click.ClickException):
        return _usage(problem)
    if isinstance(problem, MemoryError):
        return BudgetError("out of memory", hint="free some, or optimize where there is more")
    if isinstance(problem, OSError) and problem.filename is not None:
        reason = f"{problem.filename}: {problem.strerror or problem}"
        return OutputError(f"write: {reason}") if _writing(problem) else UsageError(f"read: {reason}")
    said = " ".join(str(problem).split())
    return OnnxFuseError(
        f"internal error: {type(problem).__name__}: {said}", hint="please report it; --debug shows the traceback"
    )


def _usage(problem: click.ClickException) -> UsageError:
    """An error of click, with the verb and the source of the value."""
    context = getattr(problem, "ctx", None)
    verb = context.info_name if context is not None and context.parent is not None else "usage"
    text = problem.format_message().rstrip(".")
    param = getattr(problem, "param", None)
    origin = ""
    if context is not None and param is not None:
        source = context.get_parameter_source(param.name)
        if source is click.core.ParameterSource.ENVIRONMENT:
            origin = f", from the environment variable {param.envvar}"
        elif source is click.core.ParameterSource.DEFAULT_MAP:
            origin = f", from {context.find_root().obj}"
    program = "onnxfuse" if verb == "usage" else f"onnxfuse {verb}"
    return UsageError(f"{verb}: {text}{origin}", hint=f"see {program} --help")


def _writing(problem: OSError) -> bool:
    """Whether an error of the operating system is about writing: a full disk, a read-only file system."""
    return problem.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
