"""`make demo`, on a network that is quick to build, and with a short race."""

from __future__ import annotations

import subprocess
import sys

from tests.craft.sources import ROOT


def test_the_demo_builds_fuses_verifies_and_races():
    command = [sys.executable, "scripts/demo.py", "tiny-bert", "0.2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "won: " in done.stdout and "largest relative error" in done.stdout
    assert "nodes became" in done.stdout and "verify" in done.stderr
