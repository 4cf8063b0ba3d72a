"""Signals of open length: lanes are consecutive samples, and none is loaded or stored by itself far from the ends."""

from __future__ import annotations

import pytest

from onnxfuse.ir.compose import walk
from onnxfuse.ir.kernel import Kernel, Let, Loop, Store, statements
from onnxfuse.ir.scalar import Load
from onnxfuse.target import CPUS
from tests.kernels.cases.signal import CASES
from tests.kernels.compiled import kernel_of


@pytest.mark.parametrize("case", [c for c in CASES if c.name.endswith("_any")], ids=lambda c: c.name)
def test_consecutive_samples_are_the_lanes(case: object) -> None:
    kernel = kernel_of(case, CPUS["x86-64-v4"])  # type: ignore[arg-type]  # a case
    assert isinstance(kernel, Kernel)
    loops = [s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, Loop) and s.kind == "vector"]
    assert loops
    for loop in loops:
        inner = [*statements(loop.body)]
        values = [s.value for s in inner if isinstance(s, (Let, Store))]
        kinds = {n.lanes.kind for v in values for n in walk(v) if isinstance(n, Load) and n.lanes is not None}
        assert kinds <= {"vector", "broadcast", "masked", "piecewise"}
        assert not any(s.scattered for s in inner if isinstance(s, Store))
