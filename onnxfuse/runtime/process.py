"""Runs a command or a Python child with limits of time and memory, and leaves no process behind.

The only file that starts programs. Each command leads a process group of its own, which is killed as a whole; should
this process be killed itself, a guard process kills the group.

Memory is sampled, not limited by the kernel: RLIMIT_AS counts mapped weights, RLIMIT_RSS has no effect on Linux, and
RLIMIT_DATA counts reserved but untouched arenas and stacks, is per process, and makes some allocation fail instead of
ending with a clear message. Counted are anonymous, shared and swapped pages of the command and all its descendants,
without clean file pages. A spike shorter than the sampling interval can be missed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from onnxfuse import errors
from onnxfuse.runtime import forks, memory

_FIRST_SAMPLE, _LAST_SAMPLE = (
    0.002,
    0.05,
)  # sampling intervals in seconds, growing from the first to the last
_GUARD = ("/bin/sh", "-c", 'read -r done || kill -s KILL -- "-$1"', "sh")  # its stdin is closed when this process ends
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended: `code` is its exit status, minus the signal that ended it, or 127 if it could not start."""

    code: int
    out: str
    err: str
    seconds: float
    peak_bytes: int  # anonymous, shared and swapped memory of the command and its descendants, largest sample


def run(
    command: Sequence[str],
    *,
    stage: str = "run",
    stdin: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    stop: threading.Event | None = None,
) -> Finished:
    """Run `command` to its end; `env` adds to the environment, limits are in seconds and bytes.

    An exit code other than 0 and a command that does not exist are values; setting `stop` ends it with code -9.
    Raises BudgetError when a limit is exceeded. However this function is left, the whole process group is dead.
    """
    start = partial(_program, command, {**os.environ, **(env or {})}, cwd)
    limits = _Limits(f"{stage}: {Path(command[0]).name}", time_limit, memory_limit, stop or threading.Event())
    return _finished(start, stdin, limits, command[0])


class Child(Protocol):
    """A process that leads a group, and is reaped by `wait` alone."""

    pid: int
    returncode: int | None

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends in so many seconds, waiting no longer; its pid is not reused before it is reaped."""

    def wait(self) -> int:
        """Its exit status, minus the signal that ended it."""


class _Program(subprocess.Popen[bytes]):
    """A command."""

    def ends_within(self, seconds: float) -> bool:
        try:
            end = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # a system without
            time.sleep(seconds)
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        try:
            return forks.ends_within(end, seconds)
        finally:
            os.close(end)


def _program(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, given: IO[bytes], out: IO[bytes], err: IO[bytes]
) -> Child:
    return _Program(list(command), stdin=given, stdout=out, stderr=err, cwd=cwd, env=env, start_new_session=True)


_Start = Callable[[IO[bytes], IO[bytes], IO[bytes]], Child]  # with files that are its input and its two outputs


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of a child in seconds and bytes, its name in messages, and an event that ends it early."""

    name: str
    seconds: float | None
    bytes: int | None
    stop: threading.Event


def _finished(start: _Start, stdin: str, limits: _Limits, what: str) -> Finished:
    """Start a child and wait for its end; `what` names it in messages if it cannot be started."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        try:
            child = start(given, out, err)
        except OSError as problem:
            return Finished(127, "", f"{what}: {problem.strerror or problem}", time.monotonic() - begin, 0)
        try:
            with _guarded(child.pid):
                peak = _watch(child, begin, limits)
        finally:
            # Before `child` is reaped its process group id is not reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        return Finished(code, _text(out), _text(err), time.monotonic() - begin, peak)


@contextlib.contextmanager
def _guarded(group: int) -> Iterator[None]:
    """A guard process for a process group, or none without a shell."""
    quiet = subprocess.DEVNULL
    try:
        guard = subprocess.Popen(
            (*_GUARD, str(group)), stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )
    except OSError:
        yield
        return
    try:
        yield
    finally:
        guard.communicate(b"\n")


def _watch(child: Child, begin: float, limits: _Limits) -> int:
    """Wait until a child has ended (it is not reaped) or is to stop; its peak memory. Raises BudgetError at a limit."""
    peak, pause, left = 0, _FIRST_SAMPLE, _LAST_SAMPLE
    while not child.ends_within(min(pause, left)) and not limits.stop.is_set():
        peak = max(peak, memory.resident_of_tree(child.pid))
        _fits(limits.name, peak, limits.bytes)
        left = float("inf") if limits.seconds is None else limits.seconds - (time.monotonic() - begin)
        if left <= 0:
            raise _too_long(limits.name, limits.seconds or 0)
        pause = min(2 * pause, _LAST_SAMPLE)
    return peak


def _fits(name: str, peak: int, limit: int | None) -> None:
    if limit is not None and peak > limit:
        took = f"took {peak / 1e6:.0f} MB, more than the {limit / 1e6:.0f} MB allowed"
        raise errors.BudgetError(f"{name} {took}", hint="raise the memory budget")


def _too_long(name: str, limit: float) -> errors.BudgetError:
    return errors.BudgetError(f"{name} ran longer than the {limit:.3g} s allowed", hint="raise the time budget")


class Companion:
    """A program that answers requests one by one, each within limits; it ends with this process at the latest.

    Requests and answers are bytes, prefixed with their length as 8 bytes, little-endian. It has `ended` once it died or
    exceeded a limit.
    """

    def __init__(self, command: Sequence[str], *, stage: str) -> None:
        self._name = f"{stage}: {Path(command[0]).name}"
        self.ended = False
        try:
            self._child = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as problem:
            raise errors.DeviceError(f"{stage}: {command[0]}: {problem.strerror or problem}") from None
        self._held = contextlib.ExitStack()
        self._held.enter_context(_guarded(self._child.pid))

    def ask(self, request: bytes, *, time_limit: float, memory_limit: int) -> bytes:
        """The answer. Raises BudgetError when a limit is exceeded, DeviceError when the program dies instead."""
        try:
            return self._asked(request, time.monotonic() + time_limit, time_limit, memory_limit)
        except BaseException:
            self.end()
            raise

    def _asked(self, request: bytes, end: float, time_limit: float, memory_limit: int) -> bytes:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died, which reading the answer will report
            _write(self._child.stdin, len(request).to_bytes(8, "little") + request)
        have, wanted, pause = bytearray(), 8, _FIRST_SAMPLE
        while len(have) < wanted:
            some = self._some(pause)
            if some is None:
                pause = min(2 * pause, _LAST_SAMPLE)
                self._within(end, time_limit, memory_limit)
                continue
            have += some
            wanted = 8 + int.from_bytes(have[:8], "little") if len(have) >= 8 else 8
        return bytes(have[8:])

    def _some(self, pause: float) -> bytes | None:
        """Bytes of the answer, None if there are none yet. Raises DeviceError at the end of the output."""
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], pause)[0]:
            return None
        some = os.read(self._child.stdout.fileno(), 1 << 20)
        if not some:
            raise errors.DeviceError(f"{self._name} {_death(self._child.wait())}")
        return some

    def _within(self, end: float, time_limit: float, memory_limit: int) -> None:
        if time.monotonic() > end:
            raise _too_long(self._name, time_limit)
        _fits(self._name, memory.resident_of_tree(self._child.pid), memory_limit)

    def end(self) -> None:
        """Kill the program."""
        if self.ended:
            return
        self.ended = True
        if self._child.returncode is None:  # otherwise its pid may have been reused
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._held.close()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()


def _write(stream: IO[bytes], data: bytes) -> None:
    """Write all bytes: an unbuffered pipe may accept fewer at once."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", errors="replace")


def python_child(
    module: str,
    payload: Any,
    *,
    stage: str,
    env: Mapping[str, str] | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    stop: threading.Event | None = None,
) -> Any:
    """Run `module` as a child process that calls `serve`, and return its answer to `payload`; both are JSON values.

    The child imports the same onnxfuse as this process, and nothing from the current folder; where possible it is
    forked from a server that has imported its module (`fork_server`). An onnxfuse error of the child is raised again
    here; setting `stop` kills it. Raises DeviceError when it dies of a signal, OnnxFuseError when it ends without an
    answer (both with its stderr as a note), BudgetError as `run` does.
    """
    variables = {**_variables(), **(env or {})}

    def started(given: IO[bytes], out: IO[bytes], err: IO[bytes]) -> Child:
        forked = _FORKS.child(module, variables, (given.fileno(), out.fileno(), err.fileno()))
        if forked is not None:
            return forked
        for file in (given, out, err):  # a fork that was killed at once may have written to them
            file.seek(0)
        for file in (out, err):
            file.truncate()
        return _program(_python(module), variables, None, given, out, err)

    limits = _Limits(f"{stage}: {Path(sys.executable).name}", time_limit, memory_limit, stop or threading.Event())
    done = _finished(started, json.dumps(payload), limits, sys.executable)
    try:
        answer: dict[str, Any] = json.loads(done.out.splitlines()[-1])
        if "answer" in answer:
            return answer["answer"]
        error = answer["error"]
    except (ValueError, TypeError, KeyError, IndexError):
        raise _no_answer(stage, module, done) from None
    raise _error_class(error["kind"])(error["message"], hint=error["hint"])


def prepare(module: str) -> None:
    """Import a module of children that are about to be started, in their server, while this process does other work."""
    _FORKS.prepare(module, _variables())


def _variables() -> dict[str, str]:
    """The environment of Python children."""
    return {**os.environ, **_import_path()}


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line `python -m module`, without the current folder in the import path."""
    return (sys.executable, "-P", "-m", module, *arguments)


def _fork_server(number: int, variables: Mapping[str, str], modules: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start the server with a socket's file descriptor, an environment, and modules to import first."""
    command, quiet = _python(_SERVER, str(number), *modules), subprocess.DEVNULL
    given: dict[str, Any] = {"env": variables, "pass_fds": (number,), "start_new_session": True}
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, **given)


_SERVER = "onnxfuse.runtime.fork_server"
_FORKS = forks.Forks(_fork_server)
atexit.register(_FORKS.end)


def _import_path() -> dict[str, str]:
    """PYTHONPATH for a child that must import this onnxfuse; empty where it is installed."""
    if _PACKAGE_ROOT in sysconfig.get_paths().values():
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))}


def _no_answer(stage: str, module: str, done: Finished) -> errors.OnnxFuseError:
    said = (done.err.strip().splitlines() or ["no message"])[-1]
    kind = errors.DeviceError if done.code < 0 else errors.OnnxFuseError
    error = kind(f"{stage}: the child process {module} {_death(done.code)}: {said}")
    error.add_note(done.err)
    return error


def _death(code: int) -> str:
    if code >= 0:
        return f"ended with code {code} and without an answer"
    with contextlib.suppress(ValueError):
        return f"died of {signal.Signals(-code).name}"
    return f"died of signal {-code}"


def serve(function: Callable[[Any], object]) -> None:
    """The child's side of `python_child`: answers the payload on stdin with `function(payload)`, stdout's last line.

    While `function` runs, stdout is redirected to stderr, for C libraries too.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        reply: dict[str, Any] = {"answer": function(json.load(sys.stdin))}
    except errors.OnnxFuseError as error:
        reply = {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
    with answers:
        answers.write(json.dumps(reply) + "\n")


def _error_class(kind: str) -> type[errors.OnnxFuseError]:
    found = getattr(errors, kind, errors.OnnxFuseError)
    return found if isinstance(found, type) and issubclass(found, errors.OnnxFuseError) else errors.OnnxFuseError
