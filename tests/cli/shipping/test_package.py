"""An archive of a build, unpacked elsewhere: all that it needs is in it, checksums hold, and its programs load it."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from pathlib import Path

import onnx
import pytest
from onnxfuse_cli.packaging import BILL

from onnxfuse.report.programs import programs
from onnxfuse.runtime import process
from tests.cli.conftest import Onnxfuse, chain


@pytest.fixture
def build(onnxfuse: Onnxfuse, model: Path, here: Path) -> Path:
    """A folder with a build and nothing else."""
    (here / "build").mkdir()
    assert onnxfuse("optimize", model, "build/m.onnx", "--no-verify", "--no-gain").code == 0
    return here / "build"


def names(archive: str) -> list[str]:
    """Of the members of an archive, without their folder."""
    with tarfile.open(archive) as found:
        return [name.partition("/")[2] for name in found.getnames()]


def unpacked(archive: str, folder: Path) -> Path:
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    return folder / "build"


def test_it_runs_where_it_is_unpacked(onnxfuse: Onnxfuse, build: Path, tmp_path: Path):
    said = onnxfuse("package", "build", "--json")
    assert said.code == 0, said.err
    made = unpacked("build.tar.gz", tmp_path / "elsewhere")
    expected = {"m.onnx", "libm.so", "m.fuse.json", "load", "licenses", "SHA256SUMS", BILL}
    assert expected == {p.name for p in made.iterdir()}
    assert process.run(["sha256sum", "-c", "SHA256SUMS"], cwd=made).code == 0
    assert hashlib.sha256(Path("build.tar.gz").read_bytes()).hexdigest() == said.json["sha256"]
    assert "Apache License" in (made / "licenses" / "onnxfuse" / "LICENSE").read_text()
    run = process.run([sys.executable, "load/m/load.py"], cwd=made)
    assert run.out.splitlines() == ["x tensor(float) [4, 32]", "y tensor(float) [4, 32]"], run.err
    (made / "libm.so").unlink()
    assert process.run([sys.executable, "load/m/load.py"], cwd=made).code != 0


def test_equal_builds_equal_bytes(onnxfuse: Onnxfuse, build: Path):
    assert onnxfuse("package", "build", "one.tar.gz").code == 0
    (build / "libm.so").touch()
    assert onnxfuse("package", build / "m.onnx", "two.tar.gz").code == 0
    assert names("one.tar.gz") == names("two.tar.gz")
    assert onnxfuse("package", "build", "three.tar.gz").code == 0
    assert Path("one.tar.gz").read_bytes() == Path("three.tar.gz").read_bytes()
    assert onnxfuse("package", "build", "one.tar.gz").code == 2


def test_the_bill_of_materials_is_of_the_files_beside_it(onnxfuse: Onnxfuse, build: Path, tmp_path: Path):
    assert onnxfuse("package", "build").code == 0
    made = unpacked("build.tar.gz", tmp_path / "elsewhere")
    bill = json.loads((made / BILL).read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    files = {str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()} - {BILL, "SHA256SUMS"}
    assert {c["name"] for c in bill["components"]} == files
    for each in bill["components"]:
        (found,) = each["hashes"]
        assert found == {"alg": "SHA-256", "content": hashlib.sha256((made / each["name"]).read_bytes()).hexdigest()}
    (library,) = (c for c in bill["components"] if c["type"] == "library")
    assert library["name"] == "libm.so" and library["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    said = {p["name"]: p["value"] for p in library["properties"]}
    manifest = json.loads((made / "m.fuse.json").read_text(encoding="utf-8"))
    assert said["onnxfuse:compiler"] == manifest["build"]["compiler"]
    assert said["onnxfuse:source-model-sha256"] == manifest["source"]["sha256"]


def test_what_does_not_belong_together_is_refused(onnxfuse: Onnxfuse, build: Path):
    library = (build / "libm.so").read_bytes()
    (build / "libm.so").write_bytes(library + b"x")
    said = onnxfuse("package", "build")
    assert said.code == 1 and "is not the library" in said.last
    (build / "libm.so").unlink()
    assert "is missing" in onnxfuse("package", "build").last
    (build / "m.fuse.json").write_text("{}")
    assert "is not a manifest" in onnxfuse("package", "build").last
    (build / "m.fuse.json").unlink()
    assert "has no manifest" in onnxfuse("package", "build").last
    assert onnxfuse("package", "nowhere").code == 2
    assert not Path("build.tar.gz").exists()


def test_a_model_without_kernels_has_no_library_in_its_programs(onnxfuse: Onnxfuse, here: Path):
    onnx.save(chain(), here / "m.onnx")
    (here / "build").mkdir()
    assert onnxfuse("optimize", "m.onnx", "build/m.onnx", "--skip-node", ".", "--no-verify").code == 0
    assert onnxfuse("package", "build").code == 0
    made = unpacked("build.tar.gz", here / "elsewhere")
    run = process.run([sys.executable, "load/m/load.py"], cwd=made)
    assert run.code == 0, run.err
    assert not any("LIBRARY" in text or 'MODEL"' in text for text in programs("m.onnx", None).values())


def test_names_are_quoted(onnxfuse: Onnxfuse, model: Path, here: Path):
    """A name with a quotation mark does not end a string of a program."""
    (here / "build").mkdir()
    assert onnxfuse("optimize", model, 'build/a "b".onnx', "--no-verify", "--no-gain").code == 0
    assert onnxfuse("package", "build").code == 0
    made = unpacked("build.tar.gz", here / "elsewhere")
    run = process.run([sys.executable, str(made / "load" / 'a "b"' / "load.py")])
    assert run.code == 0, run.err
    assert json.dumps('a "b".onnx') in (made / "load" / 'a "b"' / "load.cpp").read_text()
