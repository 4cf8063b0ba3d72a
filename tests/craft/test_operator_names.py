"""Lists of operator names outside of rows and rules are facts about ONNX Runtime or ONNX, and each is named here."""

import ast
from pathlib import Path

import pytest

from onnxfuse.ops.rows import ROWS
from tests.craft.sources import ROOT, name_of, python_files, tree_of

OPERATORS = {key.rpartition("::")[2] for key in ROWS.rows}
MOST = 2  # names in one tuple, list, set or text that are no list yet

# What properties of an operator its definition does not tell: files of lists, and what these are about.
FACTS = {
    "cost/nodes.py": "kinds of the runtime's own kernels, which are timed",
    "cost/runtime.py": "the same, with their rates",
    "cost/fusions.py": "chains and activations that the runtime fuses itself",
    "load/fallback_types.py": "results of operators that have no row, or a row that refuses some calls",
    "load/branches.py": "ranks that the runtime's recurrent layers demand",
    "load/saved/blocks.py": "operators that the runtime has for images in blocks of channels",
    "load/saved/channels_last.py": "and for quantized images with the channels last",
    "emit/body.py": "operators with bfloat16 kernels in the runtime",
    "emit/names.py": "operators that are left out of the names of kernels",
    "runtime/feed_limits.py": "tables about unmodified models, compared with rows by tests/ops/test_traits.py",
    "runtime/feed_sizes.py": "the same",
    "verify/codes.py": "operators whose sums the runtime saturates on some machines",
}


def lists_in(path: Path) -> list[int]:
    """Lines of displays, calls and texts in a file that name more than MOST operators."""
    found = []
    for node in ast.walk(tree_of(path)):
        parts = getattr(node, "elts", None) or getattr(node, "keys", None) or []
        names = [n.value for n in parts if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = node.value.split() if len(node.value) < 400 and "." not in node.value else []
        if len(OPERATORS.intersection(names)) > MOST:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", python_files("onnxfuse"), ids=name_of)
def test_lists_of_operators_have_a_reason(path: Path):
    name = str(path.relative_to(ROOT / "onnxfuse"))
    if name.startswith(("ops/", "rewrite/")):
        return
    assert bool(lists_in(path)) == (name in FACTS), f"{name}: {lists_in(path)}: derive a trait, or say what fact it is"
