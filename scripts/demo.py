"""`make demo`: build a network with onnx and NumPy alone, fuse it, verify it, race it against the original."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from onnxfuse_cli import results, show
from onnxfuse_cli.progress import progress

import onnxfuse
from onnxfuse.measure import ratios
from onnxfuse.runtime import process

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("models", "build")


def main(name: str = "demo-bert", seconds: str = "2") -> int:
    original, fused = FOLDER / f"{name}.onnx", FOLDER / f"{name}.fused.onnx"
    os.chdir(ROOT)
    screen = show.screen()
    screen.say(f"build     {name} with random weights, from models/ ...")
    built = process.run((sys.executable, "-m", "models", name), stage="demo")
    if built.code:
        screen.say(built.err.strip() or built.out.strip())
        return 1
    start = time.monotonic()
    with progress(screen) as at:
        result = onnxfuse.optimize(original, fused, overwrite=True, tell=at.tell)
    results.after_optimize(screen, result)
    screen.say(f"took      {time.monotonic() - start:.1f} s")
    if result.verify is None or result.verify.ok is not True or result.output.library is None:
        screen.say("demo: the result was not verified, or nothing was fused: onnxfuse doctor says what is missing")
        return 1
    screen.say("profile   both models in turns, each in a process of its own ...")
    found = onnxfuse.profile([original, fused], libraries=[None, result.output.library], duration=float(seconds))
    before, after = (model.latency_ms for model in found.models)
    rows = [("milliseconds", "min", "median", "p90")]
    for label, ms in (("ONNX Runtime", before), ("fused", after)):
        rows.append((label, *map(show.milliseconds, (ms.min, ms.median, ms.p90))))
    for line in show.table(rows, right=(1, 2, 3)):
        show.data(line)
    spread = f"{(found.spread or 0.0) * 100:.1f} %"
    assert found.ratio is not None
    sure = f"{found.ratio.low:.2f}x to {found.ratio.high:.2f}x with 95 % confidence"
    show.data(f"won: {found.speedup:.2f}x on {found.threads} threads, {sure} (the original against itself: {spread})")
    show.data(f"     {ratios.STATISTIC}{'; the machine is busy' if found.busy else ''}")
    show.data(f"     {result.nodes_before} nodes became {result.kernels} kernels and {result.nodes_left} other nodes")
    show.data(f"     largest relative error {result.verify.max_error:.1e}, allowed {result.verify.limit:.1e}")
    screen.say(f"\nThe files are in {FOLDER}. Next: {place_of_program()} explain {original}")
    return 0


def place_of_program() -> str:
    program = Path(sys.executable).parent / "onnxfuse"
    return str(program.relative_to(ROOT)) if program.is_relative_to(ROOT) else "onnxfuse"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
