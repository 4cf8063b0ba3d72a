"""Schedules of representative shapes: tile sizes, packed operands, where loops are split."""

from __future__ import annotations

import pytest

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.kernel import Kernel, Loop, Prefetch, statements
from onnxfuse.ir.tile import Packed, Pointers, Quantized, Tile
from onnxfuse.schedule.nests.subranges import split_points
from onnxfuse.target import CPUS
from tests.kernels.cases.contraction import BLOCKWISE
from tests.kernels.cases.contraction import CASES as CONTRACTIONS
from tests.kernels.cases.window import CASES as WINDOWS
from tests.kernels.cases.window import conv
from tests.kernels.compiled import BUILDS, Case, kernel_of

TARGET = CPUS["x86-64-v4"]
TABLE: dict[str, Case] = {c.name: c for c in (*CONTRACTIONS, *WINDOWS)}


def kernel(name: str) -> Kernel:
    made = kernel_of(TABLE[name], TARGET)
    assert not isinstance(made, Decision)
    return made


def left_of(tile: Tile) -> str:
    """How the rows of a tile lie."""
    even = isinstance(tile.left, Pointers) and tile.left.even
    return "even" if even else {Pointers: "rows", Packed: "packed", Quantized: "codes"}[type(tile.left)]


def tiles(name: str) -> list[Tile]:
    return [s for phase in kernel(name).phases for s in statements(phase.body) if isinstance(s, Tile)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("conv3_lines", "even"),
        ("conv3_lines_any", "even"),
        ("conv3_lines_strided", "even"),
        ("conv1_lines_strided", "even"),
        ("conv5_lines", "rows"),  # two pixels of padding at an edge: not even
        ("conv3_lines_apart", "rows"),
        ("conv_whole_height_last", "packed"),  # lines of its image are copied side by side
        ("groups48_taps", "even"),
        ("conv3_packed", "packed"),
        ("conv3_packed_parts", "packed"),
        ("gemm_17_31_37", "even"),
        ("gemm_deep_43", "packed"),
        ("joined1_segments", "even"),  # of eight channels, seven in all
        ("joined1_segments_lines", "even"),
        ("joined1_stride", "packed"),  # 16 and 7 channels have no segments in common
    ],
)
def test_the_left_side_of_a_tile(name: str, kind: str):
    assert {left_of(t) for t in tiles(name)} == {kind}


@pytest.mark.parametrize("name", ["batch_weights", "groups48_taps", "groups66", "groups66_line", "groups66_points"])
def test_constant_weights_of_each_batch_lie_in_panels(name: str):
    """They are packed when a session is made: no run copies them."""
    read, packed = {t.right.buffer for t in tiles(name)}, {p.name for p in kernel(name).inputs if p.layout.steps}
    assert read and read <= packed


def test_filters_of_a_group_that_do_not_fit_in_l2_are_in_tiles():
    """Lanes over channels read all filters of a group again for each position; they suit groups of few channels."""
    assert not tiles("groups8")
    assert tiles("groups48_taps")


@pytest.mark.parametrize("name", ["gemm_deep_43", "gemm_deep_M"])
def test_deep_sums_are_taken_in_parts_that_add_up(name: str):
    first, last = tiles(name)
    assert any(b.name == first.out for b in kernel(name).scratch)
    assert first.left.length == last.left.length
    assert last.more.constant is not None
    assert first.left.length * (last.more + 1) == Index.of(6144)


@pytest.mark.parametrize("case", BLOCKWISE, ids=lambda c: c.name)
def test_rows_are_packed_by_the_task_that_uses_them(case: Case):
    made = kernel_of(case, BUILDS["little-cache"])
    assert isinstance(made, Kernel)
    assert not made.scratch and [b.name for b in made.phases[0].locals] == ["packed", "acc"]


def test_rows_that_are_read_after_a_tile_are_touched_before():
    body = [s for phase in kernel("conv3_lines").phases for s in statements(phase.body)]
    assert [s.buffer for s in body if isinstance(s, Prefetch)] == ["in3"]


@pytest.mark.parametrize(
    ("filters", "after", "far"), [(256, "relu", True), (64, "relu", False), (256, "residual", False)]
)
def test_rows_that_are_stored_beyond_l2_are_touched_before(filters: int, after: str, far: bool):
    """A store waits for its line, and the stores behind it do too; 56 x 56 x 256 elements are 3.2 MB; x 64 are 0.8."""
    case = conv("wide", (1, 64, 56, 56), (filters, 64, 1, 1), after=after)
    made = kernel_of(case, CPUS["x86-64-v4"])
    assert isinstance(made, Kernel)
    touched = {s.buffer for phase in made.phases for s in statements(phase.body) if isinstance(s, Prefetch)}
    assert (made.outputs[0].name in touched) == far


@pytest.mark.parametrize(
    ("signs", "points"),
    [
        ([], (0, 20)),
        ([(1, -3), (1, -17)], (0, 3, 17, 20)),
        ([(1, 0), (1, -20), (1, 5)], (0, 20)),
        ([(2, -3)], (0, 2, 20)),
        ([(-2, 3)], None),  # changes its sign between elements of a stride
    ],
)
def test_split_points_of_a_loop_with_guards(signs: list[tuple[int, int]], points: tuple[int, ...] | None):
    axis = Axis("x", Index.of(20))
    assert split_points(axis, [Index.of(axis) * step + at for step, at in signs]) == points


@pytest.mark.parametrize(("width", "pieces"), [(9, [11]), (93, [95]), (94, [1, 94, 1]), (200, [1, 200, 1])])
def test_a_padded_copy_has_a_loop_for_each_piece_of_a_line_that_is_not_short(width: int, pieces: list[int]):
    case = conv("c", (1, 5, 9, width), (11, 5, 3, 3), pads=(1, 1, 1, 1), last="y")
    made = kernel_of(case, CPUS["x86-64-v4"])
    assert isinstance(made, Kernel), made
    vectors = [s for s in statements(made.phases[0].body) if isinstance(s, Loop) and s.kind == "vector"]
    assert [v.axis.extent.constant for v in vectors] == pieces


@pytest.mark.parametrize(("filters", "width", "rows"), [(16, 7, 7), (64, 7, 13), (16, 14, 14)])
def test_one_vector_of_columns_takes_tiles_of_whole_lines(filters: int, width: int, rows: int) -> None:
    """There, loads take longest: rows that lie evenly apart need one each, others two."""
    made = kernel_of(conv("lines", (1, 128, width, width), (filters, 128, 3, 3), pads=(1, 1, 1, 1)), TARGET)
    assert isinstance(made, Kernel)
    tiles = [s for phase in made.phases for s in statements(phase.body) if isinstance(s, Tile)]
    assert {tile.core.most for tile in tiles} == {rows}
    assert all(isinstance(tile.left, Pointers) and tile.left.even == (rows != 13) for tile in tiles)
