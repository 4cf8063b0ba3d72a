"""Flags are the fields of Options; a flag goes before the environment, that before a file, that before the default."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from onnxfuse_cli.flags import OTHERS, name_of
from onnxfuse_cli.program import VerbCommand
from onnxfuse_cli.verbs import onnxfuse as program

from onnxfuse.config import SECTIONS, Options
from onnxfuse.runtime import process
from tests.cli.conftest import Onnxfuse

VERBS = list(program.commands)


def options_of(verb: str) -> list[click.Option]:
    return [p for p in program.commands[verb].params if isinstance(p, click.Option)]


@pytest.mark.parametrize("field", fields(Options), ids=lambda f: f.name)
def test_every_option_is_a_flag_with_help_and_the_same_default(field):
    option = next(o for o in options_of("optimize") if o.name == field.name)
    assert f"--{name_of(field)}" in option.opts
    assert option.help and option.envvar == "ONNXFUSE_" + name_of(field).upper().replace("-", "_")
    value = option.get_default(click.Context(program.commands["optimize"]))
    assert (tuple(value) if option.multiple and value is not None else value) in (field.default, None)


@pytest.mark.parametrize("verb", VERBS)
def test_flags_are_long_and_in_kebab_case_but_for_six(verb: str):
    for option in options_of(verb):
        for spelled in (*option.opts, *option.secondary_opts):
            if not spelled.startswith("--"):
                assert spelled in ("-o", "-i", "-v", "-q", "-j")
            assert spelled == spelled.lower() and "_" not in spelled


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(onnxfuse: Onnxfuse, verb: str):
    for flag in ("-h", "--help"):
        said = onnxfuse(verb, flag)
        assert said.code == 0 and said.out.startswith("Usage: onnxfuse") and said.err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_has_examples(onnxfuse: Onnxfuse, verb: str):
    command = program.commands[verb]
    assert isinstance(command, VerbCommand) and command.examples
    said = onnxfuse(verb, "--help").out
    for example in command.examples:  # test_examples.py runs them
        assert f"  onnxfuse {verb} {example}".rstrip() in said.splitlines()


def test_many_flags_are_listed_in_sections(onnxfuse: Onnxfuse):
    said = onnxfuse("optimize", "--help").out
    heads = [line[:-1] for line in said.splitlines() if re.fullmatch(r"[A-Z][^:]*:", line)]
    assert heads == [*SECTIONS, OTHERS, "Examples"]
    told = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", said, re.MULTILINE)
    assert sorted(told) == sorted([*(o.opts[-1] for o in options_of("optimize")), "--help"])
    assert "Options:" in onnxfuse("inspect", "--help").out


def test_the_list_of_verbs_says_what_each_does(onnxfuse: Onnxfuse):
    said = onnxfuse("--help").out
    rows = dict(re.findall(r"^  ([a-z]+)  +(\S.*)$", said.split("Commands:")[1], re.MULTILINE))
    assert list(rows) == VERBS
    assert all(text.endswith(".") and not text.endswith("...") for text in rows.values()), "a sentence, not cut off"


def test_the_version(onnxfuse: Onnxfuse):
    said = onnxfuse("--version")
    assert said.code == 0 and said.out == "onnxfuse 0.1.0\n"


def value_of(onnxfuse: Onnxfuse, name: str, *arguments: str) -> tuple[object, str]:
    found = onnxfuse("config", *arguments, "--json").json["options"][name]
    return found["value"], found["from"]


def test_the_order_of_sources(onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch):
    assert value_of(onnxfuse, "strategy") == (None, "default")
    Path("pyproject.toml").write_text('[tool.onnxfuse]\nstrategy = "nnvm"\ndim = ["a=1", "b=2"]\nfast-math = true\n')
    assert value_of(onnxfuse, "strategy") == ("nnvm", str(here / "pyproject.toml"))
    assert value_of(onnxfuse, "dim")[0] == ["a=1", "b=2"]
    assert value_of(onnxfuse, "fast-math") == (True, str(here / "pyproject.toml"))
    assert value_of(onnxfuse, "fast-math", "--no-fast-math") == (False, "flag")
    monkeypatch.setenv("ONNXFUSE_STRATEGY", "none")
    assert value_of(onnxfuse, "strategy") == ("none", "environment")
    assert value_of(onnxfuse, "strategy", "--strategy", "best") == ("best", "flag")


def test_a_file_in_a_folder_above(onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch):
    Path("onnxfuse.toml").write_text('min_group = 3\ndim = "n=4"\n')
    Path("below").mkdir()
    monkeypatch.chdir("below")
    Path("pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert value_of(onnxfuse, "min-group") == (3, str(here / "onnxfuse.toml"))
    assert value_of(onnxfuse, "dim")[0] == ["n=4"]


def test_several_values_in_the_environment(onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONNXFUSE_DIM", "batch=2 sequence=8")
    assert value_of(onnxfuse, "dim") == (["batch=2", "sequence=8"], "environment")


def test_config_prints_each_option_with_its_value_and_source(onnxfuse: Onnxfuse, here: Path):
    lines = onnxfuse("config", "--strategy", "none").out.splitlines()
    assert any(line.split() == ["strategy", "none", "flag"] for line in lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("strateg = 'best'", ("sets strateg, which is not a flag", "did you mean strategy?")),
        ("fast-math = 'yes'", ("fast-math", "is not true or false")),
        ("dim = {a = 1}", ("dim", "a value of the wrong type")),
        ("strategy = 'bets'", ("did you mean best?", "onnxfuse.toml")),
        ("strategy = ", ("cannot be read",)),
    ],
)
def test_a_wrong_file(onnxfuse: Onnxfuse, here: Path, text: str, words: tuple[str, ...]):
    Path("onnxfuse.toml").write_text(text + "\n")
    said = onnxfuse("config")
    assert said.code == 2 and all(word in said.last for word in words), said.err


def test_a_wrong_variable_is_named(onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONNXFUSE_MIN_GROUP", "two")
    said = onnxfuse("config")
    assert said.code == 2 and "ONNXFUSE_MIN_GROUP" in said.last


def test_help_imports_nothing_heavy(here: Path):
    """What makes `--help` slow is importing onnx, NumPy and the compiler; the time itself is not a test's business."""
    code = (
        "import sys; from onnxfuse_cli.__main__ import run; run(['optimize', '--help']); "
        "print(sorted({m.split('.')[0] for m in sys.modules}), sorted(m for m in sys.modules if 'onnxfuse.' in m))"
    )
    done = process.run((sys.executable, "-c", code))
    modules = done.out.splitlines()[-1]
    assert done.code == 0, done.err
    for heavy in ("numpy", "onnx", "onnxruntime", "rich", "google", "jinja2", "onnxfuse.pipeline", "onnxfuse.ir"):
        assert f"'{heavy}'" not in modules, heavy


def test_completion_knows_the_verbs(onnxfuse: Onnxfuse, here: Path):
    assert "_ONNXFUSE_COMPLETE" in onnxfuse("completion", "bash").out
    env = {"_ONNXFUSE_COMPLETE": "bash_complete", "COMP_WORDS": "onnxfuse opt", "COMP_CWORD": "1"}
    assert process.run((sys.executable, "-m", "onnxfuse_cli"), env=env).out.strip() == "plain,optimize"
