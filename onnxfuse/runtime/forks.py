"""Python children forked from a server with preloaded modules: the client of `fork_server`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from onnxfuse.runtime.fork_server import MOST, OURS


class Program(Protocol):
    """The server's process."""

    def kill(self) -> None:
        """Kill it."""

    def wait(self) -> int:
        """Reap it."""


_UNREAD = {"PYTEST_CURRENT_TEST"}  # variables that no library reads; pytest sets its own anew for every test

# Starts `fork_server` with the file descriptor of a socket, an environment, and modules that it imports first.
Start = Callable[[int, Mapping[str, str], tuple[str, ...]], Program]


def _can_wait() -> bool:
    """Whether a process can wait for one that is not its child (pidfd_open): Linux 5.3 or newer, unless sandboxed."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return hasattr(os, "sched_setaffinity")


HAS_FORKS = _can_wait()


def ends_within(process: int, seconds: float | None) -> bool:
    """Whether the process of a file descriptor (pidfd) ends in so many seconds; None waits for its end."""
    poll = select.poll()  # unlike select, takes file descriptors of any number
    poll.register(process, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1e3 * seconds))


@dataclass(frozen=True, slots=True)
class Server:
    """A running server of the process `owner`; `variables` is the environment that its libraries were loaded in."""

    asked: socket.socket
    program: Program
    owner: int
    variables: Mapping[str, str]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, request: object, files: tuple[int, ...] = ()) -> int:
        """Send a request; the number in the reply. Raises OSError where the server has ended."""
        with self.lock:
            socket.send_fds(self.asked, [json.dumps(request).encode()], files)
            answer = self.asked.recv(MOST)
        if not answer:
            raise ConnectionError("the server has ended")
        return int(answer)


class Forked:
    """A child of a server with the interface of `subprocess.Popen`; only `wait` reaps it."""

    def __init__(self, server: Server, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None
        try:
            self._end = os.pidfd_open(pid)
        except OSError:
            os.killpg(pid, signal.SIGKILL)
            self._reap()
            raise

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends in so many seconds, waiting no longer."""
        return ends_within(self._end, seconds)

    def wait(self) -> int:
        """Its exit status once it has ended, minus the signal that ended it."""
        if self.returncode is None:
            ends_within(self._end, None)
            os.close(self._end)
            self._reap()
        assert self.returncode is not None
        return self.returncode

    def _reap(self) -> None:
        try:
            self.returncode = self._server.ask({"pid": self.pid})
        except OSError:
            self.returncode = -9  # the server was killed, and possibly the child with it


class Forks:
    """The server of this process, started lazily; forked processes start their own."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._server: Server | None = None
        self._lock = threading.Lock()

    def child(self, module: str, variables: Mapping[str, str], files: tuple[int, int, int]) -> Forked | None:
        """A child that runs `module` with this environment and standard streams; None where forking is not possible.

        None too where libraries of the server were loaded in a different environment.
        """
        if not HAS_FORKS:
            return None
        request = {
            "module": module,
            "cwd": os.getcwd(),
            "cores": sorted(os.sched_getaffinity(0)),
            "variables": {name: value for name, value in variables.items() if name.startswith(OURS)},
        }
        try:
            server = self._running(_theirs(variables))
            pid = server.ask(request, files) if server is not None else 0
            return Forked(server, pid) if server is not None and pid else None
        except OSError:
            self.end()
            return None

    def prepare(self, module: str, variables: Mapping[str, str]) -> None:
        """Start the server, unless it runs, and let it import a module; this does not wait for it."""
        if HAS_FORKS:
            with suppress(OSError):
                self._running(_theirs(variables), module)

    def _running(self, variables: Mapping[str, str], *modules: str) -> Server | None:
        with self._lock:
            if self._server is None or self._server.owner != os.getpid():
                here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with there:
                    program = self._start(there.fileno(), variables, modules)
                self._server = Server(here, program, os.getpid(), variables)
            return self._server if self._server.variables == variables else None

    def end(self) -> None:
        """End this process's server, if there is one; its children keep running."""
        with self._lock, suppress(OSError):
            server, self._server = self._server, None
            if server is not None and server.owner == os.getpid():
                server.asked.close()
                server.program.kill()
                server.program.wait()


def _theirs(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that libraries may read while they are loaded."""
    return {name: value for name, value in variables.items() if not name.startswith(OURS) and name not in _UNREAD}
