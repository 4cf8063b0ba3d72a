"""Compares generated kernels with those of another revision, to prove that a refactoring changes none.

    python scripts/replay.py [REVISION] [--arch ARCH] [--model FILE]     (default: HEAD, to judge uncommitted work)

Small networks, or the given models, are compiled up to sources for each instruction set, by the compiler in this folder
and by that of the revision. Exit code 1 if a text differs.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHES = ("x86-64-v3", "x86-64-v4", "sapphirerapids", "aarch64")  # named: texts are the same on every machine
SHOWN = 40  # lines of the differences of one text
PLANS, SOURCES = "plan", "render"


def write_texts(out: Path, arches: list[str], models: list[Path]) -> None:
    """Write files NETWORK.ARCH.STEP with the plans and sources of models, by the compiler in the current folder."""
    # of the folder that this is started in, which is not always the one of this file
    from models.networks import NETWORKS  # noqa: PLC0415
    from onnxfuse.pipeline import optimize  # noqa: PLC0415

    small = [] if models else [row for row in NETWORKS if row.name.startswith("tiny-") and not row.extra]
    inputs = [*((row.name, row.build().SerializeToString()) for row in small), *((p.stem, str(p)) for p in models)]
    for name, model in inputs:
        for arch in arches:
            began = time.perf_counter()
            # Sapphire Rapids multiplies by its matrix unit in bfloat16 only.
            precision = "bf16" if arch == "sapphirerapids" else "fp32"
            for step in (PLANS, SOURCES):
                parts: list[str] = []
                optimize(
                    model, stop_after=SOURCES if step == SOURCES else PLANS, print_step=step, show=parts.append,
                    arch=arch, precision=precision, strict=True,
                )  # fmt: skip
                (out / f"{name}.{arch}.{step}").write_text("".join(parts), encoding="utf-8")
            sys.stderr.write(f"{name} {arch}: {time.perf_counter() - began:.1f} s\n")


def asked(folder: Path, out: Path, arches: list[str], models: list[Path]) -> None:
    """Write the texts by the compiler in a folder. Raises SystemExit if it fails."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    options = [f"--arch={arch}" for arch in arches] + [f"--model={model}" for model in models]
    command = [sys.executable, str(Path(__file__).resolve()), "--texts", str(out), *options]
    out.mkdir(parents=True)
    if subprocess.run(command, cwd=folder, env=env, check=False).returncode:
        raise SystemExit(f"replay: the compiler in {folder} fails")


def checked_out(revision: str, folder: Path) -> None:
    """The files of a revision, in a folder."""
    done = subprocess.run(["git", "archive", revision], cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        raise SystemExit(f"replay: there is no revision {revision}: {done.stderr.decode().strip()}")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)


def changed(before: Path, now: Path, revision: str) -> int:
    """Print the differences; the number of texts that differ."""
    names = sorted({path.name for folder in (before, now) for path in folder.iterdir()})
    texts = [
        [(folder / n).read_text(encoding="utf-8") if (folder / n).exists() else "" for n in names]
        for folder in (before, now)
    ]
    differ = [(name, old, new) for name, old, new in zip(names, *texts, strict=True) if old != new]
    for name, old, new in differ:
        first, second = f"{name} at {revision}", f"{name} now"
        lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), first, second, lineterm="", n=1))
        print("\n".join(lines[:SHOWN]))
        if len(lines) > SHOWN:
            print(f"... and {len(lines) - SHOWN} lines more")
    print(f"replay: {len(differ)} of {len(names)} texts differ from {revision}")
    return len(differ)


def main() -> int:
    """0 when nothing changed, else 1 and the differences."""
    parser = argparse.ArgumentParser(prog="scripts/replay.py", description=__doc__)
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument(
        "--arch", action="append", choices=ARCHES, help="instruction set (default: all four; may be repeated)"
    )
    parser.add_argument("--model", action="append", type=Path, default=[], help="a model instead of the small networks")
    parser.add_argument("--texts", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    arches, models = options.arch or list(ARCHES), [model.resolve() for model in options.model]
    if options.texts:
        write_texts(options.texts, arches, models)
        return 0
    with tempfile.TemporaryDirectory(prefix="onnxfuse-replay-") as made:
        folder = Path(made)
        before, now = folder / "before", folder / "now"
        checked_out(options.revision, folder / "sources")
        asked(folder / "sources", before, arches, models)
        asked(ROOT, now, arches, models)
        return 1 if changed(before, now, options.revision) else 0


if __name__ == "__main__":
    sys.exit(main())
