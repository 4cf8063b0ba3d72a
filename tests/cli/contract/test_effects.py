"""Every flag of every verb does something: a command line says, writes or ends with something else because of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxfuse_cli import bisecting, profiling, progress, tuning, verifying
from onnxfuse_cli.verbs import onnxfuse as program

from onnxfuse.backends import BACKENDS
from onnxfuse.config import Options
from onnxfuse.errors import DeviceError
from onnxfuse.runtime import provider
from onnxfuse.target.device import Device, Driver
from tests.caches import own_cache
from tests.cli.conftest import BUSY, Onnxfuse, chain, two_chains
from tests.cli.contract.effects import ELSEWHERE, OWN, USUAL, WORDS, Effect, of_all_verbs
from tests.cli.contract.schema import problems
from tests.cli.shipping.test_wants import sized
from tests.craft.sources import ROOT

Run = Callable[[str], str]


def options_of(verb: str) -> dict[str, click.Option]:
    """The options of a verb by their long names."""
    found = (p for p in program.commands[verb].params if isinstance(p, click.Option))
    return {next(o for o in each.opts if o.startswith("--")): each for each in found}


OF_OPTIMIZE = {flag for flag in options_of("optimize") if flag in WORDS}
COMMON = [each for verb in USUAL for each in of_all_verbs(verb, set(options_of(verb)))]
ROWS = [*OWN, *COMMON]
SHOWN = {(each.verb, each.flag) for each in ROWS}
PASSED_ON = sorted(
    (verb, flag)
    for verb in ("config", "tune")
    for flag in options_of(verb)
    if flag in OF_OPTIMIZE and (verb, flag) not in SHOWN
)


def test_every_flag_of_every_verb_is_here() -> None:
    there = {(verb, flag) for verb in program.commands for flag in options_of(verb)}
    assert there == SHOWN | set(PASSED_ON) | set(ELSEWHERE)
    for named in ELSEWHERE.values():
        path, test = named.split("::")
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


RAN: dict[str, str] = {}  # what command lines say that rows share


# Models and files -----------------------------------------------------------------------------------------------------

_HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 32] x) => (float[4, 32] y)'
_TEXTS = {
    "relu": "{ y = Relu (x) }",
    "abs": "{ y = Abs (x) }",
    "r": "{ l = Log (x)  y = Exp (l) }",
    "n": "{ a = Neg (x)  b = Neg (a)  y = Relu (b) }",
}


def with_weight(text: str, weight: np.ndarray[Any, Any]) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return proto


def write_models(folder: Path) -> None:
    """The models and inputs that the rows name."""
    rng = np.random.default_rng(0)
    for name, body in _TEXTS.items():
        onnx.save(onnx.parser.parse_model(f"{_HEAD} {body}"), folder / f"{name}.onnx")
    onnx.save(chain(), folder / "m.onnx")
    onnx.save(sized(), folder / "d.onnx")
    two_chains(folder, "4,32", "8,16").rename(folder / "two.onnx")
    product = with_weight(f"{_HEAD} {{ p = MatMul (x, w)  y = Relu (p) }}", rng.standard_normal((32, 32), np.float32))
    onnx.save(product, folder / "p.onnx")
    image = _HEAD.replace("4, 32", "1, 64, 56, 56")
    weight = rng.standard_normal((64, 64, 3, 3), np.float32)
    onnx.save(with_weight(f"{image} {{ p = Conv <pads = [1,1,1,1]> (x, w)  y = Relu (p) }}", weight), folder / "c.onnx")
    changeable = chain()
    changeable.graph.input.append(onnx.helper.make_tensor_value_info("scale", 1, [32]))
    onnx.save(changeable, folder / "i.onnx")
    np.savez(folder / "ones.npz", x=np.ones((5, 64), np.float32))
    np.savez(folder / "positive.npz", x=np.ones((4, 32), np.float32))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Path:
    """A folder with all that the rows name, as the program itself writes it."""
    folder = tmp_path_factory.mktemp("template")
    write_models(folder)
    own_cache(folder / "ready")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ONNXFUSE_CACHE_DIR", str(kernels))
        from onnxfuse_cli.__main__ import run  # noqa: PLC0415  beside the folder it works in

        for line in (
            "optimize m.onnx f.onnx --no-verify --no-gain --json-file result.json -q",
            "optimize m.onnx kept.onnx --no-verify --no-gain --cache-dir kept -q",
            "tune m.onnx --budget 0.001s --cache-dir tuned --lock m.lock -q",
            "profile m.onnx --duration 0.05s --json-file fast.json",
        ):
            assert run(line.split()) == 0
    for name in ("folder", "alone"):
        (folder / name).mkdir()
        shutil.copy(folder / "f.onnx", folder / name)
    for name in ("libf.so", "f.fuse.json"):
        shutil.copy(folder / name, folder / "folder")
    for name in ("old.json", "old.md"):
        (folder / name).write_text("{}")
    fast = json.loads((folder / "fast.json").read_text())
    fast["models"][0]["level_ms"] = {"value": 1e-6, "low": 0.0, "high": None}
    (folder / "busy.json").write_text(json.dumps(fast))
    fast["models"][0]["level_ms"] = {"value": 1e-6, "low": 0.9e-6, "high": 1.1e-6}
    (folder / "fast.json").write_text(json.dumps(fast))
    return folder


@pytest.fixture
def run(onnxfuse: Onnxfuse, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """What a command line says, ends with and writes, in a fresh copy of the folder."""
    monkeypatch.setenv("ONNXFUSE_VERIFFY", "1")
    monkeypatch.setattr(progress, "_SOON", 0.0)
    count = 0

    def go(line: str) -> str:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        shutil.copytree(template, folder, symlinks=True)
        before = {path.relative_to(folder) for path in folder.rglob("*")}
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            said = onnxfuse(*shlex.split(line))
        new = sorted(
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.relative_to(folder) not in before
        )
        log = tmp_path / "compilers.log"
        compilers = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return "\n".join((said.out, said.err, f"exit {said.code}", f"files {' '.join(new)}", " ".join(compilers)))

    yield go


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.verb}{row.flag}")
def test_a_flag_does_something(row: Effect, run: Run, request: pytest.FixtureRequest) -> None:
    if row.flag == "--jobs":
        request.getfixturevalue("logged_compiler")
    sign = re.compile(row.sign, re.MULTILINE | re.IGNORECASE)
    line = f"{row.verb} {row.line}"
    without = RAN.get(line) or RAN.setdefault(line, run(line))
    shared = f"{line} {row.together}"
    with_it = RAN.get(shared) or RAN.setdefault(shared, run(shared)) if row.together else run(f"{line} {row.words}")
    if sign.groups and not row.sign.startswith(("^(", "^files")):
        before, after = sign.findall(without), sign.findall(with_it)
        assert before and after and before != after, with_it
        assert sign.findall(run(line)) == before
        return
    for _ in range(BUSY):  # a measurement of a busy machine may tell nothing; it may not tell the contrary
        if sign.search(with_it) or "inconclusive" not in with_it:
            break
        with_it = run(f"{line} {row.words}")
    seen = [sign.search(each) is not None for each in (without, with_it)]
    assert seen == [row.gone, not row.gone], f"{without}\n--- with {row.words}:\n{with_it}"


@pytest.fixture
def logged_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C++ compiler that writes down when it begins and ends to compile a kernel."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("compilers run in parallel on several cores only")
    real = shutil.which("c++")
    if real is None:
        pytest.skip("no c++ here")
    programs = tmp_path / "programs"
    programs.mkdir()
    log = f'case " $* " in *" -c "*) echo {{}} >> {shlex.quote(str(tmp_path / "compilers.log"))};; esac'
    lines = ("#!/bin/sh", log.format("begin"), f'{shlex.quote(real)} "$@"', "code=$?", log.format("end"), "exit $code")
    (programs / "c++").write_text("\n".join(lines) + "\n")
    (programs / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


# Flags that are passed on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "flag"), PASSED_ON, ids=lambda word: word)
def test_an_option_reaches_the_build(verb: str, flag: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config` says that it came from a flag; `tune` plans and measures with it."""
    if verb == "config":
        sign = re.compile(rf"^{flag[2:]} .* flag$", re.MULTILINE)
        assert [bool(sign.search(run(f"config {words}"))) for words in ("", WORDS[flag])] == [False, True]
        return
    given: list[Options] = []

    def recorded(model: str, *, options: Options, **_: Any) -> None:
        given.append(options)
        raise DeviceError("tune: recorded")

    monkeypatch.setattr(tuning, "run", recorded)
    for words in ("", WORDS[flag]):
        assert "tune: recorded" in run(f"tune m.onnx {words}")
    name = options_of("optimize")[flag].name
    assert name is not None
    without, with_it = (getattr(each, name) for each in given)
    assert without == getattr(Options(), name) != with_it


def recorded_settings(monkeypatch: pytest.MonkeyPatch, room: Any, name: str) -> list[dict[str, Any]]:
    """Each call of a function of a room is recorded, and ends the command line."""
    calls: list[dict[str, Any]] = []

    def record(*_: Any, **settings: Any) -> None:
        calls.append(settings)
        raise DeviceError("recorded")

    monkeypatch.setattr(room, name, record)
    return calls


def test_profile_draws_inputs_by_its_seed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded_settings(monkeypatch, profiling, "profile_models")
    run("profile m.onnx")
    run("profile m.onnx --seed 7")
    assert [each["seed"] for each in calls] == [0, 7]


def test_bisect_measures_as_long_and_on_as_many_threads_as_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded_settings(monkeypatch, bisecting, "profile_models")
    run("bisect m.onnx f.onnx --metric latency")
    run("bisect m.onnx f.onnx --metric latency --threads 1 --duration 7s")
    assert [(each["threads"], each["duration"]) for each in calls] == [(0, 3.0), (1, 7.0)]


def test_a_calibration_is_kept_in_the_cache(run: Run, tmp_path: Path) -> None:
    """`doctor --calibrate` measures once, and `profile` with the same cache reads its rates."""
    own = tmp_path / "own"
    assert "nothing yet" in run(f"doctor --cache-dir {own}")
    found = json.loads(run(f"doctor --calibrate --cache-dir {own} --json").split("\nnote ")[0])
    assert list(problems(found, json.loads((ROOT / "docs/schema/doctor.json").read_text()))) == []
    assert found["measured"]["now"]
    peak = round(found["measured"]["gflops"])
    said = run(f"profile m.onnx --duration 0.05s --threads 1 --level kernel --cache-dir {own}")
    assert f"at best   {peak} GFLOP/s" in said


@pytest.mark.parametrize(
    ("line", "room", "name"),
    [("profile m.onnx", profiling, "profile_models"), ("verify m.onnx m.onnx", verifying, "verify_models")],
)
def test_runs_are_replayed_as_cuda_graphs(
    line: str, room: Any, name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "cuda_driver", lambda: Driver(13000, (Device("A100", 80),)))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    calls = recorded_settings(monkeypatch, room, name)
    run(f"{line} --target cuda")
    run(f"{line} --target cuda --cuda-graph")
    assert [each["provider"].graph for each in calls] == [False, True]


@pytest.mark.parametrize("line", ["optimize m.onnx o.onnx --no-verify --no-gain", "explain m.onnx"])
def test_strict_makes_a_bug_an_error(line: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise IndexError("planted")

    monkeypatch.setitem(BACKENDS, "cpu", replace(BACKENDS["cpu"], schedule=broken))
    assert "exit 0" in run(line)
    assert "exit 70" in run(f"{line} --strict")
