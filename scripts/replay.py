"""Compares generated kernels with those of another revision, to prove that a refactoring changes none.

    python scripts/replay.py [REVISION] [NOW] [--arch ARCH] [--model FILE]   (default: HEAD, to judge uncommitted work)

Small networks, or the given models, are planned, scheduled and rendered for each instruction set by the compiler of the
revision and by that in this folder, or of a second revision, at the same time; no C++ compiler runs. The texts of a
commit are kept in .cache/replay, so that a run that is ended goes on where it ended. RENAMINGS lists what is spelled
otherwise in older texts. docs/replay.md has results. Exit code 1 if a text differs.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHES = ("x86-64-v3", "x86-64-v4", "sapphirerapids", "aarch64")  # named: texts are the same on every machine
SHOWN = 40  # lines of the differences of one text
PLANS, SOURCES = "plan", "render"
KEPT = ROOT / ".cache" / "replay"
# (a word of older texts, as a pattern, and the word for it now). Of a refusal its code and its nodes are compared.
RENAMINGS: tuple[tuple[str, str], ...] = (
    (r"(?m)^(E-[A-Z-]+ [^:\n]*):.*$", r"\1"),
    (r"(?m)^held (.*: \w+)$", r"stored \1"),
)


def write_texts(out: Path, arches: list[str], models: list[Path]) -> None:
    """Write files NETWORK.ARCH.STEP with the plans and sources of models, by the compiler in the current folder."""
    # of the folder that this is started in, which is not always the one of this file
    from models.networks import NETWORKS  # noqa: PLC0415
    from onnxfuse.pipeline import optimize  # noqa: PLC0415

    small = [] if models else [row for row in NETWORKS if row.name.startswith("tiny-") and not row.extra]
    inputs = [*((row.name, row.build().SerializeToString()) for row in small), *((p.stem, str(p)) for p in models)]
    for name, model in inputs:
        for arch in arches:
            if (out / f"{name}.{arch}.{SOURCES}").exists():
                continue
            began = time.perf_counter()
            # Sapphire Rapids multiplies by its matrix unit in bfloat16 only.
            precision = "bf16" if arch == "sapphirerapids" else "fp32"
            for step in (PLANS, SOURCES):
                parts: list[str] = []
                optimize(
                    model, stop_after=SOURCES if step == SOURCES else PLANS, print_step=step, show=parts.append,
                    arch=arch, precision=precision, strict=True,
                )  # fmt: skip
                unfinished = out / "unfinished"
                unfinished.write_text("".join(parts), encoding="utf-8")
                unfinished.replace(out / f"{name}.{arch}.{step}")
            sys.stderr.write(f"{name} {arch}: {time.perf_counter() - began:.1f} s\n")


def started(folder: Path, out: Path, arches: list[str], models: list[Path]) -> subprocess.Popen[bytes]:
    """A process that writes the texts by the compiler in a folder, those that are not there yet."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    options = [f"--arch={arch}" for arch in arches] + [f"--model={model}" for model in models]
    command = [sys.executable, str(Path(__file__).resolve()), "--texts", str(out), *options]
    out.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(command, cwd=folder, env=env)


def checked_out(revision: str, folder: Path) -> None:
    """The files of a revision, in a folder."""
    done = subprocess.run(["git", "archive", revision], cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        raise SystemExit(f"replay: there is no revision {revision}: {done.stderr.decode().strip()}")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)


def commit_of(revision: str) -> str:
    """The commit that a revision names. Raises SystemExit if there is none."""
    asked = ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"]
    done = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        raise SystemExit(f"replay: there is no revision {revision}: {done.stderr.decode().strip()}")
    return done.stdout.decode().strip()


def renamed(text: str) -> str:
    """A text with the words of today."""
    for word, now in RENAMINGS:
        text = re.sub(word, now, text)
    return text


def changed(before: Path, now: Path, names: Sequence[str], revision: str) -> int:
    """Print the differences; the number of texts that differ."""
    texts = [[renamed((folder / n).read_text(encoding="utf-8")) for n in names] for folder in (before, now)]
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
    parser.add_argument("now", nargs="?", help="another revision to compare it with (default: this folder)")
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
        outs: list[Path] = []
        running: list[subprocess.Popen[bytes]] = []
        for number, revision in enumerate((options.revision, options.now)):
            sources, out = ROOT, Path(made, "now")
            if revision is not None:
                sources, out = Path(made, f"sources{number}"), KEPT / commit_of(revision)
                checked_out(revision, sources)
            outs.append(out)
            running.append(started(sources, out, arches, models))
        codes = [process.wait() for process in running]
        if any(codes):
            raise SystemExit("replay: a compiler fails")
        found = [{path.name for path in out.iterdir() if _asked_for(path.name, arches, models)} for out in outs]
        if found[0] != found[1]:
            raise SystemExit(f"replay: texts of one compiler only: {', '.join(sorted(found[0] ^ found[1]))}")
        return 1 if changed(outs[0], outs[1], sorted(found[0]), options.revision) else 0


def _asked_for(name: str, arches: list[str], models: list[Path]) -> bool:
    """Whether a file is a text of these instruction sets and models; others were kept by other runs."""
    network, arch, step = name.rsplit(".", 2) if name.count(".") >= 2 else (name, "", "")
    of_network = network in {model.stem for model in models} if models else network.startswith("tiny-")
    return of_network and arch in arches and step in (PLANS, SOURCES)


if __name__ == "__main__":
    sys.exit(main())
