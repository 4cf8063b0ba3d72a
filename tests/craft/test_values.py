"""Values passed between steps are frozen and have slots, and the package exports exactly what it documents."""

import ast
from pathlib import Path

import pytest

import onnxfuse
from tests.craft.sources import name_of, python_files, tree_of


def dataclass_flags(node: ast.ClassDef) -> set[str] | None:
    """Flags that are set in `@dataclass(...)`; None when the class has no such decorator."""
    for each in node.decorator_list:
        call = each.func if isinstance(each, ast.Call) else each
        if isinstance(call, ast.Name) and call.id == "dataclass":
            keywords = each.keywords if isinstance(each, ast.Call) else []
            return {k.arg for k in keywords if k.arg and isinstance(k.value, ast.Constant) and k.value.value is True}
    return None


@pytest.mark.parametrize("path", python_files("onnxfuse/ir"), ids=name_of)
def test_dataclasses_of_the_ir_are_frozen(path: Path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef) and (flags := dataclass_flags(node)) is not None:
            assert {"frozen", "slots"} <= flags, f"{name_of(path)}: {node.name} is not frozen with slots"


def test_the_decorator_is_read_rightly():
    source = "@dataclass(frozen=True, slots=False)\nclass A: pass\n@dataclass\nclass B: pass\nclass C: pass"
    assert [dataclass_flags(node) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)] == [
        {"frozen"},
        set(),
        None,
    ]


def test_the_front_door_shows_what_it_says():
    names = list(onnxfuse.__all__)
    assert names, "onnxfuse/__init__.py names nothing"
    assert len(names) == len(set(names))
    missing = [name for name in names if not hasattr(onnxfuse, name)]
    assert not missing, f"onnxfuse.__all__ names {missing}, which do not exist"
    assert len(names) <= 8, "a front door of this size is learnt at one glance"
