"""Every operator with a row has a function body that the runtime runs without the library, with equal results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.emit import Staged, write
from onnxfuse.load.model import OLDEST
from onnxfuse.ops.rows import ROWS
from tests.emit import plans
from tests.kernels.cases.operator import chosen
from tests.ops.case import Case, feeds, model, ours, runtime_says
from tests.ops.test_rows import CASES

NEWEST = 24  # the last opset of which the runtime knows most operators


def fixed(case: Case) -> Case:
    """The case with everything that only shapes its results as an initializer."""
    shaping = {i for row in ROWS.rows[case.op] for i in row.shape_inputs} | {*case.known, *case.constants}
    there = (i for i in sorted(shaping) if i < len(case.inputs) and case.inputs[i] is not None)
    return replace(case, constants=tuple(there))


def fewest() -> dict[str, Case]:
    """Of each operator the case with the fewest attributes: the others are what the operator takes by itself."""
    found: dict[str, Case] = {}
    for case in sorted(CASES, key=lambda case: (case.opset > NEWEST, len(case.attrs))):
        if case.opset >= OLDEST and "runtime" not in case.wrong:
            found.setdefault(f"{case.op}_by_itself", case)
    return found


EVERY = {name: fixed(case) for name, case in {**chosen(), **fewest()}.items() if case.opset >= OLDEST}
# Operators that the runtime itself cannot run for any type of the cases: it has nothing to compare with.
UNKNOWN: frozenset[str] = frozenset()


LEFT_OUT = 33  # cases of types that the runtime has no kernel for: nothing is compared


def runs(case: Case) -> bool:
    """Whether the runtime has a kernel for the case."""
    return "runtime" not in case.wrong and runtime_says(case, model(case, [y.dtype for y in ours(case)])) is not None


def test_few_cases_are_left_out() -> None:
    skipped = [name for name, case in EVERY.items() if not runs(case)]
    assert len(skipped) <= LEFT_OUT, skipped


@pytest.mark.parametrize("name", EVERY)
def test_a_body_runs_without_the_library(name: str, tmp_path: Path) -> None:
    case = EVERY[name]
    if not runs(case):
        pytest.skip("ONNX Runtime has no kernel for these types")
    proto = model(case, [y.dtype for y in ours(case)])
    graph = plans.graph_of(proto)
    emitted = plans.fused(proto, [" ".join(n.outputs[0] for n in graph.nodes)])
    with Staged() as staged:  # the types of the case's outputs lack shapes, which the checker asks for
        write(emitted, tmp_path / "m.onnx", staged)
        staged.commit()
    for optimize in (False, True):
        expected = plans.outputs(proto, feeds(case), optimize=optimize)
        found = plans.outputs(tmp_path / "m.onnx", feeds(case), optimize=optimize)
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            near = 4 * float(np.finfo(a.dtype).eps) if a.dtype.kind == "f" else 0.0
            np.testing.assert_allclose(b, a, rtol=near, atol=near)


def test_every_row_is_among_them() -> None:
    ran = {case.op for case in EVERY.values() if runs(case)}
    assert ROWS.rows.keys() - ran == UNKNOWN
