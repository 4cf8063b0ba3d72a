"""Imports point one way along the pipeline, through the doors that are named for them, and never in a circle."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.craft.sources import ROOT, name_of, python_files, tree_of

# A later row may import an earlier one. Modules of one row do not see each other; those of one package do.
LAYERS = (
    {"errors"},
    {"target"},
    {"config"},
    {"runtime"},
    {"ir"},
    {"ops"},
    {"cost"},
    {"load", "rewrite"},
    {"plan"},
    {"lower"},
    {"schedule.analysis"},
    {"schedule.nests", "schedule.passes"},
    {"schedule.cpu", "schedule.gpu"},
    {"schedule", "render"},
    {"build"},
    {"emit"},
    {"verify"},
    {"measure", "report"},
    {"backends"},
    {"pipeline"},
    {"onnxfuse"},  # the front door, onnxfuse/__init__.py
    {"cli"},
)
PLACE = {module: place for place, row in enumerate(LAYERS) for module in row}

# Who may import what comes from outside, rooms or single files; anything not named here is open to all.
CHECKING = {"emit", "load", "measure", "runtime", "verify"}
RUNNING = {"emit", "measure", "runtime", "verify"}
DOORS = {
    "onnx": CHECKING,
    "onnx_ir": CHECKING,
    "google": CHECKING,
    "onnxruntime": RUNNING,
    "subprocess": {"runtime.process"},
    "multiprocessing": {"runtime.process"},
    "jinja2": {"report"},
    "click": {"cli"},
}
STARTERS = {"runtime.process", "runtime.fork_server"}
STARTS_PROCESSES = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp"}

EVERY_FILE = python_files("onnxfuse", "cli")


def module_of(path: Path) -> str:
    """The dotted name a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The row entry that a dotted name belongs to.

    `onnxfuse.ir.index` is of `ir`, `onnxfuse.schedule.cpu.gemm` of `schedule.cpu`, and the front door is `onnxfuse`.
    """
    first, _, rest = module.replace("onnxfuse_cli", "cli").partition(".")
    if first != "onnxfuse" or not rest:
        return first
    inner = ".".join(rest.split(".")[:2])
    return inner if inner in PLACE else rest.split(".")[0]


def is_module(name: str) -> bool:
    """Whether a dotted name is a file or folder of ours, and not a name inside one."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, wherever in it; of `from package import module` the module."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])]).replace("onnxfuse_cli", "cli")
            for alias in node.names:
                yield f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base


def ours(name: str) -> bool:
    return name.split(".")[0] in ("onnxfuse", "onnxfuse_cli", "cli")


def test_imports_point_left():
    for path in EVERY_FILE:
        room = room_of(module_of(path))
        for name in filter(ours, imports(path)):
            other = room_of(name)
            assert {room, other} <= PLACE.keys(), f"{name_of(path)}: give {room} and {other} their places in LAYERS"
            assert other == room or PLACE[other] < PLACE[room], f"{name_of(path)} must not import {name}"


def test_outside_packages_come_through_their_doors():
    for path in EVERY_FILE:
        assert_imports_through_doors(path)


def assert_imports_through_doors(path: Path):
    module = module_of(path)
    here = {room_of(module), module.removeprefix("onnxfuse.")}
    for name in imports(path):
        allowed = DOORS.get(name.split(".")[0])
        assert allowed is None or here & allowed, f"{name_of(path)} must not import {name}: only {sorted(allowed)} may"
    if not here & STARTERS:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                starts = node.attr in STARTS_PROCESSES or node.attr.startswith(("exec", "spawn"))
                assert not starts, f"{name_of(path)}:{node.lineno}: only process.py and fork_server.py start processes"


LATE_IMPORTS = {"cli/program.py", "cli/verbs_models.py", "cli/verbs_tools.py"}  # so that --help is quick


def test_functions_import_nothing():
    """But for the verbs of the command line, and lines that say why: `# noqa: PLC0415  REASON`."""
    for path in EVERY_FILE:
        assert_functions_import_nothing(path)


def assert_functions_import_nothing(path: Path):
    lines = path.read_text(encoding="utf-8").splitlines()
    for function in ast.walk(tree_of(path)):
        if isinstance(function, ast.FunctionDef) and name_of(path) not in LATE_IMPORTS:
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    reason = lines[node.lineno - 1].partition("noqa: PLC0415")[2].strip()
                    assert reason, f"{name_of(path)}:{node.lineno}: import at the top, or say why not"


def test_no_star_imports():
    names = ((path, node) for path in EVERY_FILE for node in ast.walk(tree_of(path)) if isinstance(node, ast.alias))
    stars = [f"{name_of(path)}:{node.lineno}" for path, node in names if node.name == "*"]
    assert not stars


def test_no_import_cycles():
    graph = {
        module_of(path): {name for name in imports(path) if ours(name) and is_module(name)} - {module_of(path)}
        for path in EVERY_FILE
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_each_form_of_import_is_recognised():
    """The reading of imports sees the forms that people write."""
    assert room_of("onnxfuse.ir.index") == "ir"
    assert room_of("onnxfuse.schedule.cpu.gemm") == "schedule.cpu"
    assert room_of("onnxfuse.verify.child") == "verify"
    assert room_of("onnxfuse.runtime.feed_limits") == "runtime"
    assert room_of("onnxfuse") == "onnxfuse"
    assert room_of("onnxfuse_cli.show") == "cli"
    assert "onnxfuse.runtime.process" in set(imports(ROOT / "onnxfuse" / "build" / "__init__.py"))
    assert "onnxfuse.errors" in set(imports(ROOT / "onnxfuse" / "runtime" / "process.py"))
    assert "subprocess" in set(imports(ROOT / "onnxfuse" / "runtime" / "process.py"))
    assert PLACE["errors"] < PLACE["ir"] < PLACE["plan"] < PLACE["build"] < PLACE["verify"] < PLACE["cli"]
