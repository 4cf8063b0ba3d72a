"""User errors: each gives one clear line and the documented exit code, and leaves files unchanged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxfuse_cli import profiling

from onnxfuse.runtime import process
from tests.cli.conftest import Onnxfuse, Said, chain, files


def is_one_line(said: Said, code: int, *words: str) -> None:
    """The error is the last line of stderr, is one line, and says these words; before it stand only steps' lines."""
    assert said.code == code, said.err
    lines = said.err.splitlines()
    assert lines[-1].startswith("onnxfuse: ")
    assert all(not line.startswith("onnxfuse: ") for line in lines[:-1])
    assert "Traceback" not in said.err and said.out == ""
    for word in words:
        assert word in lines[-1], lines[-1]


def test_a_missing_file(onnxfuse: Onnxfuse, model: Path, here: Path):
    is_one_line(onnxfuse("optimize", "n.onnx", "out.onnx"), 2, "load: there is no file n.onnx", "near: m.onnx")
    assert files(here) == {"m.onnx"}


def test_a_missing_folder(onnxfuse: Onnxfuse, here: Path):
    is_one_line(onnxfuse("optimize", "no/m.onnx"), 2, "there is no file no/m.onnx", "there is no folder no either")


def test_a_folder_instead_of_a_file(onnxfuse: Onnxfuse, here: Path):
    Path("d").mkdir()
    is_one_line(onnxfuse("optimize", "d", "out.onnx"), 2, "d is a folder")


@pytest.mark.parametrize("share", [0.05, 0.5, 0.98])
def test_a_truncated_file(onnxfuse: Onnxfuse, model: Path, here: Path, share: float):
    whole = model.read_bytes()
    Path("t.onnx").write_bytes(whole[: int(len(whole) * share)])
    is_one_line(onnxfuse("optimize", "t.onnx", "out.onnx"), 3, "load: t.onnx")
    assert files(here) == {"m.onnx", "t.onnx"}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "is empty"),
        (b"hello, this is no model\n", "cannot be read as ONNX"),
        (b"PK\x03\x04" + bytes(100), "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"<html></html>", "an HTML or XML page"),
        (os.urandom(5000), "load: x.onnx"),
    ],
)
def test_no_model_at_all(onnxfuse: Onnxfuse, here: Path, content: bytes, word: str):
    Path("x.onnx").write_bytes(content)
    is_one_line(onnxfuse("optimize", "x.onnx", "out.onnx"), 3, word)
    assert files(here) == {"x.onnx"}


def test_a_cycle(onnxfuse: Onnxfuse, here: Path):
    proto = chain()
    proto.graph.node[0].input[0] = "y"
    onnx.save(proto, "c.onnx")
    is_one_line(onnxfuse("optimize", "c.onnx", "out.onnx"), 3, "cycle")
    assert files(here) == {"c.onnx"}


def test_an_undefined_value(onnxfuse: Onnxfuse, here: Path):
    proto = chain()
    proto.graph.node[0].input[0] = "z"
    onnx.save(proto, "c.onnx")
    is_one_line(onnxfuse("optimize", "c.onnx", "out.onnx"), 3, "z")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("optimize", "m.onnx", "--strateg", "none"), ("optimize: ", "--strateg", "--strategy")),
        (("optimize", "m.onnx", "--strategy", "bets"), ("there is no 'bets'; did you mean best?",)),
        (("optimize", "m.onnx", "--strategy", "xyz"), ("it is one of anchors, astitch",)),
        (("optimize", "m.onnx", "--min-group", "two"), ("--min-group",)),
        (("optimize", "m.onnx", "--jobs", "-1"), ("--jobs",)),
        (("optimize", "m.onnx", "--time-budget", "soon"), ("'soon' is not a duration",)),
        (("optimize", "m.onnx", "--memory-budget", "much"), ("much is not a size",)),
        (("optimize", "m.onnx", "--memory-budget", "1e999"), ("1e999 is not a size",)),
        (("optimize", "m.onnx", "--time-budget", "1e999"), ("'1e999' is not a duration",)),
        (("profile", "m.onnx", "--threads", "100000"), ("--threads", "100000")),
        (("verify", "m.onnx", "m.onnx", "--dim", "n=100000000000000000000"), ("is not NAME=N",)),
        (("optimize", "m.onnx", "--skip-node", "("), ("( is not a regular expression",)),
        (("optimize", "m.onnx", "--dim", "batch"), ("--dim batch is not NAME=N",)),
        (("optimize", "m.onnx", "--dim", "batch=2"), ("no dimension is named batch",)),
        (("optimize", "m.onnx", "--disable", "fodl"), ("there is no rule fodl", "fold")),
        (("optimize", "m.onnx", "a.onnx", "b.onnx"), ("b.onnx",)),
        (("optimize", "m.onnx", "-o", "-"), ("-o - needs --lib",)),
        (("optimize", "m.onnx", "-o", "-", "--lib", "l.so", "--json"), ("--json and -o - both write",)),
        (("optimize", "m.onnx", "o.onnx", "--lib", "o.onnx"), ("the library and the model are both o.onnx",)),
        (("optimize", "m.onnx", "o.onnx", "--lib", "./m.onnx", "--overwrite"), ("the library and the model to read",)),
        (("optimize", "m.onnx", "-o", "-", "--lib", "m.onnx", "--overwrite"), ("the library and the model to read",)),
        (("optimize", "m.onnx", "--json-file", "m.fused.onnx"), ("m.fused.onnx is also another file of this command",)),
        (
            ("inspect", "m.onnx", "--json-file", "m.onnx", "--overwrite"),
            ("m.onnx is also another file of this command",),
        ),
        (("inspect", "m.onnx", "--json-file", "-"), ("--json-file needs a file", "--json")),
        (("optimize", "m.onnx", ""), ("OUT has no name",)),
        (("optimize", "m.onnx", "."), ("OUT has no name",)),
        (("optimize", ""), ("MODEL has no name",)),
        (("optimize", "m.onnx", "\udcff.onnx"), ("the name of the model is not UTF-8",)),
        (("optimize",), ("Missing argument", "onnxfuse optimize --help")),
        (("optimise", "m.onnx"), ("there is no verb optimise", "did you mean optimize?")),
        (("--bogus",), ("--bogus",)),
        (("profile", "a", "b", "c"), ("3 models are too many",)),
        (("profile", "m.onnx", "--fail-if-slower", "3%"), ("nothing to compare with",)),
        (("profile", "m.onnx", "--fail-if-slower", "3"), ("'3' without % is 300%", "write 3% or 0.03")),
        (("profile", "missing.onnx"), ("there is no file missing.onnx",)),
        (("verify", "m.onnx", "missing.onnx"), ("there is no file missing.onnx",)),
        (("explain", "m.onnx", "--node", "("), ("( is not a regular expression",)),
        (("cache", "clean"), ("there is no 'clean'",)),
        (("diff", "-", "-"), ("standard input is one model only",)),
    ],
)
def test_a_wrong_command_line(
    onnxfuse: Onnxfuse,
    model: Path,
    here: Path,
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delattr(profiling, "profile_models")  # a hundred thousand threads would not end
    is_one_line(onnxfuse(*arguments), 2, *words)
    assert files(here) == {"m.onnx"}


@pytest.mark.parametrize("arguments", [("profile",), ("bisect",), ("bisect", "--metric", "latency")])
def test_two_models_with_different_inputs(onnxfuse: Onnxfuse, model: Path, here: Path, arguments: tuple[str, ...]):
    other = onnx.load("m.onnx")
    for node in other.graph.node:
        node.input[:] = ["z" if name == "x" else name for name in node.input]
    other.graph.input[0].name = "z"
    onnx.save(other, "z.onnx")
    said = onnxfuse(*arguments[:1], "m.onnx", "z.onnx", *arguments[1:])
    is_one_line(said, 2, "m.onnx and z.onnx have different inputs: x (float32) and z (float32)")
    assert files(here) == {"m.onnx", "z.onnx"}


def test_no_arguments_show_the_help(onnxfuse: Onnxfuse):
    said = onnxfuse()
    assert said.code == 2 and "optimize" in said.err and said.out == ""


@pytest.mark.parametrize("name", ["o.onnx", "libo.so", "o.fuse.json"])
def test_an_output_that_exists(onnxfuse: Onnxfuse, model: Path, here: Path, name: str):
    Path(name).write_text("old")
    is_one_line(onnxfuse("optimize", model, "o.onnx"), 2, f"write: {name} exists", "--overwrite")
    assert Path(name).read_text() == "old" and files(here) == {"m.onnx", name}


def test_overwrite_replaces(onnxfuse: Onnxfuse, model: Path, here: Path):
    for name in ("o.onnx", "libo.so", "o.fuse.json"):
        Path(name).write_text("old")
    assert onnxfuse("optimize", model, "o.onnx", "--overwrite", "--no-verify").code == 0
    assert all(Path(name).read_bytes() != b"old" for name in ("o.onnx", "libo.so", "o.fuse.json"))
    assert files(here) == {"m.onnx", "o.onnx", "libo.so", "o.fuse.json"}


def test_outputs_that_cannot_be_written(onnxfuse: Onnxfuse, model: Path, here: Path):
    is_one_line(onnxfuse("optimize", model, "no/o.onnx"), 7, "the folder", "does not exist")
    is_one_line(onnxfuse("optimize", model, "o.onnx", "--lib", "no/l.so"), 7, "does not exist")
    is_one_line(onnxfuse("optimize", model, "m.onnx/o.onnx"), 7, "write: ")
    is_one_line(onnxfuse("optimize", model, "/dev/null"), 2, "/dev/null is not an ordinary file")
    assert files(here) == {"m.onnx"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(onnxfuse: Onnxfuse, model: Path):
    Path("d").mkdir(mode=0o500)
    is_one_line(onnxfuse("optimize", model, "d/o.onnx"), 7, "cannot be written")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_standard_output_on_a_full_disk(model: Path, here: Path, kernels: Path):
    command = (sys.executable, "-m", "onnxfuse_cli", "optimize", "m.onnx", "-o", "-", "--lib", "l.so", "--no-verify")
    env = {"ONNXFUSE_CACHE_DIR": str(kernels)}
    done = process.run(("sh", "-c", '"$@" > /dev/full', "sh", *command), env=env)
    is_one_line(Said(done.code, done.out, done.err), 7, "standard output cannot be written")
    assert files(here) == {"m.onnx"}


def test_no_compiler(onnxfuse: Onnxfuse, model: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    Path("o.onnx").write_text("old")
    Path("bin").mkdir()
    monkeypatch.setenv("PATH", str(here / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    said = onnxfuse("optimize", model, "o.onnx", "--toolchain", "gcc", "--overwrite")
    is_one_line(said, 4, "no usable gcc C++ compiler", "g++ not found", "onnxfuse[zig]")
    assert Path("o.onnx").read_text() == "old" and files(here) == {"m.onnx", "o.onnx", "bin"}


def compiler(here: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that tells a version and then does `what` instead of compiling."""
    script = here / "bin" / "fake-g++"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\ncase "$*" in *--version*) echo "fake-g++ 13.1.0";; *) {what};; esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


def test_a_compiler_that_fails(onnxfuse: Onnxfuse, model: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    compiler(here, "echo 'x.cpp:1: error: no such thing' >&2; exit 1", monkeypatch)
    is_one_line(onnxfuse("optimize", model), 4, "does not compile", "no such thing")
    assert files(here) == {"m.onnx", "bin"}


def test_a_compiler_that_writes_nothing(onnxfuse: Onnxfuse, model: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    compiler(here, "echo 'x.cpp:1: warning: unused' >&2; exit 0", monkeypatch)
    said = onnxfuse("optimize", model)
    is_one_line(said, 4, "does not compile", "the compiler reports success and has written no ", ".o")
    assert files(here) == {"m.onnx", "bin"}


def test_a_compiler_that_does_not_answer(onnxfuse: Onnxfuse, model: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    compiler(here, "true", monkeypatch)
    (here / "bin" / "fake-g++").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr("onnxfuse.build.toolchain._TIMEOUT", 0.5)
    start = time.monotonic()
    is_one_line(onnxfuse("optimize", model), 4, "does not report its version within")
    assert time.monotonic() - start < 20 and files(here) == {"m.onnx", "bin"}


def test_a_result_that_cannot_be_written_leaves_everything(onnxfuse: Onnxfuse, model: Path, here: Path):
    """/proc takes no files, not even root's: the result is refused when outputs are, and they stay as they were."""
    old = {"o.onnx", "libo.so", "o.fuse.json"}
    for name in old:
        Path(name).write_text("old")
    for flag, end in {"--json-file": "json", "--report": "html"}.items():
        said = onnxfuse("optimize", model, "o.onnx", "--overwrite", "--no-verify", flag, f"/proc/self/r.{end}")
        is_one_line(said, 7, "write: ", "cannot be written")
        assert all(Path(name).read_text() == "old" for name in old) and files(here) == {"m.onnx", *old}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "1" * 10_000])
def test_a_result_nested_too_deeply(onnxfuse: Onnxfuse, model: Path, text: str):
    Path("r.json").write_text(text)
    is_one_line(onnxfuse("report", "r.json"), 2, "r.json")
    is_one_line(onnxfuse("profile", "m.onnx", "--baseline", "r.json"), 2, "r.json")
    is_one_line(onnxfuse("optimize", "m.onnx", "--lock", "r.json"), 2, "r.json")


def test_a_killed_run_is_swept_by_the_next(
    onnxfuse: Onnxfuse, model: Path, here: Path, monkeypatch: pytest.MonkeyPatch
):
    """kill -9 leaves no compiler, and a work folder only until the next run, which leaves those of living runs."""
    compiler(here, "echo $$ > started; mv started pid; sleep 60", monkeypatch)
    monkeypatch.setenv("TMPDIR", str(here / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(here / "tmp"))
    (here / "tmp").mkdir()
    child = subprocess.Popen([sys.executable, "-m", "onnxfuse_cli", "optimize", "m.onnx"], stderr=subprocess.DEVNULL)
    with child:
        for _ in range(400):
            found = list(here.glob("tmp/.onnxfuse-*/pid"))
            if found:
                break
            time.sleep(0.05)
        compiler_pid = int(found[0].read_text())
        living = onnxfuse("optimize", "m.onnx", "--dry-run")
        assert living.code == 0 and len(list(here.glob(".onnxfuse-*"))) == 1
        child.send_signal(signal.SIGKILL)
        child.wait(30)
    for _ in range(200):
        if not Path(f"/proc/{compiler_pid}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{compiler_pid}").exists(), "the compiler goes with the program"
    assert list(here.glob(".onnxfuse-*")) and list(here.glob("tmp/.onnxfuse-*"))
    monkeypatch.delenv("CXX")
    assert onnxfuse("optimize", model, "--no-verify").code == 0
    assert not list(here.glob(".onnxfuse-*")) and not list(here.glob("tmp/.onnxfuse-*"))


def test_a_compiler_that_takes_too_long(onnxfuse: Onnxfuse, model: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    compiler(here, "sleep 60", monkeypatch)
    start = time.monotonic()
    is_one_line(onnxfuse("optimize", model, "--time-budget", "2s"), 6, "raise --time-budget")
    assert time.monotonic() - start < 30 and files(here) == {"m.onnx", "bin"}


def test_too_little_memory(onnxfuse: Onnxfuse, model: Path, here: Path):
    is_one_line(onnxfuse("optimize", model, "--memory-budget", "1MB"), 6, "more than the 1 MB allowed")
    assert files(here) == {"m.onnx"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption(model: Path, here: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals):
    compiler(here, "sleep 60", monkeypatch)
    command = [sys.executable, "-m", "onnxfuse_cli", "optimize", "m.onnx"]
    handler = signal.signal(number, signal.SIG_DFL)  # one that is ignored, as in the background, stays so in a child
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    signal.signal(number, handler)
    with child:
        assert child.stderr is not None
        before = [child.stderr.readline() for _ in range(3)]
        time.sleep(0.3)
        child.send_signal(number)
        said = child.stderr.read()
        code = child.wait(30)
    assert before[-1].startswith("plan") and (code, said) == (130, "onnxfuse: interrupted\n")
    assert files(here) == {"m.onnx", "bin"}


def test_wrong_inputs_for_verification(onnxfuse: Onnxfuse, model: Path, here: Path):
    Path("i.npz").write_bytes(b"no archive")
    is_one_line(onnxfuse("optimize", model, "-i", "i.npz"), 2, "i.npz cannot be read")
    assert files(here) == {"m.onnx", "i.npz"}


def test_debug_shows_the_traceback(onnxfuse: Onnxfuse, here: Path):
    said = onnxfuse("optimize", "n.onnx", "--debug")
    assert said.code == 2 and "Traceback" in said.err and said.last.startswith("onnxfuse: load: ")


def test_a_bug_of_ours(onnxfuse: Onnxfuse, model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onnxfuse.pipeline.run.deliver", lambda *_: next(iter(())))
    said = onnxfuse("optimize", model, "--no-verify")
    assert said.code == 70 and "internal error: StopIteration" in said.last and "--debug" in said.last
    assert "Traceback" not in said.err


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "much"])
@pytest.mark.parametrize("flag", ["--rtol", "--atol"])
def test_a_tolerance_below_nothing(onnxfuse: Onnxfuse, model: Path, here: Path, flag: str, value: str):
    is_one_line(onnxfuse("optimize", model, "out.onnx", flag, value), 2, "is not a tolerance")
    is_one_line(onnxfuse("verify", model, model, flag, value), 2, "is not a tolerance")
    assert files(here) == {"m.onnx"}


@pytest.mark.parametrize(
    ("shape", "flags", "wanted"),
    [((5, 32), (), "batchx64"), ((5, 64, 1), (), "batchx64"), ((5, 64), ("--dim", "batch=3"), "3x64")],
)
def test_inputs_that_do_not_fit(
    onnxfuse: Onnxfuse, here: Path, shape: tuple[int, ...], flags: tuple[str, ...], wanted: str
):
    """They could not be run, and every kernel would be given up for it."""
    body = "g (float[batch, 64] x) => (float[batch, 64] y) { y = Tanh (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {body}'), "x.onnx")
    np.savez("i.npz", x=np.ones(shape, np.float32))
    found = "x".join(map(str, shape))
    said = onnxfuse("optimize", "x.onnx", "o.onnx", "--inputs", "i.npz", *flags)
    is_one_line(said, 2, f"inputs: x is {found} in i.npz, and {wanted} in the model")
    assert files(here) == {"x.onnx", "i.npz"}


def test_inputs_are_looked_at_before_anything_is_compiled(onnxfuse: Onnxfuse, model: Path, here: Path):
    for name, content in (("bad.npz", b"PK\x03\x04 no archive"), ("text.npz", b"text")):
        Path(name).write_bytes(content)
        said = onnxfuse("optimize", model, "out.onnx", "--inputs", name)
        is_one_line(said, 2, f"inputs: {name} cannot be read")
        assert "compile" not in said.err
    is_one_line(
        onnxfuse("optimize", model, "out.onnx", "--inputs", "none.npz"), 2, "inputs is none.npz, which does not exist"
    )
    assert not Path("out.onnx").exists()


def test_a_second_file_that_is_no_model(onnxfuse: Onnxfuse, model: Path, here: Path):
    Path("text.onnx").write_text("text", encoding="utf-8")
    for pair in ((model, "text.onnx"), ("text.onnx", model)):
        is_one_line(onnxfuse("verify", *pair), 3, "text.onnx is not an ONNX model")
        is_one_line(onnxfuse("profile", *pair, "--duration", "0.1"), 3, "text.onnx is not an ONNX model")
        is_one_line(onnxfuse("bisect", *pair), 3, "text.onnx is not an ONNX model")


def test_pipes_and_devices_are_refused_as_models(onnxfuse: Onnxfuse, model: Path, here: Path):
    os.mkfifo("fifo")
    for name in ("fifo", "/dev/zero"):
        for verb in ("optimize", "inspect", "explain", "profile"):
            is_one_line(onnxfuse(verb, name), 2, f"{name} is not a regular file")
        for verb in ("verify", "diff", "bisect"):
            is_one_line(onnxfuse(verb, model, name), 2, f"{name} is not a regular file")
