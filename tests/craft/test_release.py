"""A wheel and an sdist as they would be released: one version, all files of the program, and a program that starts."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import onnxfuse
from onnxfuse.runtime import process
from tests.craft.sources import ROOT

NEEDED = 77  # the setuptools that pyproject.toml asks for
BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"
SOURCES = ("onnxfuse", "cli", "pyproject.toml", "README.md", "LICENSE", "NOTICE")


def test_the_version_is_defined_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "onnxfuse.__version__"


def test_the_changelog_begins_with_the_version_that_is_there():
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0].rstrip(",") == onnxfuse.__version__
    assert len(heads) == len(set(heads))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the wheel and the sdist of a copy of the sources."""
    if int(version("setuptools").split(".")[0]) < NEEDED:
        pytest.skip(f"setuptools is older than {NEEDED}")
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("out")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    done = process.run((sys.executable, "-c", BUILD, str(out)), cwd=copy)
    assert done.code == 0, done.err
    yield out


def shipped() -> set[str]:
    """The files of the program, as they are named where they are installed."""
    found = [path for folder in ("onnxfuse", "cli") for path in (ROOT / folder).rglob("*")]
    names = {str(p.relative_to(ROOT)) for p in found if p.is_file() and "__pycache__" not in p.parts}
    return {re.sub(r"^cli/", "onnxfuse_cli/", name) for name in names}


def test_the_wheel_holds_the_program_its_licences_and_nothing_else(built: Path):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"onnxfuse-{onnxfuse.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = f"onnxfuse-{onnxfuse.__version__}.dist-info"
        metadata = archive.read(f"{about}/METADATA").decode()
    assert {name for name in names if not name.startswith(about)} == shipped()
    assert {f"{about}/licenses/LICENSE", f"{about}/licenses/NOTICE"} <= names
    assert f"\nVersion: {onnxfuse.__version__}\n" in metadata and "\nLicense-Expression: Apache-2.0\n" in metadata


def test_the_sdist_has_all_files_of_the_wheel(built: Path):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {re.sub(r"^onnxfuse_cli/", "cli/", name) for name in shipped()}
    assert sources | {"pyproject.toml", "README.md", "LICENSE", "NOTICE"} <= names


def test_the_wheel_starts_where_it_is_unpacked(built: Path, tmp_path: Path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    env = {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    code = "import onnxfuse, onnxfuse_cli.__main__ as m; print(onnxfuse.__file__); m.main(['--version'])"
    done = process.run((sys.executable, "-c", code), cwd=tmp_path, env=env)
    assert done.out.splitlines() == [str(tmp_path / "onnxfuse" / "__init__.py"), f"onnxfuse {onnxfuse.__version__}"]
