"""Products of few rows on GPUs: correct in any order of threads, without spills, fused where predicted faster."""

from __future__ import annotations

import pytest

from onnxfuse.build.nvrtc import compiled, libraries
from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.verify import verify
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CUDA
from onnxfuse.render.cuda import device_text
from onnxfuse.target import MOST_ROWS, gpus_of
from tests.kernels.compiled import Case, check, expected, fed
from tests.kernels.pool_host import compiler
from tests.rules.build import Build
from tests.threads.product_cases import CASES, TILED
from tests.threads.scheduled import kernel_of, right_in_any_order


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_product_of_few_rows_is_one_phase_and_right(case: Case) -> None:
    kernel = kernel_of(case)
    assert verify(kernel) == ()
    (phase,) = kernel.phases
    assert any(b.name == "parts" for b in phase.locals)
    (out,) = kernel.outputs
    check(interpret(kernel, fed(kernel, case, 0), 1)[0], out.dtype, *expected(case, 0)[out.value])


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_its_text_computes_the_same_in_any_order_of_threads(case: Case) -> None:
    right_in_any_order(case)


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("target", gpus_of(("sm_80", "sm_90", "sm_120")), ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_is_spilled(case: Case, target: object) -> None:
    row = next(t for t in gpus_of(("sm_80", "sm_90", "sm_120")) if t == target)
    made = compiled(device_text(kernel_of(case), "product"), row.flags)
    assert all((used.spills, used.stack) == (0, 0) for used in made.functions)


def layer(rows: int, width: int = 64) -> Graph:
    """Relu(x w + b) v, with constant weights."""
    b = Build(17)
    y = b.node("MatMul", b.input("x", rows, width), b.weights(width, 2 * width))
    y = b.node("Relu", b.node("Add", y, b.weights(2 * width)))
    return b.graph(b.node("MatMul", y, b.weights(2 * width, width)))


@pytest.mark.parametrize(("rows", "width", "kernels"), [(1, 64, 2), (MOST_ROWS, 64, 2), (64, 64, 1), (512, 1024, 0)])
def test_products_are_kernels_where_they_save_more_than_they_take_longer(rows: int, width: int, kernels: int) -> None:
    made = plan(layer(rows, width), ROWS, Options(strategy="anchors", min_group=1, target="cuda"), legality=CUDA)
    multiplying = [[n.op for n in g.nodes if n.op == "MatMul"] for g in made.groups]
    assert [ops for ops in multiplying if ops] == [["MatMul"]] * kernels


def pixels(readers: int) -> Graph:
    """Gelu(norm(pixels of a convolution) w), the pixels read by so many; the norm is of channels, which come first."""
    b = Build(20)
    x = b.node("Transpose", b.node("Conv", b.input("x", 1, 3, 56, 56), b.weights(64, 3, 1, 1)), perm=(0, 2, 3, 1))
    y = b.node("LayerNormalization", x, b.weights(64), b.weights(64), axis=-1)
    y = b.node("Gelu", b.node("MatMul", y, b.weights(64, 64)))
    return b.graph(y, *[b.node("Relu", x) for _ in range(readers - 1)])


@pytest.mark.parametrize(("readers", "ops"), [(1, ["Transpose", "LayerNormalization", "MatMul", "Gelu"]), (2, None)])
def test_pixels_are_normalized_where_they_are_multiplied(readers: int, ops: list[str] | None) -> None:
    """Behind a convolution of the runtime the transposition would be a kernel, unless somebody else needs it anyway."""
    made = plan(pixels(readers), ROWS, Options(strategy="anchors", min_group=1, target="cuda"), legality=CUDA)
    (whole,) = ([n.op for n in g.nodes] for g in made.groups if "LayerNormalization" in {n.op for n in g.nodes})
    assert whole == ops if ops is not None else "MatMul" not in whole


@pytest.mark.parametrize("case", [c for c in TILED if "norm_first" in c.name], ids=lambda case: case.name)
def test_rows_are_multiplied_by_the_reciprocal_of_their_root(case: Case) -> None:
    """One inverse of a root for a row, and no division for its elements; two more are those of its sums."""
    text = device_text(kernel_of(case), "product")
    assert text.count("rsqrt_(") == 1 and "reciprocal_(" not in text and text.count("div_(") <= 2
