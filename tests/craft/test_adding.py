"""Every extension of docs/adding.md is applied to a copy of the program and has the described effect."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.craft.sources import ROOT

PAGE = ROOT / "docs" / "adding.md"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_EDIT = re.compile(
    r"in (?:the new file )?`([\w/.]+\.py)`(?:,\s+(before|instead of) `([^`]+)`)?:\n\n```text\n(.*?)```",
    re.DOTALL | re.IGNORECASE,
)


OPTIMIZED = """
import sys
import onnx.parser
from onnxfuse import optimize
parts = []
head = '<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]> g (float[8, 64] x) => (float[8, 64] y)'
text = head + "{" + sys.argv[1] + "}"
model = onnx.parser.parse_model(text).SerializeToString()
given = dict(pair.split("=") for pair in sys.argv[3:])
given |= {"stop_after": "render", "print_step": sys.argv[2]}
made = optimize(model, show=parts.append, strict=True, min_group=1, **given)
print(made.target, made.kernels, sorted(len(g.nodes) for g in made.groups), dict(made.rewrites), made.nodes_after)
print("".join(parts))
"""


VERB = """
import sys
import onnx.parser
from onnxfuse_cli.__main__ import run
head = '<ir_version: 8, opset_import: ["" : 17]> g (float[8, 64] x) => (float[8, 64] y)'
open("model.onnx", "wb").write(onnx.parser.parse_model(head + "{" + sys.argv[1] + "}").SerializeToString())
run([sys.argv[2], "model.onnx"])
"""


@dataclass(frozen=True)
class Addition:
    """What is looked at: a graph, options, and what the answer has with the addition and not without it.

    `step` is what is printed, or, where the program is another one, the verb.
    """

    graph: str
    step: str
    shown: str
    options: tuple[str, ...] = ()
    program: str = OPTIMIZED


ADDITIONS = {
    "An operator": Addition("y = com.example.Cube(x)", "render", " 1 [1] "),
    "A law": Addition("a = Neg(x) b = Floor(a) y = Neg(b)", "rewrite", "'ceil-by-floor': 1"),
    "A structural rule": Addition("a = Abs(x) y = Mean(a, a, a)", "rewrite", "'mean-of-equals': 1"),
    "An instruction set": Addition("y = Abs(x)", "render", "for x86-64-v2", ("arch=x86-64-v2",)),
    "A strategy": Addition("a = Exp(x) b = Softmax(a) y = Sin(b)", "plan", " 2 [1, 2] ", ("strategy=pairs",)),
    "A verb": Addition("y = Abs(x)", "opset", "opset 17", program=VERB),
    "A backend": Addition("y = Abs(x)", "render", "for narrow", ("target=narrow",)),
}


def sections() -> dict[str, list[tuple[str, str, str, str]]]:
    """The edits of the page by the headings that they stand under: file, how (of a new one nothing), anchor, text."""
    parts = _SECTION.split(PAGE.read_text(encoding="utf-8"))[1:]
    return {title: _EDIT.findall(body) for title, body in zip(parts[::2], parts[1::2], strict=True)}


def answer(program: Path, addition: Addition) -> str:
    """What a copy of the program says of the graph, or why it says nothing."""
    env = {**os.environ, "PYTHONPATH": str(program), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", addition.program, addition.graph, addition.step, *addition.options]
    done = subprocess.run(command, cwd=program, env=env, check=False, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for folder in ("onnxfuse", "cli"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "onnxfuse_cli").symlink_to("cli")
    return tmp_path


@pytest.mark.parametrize("title", ADDITIONS)
def test_an_addition_does_something(title: str, program: Path):
    edits, addition = sections()[title], ADDITIONS[title]
    assert edits, f"{PAGE.name}: {title} shows nothing"
    assert addition.shown not in answer(program, addition), "it is there already"
    for file, how, anchor, text in edits:
        path = program / file
        if not how:
            assert not path.exists(), f"{file} is there already"
            path.write_text(text, encoding="utf-8")
            continue
        before = path.read_text(encoding="utf-8")
        assert before.count(anchor) == 1, f"{file} has no single {anchor!r}"
        added = text + (anchor if how == "before" else "")
        path.write_text(before.replace(anchor, added if how == "before" else added.rstrip("\n")), encoding="utf-8")
    said = answer(program, addition)
    assert addition.shown in said, said


def test_every_section_is_tried():
    assert sections().keys() == ADDITIONS.keys()


def test_every_addition_is_made_in_one_file():
    for title, edits in sections().items():
        assert len({file for file, *_ in edits}) == 1, f"{title} goes into several files"
