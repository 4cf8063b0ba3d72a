"""Products by cuBLASLt and what follows them: the launcher over stand-ins for the library and the driver.

Runs are captured, and their graphs launched on other inputs, with all tensors in memory that the host cannot read.
Results are compared with NumPy's, so that rows and columns, pitches and epilogues have to be right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify import verify
from tests.captured.child import THEN
from tests.captured.prepared import Prepared, Unit, compiled, prepared
from tests.captured.prepared import assert_right as interpreted_right
from tests.kernels.compiled import Case
from tests.kernels.pool_host import compiler
from tests.rules.build import Build
from tests.threads.scheduled import kernel_of

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the library is found by the loader of Linux"),
]
HERE = Path(__file__).parent
ROWS, DEPTH, COLUMNS = 18, 520, 24
FAR = 1 << 17
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Wanted:
    """What is done to a product: activation(x w + b + r)."""

    name: str
    dtype: DType
    activation: str = ""
    bias: bool = False
    residual: bool = False
    transposed: bool = False
    rows: int | str = ROWS

    def graph(self) -> Graph:
        """As ONNX nodes."""
        b = Build(22)
        shape = (COLUMNS, DEPTH) if self.transposed else (DEPTH, COLUMNS)
        x, w = b.input("x", self.rows, DEPTH, dtype=self.dtype), b.input("w", *shape, dtype=self.dtype)
        y = b.node("Gemm", x, w, transB=1) if self.transposed else b.node("MatMul", x, w)
        y = b.node("Add", y, b.input("b", COLUMNS, dtype=self.dtype)) if self.bias else y
        y = b.node("Add", b.input("r", self.rows, COLUMNS, dtype=self.dtype), y) if self.residual else y
        attributes = {"approximate": "tanh"} if self.activation == "Gelu" else {}
        return b.graph(b.node(self.activation, y, **attributes) if self.activation else y)

    def numpy(self, given: dict[str, Array]) -> Array:
        """In float64."""
        x, w = given["x"].astype(np.float64), given["w"].astype(np.float64)
        y = x @ (w.T if self.transposed else w) + given.get("b", np.float64(0)) + given.get("r", np.float64(0))
        cube = np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)
        return {"": y, "Relu": np.maximum(y, 0), "Gelu": 0.5 * y * (1 + np.tanh(cube))}[self.activation]

    @property
    def case(self) -> Case:
        """As a case of kernels."""
        sizes: Any = ({self.rows: ROWS},) if isinstance(self.rows, str) else ({},)
        return Case(f"library_{self.name}", self.graph(), sizes=sizes)


WANTED = (
    *(Wanted(f"gelu_{t}", t, "Gelu", bias=True) for t in (F32, F16, BF16)),
    *(Wanted(f"relu_of_residual_{t}", t, "Relu", bias=True, residual=True) for t in (F32, F16, BF16)),
    Wanted("residual", F16, residual=True),
    Wanted("relu_alone", F32, "Relu"),
    Wanted("bias_turned", F16, bias=True, transposed=True),
    Wanted("gelu_turned", F32, "Gelu", residual=True, transposed=True),
    Wanted("rows_unknown", F16, "Gelu", bias=True, rows="N"),
)
TOLERANCE = {F32: 1e-5, F16: 2e-3, BF16: 2e-2}
EPILOGUE = {"": 0, "Relu": 2, "Gelu": 32}


def ran(made: Prepared, **environment: str) -> list[str]:
    """A warm-up run and a captured one; what the driver and the library were asked for."""
    log = made.folder / "calls.log"
    log.unlink(missing_ok=True)
    env = {**os.environ, **made.environment, "DRIVER_LOG": str(log), "PYTHONPATH": str(HERE.parents[1]), **environment}
    command = [sys.executable, str(HERE / "child.py"), str(made.folder), "nothing"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"said": None, "broken": False}
    return log.read_text().splitlines()


def result(made: Prepared, dtype: DType) -> Array:
    """What a child left in the folder."""
    found = np.load(made.folder / "out0.npy")
    return (found.astype(np.uint32) << 16).view(np.float32) if dtype == BF16 else found


def assert_right(made: Prepared, wanted: Wanted) -> None:
    """The graph's result is that of NumPy on the inputs that were given last."""
    given = {p.value: x.astype(np.float64) * THEN for p, x in zip(made.kernel.inputs, made.feeds, strict=True)}
    expected = wanted.numpy(given)
    got = result(made, wanted.dtype).astype(np.float64)
    limit = TOLERANCE[wanted.dtype] * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=0, atol=limit)


def kernel(wanted: Wanted) -> Kernel:
    """One phase, which the library may compute."""
    made = kernel_of(wanted.case)
    assert [p.library is not None for p in made.phases] == [True]
    assert not verify(made)
    return made


SYMBOLS = {w: f"made_{n}" for n, w in enumerate(WANTED)}  # of launchers


def made_with_all(folder: Path, wanted: Wanted, *, library: bool = True) -> Prepared:
    """The launcher of a kernel, which is compiled with those of all others here."""
    symbol = SYMBOLS[wanted]
    return prepared(folder, wanted.case, kernel(wanted), library=library, unit=unit(), symbol=symbol)


@cache
def unit() -> Unit:
    return compiled({symbol: kernel(wanted) for wanted, symbol in SYMBOLS.items()})


@pytest.mark.parametrize("wanted", WANTED, ids=lambda w: w.name)
def test_the_library_computes_what_numpy_does(wanted: Wanted, tmp_path: Path) -> None:
    made = made_with_all(tmp_path, wanted)
    calls = ran(made)
    assert not [c for c in calls if c.startswith(("refused", "launch"))]
    number = EPILOGUE[wanted.activation] + 4 if wanted.bias else EPILOGUE[wanted.activation] or 1
    said = f"matmul {ROWS} {COLUMNS} {DEPTH} epilogue {number} beta {int(wanted.residual)}"
    assert [c for c in calls if c.startswith("matmul")] == [said] * 2, "a warm-up run, and a captured one"
    assert len([c for c in calls if c.startswith("heuristic")]) == 1, "once per shape"
    assert_right(made, wanted)


@pytest.mark.parametrize(
    ("library", "environment"),
    [
        (False, {}),
        (True, {"CUBLASLT_FINDS": "0"}),
        (True, {"CUBLASLT_TAKES": "0"}),
        (True, {"ONNXFUSE_CUBLASLT": "0"}),
    ],
    ids=["missing", "no algorithm", "refused", "left out"],
)
def test_the_phase_is_launched_where_the_library_does_not_compute(
    library: bool, environment: dict[str, str], tmp_path: Path
) -> None:
    wanted = WANTED[1]
    made = made_with_all(tmp_path, wanted, library=library)
    calls = ran(made, **environment)
    assert len([c for c in calls if c.startswith("launch")]) == 2
    assert not [c for c in calls if c.startswith("matmul")]
    assert_right(made, wanted)


def test_a_known_shape_is_asked_for_when_the_kernel_is_made(tmp_path: Path) -> None:
    """So that nothing is left to find while a graph is captured; open sizes are found in the warm-up run."""
    made = made_with_all(tmp_path, WANTED[0])
    names = [c.split()[0] for c in ran(made)]
    assert names.index("handle") < names.index("heuristic") < names.index("load") < names.index("matmul")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pitches": (DEPTH, COLUMNS, COLUMNS, COLUMNS - 8)}, "a column that reaches into the next one"),
        ({"columns": FAR, "pitches": (DEPTH, FAR, FAR, FAR)}, "an operand that is not the device's memory"),
    ],
    ids=["pitch", "bounds"],
)  # fmt: skip
def test_the_stand_in_refuses_wrong_matrices_and_a_kernel_is_launched(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    made = kernel(WANTED[1])
    library = made.phases[0].library
    assert library is not None
    wrong = replace(made, phases=(replace(made.phases[0], library=replace(library, **change)),))
    assert verify(wrong), "the verifier finds it too"
    calls = ran(prepared(tmp_path, WANTED[1].case, wrong, library=True))
    assert f"refused {why}" in calls
    assert len([c for c in calls if c.startswith("launch")]) == 2


def test_what_is_no_epilogue_has_no_call() -> None:
    """GELU by erf, which the library does not have, and other functions; heads apart; a scaled sum."""

    def phases(after: Any, dtype: DType = F16) -> list[bool]:
        b = Build(22)
        y = b.node("MatMul", b.input("x", ROWS, DEPTH, dtype=dtype), b.input("w", DEPTH, COLUMNS, dtype=dtype))
        made = kernel_of(Case("no_epilogue", b.graph(after(b, b.node("Add", y, b.input("b", COLUMNS, dtype=dtype))))))
        return [p.library is not None for p in made.phases]

    assert phases(lambda b, y: y) == [True]
    assert phases(lambda b, y: b.node("Gelu", y)) == [False]
    assert phases(lambda b, y: b.node("Tanh", y)) == [False]
    assert phases(lambda b, y: b.node("Clip", y, *(b.constant(np.array(x, np.float16)) for x in (0, 6)))) == [False]
    for limit in (65504, 1000):
        ends = [np.array(x, np.float16) for x in (-limit, limit)]
        assert phases(lambda b, y, ends=ends: b.node("Clip", y, *map(b.constant, ends))) == [False], limit
    assert phases(lambda b, y: b.node("Add", b.node("Relu", y), b.constant(np.array(5e-5, np.float16)))) == [False]
    assert phases(lambda b, y: b.node("Mul", y, y)) == [False]
    assert phases(lambda b, y: b.node("Transpose", y, perm=(1, 0))) == [False]
    assert phases(lambda b, y: b.node("Add", y, b.input("other", ROWS, 1, dtype=F16))) == [False]


def test_a_product_before_a_normalization_goes_to_scratch(tmp_path: Path) -> None:
    """Nobody else reads it: the library stores it in memory of the run, beside its workspace, and a kernel reads it."""
    b = Build(22)
    y = b.node("MatMul", b.input("x", ROWS, DEPTH, dtype=F16), b.input("w", DEPTH, COLUMNS, dtype=F16))
    y = b.node("Add", y, b.input("r", ROWS, COLUMNS, dtype=F16))
    case = Case("library_norm", b.graph(b.node("LayerNormalization", y, b.input("g", COLUMNS, dtype=F16), axis=-1)))
    made = prepared(tmp_path, case, kernel_of(case), library=True)
    assert [p.library is not None for p in made.kernel.phases] == [True, False] and made.kernel.scratch
    calls = ran(made)
    assert [c.split()[0] for c in calls if c.startswith(("matmul", "launch", "refused"))] == ["matmul", "launch"] * 2
    interpreted_right(made, THEN)
