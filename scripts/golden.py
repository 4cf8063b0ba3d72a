"""Writes the sections of tests/golden/*.case anew and says which files changed; their diff is to be reviewed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "golden"


def main() -> int:
    """Exit code of pytest; 0 when all cases were written, changed or not."""
    before = {path: path.read_bytes() for path in sorted(CASES.glob("*.case"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES), "--update-golden"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stdout.write(done.stdout + done.stderr)
        return done.returncode
    changed = [path for path, old in before.items() if path.read_bytes() != old]
    for path in changed:
        print(f"golden: wrote {path.relative_to(ROOT)}")
    print(f"golden: {len(changed)} of {len(before)} cases changed" + ("; review with git diff" if changed else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
