"""A program for the tests of `python_child`: does what its payload asks, or dies the way it asks."""

import os
import signal
import sys
from typing import Any

from onnxfuse.errors import ModelError
from onnxfuse.runtime.process import serve


def where() -> dict[str, Any]:
    """What a process is given besides its payload."""
    names = ("ONNXFUSE_NOTE", "THEIR_NOTE")
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "leads": os.getpgid(0) == os.getpid() == os.getsid(0),
        "cwd": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "variables": [os.environ.get(name, "") for name in names],
        "program": __name__,
    }


def obey(payload: Any) -> Any:
    match payload["do"]:
        case "echo":
            return payload
        case "where":
            return where()
        case "noise":
            sys.stdout.write("from Python\n")
            os.write(1, b'{"answer": "from C"}\n')
            return "quiet"
        case "refuse":
            raise ModelError("load: m.onnx: not a model", hint="give a model")
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "bug":
            raise RuntimeError("the reason")


if __name__ == "__main__":
    serve(obey)
