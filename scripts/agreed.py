"""Writes onnxfuse/render/tiles/agreed.h: the constants shared by Python and C++, from their definitions in Python."""

from __future__ import annotations

import sys
from pathlib import Path

from onnxfuse.render.agreed import header

OUT = Path(__file__).resolve().parents[1] / "onnxfuse" / "render" / "tiles" / "agreed.h"


def main() -> int:
    """0; the file is written anew."""
    OUT.write_text(header(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
