"""Python children that are forked from a program which has their imports: the asking half of `fork_server`."""

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
    """One that was started."""

    def kill(self) -> None:
        """End it."""

    def wait(self) -> int:
        """Reap it."""


Start = Callable[[int, Mapping[str, str]], Program]  # starts `fork_server` with a socket of this number, and variables


def _can_wait() -> bool:
    """Whether a process can wait for one that is not its child: Linux 5.3 and newer, where no sandbox forbids it."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return hasattr(os, "sched_setaffinity")


HAS_FORKS = _can_wait()


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs, of the process `owner`, with the `variables` that libraries were loaded with."""

    asked: socket.socket
    program: Program
    owner: int
    variables: Mapping[str, str]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, request: object, files: tuple[int, ...] = ()) -> int:
        """The number that is answered. Raises OSError where there is no server any more."""
        with self.lock:
            socket.send_fds(self.asked, [json.dumps(request).encode()], files)
            answer = self.asked.recv(MOST)
        if not answer:
            raise ConnectionError("the server has ended")
        return int(answer)


class Forked:
    """A child of a server, as `subprocess.Popen` shows one: what has ended is reaped by `wait` alone."""

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

    def ended(self) -> bool:
        """Whether it has."""
        return self._ends_within(0)

    def wait(self) -> int:
        """Its exit status once it has ended, minus the signal that ended it."""
        if self.returncode is None:
            self._ends_within(None)
            os.close(self._end)
            self._reap()
        assert self.returncode is not None
        return self.returncode

    def _ends_within(self, milliseconds: int | None) -> bool:
        poll = select.poll()  # takes file numbers of any size
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def _reap(self) -> None:
        try:
            self.returncode = self._server.ask({"pid": self.pid})
        except OSError:
            self.returncode = -9  # the server was killed, and a child may have been with it


class Forks:
    """The server of this process: started when it is first asked, once in each process that asks."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._server: Server | None = None
        self._lock = threading.Lock()

    def child(self, module: str, variables: Mapping[str, str], files: tuple[int, int, int]) -> Forked | None:
        """A child that runs `module` with this environment, its input and its two outputs; None where none can be had.

        None too where the environment is another than that in which libraries were loaded.
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

    def _running(self, variables: Mapping[str, str]) -> Server | None:
        with self._lock:
            if self._server is None or self._server.owner != os.getpid():
                here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with there:
                    program = self._start(there.fileno(), variables)
                self._server = Server(here, program, os.getpid(), variables)
            return self._server if self._server.variables == variables else None

    def end(self) -> None:
        """End the server, if there is one and it is this process's; its children go on."""
        with self._lock, suppress(OSError):
            server, self._server = self._server, None
            if server is not None and server.owner == os.getpid():
                server.asked.close()
                server.program.kill()
                server.program.wait()


def _theirs(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that libraries may read."""
    return {name: value for name, value in variables.items() if not name.startswith(OURS)}
