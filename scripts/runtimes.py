"""Makes an environment with each named ONNX Runtime (default: the oldest supported one), and runs tests/runtimes there.

    python scripts/runtimes.py [VERSION...]

The environments stay in .cache/runtimes. They hold onnxruntime and NumPy, nothing of onnxfuse: models that it wrote
need no more. Exit code 2 where no interpreter of this machine fits a runtime.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("ONNXFUSE_CACHE_DIR", ROOT / ".cache")).absolute()
OLDEST = "1.18.1"
# Before this runtime there are wheels for Python up to 3.12 alone, and none that takes NumPy 2.
NEWER = (1, 20)
INTERPRETERS = ("python3.12", "python3.11")


def interpreter(runtime: str) -> Path | None:
    """The interpreter that has this runtime, None where it has not been made."""
    found = CACHE / "runtimes" / runtime / "bin" / "python"
    return found if found.is_file() and (found.parent.parent / "made").is_file() else None


def made() -> list[str]:
    """The runtimes that have an environment."""
    return sorted(found.parent.name for found in (CACHE / "runtimes").glob("*/made"))


def fitting(runtime: str) -> str | None:
    """An interpreter of this machine for which the runtime has wheels."""
    if old(runtime) and sys.version_info >= (3, 13):
        return next((path for name in INTERPRETERS if (path := shutil.which(name)) and starts(path)), None)
    return sys.executable


def old(runtime: str) -> bool:
    """Whether a runtime is from before NumPy 2 and Python 3.13."""
    return tuple(map(int, runtime.split(".")[:2])) < NEWER


def starts(python: str) -> bool:
    """Whether an interpreter runs and can make environments (a shim may stand for one that is not there)."""
    return subprocess.run([python, "-c", "import ensurepip"], check=False, capture_output=True).returncode == 0


def make(runtime: str) -> Path | None:
    """The environment with a runtime; None where there is no interpreter for it. Raises CalledProcessError."""
    if (found := interpreter(runtime)) is not None:
        return found
    python = fitting(runtime)
    if python is None:
        return None
    folder = CACHE / "runtimes" / runtime
    shutil.rmtree(folder, ignore_errors=True)
    print(f"runtimes: installing ONNX Runtime {runtime} into {folder}", flush=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    wanted = [f"onnxruntime=={runtime}", *(["numpy<2"] if old(runtime) else [])]
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *wanted], check=True)
    (folder / "made").touch()
    return interpreter(runtime)


def main(runtimes: list[str]) -> int:
    """Exit code of pytest."""
    for runtime in runtimes or [OLDEST]:
        try:
            if make(runtime) is None:
                print(f"runtimes: no Python for ONNX Runtime {runtime}: install 3.11 or 3.12", file=sys.stderr)
                return 2
        except subprocess.CalledProcessError as problem:
            print(f"runtimes: {' '.join(map(str, problem.cmd))} failed", file=sys.stderr)
            return 2
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "slow or not slow", str(ROOT / "tests" / "runtimes")]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
