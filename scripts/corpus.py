"""`make corpus CORPUS=DIR`: run `onnxfuse optimize`, verification included, over every model below a folder.

A model passes when it was optimized and verified, or copied because nothing could be fused; models with kernels that
were dropped because they differed pass too, and are listed. It is refused when it cannot be read (exit code 3) and
nothing was left behind. Everything else is a failure: a wrong result, a crash, a bug in a group, no end in time, an
input that was changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.errors import BudgetError, ModelError
from onnxfuse.runtime import process

COMMAND = (sys.executable, "-m", "onnxfuse_cli", "optimize", "-j", "1")


@dataclass(frozen=True)
class Row:
    """What became of one model."""

    file: str
    verdict: str  # fused, copied, differs, refused, failed
    message: str = ""
    kernels: int = 0
    nodes_left: int = 0
    verified: bool = False
    seconds: float = 0.0


def one(model: Path, root: Path, timeout: float, extra: Sequence[str]) -> Row:
    """Optimize one model in a folder of its own."""
    name = str(model.relative_to(root))
    digest = hashlib.sha256(model.read_bytes()).digest()
    with tempfile.TemporaryDirectory() as folder:
        out, result = Path(folder, "out"), Path(folder, "result.json")
        out.mkdir()
        command = (*COMMAND, str(model), str(out / "m.onnx"), "--json-file", str(result), *extra)
        try:
            done = process.run(command, stage="corpus", time_limit=timeout)
        except BudgetError:
            return Row(name, "failed", f"no end in {timeout:.0f} s")
        said = (done.err.strip().splitlines() or ["silent"])[-1]
        if digest != hashlib.sha256(model.read_bytes()).digest():
            return Row(name, "failed", "the input was changed")
        if done.code and os.listdir(out):
            return Row(name, "failed", f"exit {done.code} left {os.listdir(out)}")
        if done.code == ModelError.exit_code:
            return Row(name, "refused", said, seconds=done.seconds)
        if done.code or "Traceback" in done.err:
            return Row(name, "failed", f"exit {done.code}: {said}", seconds=done.seconds)
        return _judged(name, json.loads(result.read_text(encoding="utf-8")), done.seconds)


def _judged(name: str, result: dict[str, Any], seconds: float) -> Row:
    """The verdict on a result that was written."""
    bugs = [r["reason"] for r in result["refusals"] if r["code"] == "E-INTERNAL"]
    dropped = [r["reason"] for r in result["refusals"] if r["code"] == "E-NUMERICS"]
    verdict = "failed" if bugs else "differs" if dropped else "fused" if result["kernels"] else "copied"
    verified = bool(result["verify"] and result["verify"]["ok"])
    message = next(iter(bugs + dropped), (result["verify"] or {}).get("message", ""))
    return Row(name, verdict, message, result["kernels"], result["nodes_left"], verified, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="models whose path holds this text")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth model")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows")
    parser.add_argument("flags", nargs="*", help="more flags for optimize, after --")
    asked = parser.parse_args()
    models = [m for m in sorted(asked.folder.rglob("*.onnx")) if asked.only in str(m)][:: asked.every]
    if not models:
        print(f"corpus: no .onnx file below {asked.folder}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(asked.jobs) as pool:
        rows = list(pool.map(lambda m: one(m, asked.folder, asked.timeout, asked.flags), models))
    for row in rows:
        if row.verdict in ("failed", "differs", "refused"):
            print(f"{row.verdict}  {row.file}: {row.message}")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    count = Counter(row.verdict for row in rows)
    unverified = sum(1 for row in rows if row.verdict in ("fused", "copied", "differs") and not row.verified)
    kernels = sum(r.kernels for r in rows)
    print(
        f"{len(rows)} models: {count['fused']} fused with {kernels} kernels, {count['copied']} copied, "
        f"{count['differs']} with kernels dropped, {count['refused']} refused, {count['failed']} failed; "
        f"{unverified} could not be verified"
    )
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
