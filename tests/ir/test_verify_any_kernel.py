"""`verify` finds faults in malformed kernels, and never raises: whatever is changed in a kernel, it answers."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify import verify
from tests.ir.test_kernel_text import case_named, changes, sample
from tests.kernels.compiled import BUILDS, kernel_of

# horizontal reductions, lookups, monoids of tuples, symbols, zero points of columns, pools
MORE = ("softmax_rows", "gather_nd", "ArgMax_last", "half_exchanged_any", "codes_odd", "max_padded_form_2")


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    made = {name: kernel_of(case_named(name), BUILDS["x86-64-v4"]) for name in MORE}
    return sample() | {name: k for name, k in made.items() if isinstance(k, Kernel)}


def unlike(kernels: dict[str, Kernel]) -> dict[str, Kernel]:
    """Of kernels that have the same fields in the same order, the first: many differ in their tiles alone."""
    found: dict[tuple[str, ...], str] = {}
    for name, k in kernels.items():
        found.setdefault(tuple(path for path, _ in changes(k, set())), name)
    return {name: kernels[name] for name in found.values()}


def assert_found(kernels: dict[str, Kernel]) -> None:
    """Each field of each class in each kernel, of tasks and of threads, changed alone."""
    changed = [(f"{name}: {path}", made) for name, k in kernels.items() for path, made in changes(k, set())]
    found = {what: verify(made) for what, made in changed}
    assert len(found) > 500
    always = ("Buffer.space", "Loop.kind", "ReduceLoop.scope", "ReduceLoop.combine", "Accumulate.combine", "Sync.scope")
    silent = [what for what, faults in found.items() if not faults and what.partition(": ")[2] in always]
    assert silent == []
    assert sum(map(bool, found.values())) > len(found) / 3


def test_any_field_of_any_kernel(kernels: dict[str, Kernel]) -> None:
    assert_found(unlike(kernels))


@pytest.mark.slow
def test_any_field_of_kernels_that_differ_in_tiles(kernels: dict[str, Kernel]) -> None:
    assert_found({name: k for name, k in kernels.items() if name not in unlike(kernels)})


def test_nothing_is_found_before(kernels: dict[str, Kernel]) -> None:
    assert set(MORE) <= set(kernels)
    assert {name: found for name, k in kernels.items() if (found := verify(k))} == {}
