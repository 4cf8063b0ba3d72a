"""What pyproject.toml and the Makefile list by hand is complete, and what is imported is installed."""

import re
import sys
import tomllib
from pathlib import Path

from tests.craft.sources import ROOT, python_files
from tests.craft.test_layers import imports, ours

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMPORTED_AS = {"google": "protobuf"}  # import name: distribution, where they differ by more than - and _


def distribution(requirement: str) -> str:
    """`cuda-toolkit[nvrtc]==13.0.*` is of `cuda-toolkit`."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, requirement
    return name[0].lower().replace("_", "-")


def test_every_package_is_listed():
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("onnxfuse/**/__init__.py")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found | {"onnxfuse_cli"}
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {"onnxfuse_cli": "cli"}


def test_every_data_file_is_listed():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    listed = {
        path
        for package, globs in data.items()
        for glob in globs
        for path in ROOT.joinpath(*package.split(".")).glob(glob)
    }
    found = {path for path in (ROOT / "onnxfuse").rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert found == listed


def test_what_is_imported_is_required():
    required = {distribution(each) for each in PROJECT["project"]["dependencies"]}
    optional = {distribution(each) for extra in PROJECT["project"]["optional-dependencies"].values() for each in extra}
    used = {name.split(".")[0] for path in python_files("onnxfuse", "cli") for name in imports(path) if not ours(name)}
    outside = {IMPORTED_AS.get(name, name).replace("_", "-") for name in used - sys.stdlib_module_names}
    assert outside <= required | optional, "import what pyproject.toml names, and name what is imported"
    assert outside & optional - required <= {"onnxruntime"}, (
        "only the runtime may be missing where onnxfuse is installed"
    )


# What no file imports by name: the file that runs, finds or imports it, and the text by which it does.
SERVED = {
    "distributed": ("onnxfuse/measure/cluster.py", 'import_module("distributed")'),
    "furo": ("docs/site/conf.py", '"furo"'),
    "mypy": ("Makefile", "-m mypy"),
    "myst-parser": ("docs/site/conf.py", '"myst_parser"'),
    "nvidia-cuda-nvrtc": ("onnxfuse/build/nvrtc.py", "nvidia"),
    "onnxscript": ("models/full/exporting.py", "dynamo=True"),  # by torch's exporter
    "onnxruntime-gpu": ("onnxfuse/runtime/provider.py", "CUDAExecutionProvider"),
    "pytest-xdist": ("Makefile", "-n auto"),
    "pycuda": ("onnxfuse/measure/gpu_calls.py", 'import_module("pycuda.driver")'),
    "ruff": ("Makefile", "-m ruff"),
    "setuptools": ("tests/craft/test_release.py", "from setuptools import"),
    "sphinx": ("Makefile", "-m sphinx"),
    "ziglang": ("onnxfuse/build/toolchain.py", '"ziglang"'),
}
PLUGINS = {"pytest-randomly"}  # nothing names it: pytest loads it, and it draws the order of tests


def test_every_extra_serves_code():
    """Each requirement of an extra is imported somewhere, or named where it is run."""
    rooms = ("onnxfuse", "cli", "tests", "models", "scripts", "benchmarks")
    used = {name.split(".")[0] for path in python_files(*rooms) for name in imports(path)}
    imported = {IMPORTED_AS.get(name, name).replace("_", "-") for name in used}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {distribution(each): extra for extra, listed in extras.items() for each in listed}
    for name, (file, text) in SERVED.items():
        assert name in wanted and name not in imported, f"{name} is no exception"
        assert text in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not use {name}"
    idle = {name: extra for name, extra in wanted.items() if name not in imported | SERVED.keys() | PLUGINS}
    assert idle == {}, "extras that serve no code"


def test_every_pin_is_exact_and_every_tested_requirement_is_pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [
        *PROJECT["project"]["dependencies"],
        *(each for name in ("cpu", "cuda", "docs", "test", "models", "zig") for each in extras[name]),
    ]
    assert {distribution(each) for each in wanted} <= {distribution(pin) for pin in pins}


def test_the_makefile_has_the_verbs_and_explains_each():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    explained = dict(re.findall(r"^([a-z-]+):.*?## (.+)$", text, re.MULTILINE))
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert phony
    assert set(explained) == set(phony[1].replace("\\\n", " ").split()) - {"toolchain", "nvrtc"}
    wanted = "help setup demo test check lint type layers bench fuzz runtimes golden replay docs corpus clean"
    assert set(wanted.split()) <= set(explained)


def test_ci_runs_what_developers_run():
    script = ROOT / ".ci" / "run"
    assert "exec make test" in script.read_text(encoding="utf-8").splitlines()
    assert script.stat().st_mode & 0o111, "not executable"


def test_scripts_named_in_the_makefile_exist():
    named = re.findall(r"scripts/[\w.]+", (ROOT / "Makefile").read_text(encoding="utf-8"))
    missing = [name for name in sorted(set(named)) if not Path(ROOT, name).exists()]
    assert not missing
