"""Every extension of docs/adding.md is applied to a copy of the project, has its effect there, and passes its tests.

A run applies all of them to one copy; each alone is under the `slow` marker.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.craft.sources import ROOT

PAGE = ROOT / "docs" / "adding.md"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_EDIT = re.compile(
    r"in (?:the new file )?`([\w/.]+\.(?:py|json|md))`(?:,\s+(before|instead of) `(.+?)`)?:\n\n```text\n(.*?)```",
    re.DOTALL | re.IGNORECASE,
)
_TESTS = re.compile(r"^Test: `pytest (.+)`$", re.MULTILINE)
COPIED = (
    "onnxfuse", "cli", "tests", "docs", "scripts", "models", "benchmarks", "README.md", "pyproject.toml", "Makefile",
)  # fmt: skip
PAGES = ("operators", "rules", "commands", "agreed", "options")  # scripts of `make docs`
OF_PAGES = ("tests/ops/test_docs.py", "tests/rules/test_docs.py", "tests/cli/shipping/test_docs.py")

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


COMPILED = """
import sys
import numpy as np
import onnx.parser
from onnxfuse import optimize
from onnxfuse.runtime.session import session
head = '<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]> g (float[7, 13] x) => (float[7, 13] y)'
text = head + "{" + sys.argv[1] + "}"
model = onnx.parser.parse_model(text).SerializeToString()
made = optimize(model, "f.onnx", strict=True, min_group=1, verify=False, gain=False, overwrite=True)
x = np.random.default_rng(0).standard_normal((7, 13)).astype(np.float32)
(y,) = session("f.onnx").run(None, {"x": x})
np.testing.assert_allclose(y, eval(sys.argv[2]), rtol=1e-6)
print(made.kernels, "kernel is right")
"""


VERB = """
import sys
import onnx.parser
from onnxfuse_cli.__main__ import run
head = '<ir_version: 8, opset_import: ["" : 17]> g (float[8, 64] x) => (float[8, 64] y)'
open("model.onnx", "wb").write(onnx.parser.parse_model(head + "{" + sys.argv[1] + "}").SerializeToString())
run([sys.argv[2], "model.onnx"])
"""

TESTED = "import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', *sys.argv[1:]]))"

# Runs programs one after the other, each in a fork that need not import what all of them do.
FORKED = """
import json, os, sys, traceback
import numpy, onnx.parser, pytest
import onnxfuse, onnxfuse.pipeline, onnxfuse_cli.__main__
for number, (program, arguments) in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if child == 0:
        said = os.open(f"said{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv, code = ["-c", *arguments], 0
        try:
            exec(program, {"__name__": "__main__"})
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code or 0))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@dataclass(frozen=True)
class Addition:
    """What is looked at: a graph, options, and what the answer has with the addition and not without it.

    `step` is what is printed, or, where the program is another one, the verb, or what NumPy computes.
    """

    graph: str
    step: str
    shown: str
    options: tuple[str, ...] = ()
    program: str = OPTIMIZED


ADDITIONS = {
    "An operator": Addition("y = com.example.Cube(x)", "x**3", "1 kernel is right", program=COMPILED),
    "A law": Addition("a = Neg(x) b = Floor(a) y = Neg(b)", "rewrite", "'ceil-by-floor': 1"),
    "A structural rule": Addition("a = Abs(x) y = Mean(a, a, a)", "rewrite", "'mean-of-equals': 1"),
    "An instruction set": Addition("y = Abs(x)", "render", "for x86-64-v2", ("arch=x86-64-v2",)),
    "A strategy": Addition("a = Exp(x) b = Softmax(a) y = Sin(b)", "plan", " 2 [1, 2] ", ("strategy=pairs",)),
    "A verb": Addition("y = Abs(x)", "opset", "opset 17", program=VERB),
    "A backend": Addition("y = Abs(x)", "render", "for narrow", ("target=narrow",)),
}


@dataclass(frozen=True)
class Section:
    """What the page shows under one heading: edits (file, how, of a new one nothing, anchor, text), and its tests."""

    edits: list[tuple[str, str, str, str]]
    tests: list[str]

    @property
    def test_files(self) -> list[str]:
        return [each for each in self.tests if each.startswith("tests/")]


def sections() -> dict[str, Section]:
    """The sections of the page by their headings."""
    parts = _SECTION.split(PAGE.read_text(encoding="utf-8"))[1:]
    return {
        title: Section(_EDIT.findall(body), [word for found in _TESTS.findall(body) for word in shlex.split(found)])
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def ran(project: Path, *arguments: str, stdin: str = "") -> str:
    """What Python says in a copy of the project, which must succeed."""
    env = {**os.environ, "PYTHONPATH": str(project), "PYTHONSAFEPATH": "1"}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=project, env=env, input=stdin, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{arguments}:\n{done.stdout[-6000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def said(project: Path, programs: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[int, str]]:
    """How programs (a text, its arguments) end in a copy of the project, and what they say."""
    codes = ran(project, "-c", FORKED, stdin=json.dumps(programs)).split()
    assert len(codes) == len(programs)
    return [(int(code), (project / f"said{at}").read_text(encoding="utf-8")) for at, code in enumerate(codes)]


def answers(project: Path, additions: Sequence[Addition]) -> list[str]:
    """What a copy of the program says of the graphs, or why it says nothing."""
    asked = [(each.program, (each.graph, each.step, *each.options)) for each in additions]
    return [text for _, text in said(project, asked)]


def passed(project: Path, *selections: Sequence[str]) -> list[int]:
    """How many tests of a copy of the project pass in runs of pytest with these arguments; none may fail."""
    counts = []
    for selection, (code, text) in zip(selections, said(project, [(TESTED, s) for s in selections]), strict=True):
        assert code == 0, f"{selection}:\n{text[-8000:]}"
        counted = re.search(r"(\d+) passed", text)
        counts.append(int(counted[1]) if counted else 0)
    return counts


def applied(project: Path, section: Section) -> None:
    """Make the edits of a section in a copy of the project."""
    for file, how, anchor, text in section.edits:
        path = project / file
        if not how:
            assert not path.exists(), f"{file} is there already"
            path.write_text(text, encoding="utf-8")
            continue
        before = path.read_text(encoding="utf-8")
        assert before.count(anchor) == 1, f"{file} has no single {anchor!r}"
        added = text + anchor if how == "before" else text.rstrip("\n")
        path.write_text(before.replace(anchor, added), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of everything that tests and scripts read, without what was built, but with compiled modules.

    Copies keep the times of their files, by which Python knows that a compiled module is that of its source.
    """
    for name in COPIED:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, tmp_path / name)
        else:
            built = ("build",) if name == "models" else ()
            unfinished = "*.pyc.*"  # that another process writes
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns(unfinished, *built))
    (tmp_path / "onnxfuse_cli").symlink_to("cli")
    return tmp_path


def assert_effects(project: Path, titles: Sequence[str]) -> None:
    """Apply sections: what they add has its effect then, and not before, and the tests pass that each names."""
    shown, additions = [sections()[title] for title in titles], [ADDITIONS[title] for title in titles]
    for title, section in zip(titles, shown, strict=True):
        assert section.edits and section.test_files, f"{PAGE.name}: {title} shows nothing, or names no test"
    for addition, text in zip(additions, answers(project, additions), strict=True):
        assert addition.shown not in text, f"{addition.shown} is there already"
    for section in shown:
        applied(project, section)
    for addition, text in zip(additions, answers(project, additions), strict=True):
        assert addition.shown in text, text
    assert all(count > 0 for count in passed(project, *(section.tests for section in shown)))


def test_additions_do_something_and_pass_their_tests(project: Path):
    assert_effects(project, list(ADDITIONS))


@pytest.mark.slow
@pytest.mark.parametrize("title", ADDITIONS)
def test_an_addition_alone_does_something_and_passes_its_tests(title: str, project: Path):
    assert_effects(project, [title])


@pytest.mark.slow
@pytest.mark.parametrize("title", [title for title in ADDITIONS if title != "A law"])
def test_the_test_case_is_needed(title: str, project: Path):
    """Without the addition itself its test case fails: it is not one that passes whatever is there."""
    section = sections()[title]
    cases = [edit for edit in section.edits if edit[0].startswith("tests/")]
    assert cases, f"{PAGE.name}: {title} shows no test case"
    applied(project, Section(cases, section.tests))
    ((_, text),) = said(project, [(TESTED, section.tests)])
    assert re.search(r"\d+ (failed|error)|^E .*KeyError", text, re.MULTILINE), text


@pytest.mark.slow
def test_all_additions_together_pass_whole_test_files(project: Path):
    """With the pages that are made from the program written anew."""
    for section in sections().values():
        applied(project, section)
    for page in PAGES:
        ran(project, f"scripts/{page}.py")
    files = {file: None for section in sections().values() for file in section.test_files}
    (count,) = passed(project, (*files, *OF_PAGES))
    assert count > 1000


def test_every_section_is_tried():
    assert sections().keys() == ADDITIONS.keys()


def test_the_pages_are_those_of_make_docs():
    text = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs: ")[2].partition("\n\n")[0]
    assert re.findall(r"scripts/(\w+)\.py", text) == list(PAGES)


def test_every_addition_is_made_in_one_file():
    """Beside its test cases and pages."""
    for title, section in sections().items():
        code = {file for file, *_ in section.edits if file.startswith(("onnxfuse/", "cli/"))}
        assert len(code) == 1, f"{title} goes into several files"
