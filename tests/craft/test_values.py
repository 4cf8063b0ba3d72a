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


def looked_for_in_ranges(trees: dict[str, ast.Module]) -> list[str]:
    """Where it is asked whether a range has something, by call or by the name of a constant."""
    constants = {
        target.id
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and is_range(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for op, right in zip(node.ops, node.comparators, strict=True)
        if isinstance(op, ast.In | ast.NotIn)
        and (is_range(right) or (isinstance(right, ast.Name) and right.id in constants))
    ]


def is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def test_nothing_is_looked_for_in_a_range():
    """What is no integer is compared with each number of a range: None with 2^24 of them took 0.1 s, and often."""
    found = looked_for_in_ranges({name_of(path): tree_of(path) for path in python_files("onnxfuse", "cli")})
    assert not found, f"compare with both ends instead: {', '.join(found)}"
    planted = ast.parse("FAR = range(2, 9)\na = 1 in FAR\nb = 1 not in range(3)\nc = [i for i in FAR if i in (1,)]")
    assert looked_for_in_ranges({"x": planted}) == ["x:2", "x:3"]
