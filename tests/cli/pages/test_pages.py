"""Results as pages and traces, the differences of two graphs, and the cache as an archive."""

from __future__ import annotations

import io
import json
import re
import tarfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.conftest import Onnxfuse, chain, files

NODES = ["Mul_0", "Add_1", "Relu_2", "Sigmoid_3"]


@pytest.fixture
def fused(onnxfuse: Onnxfuse, model: Path) -> Path:
    """The model of this folder, fused, with its result as a document."""
    assert onnxfuse("optimize", model, "f.onnx", "-q", "--json-file", "f.json").code == 0
    return Path("f.onnx")


class Cells(HTMLParser):
    """The texts of a page's cells; asserts that every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input"):
            self.open.append(tag)
        assert not [name for name, _ in attrs if name in ("src", "href")], "the page needs another file"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def cells(html: str) -> list[str]:
    found = Cells()
    found.feed(html)
    found.close()
    assert not found.open
    return found.texts


def test_a_page_beside_each_result(onnxfuse: Onnxfuse, model: Path, fused: Path):
    runs = {
        "optimize": ("m.onnx", "o.onnx", "--no-verify"),
        "explain": ("m.onnx",),
        "verify": ("m.onnx", "f.onnx", "--groups"),
        "profile": ("m.onnx", "f.onnx", "--duration", "0.1", "--level", "op"),
        "inspect": ("m.onnx",),
        "doctor": (),
    }
    for verb, arguments in runs.items():
        assert onnxfuse(verb, *arguments, "--report", f"{verb}.html", "--report", f"{verb}.html").code == 0
        shown = cells(Path(f"{verb}.html").read_text(encoding="utf-8"))
        assert any(text.startswith(verb) for text in shown)
        if verb not in ("inspect", "doctor"):
            assert {"m.onnx", "Mul_0"} & set(" ".join(shown).replace(",", " ").split()), verb


def test_a_page_of_a_document(onnxfuse: Onnxfuse, fused: Path):
    said = onnxfuse("report", "f.json")
    assert said.code == 0 and said.out.startswith("# optimize m.onnx\n") and "| verified | ok: " in said.out
    assert all(line.count("|") == said.out.splitlines()[2].count("|") for line in said.out.splitlines()[2:8])
    assert onnxfuse("report", "f.json", "f.html").code == 0
    assert "Sigmoid_3" in " ".join(cells(Path("f.html").read_text(encoding="utf-8")))
    assert onnxfuse("report", "f.json", "f.md", "--format", "html").code == 0
    assert Path("f.md").read_bytes() == Path("f.html").read_bytes()


@pytest.mark.parametrize(("priced", "said"), [(2, "the kernels"), (1, "1 of 2 kernels")])
def test_the_predicted_speedup_is_that_of_kernels_with_both_times(
    priced: int, said: str, onnxfuse: Onnxfuse, fused: Path
):
    whole = json.loads(Path("f.json").read_text())
    (group, *_), whole["gain"] = whole["groups"], None
    whole["groups"] = [group | {"predicted_ms": 1.0, "runtime_ms": 3.0 if at < priced else None} for at in range(2)]
    Path("f.json").write_text(json.dumps(whole))
    page = onnxfuse("report", "f.json", "--format", "html").out
    assert f"times as fast, predicted for {said}" in page and "3.00x" in page


def test_names_cannot_break_a_page(onnxfuse: Onnxfuse, fused: Path):
    whole = json.loads(Path("f.json").read_text())
    whole["groups"][0]["nodes"] = ["<script>alert(1)</script>", "a|b", "*c*"]
    Path("f.json").write_text(json.dumps(whole))
    shown = cells(onnxfuse("report", "f.json", "--format", "html").out)
    assert "<script>alert(1)</script>, a|b, *c*" in shown
    assert r"\<script>alert(1)\</script>, a\|b, \*c\*" in onnxfuse("report", "f.json").out.replace("/", "/")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        "nonsense",
        '{"schema_version": 1, "command": "optimize"}',
        '{"schema_version": 2, "command": "optimize"}',
    ],
)
def test_files_that_are_no_results_are_refused(onnxfuse: Onnxfuse, here: Path, content: str):
    Path("r.json").write_text(content)
    said = onnxfuse("report", "r.json", "r.html")
    assert said.code == 2 and "Traceback" not in said.err and files(here) == {"r.json"}
    assert onnxfuse("report", "missing.json").code == 2


def test_files_that_clash_are_refused_before_the_work(onnxfuse: Onnxfuse, model: Path, here: Path):
    for arguments in (
        ("optimize", "m.onnx", "--json-file", "m.fused.onnx"),
        ("optimize", "m.onnx", "--manifest", "r.html", "--report", "r.html"),
        ("optimize", "m.onnx", "--report", "r.html", "--json-file", "r.html"),
        ("profile", "m.onnx", "--trace", "m.onnx", "--overwrite"),
        ("profile", "m.onnx", "--trace", "t.json", "--json-file", "t.json"),
        ("report", "m.onnx", "m.onnx", "--overwrite", "--format", "html"),
        ("diff", "m.onnx", "m.onnx", "--json-file", "m.onnx", "--overwrite"),
    ):
        said = onnxfuse(*arguments)
        assert said.code == 2 and "is also another file of this command" in said.last, said.err
    assert files(here) == {"m.onnx"}


@pytest.mark.parametrize("name", ["page.txt", "page", "page.html.bak"])
def test_a_page_has_the_format_of_its_name(onnxfuse: Onnxfuse, model: Path, here: Path, name: str):
    assert onnxfuse("inspect", "m.onnx", "--json-file", "r.json").code == 0
    for arguments in (("inspect", "m.onnx", "--report", name), ("report", "r.json", name)):
        said = onnxfuse(*arguments)
        assert said.code == 2 and f"{name} is neither HTML nor Markdown (name a .html or .md file" in said.last, (
            said.err
        )
    assert files(here) == {"m.onnx", "r.json"}
    assert onnxfuse("report", "r.json", name, "--format", "html").code == 0
    assert Path(name).read_text().startswith("<!doctype html>")


def test_the_files_that_were_written_are_named(onnxfuse: Onnxfuse, model: Path, here: Path):
    said = onnxfuse("profile", "m.onnx", "--duration", "0.05", "--trace", "t.json", "--json-file", "r.json")
    assert {"wrote     t.json", "wrote     r.json"} <= set(said.err.splitlines())
    assert onnxfuse("report", "r.json", "r.md").err == "wrote     r.md\n"
    assert onnxfuse("report", "r.json", "q.md", "-q").err == ""
    built = ("optimize", "m.onnx", "--no-verify", "--json-file", "o.json", "--report", "o.html")
    assert "wrote     o.json  o.html" in onnxfuse(*built).err.splitlines()


def test_kernels_and_a_trace(onnxfuse: Onnxfuse, model: Path, fused: Path):
    said = onnxfuse("profile", "m.onnx", "f.onnx", "--duration", "0.1", "--level", "kernel", "--trace", "t.json")
    assert said.code == 0
    kernel = onnx.load(fused).graph.node[0].op_type
    assert re.search(rf"100\.0 % +1 +[0-9.]+ +[0-9.]+ +\d+ % +{kernel} +Mul_0, Add_1, Relu_2 and 1 more", said.out)
    assert re.search(r"100\.0 % +4 +- +- +- +ONNX Runtime's own", said.out)
    trace: dict[str, Any] = json.loads(Path("t.json").read_text())
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in slices if e["pid"] == 1] == NODES
    (one,) = (e for e in slices if e["pid"] == 2)
    assert one["cat"] == kernel and one["args"]["stands for"] == NODES
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in slices)
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {1: "m.onnx", 2: "f.onnx"}


def test_without_its_library_no_kernel_ran(onnxfuse: Onnxfuse, fused: Path):
    said = onnxfuse("profile", fused, "--duration", "0.1", "--level", "kernel", "--without-library", "--json")
    assert said.json["models"][0]["kernels"] == [] and not any(o["kernel"] for o in said.json["models"][0]["ops"])


def test_equal_graphs(onnxfuse: Onnxfuse, model: Path):
    onnx.save(chain(), "again.onnx")
    said = onnxfuse("diff", model, "again.onnx")
    assert (said.code, said.out, said.err) == (0, "the graphs are equal\n", "")


def test_every_sort_of_difference(onnxfuse: Onnxfuse, model: Path):
    other = chain()
    other.opset_import[0].version = 18
    other.graph.node[0].op_type = "Sub"
    other.graph.node[2].op_type = "LeakyRelu"
    other.graph.node[2].attribute.add(name="alpha", f=0.5, type=onnx.AttributeProto.FLOAT)
    other.graph.node[3].name = "Last"
    other.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(32, np.float32), "scale"))
    onnx.save(other, "other.onnx")
    said = onnxfuse("diff", model, "other.onnx", "--json")
    assert said.code == 1 and "1 opset, 1 input, 1 output, 5 nodes, 1 weight" in said.last
    found = {(d["what"], d["name"]): (d["before"], d["after"]) for d in said.json["differences"]}
    assert said.json["equal"] is False
    assert found["opset", "ai.onnx"] == ("17", "18")
    assert found["input", "x"] == ("float32[4, 32]", "float32[5, 32]")
    assert found["weight", "scale"] == ("float32[32]", "other values")
    assert found["node", "Mul_0: operator"] == ("Mul", "Sub")
    assert found["node", "Relu_2: attributes"] == ("none", "alpha=0.5")
    assert found["node", "Sigmoid_3"] == ("Sigmoid", None) and found["node", "Last"] == (None, "Sigmoid")


def test_what_was_fused_is_named(onnxfuse: Onnxfuse, model: Path, fused: Path):
    said = onnxfuse("diff", model, fused, "--json")
    kernel = onnx.load(fused).graph.node[0].name
    gone = {d["name"]: d["fused"] for d in said.json["differences"] if d["what"] == "node" and d["after"] is None}
    assert said.code == 1 and gone == dict.fromkeys(NODES, kernel)
    assert f"(in {kernel})" in onnxfuse("diff", model, fused).out


def test_a_cache_on_another_machine(onnxfuse: Onnxfuse, model: Path, here: Path):
    assert onnxfuse("optimize", model, "--cache-dir", "one", "--no-verify").code == 0
    said = onnxfuse("cache", "export", "kernels.tar", "--cache-dir", "one", "--json")
    assert said.code == 0 and said.json["entries"] >= 3
    before = Path("kernels.tar").read_bytes()
    assert onnxfuse("cache", "export", "kernels.tar", "--cache-dir", "one").code == 2
    assert onnxfuse("cache", "export", "kernels.tar", "--cache-dir", "one", "--overwrite").code == 0
    assert Path("kernels.tar").read_bytes() == before
    taken = onnxfuse("cache", "import", "kernels.tar", "--cache-dir", "two", "--json").json
    assert taken["added"] == said.json["entries"] and taken["bytes"] == said.json["bytes"]
    assert onnxfuse("cache", "import", "kernels.tar", "--cache-dir", "two", "--json").json["added"] == 0
    again = onnxfuse("optimize", model, "again.onnx", "--cache-dir", "two", "--no-verify")
    assert "1 from cache" in again.err


def test_unsafe_members_of_an_archive_are_not_imported(onnxfuse: Onnxfuse, here: Path):
    with tarfile.open("evil.tar", "w") as archive:
        for name in ("../outside", f"ab/{'ab' * 32}.{'cd' * 32}", f"../ab/{'ab' * 32}.{'cd' * 32}", "/tmp/absolute"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"evil"))
    taken = onnxfuse("cache", "import", "evil.tar", "--cache-dir", "c", "--json")
    assert taken.code == 0 and taken.json["added"] == 0
    assert files(here) <= {"evil.tar", "c"} and not Path("../outside").exists()


def test_wrong_uses_of_the_cache(onnxfuse: Onnxfuse, here: Path):
    Path("no.tar").write_text("no archive")
    for arguments, words in (
        (("export",), "needs the name of an archive"),
        (("info", "x.tar"), "takes no file"),
        (("import", "missing.tar"), "cannot be read"),
        (("import", "no.tar"), "is not a cache archive"),
    ):
        said = onnxfuse("cache", *arguments, "--cache-dir", "c")
        assert said.code == 2 and words in said.last
