"""Says which kernels of the small networks changed since a revision; none may, where no change of behaviour is meant.

    python scripts/replay.py [REVISION]     (default: HEAD, so that it is the uncommitted work that is judged)

Each network goes through the compiler up to its sources twice: as it is here, and in a checkout of the revision.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCH = "x86-64-v4"  # named, so that the texts are the same on every machine
SHOWN = 40  # lines of the differences of one network
PLANS, SOURCES = "plan", "render"


def texts() -> dict[str, str]:
    """By network and step, what the compiler in the current folder makes of it."""
    # of the folder that this is started in, which is not always the one of this file
    from models.networks import NETWORKS  # noqa: PLC0415
    from onnxfuse.pipeline import optimize  # noqa: PLC0415

    found: dict[str, str] = {}
    for row in NETWORKS:
        if not row.name.startswith("tiny"):
            continue
        model = row.build().SerializeToString()
        for step in (PLANS, SOURCES):
            parts: list[str] = []
            optimize(model, stop_after=SOURCES, print_step=step, show=parts.append, arch=ARCH, strict=True)
            found[f"{row.name} {step}"] = "".join(parts)
    return found


def asked(folder: Path) -> dict[str, str]:
    """The texts that the compiler in a folder makes; raises SystemExit with its words where it fails."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--texts"]
    done = subprocess.run(command, cwd=folder, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"replay: the compiler in {folder.name} fails:\n{done.stderr}")
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def checked_out(revision: str, folder: Path) -> None:
    """The files of a revision, in a folder."""
    done = subprocess.run(["git", "archive", revision], cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        raise SystemExit(f"replay: there is no revision {revision}: {done.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)


def main() -> int:
    """0 when nothing changed, else 1 and the differences."""
    if sys.argv[1:] == ["--texts"]:
        sys.stdout.write(json.dumps(texts()))
        return 0
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    with tempfile.TemporaryDirectory(prefix="onnxfuse-replay-") as folder:
        checked_out(revision, Path(folder))
        before, now = asked(Path(folder)), asked(ROOT)
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    for name in changed:
        old, new = (part.get(name, "").splitlines() for part in (before, now))
        lines = list(difflib.unified_diff(old, new, f"{name} at {revision}", f"{name} now", lineterm="", n=1))
        print("\n".join(lines[:SHOWN]))
        if len(lines) > SHOWN:
            print(f"... and {len(lines) - SHOWN} lines more")
    print(f"replay: {len(changed)} of {len(now)} texts differ from {revision}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
