"""The page of operators is what the rows say now."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from onnxfuse.ops.rows import ROWS

ROOT = Path(__file__).resolve().parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scripts_operators", ROOT / "scripts" / "operators.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_of_operators_is_current() -> None:
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert page == script().document(), "run scripts/operators.py"
    assert all(f"\n| {op} | " in page for op in ROWS.rows)
