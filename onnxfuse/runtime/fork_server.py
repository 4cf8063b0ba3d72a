"""A server that preloads the modules of children of `process.python_child` and forks one for each request.

Importing NumPy, ONNX and ONNX Runtime takes half a second, a fork 10 ms. The server opens no session and does no work,
so that children inherit no state. It is like `multiprocessing.forkserver`, but for programs that read a payload from
stdin: the main module of the requesting process is not run here.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

OURS = "ONNXFUSE_"  # prefix of variables that are read on use; others may be read by libraries while loading
MOST = 1 << 16  # bytes of a request


def main(number: int, *modules: str) -> None:
    """Serve requests on a socket, by its file number, until the other side is closed; `modules` are imported first."""
    for module in modules:
        _imported(module)
    with socket.socket(fileno=number) as asked:
        while True:
            data, files, _, _ = socket.recv_fds(asked, MOST, 3)
            if not data:
                return
            request = json.loads(data)
            answer = _forked(asked, request, files) if "module" in request else _reaped(request["pid"])
            for file in files:
                os.close(file)
            asked.send(json.dumps(answer).encode())


def _reaped(pid: int) -> int:
    """Reaps a child that has ended; its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _imported(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        importlib.import_module(module)
    except Exception:  # a child without the server will report what is wrong
        return False
    return True


def _forked(asked: socket.socket, request: dict[str, Any], files: list[int]) -> int:
    """The pid of a new child, which leads a process group; 0 where its module cannot be imported."""
    if not _imported(request["module"]):
        return 0
    leads, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        os.read(leads, 1)
        os.close(leads)
        return pid
    code = 1
    try:
        os.setsid()
        asked.close()
        for file in (leads, told):
            os.close(file)
        code = _run(request, files)
    finally:
        os._exit(code)  # no atexit handlers, and no other threads were inherited


def _run(request: dict[str, Any], files: list[int]) -> int:
    """Run a module like `python -m`; its exit status."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cores"])
    for name in [name for name in os.environ if name.startswith(OURS)]:
        del os.environ[name]
    os.environ.update(request["variables"])
    del sys.modules[request["module"]]
    code = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
