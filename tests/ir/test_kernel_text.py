"""The text of a kernel shows every field: whatever is changed in a kernel, its text changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from onnxfuse.ir import kernel as kernels
from onnxfuse.ir import launch, tile
from onnxfuse.ir.dtype import BF16, F16, F64, DType
from onnxfuse.ir.fragments import TENSOR_CORES, Core, WarpgroupCore, warpgroup_core
from onnxfuse.ir.index import Axis, Index, Symbol
from onnxfuse.ir.kernel import Buffer, Kernel
from onnxfuse.ir.kernel_text import kernel_lines
from onnxfuse.ir.layout import Layout, channels_last
from onnxfuse.ir.products import AMX, DOT_BF16, ProductKind
from onnxfuse.ir.scalar import Const, Guard, Scalar
from tests.captured.test_library_convolutions import WANTED, kernel
from tests.kernels.compiled import BUILDS, Case, kernel_of
from tests.kernels.tables import TABLES
from tests.threads import product_cases, scheduled
from tests.threads.test_product_tiles import with_tile
from tests.threads.warpgroups.test_products import HOPPER, TILES
from tests.threads.written import WRITTEN

SHOWN = {c for m in (kernels, launch, tile) for c in vars(m).values() if is_dataclass(c) and c.__module__ == m.__name__}
# why a kernel is as it is: told on its own
UNTOLD = {("Kernel", "choices"), ("RankedSchedules", "candidates"), ("RankedSchedules", "substitutable")}
ON_THE_CPU = (
    "attention", "codes_plain", "codes_depthwise", "half_14_8_32", "winograd_plain", "conv3_lines", "gemm_deep_M",
    "depth3_any",
)  # fmt: skip
OTHER: dict[type, Callable[[Any], Any]] = {
    bool: lambda x: not x,
    int: lambda x: x + 1,
    str: lambda x: x + "x",
    Index: lambda x: x + 7,
    Axis: lambda x: replace(x, name=x.name + "x"),
    Symbol: lambda x: replace(x, name=x.name + "x"),
    DType: lambda x: F64 if x != F64 else BF16,
    ProductKind: lambda x: DOT_BF16 if x != DOT_BF16 else tile.SINGLE,
    Core: lambda x: next(c for c in TENSOR_CORES if c != x),
    WarpgroupCore: lambda x: warpgroup_core(x.dtype, 264 - x.n),
    Layout: lambda x: channels_last(4) if not x.steps else Layout(()),
}


def by_a_library(x: str, result: str) -> launch.LibraryProduct:
    """A call for one element of float16 buffers."""
    return launch.LibraryProduct(F16, Index.of(1), 1, 1, x, x, result, (1, 1, 1, 1), x, x, "relu")


def other(x: Any, name: str) -> Any:
    """A value that is not x, for a field of this name."""
    if x is None:
        return {"launch": launch.Launch(Index.of(3), Index.of(32)), "unit": AMX, "part": ("p", Index.of(1)),
                "most": Index.of(5), "at": 3, "ahead": tile.Ahead("b", Index.of(1)),
                "source": tile.Pointers("p", Index.of(1), 2, Index.of(3)),
                "after": (Index.of(1), Index.of(2), "b"), "rows": (Axis("m", Index.of(3)), 2),
                "matrix_unit": (AMX, 3), "library": by_a_library("a", "y"),
                "matrices": launch.MatrixLoad("a", Index.of(1), "b", Index.of(2), 2, False)}[name]  # fmt: skip
    if isinstance(x, tuple):
        added = {"guards": Guard(Index.of(1), Index.of(2)), "behind": Const(1.0, F64), "merged": Const(1.0, F64)}
        return x[:-1] if x else (added[name],) if name in added else None
    if isinstance(x, Scalar):
        return Const(3.25, x.dtype)
    return next((make(x) for t, make in OTHER.items() if isinstance(x, t)), None)


def changes(x: Any, seen: set[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """x with one field of it, or in it, changed, for each field of each class that was not seen yet."""
    if isinstance(x, tuple):
        for at, each in enumerate(x):
            yield from ((path, (*x[:at], made, *x[at + 1 :])) for path, made in changes(each, seen))
    if type(x) not in SHOWN:
        return
    for f in fields(x):
        value, key = getattr(x, f.name), (type(x).__name__, f.name)
        if key not in seen and key not in UNTOLD and (changed := other(value, f.name)) is not None:
            seen.add(key)
            yield ".".join(key), replace(x, **{f.name: changed})
        yield from ((path, replace(x, **{f.name: made})) for path, made in changes(value, seen))


def case_named(name: str) -> Case:
    return next(c for table in TABLES.values() for c in table.cases if c.name.startswith(name))


def sample() -> dict[str, Kernel]:
    found = {name: written.kernel for name, written in WRITTEN.items()}
    for name in ON_THE_CPU:
        made = kernel_of(case_named(name), BUILDS["x86-64-v4"])
        assert isinstance(made, Kernel)
        found[name] = made
    tiles = scheduled.kernel_of(next(c for c in product_cases.TILED if c.name == "tiles_float16"))
    call = by_a_library(tiles.inputs[0].name, tiles.outputs[0].name)
    by_library = replace(tiles, phases=tuple(replace(p, library=call) for p in tiles.phases))
    convolution = kernel(next(w for w in WANTED if w.name == "relu_of_residual_float16"))
    groups = {str(t.values): with_tile(*t.values, HOPPER) for t in TILES}  # type: ignore[arg-type]  # pytest's
    return {**found, **groups, "tiles": tiles, "by a library": by_library, "convolution": convolution}


@pytest.fixture(scope="module")
def planted() -> dict[str, tuple[Kernel, Kernel]]:
    """For each field of each class the first kernel that has it, and that kernel with the field changed."""
    seen: set[tuple[str, str]] = set()
    return {path: (made, changed) for made in sample().values() for path, changed in changes(made, seen)}


def test_every_field_is_in_the_text(planted: dict[str, tuple[Kernel, Kernel]]) -> None:
    alike = [
        path for path, (made, changed) in planted.items() if [*kernel_lines(made)] == [*kernel_lines(changed)]
    ]  # fmt: skip
    assert alike == []


def test_all_classes_are_there(planted: dict[str, tuple[Kernel, Kernel]]) -> None:
    classes = {path.partition(".")[0] for path in planted}
    without = {"RankedSchedules", "Commit", "Asynchronous"}
    assert {c.__name__ for c in SHOWN} - classes == without, "these have no field that is shown"
    assert {"Tile.rows", "Launch.shared", "Mma.core", "ReduceLoop.scope", f"{Buffer.__name__}.space"} <= set(planted)
