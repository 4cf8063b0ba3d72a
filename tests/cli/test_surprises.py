"""What would surprise a user is said or refused: sizes that were chosen, shares above 100 %, unknown names."""

from __future__ import annotations

import errno
import importlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnxfuse_cli.progress import step_line
from onnxfuse_cli.show import Screen
from onnxfuse_cli.verifying import _group_rows

from onnxfuse.measure.operations import rates
from onnxfuse.report import remarks
from onnxfuse.runtime import process
from onnxfuse.runtime.process import Finished
from onnxfuse.verify import GroupVerdict
from tests.cli.conftest import Onnxfuse, chain

QUICK = ("--duration", "0.05")


def symbolic() -> onnx.ModelProto:
    """The chain with an open batch."""
    proto = chain()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return proto


def test_sizes_that_were_chosen_are_said(onnxfuse: Onnxfuse, here: Path) -> None:
    onnx.save(symbolic(), "m.onnx")
    said = onnxfuse("profile", "m.onnx", *QUICK)
    assert "sizes     batch=" in said.out and "--dim batch=N sets another" in said.out
    assert "sizes" not in onnxfuse("profile", "m.onnx", *QUICK, "--dim", "batch=4").out


def test_the_statistic_is_in_the_help_and_not_in_each_run(onnxfuse: Onnxfuse, here: Path) -> None:
    onnx.save(chain(), "m.onnx")
    assert "Hodges-Lehmann" not in onnxfuse("profile", "m.onnx", "m.onnx", *QUICK).out
    assert "Hodges-Lehmann" in onnxfuse("profile", "--help").out


# Baselines ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def baseline(onnxfuse: Onnxfuse, here: Path) -> dict[str, Any]:
    """A result about two models, and two more models: a copy of the first one, and another one."""
    onnx.save(chain(), "a.onnx")
    other = chain()
    other.doc_string = "another"
    onnx.save(other, "b.onnx")
    other.doc_string = "unknown"
    onnx.save(other, "c.onnx")
    Path("copy.onnx").write_bytes(Path("a.onnx").read_bytes())
    assert onnxfuse("profile", "a.onnx", "b.onnx", *QUICK, "--json-file", "then.json").code == 0
    found: dict[str, Any] = json.loads(Path("then.json").read_text())
    for model, ms in zip(found["models"], (1e-6, 1e6), strict=True):
        model["level_ms"] = {"value": ms, "low": ms, "high": ms}
    Path("then.json").write_text(json.dumps(found))
    return found


@pytest.mark.parametrize(("model", "named"), [("a.onnx", "a.onnx"), ("b.onnx", "b.onnx"), ("copy.onnx", "a.onnx")])
def test_a_baseline_of_several_models_is_that_of_the_same_one(
    onnxfuse: Onnxfuse, baseline: dict[str, Any], model: str, named: str
) -> None:
    said = onnxfuse("profile", model, *QUICK, "--baseline", "then.json", "--json-file", "now.json")
    assert f"of the time of {named} in then.json" in said.out
    ratio = json.loads(Path("now.json").read_text())["baseline_ratio"]
    assert ratio > 100 if named == "a.onnx" else ratio < 0.01


def test_a_baseline_without_the_model_is_refused_if_it_has_several(
    onnxfuse: Onnxfuse, baseline: dict[str, Any]
) -> None:
    said = onnxfuse("profile", "c.onnx", *QUICK, "--baseline", "then.json")
    assert said.code == 2 and "c.onnx is none of the models of then.json: a.onnx, b.onnx" in said.last
    baseline["models"] = baseline["models"][:1]
    Path("then.json").write_text(json.dumps(baseline))
    assert "of the time of a.onnx in then.json" in onnxfuse("profile", "c.onnx", *QUICK, "--baseline", "then.json").out


# Rates and times that cannot be ---------------------------------------------------------------------------------------


def test_a_share_above_the_peak_has_a_mark_and_a_sentence() -> None:
    peaks = {"gflops": 1.0, "memory_gbps": 1.0}
    fast, near, cached = (rates(flops, size, 1.0, peaks) for flops, size in ((2e6, 10), (9e5, 10), (10, 3e6)))
    assert [remarks.share(each) for each in (fast, near, cached)] == ["200 %!", "90 %", "300 %^"]
    assert list(remarks.above([near])) == []
    compute, memory = remarks.above([near, cached, fast])
    assert compute.startswith("! more than the measured peak: other work") and memory.startswith("^ more than memory")


def test_a_slow_peak_is_said(onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had been measured while the machine did other work."""
    from onnxfuse_cli import profiling  # noqa: PLC0415  what the verb calls

    slow = {"gflops": 1e-6, "memory_gbps": 1e-6, "measured": True, "threads": 1}
    monkeypatch.setattr(profiling, "_peaks", lambda *_: slow)
    onnx.save(chain(), "m.onnx")
    said = onnxfuse("profile", "m.onnx", *QUICK, "--level", "op", "--json-file", "r.json", "--report", "r.html")
    marked = [line for line in said.out.splitlines() if " %!" in line or " %^" in line]
    assert marked and ("! more than" in said.out or "^ more than" in said.out)
    page = Path("r.html").read_text()
    assert "! more than" in page or "^ more than" in page


def test_nodes_that_take_longer_than_the_model_are_explained() -> None:
    model = {"path": "m.onnx", "latency_ms": {"median": 1.0}, "ops": [{"time_ms": 0.6}, {"time_ms": 0.6}]}
    (said,) = remarks.longer(model)
    assert said.startswith("the nodes of m.onnx take 1.2 ms, and a run 1 ms: ONNX Runtime's profiler adds time")
    assert list(remarks.longer({**model, "latency_ms": {"median": 1.2}})) == []


# Names and values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--disable", "nosuchrule"), ("there is no rule nosuchrule", "--list-passes")),
        (("--enable", "foldd"), ("there is no rule foldd", "near: fold")),
        (("--custom-ops-library", "no.so"), ("no.so, which does not exist",)),
        (("--lock", "no.lock"), ("no.lock, which does not exist",)),
    ],
)
def test_unknown_names_are_refused_before_the_model_is_read(
    onnxfuse: Onnxfuse, here: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Also where nothing is left to rewrite: the model has kernels already, or is none."""
    Path("m.onnx").write_text("no model at all")
    for verb in ("optimize", "explain"):
        if verb == "optimize" or arguments[0] != "--custom-ops-library":
            said = onnxfuse(verb, "m.onnx", *arguments)
            assert said.code == 2 and all(word in said.last for word in words), said.err


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("THREADS", "abc", "--threads"), ("DURATION", "-1", "--duration"), ("LEVEL", "ops", "did you mean op?"),
        ("MAX_SIZE", "lots", "lots is not a size"), ("DIM", "batch", "--dim batch is not NAME=N"),
        ("SKIP_NODE", "(", "( is not a regular expression"), ("DISABLE", "foldd", "near: fold"),
        ("MEMORY_BUDGET", "much", "much is not a size"), ("DIM_HINT", "x", "--dim-hint x is not NAME=N"),
        ("BUDGET", "x", "--budget"), ("FAIL_IF_SLOWER", "3", "write 3%"), ("METRIC", "eror", "did you mean error?"),
    ],
)  # fmt: skip
def test_config_refuses_what_a_verb_would(
    onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, word: str
) -> None:
    monkeypatch.setenv(f"ONNXFUSE_{name}", value)
    said = onnxfuse("config")
    assert said.code == 2 and word in said.last, said.err


def test_config_shows_what_a_verb_would_take(onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXFUSE_FAIL_IF_SLOWER", "3%")
    assert onnxfuse("config", "--json").json["verbs"]["profile"]["fail-if-slower"] == {
        "value": 0.03, "from": "environment"
    }  # fmt: skip


# What else is printed -------------------------------------------------------------------------------------------------


def test_inspect_counts_the_operations_of_kernels(onnxfuse: Onnxfuse, here: Path) -> None:
    onnx.save(symbolic(), "m.onnx")
    assert onnxfuse("optimize", "m.onnx", "f.onnx", "--no-verify").code == 0
    before, after = (onnxfuse("inspect", name, "--json").json["model"] for name in ("m.onnx", "f.onnx"))
    assert before["flops"] == after["flops"] and before["flops"] > 0
    assert before["counted_at"] == after["counted_at"] == {"batch": 1}
    assert after["outputs"] == {"y": "float32[batch, 32]"}
    assert "flops counted at batch=1" in onnxfuse("inspect", "f.onnx").out


def test_verify_says_a_reason_once() -> None:
    apart = [GroupVerdict(name, "Op", None, None, None, "it is random") for name in "abcde"]
    made = GroupVerdict("f", "Op", True, 0.0, 1.0)
    assert list(_group_rows([*apart[:2], made, *apart[2:]])) == [
        ("f", "0.00e+00", "1.00e+00", "ok"), ("a, b, c and 2 more", "-", "-", "not compared: it is random")
    ]  # fmt: skip


def test_explain_lists_what_is_kept_apart_only_when_asked(onnxfuse: Onnxfuse, here: Path) -> None:
    """Two products in a row: each is in a kernel, and none is refused."""
    onnx.save(products(), "m.onnx")
    said = onnxfuse("explain", "m.onnx")
    assert said.code == 0
    assert "none needed" not in said.out and "kept apart, nothing left out   (--verbose lists them)" in said.out
    for more in (("--verbose",), ("--node", "second")):
        assert "none needed" in onnxfuse("explain", "m.onnx", *more).out
    assert any(r["unlock"].startswith("none needed") for r in onnxfuse("explain", "m.onnx", "--json").json["refusals"])


def test_a_node_is_shown_with_the_rules_that_match_there(onnxfuse: Onnxfuse, here: Path) -> None:
    onnx.save(products(), "m.onnx")
    rules = onnxfuse("explain", "m.onnx", "--node", "^gone$", "--json").json["rules"]
    assert {"node": "gone", "rule": "identity", "reason": ""} in rules
    assert not any("does not match" in r["reason"] or "changes values" in r["reason"] for r in rules)
    said = onnxfuse("explain", "m.onnx", "--node", "^first$").out
    assert "identity" not in said  # it fires elsewhere
    assert onnxfuse("explain", "m.onnx", "--node", "nobody").code == 2


def products() -> onnx.ModelProto:
    """Two products with activations, and a node without effect."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        two (float[64, 64] x, float[64, 64] w, float[64, 64] v) => (float[64, 64] y)
        { a = MatMul (x, w)  b = Relu (a)  c = Identity (b)  d = MatMul (c, v)  e = Relu (d)  y = Sigmoid (e) }"""
    )
    for node, name in zip(proto.graph.node, ("first", "relu", "gone", "second", "last", "end"), strict=True):
        node.name = name
    return proto


def test_a_model_from_standard_input_is_called_that(
    onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows the temporary file that it is kept in."""
    onnx.save(chain(), "m.onnx")
    onnx.save(chain(), "e.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    assert onnxfuse("optimize", "m.onnx", "f.onnx", "--no-verify").code == 0

    def piped(name: str, *arguments: str) -> str:
        from onnxfuse_cli import show  # noqa: PLC0415  which alone reads it

        monkeypatch.setattr(show, "given", Path(name).read_bytes)
        said = onnxfuse(*arguments)
        assert said.code != 0 and "/tmp" not in said.err and "stdin.onnx" not in said.err, said.err
        return said.last

    for line in (("profile", "-"), ("verify", "m.onnx", "-"), ("bisect", "m.onnx", "-")):
        assert "the model on standard input has kernels, in libf.so (--library" in piped("f.onnx", *line)
        assert "the model on standard input has external data, in w.data (name the model's" in piped("e.onnx", *line)
    for line in (("inspect", "-"), ("explain", "-"), ("optimize", "-", "o.onnx"), ("diff", "m.onnx", "-")):
        assert "w.data" in piped("e.onnx", *line)


def test_a_shape_that_is_read_costs_nothing(onnxfuse: Onnxfuse, here: Path) -> None:
    """So the sums of a model with Shape nodes are known."""
    onnx.save(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 17]> m (float[4, 8] x, float[4, 8] z) => (float[4, 8] y, int64[2] s)
            { a = Abs (x)  y = Add (a, z)  s = Shape (y) }"""
        ),
        "m.onnx",
    )
    found = onnxfuse("inspect", "m.onnx", "--json").json["model"]
    assert {o["operator"]: o["flops"] for o in found["operators"]} == {"Abs": 32, "Add": 32, "Shape": 0}
    said = onnxfuse("optimize", "m.onnx", "--no-verify").err.splitlines()
    assert "?" not in next(line for line in said if line.startswith("all nodes"))


def test_schedules_are_shown_only_when_asked(onnxfuse: Onnxfuse, here: Path) -> None:
    onnx.save(products(), "m.onnx")
    assert "schedule candidates" not in onnxfuse("explain", "m.onnx").out
    assert "schedule candidates" in onnxfuse("explain", "m.onnx", "--verbose").out


def test_a_full_disk_is_said_of_the_file_that_was_asked_for(
    onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs are made in a hidden folder on the same disk."""
    onnx.save(chain(), "m.onnx")

    def full(*_: Any) -> Iterator[bytes]:
        yield b"the beginning"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(importlib.import_module("onnxfuse.emit.write"), "expand", full)
    said = onnxfuse("optimize", "m.onnx", "o.onnx", "--no-verify")
    assert said.code == 7 and f"write: {here / 'o.onnx'} cannot be written: No space left on device" in said.last
    assert [path.name for path in here.iterdir()] == ["m.onnx"]


def test_a_full_disk_below_the_compiler_is_no_fault_of_a_kernel(
    onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compiler says of its own files, beside others that still fit."""
    onnx.save(chain(), "m.onnx")

    def run(command: Sequence[str], **given: Any) -> Finished:
        if any(word.startswith("registration") for word in command):
            return process.run(command, **given)
        return Finished(1, "", "fatal error: error writing to /tmp/cc1.s: No space left on device", 0.1, 0)

    monkeypatch.setattr(importlib.import_module("onnxfuse.build"), "process", SimpleNamespace(run=run))
    said = onnxfuse("optimize", "m.onnx", "o.onnx", "--no-verify", "--no-cache")
    assert said.code == 7 and f"build: {tempfile.gettempdir()} cannot be written: No space left" in said.last
    assert [path.name for path in here.iterdir()] == ["m.onnx"]


def test_times_that_do_not_give_the_ratio_are_explained() -> None:
    """A ratio is of neighbours in time; on a busy machine the least times of all may differ by another factor."""
    facts = {"before_ms": 0.912, "after_ms": 0.661, "speedup": 1.56, "low": 1.45, "high": 1.61, "spread": 0.04}
    said = step_line(Screen(), "gain", {**facts, "busy": True, "cached": False})
    assert "0.912 -> 0.661 ms (1.56x, 95 %: 1.45x to 1.61x, spread 4.0 %; these least times differ by 1.38x)" in said
    assert "least" not in step_line(Screen(), "gain", {**facts, "low": 1.3, "busy": True, "cached": False})
