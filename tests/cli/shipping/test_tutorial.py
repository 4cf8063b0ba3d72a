"""The pages for users are true: their commands run in order and say what the pages say they do, and links lead on."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnxfuse_cli.verbs import onnxfuse as program

from onnxfuse.build.nvrtc import libraries
from onnxfuse.runtime import process
from tests.cli import programs
from tests.cli.shipping.test_recipes import env
from tests.cli.shipping.test_wants import sized
from tests.craft.sources import ROOT
from tests.models.fused import CACHE, model_bytes

__all__ = ["env"]  # a fixture

DOCS = ROOT / "docs"
PAGES = ("tutorial.md", "faq.md", "api.md", "deploy.md")
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d.]*(?:e[+-]\d+)?")


def masked(line: str) -> str:
    """A line without its numbers and the width of its columns."""
    return " ".join(_NUMBER.sub("0", line).split())


def runs(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, and the lines that it is said to print."""
    command, lines = "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, lines
            command, lines = line[2:], []
        elif line != "...":
            lines.append(line)
    yield command, lines


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_true(page: str, here: Path):
    (here / "bert.onnx").write_bytes(model_bytes("tiny-bert.decomposed"))
    blocks = _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    assert blocks
    for kind, text in blocks:
        if kind == "python":
            programs.python(text)
            continue
        for command, lines in runs(text):
            words, expected = shlex.split(command, comments=True), 1 if "exits with 1" in command else 0
            assert words[0] == "onnxfuse"
            done = programs.onnxfuse_as_program(words[1:], {"ONNXFUSE_CACHE_DIR": str(CACHE)})
            assert done.code == expected, f"{command}: {done.err}"
            said = [masked(line) for line in (done.out + done.err).splitlines()]
            for line in lines:
                assert any(masked(line) in each for each in said), f"{command} does not say: {line}"


def test_the_readme_leads_to_a_faster_model_of_ones_own_in_three_commands(here: Path):
    """Install, fuse, measure; the last two run as they are written, and measure for a short time."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    install, fuse = (text.split(f"\n## {name}\n")[1].split("\n## ")[0] for name in ("Install", "Fuse a model"))
    lines = [line for part in (install, fuse) for kind, block in _BLOCK.findall(part) for line, _ in runs(block)]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert [words[:2] for words in commands] == [["pip", "install"]] * 2 + [
        ["onnxfuse", v] for v in ("optimize", "profile")
    ]
    assert commands[0][2] == ".[cpu]" and commands[1][2] == ".[cpu,zig]", "one or the other"
    (here / "model.onnx").write_bytes(model_bytes("tiny-bert.decomposed"))
    env = {"ONNXFUSE_CACHE_DIR": str(CACHE), "ONNXFUSE_DURATION": "0.3s"}
    for words in commands[2:]:
        done = process.run((sys.executable, "-m", "onnxfuse_cli", *words[1:]), env=env)
        assert done.code == 0, done.err
    assert "speedup" in done.out


# What the front pages leave to their readers, and what so small a model does not reach.
GIVEN = "import numpy as np\nimport onnxruntime\nx = np.ones((3, 64), np.float32)\n"
SMALLER = (("--require-fusion 10", "--require-fusion 1"), ("slower 3%", "slower 9999%"), ("pip install", "true"))


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=lambda path: path.name)
def test_code_of_the_front_pages_runs(page: Path, here: Path, env: dict[str, str]):
    """Each block in its order; C++, C# and Java are in test_deploy.py. Blocks may make the same files again."""
    kinds = []
    for kind, text in re.findall(r"^```(console|python|sh)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        for path in here.glob("*"):
            if path.is_file() and not (kind == "python" and "onnxfuse.optimize" not in text):
                path.unlink()
        for name in ("model", "bert"):
            if not (here / f"{name}.onnx").exists():
                onnx.save(sized(), here / f"{name}.onnx")
        kinds.append(kind)
        if kind == "python":
            done = process.run((sys.executable, "-c", GIVEN + text), env=env)
            assert done.code == 0, f"{text}{done.err}"
            continue
        lines = [line for line, _ in runs(text)] if kind == "console" else text.splitlines()
        for line in lines:
            for written, here_ in SMALLER:
                line = line.replace(written, here_)
            if "--target cuda" in line and not libraries():
                continue
            done = programs.line(line, env)
            assert done.code == 0, f"{line}: {done.err}"
    assert "console" in kinds


def test_every_wish_has_a_command_with_known_flags():
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", (DOCS / "wants.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 17))
    for _, wish, how in rows:
        code = re.findall(r"`([^`]+)`", how)
        assert code, wish
        for words in (each.split() for each in code):
            if words[0] == "onnxfuse":
                verb = program.commands[words[1]]
                known = {opt for p in verb.params for opt in (*p.opts, *p.secondary_opts)}
                assert {w for w in words[2:] if w.startswith("--")} <= known, words


def test_links_lead_somewhere():
    """Of all pages, to files of the project and to headings in them."""
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                heads = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads}, link
