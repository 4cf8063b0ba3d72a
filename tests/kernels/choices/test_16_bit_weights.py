"""Register tiles with weights stored in 16 bits: which are chosen, the weights' layout, where rows are rounded."""

from __future__ import annotations

import pytest

from onnxfuse.ir.dtype import BF16, F16, F32
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.kernel import Kernel, Pack, statements
from onnxfuse.ir.products import DOT_BF16, SINGLE, WIDENED_BF16, WIDENED_F16, ProductKind
from onnxfuse.ir.tile import Tile
from onnxfuse.ir.verify import verify
from tests.kernels.cases.half import CASES
from tests.kernels.choices.test_tiles import left_of
from tests.kernels.compiled import MACHINES, Case, kernel_of
from tests.rules.build import Build

NAMED: dict[str, Case] = {c.name: c for c in CASES}


def kernel(name: str, machine: str = "x86-64-v4") -> Kernel:
    made = kernel_of(NAMED[name], MACHINES[machine])
    assert not isinstance(made, Decision)
    return made


def found(name: str, machine: str = "x86-64-v4") -> tuple[set[ProductKind], set[str]]:
    stmts = [s for phase in kernel(name, machine).phases for s in statements(phase.body)]
    tiles = [s for s in stmts if isinstance(s, Tile)]
    return {t.core.product for t in tiles}, {left_of(t) for t in tiles}


@pytest.mark.parametrize(
    ("name", "machine", "product", "kind"),
    [
        ("half_14_8_32", "x86-64-v4", WIDENED_F16, "packed"),  # rows of float16 are widened while they are packed
        ("half_conv3", "x86-64-v4", WIDENED_F16, "even"),  # windows read an element often: a padded float32 copy
        ("bfloat16_gemm_14_8_32", "x86-64-v4", WIDENED_BF16, "even"),
        ("bfloat16_gemm_14_8_32", "bf16", DOT_BF16, "packed"),
        ("bfloat16_conv3_lines", "bf16", DOT_BF16, "even"),
        ("bfloat16_conv1", "bf16", DOT_BF16, "packed"),
        ("bfloat16_gemm_29_257_321", "bf16", SINGLE, "even"),  # an odd depth has no pairs
        ("float16_gemm_29_257_321", "bf16", WIDENED_F16, "even"),
    ],
)
def test_the_kind_of_a_tile(name: str, machine: str, product: ProductKind, kind: str) -> None:
    assert found(name, machine) == ({product}, {kind})


def test_weights_have_pairs_of_k_interleaved() -> None:
    made = kernel("bfloat16_gemm_14_8_32")
    (weight,) = (p for p in made.inputs if p.dtype == BF16)
    assert [e.constant for e in weight.storage] == [1, 4, 32, 2]
    assert [p.dtype for p in kernel("float16_gemm_29_257_321").inputs] == [F32, F16]


def test_rows_are_rounded_when_they_are_packed() -> None:
    made = kernel("bfloat16_gemm_14_8_32", "bf16")
    (pack,) = (s for phase in made.phases for s in statements(phase.body) if isinstance(s, Pack))
    assert pack.load.dtype == F32
    assert [b.dtype for b in made.scratch if b.name == pack.out] == [BF16]


def test_filters_over_looked_up_letters_are_not_widened_in_every_run() -> None:
    """They were where windows were the columns of the product: 0.18x of ONNX Runtime for one letter."""
    made = kernel("half_letters")
    assert made.inputs[-1].dtype == F32 and made.inputs[-1].layout.steps
    assert not [s for phase in made.phases for s in statements(phase.body) if isinstance(s, Pack)]


def test_products_that_pack_any_number_of_rows_share_room_for_the_longest() -> None:
    b = Build()
    x = b.input("x", "N", "M", 64)
    y = b.node("Erf", b.node("MatMul", x, b.weights(64, 128)))
    graph = b.graph(b.node("Sigmoid", b.node("MatMul", y, b.weights(128, 64))))
    made = kernel_of(Case("two_packed", graph, half=BF16), MACHINES["sapphirerapids"])
    assert isinstance(made, Kernel)
    assert sum(isinstance(s, Pack) for phase in made.phases for s in statements(phase.body)) == 2
    assert verify(made) == ()
