"""Kernels for images of open height and width: what is assumed of them, and what is chosen then."""

from __future__ import annotations

import pytest

from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Index, Symbol, floor_div
from onnxfuse.ir.kernel import Kernel, Loop, Pack, Param, ReduceLoop, Stmt, Store, When, statements
from onnxfuse.ir.lanes import values_of
from onnxfuse.ir.layout import Layout
from onnxfuse.ir.scalar import Load
from onnxfuse.ir.tile import Packed, Tile
from onnxfuse.render import cpp
from onnxfuse.schedule.cpu.candidates import CostRanking
from onnxfuse.schedule.cpu.exchange import SIDE
from onnxfuse.target import CPUS
from tests.kernels.cases.border import conv, opened, pool
from tests.kernels.compiled import Case, kernel_of

TARGET = CPUS["x86-64-v4"]
HEIGHT, MADE = Symbol("s1"), Symbol("s2")


def made(case: Case) -> list[Stmt]:
    """The statements in the kernel of a case, in the form that is predicted to be fastest."""
    kernel = kernel_of(case, TARGET)
    assert isinstance(kernel, Kernel)
    return [s for phase in kernel.phases for s in statements(phase.body)]


def ranking(formula: Index) -> CostRanking:
    """A ranking for a kernel whose result has an extent that is computed from that of its image."""
    shapes = {"in0": (Index.of(HEIGHT),), "out0": (Index.of(MADE),)}
    params = tuple(Param(name, name, F32, shape, Layout()) for name, shape in shapes.items())
    kernel = Kernel(params[:1], params[1:], (), (), ())
    return CostRanking(kernel, (HEIGHT, MADE), TARGET, (), 0.0, computed=((MADE, formula),))


@pytest.mark.parametrize(
    ("formula", "sizes"),
    [
        (floor_div(Index.of(HEIGHT) + 1, Index.of(2)), (48, 24)),
        (Index.of(HEIGHT) * 2, (24, 48)),
        (Index.of(HEIGHT) - 2, (48, 46)),
        (floor_div(Index.of(HEIGHT), Index.of(16)), (384, 24)),
    ],
)
def test_what_is_assumed_of_an_image_makes_what_is_assumed_of_the_result(
    formula: Index, sizes: tuple[int, int]
) -> None:
    """As large as asked at least; a result of other lines than there are would be priced at its edges."""
    assumed = ranking(formula).nonempty_sizes({HEIGHT.name: 24, MADE.name: 24})
    assert (assumed[HEIGHT.name], assumed[MADE.name]) == sizes


@pytest.mark.parametrize(
    ("op", "before", "size", "pads"),
    [
        ("MaxPool", "", 3, 1),
        ("MaxPool", "Relu", 3, 1),
        ("MaxPool", "Relu", 2, 0),
        ("AveragePool", "", 3, 1),
        ("AveragePool", "", 2, 0),
    ],
)
def test_lines_of_open_windows_are_computed_together(op: str, before: str, size: int, pads: int) -> None:
    """Without guards on lines, also where lines have none in common and padding is compared with what is before."""
    graph = pool(op, "N", 64, "H", "W", before=before, kernel_shape=(size, size), strides=(2, 2), pads=(pads,) * 4)
    blocks = [s for s in made(Case("p", graph)) if isinstance(s, ReduceLoop) and len(s.targets) > 1]
    assert blocks
    assert not any(isinstance(s, When) for block in blocks for s in statements(block.body))


def test_windows_in_a_flat_copy_share_its_lines() -> None:
    """Eight lines of results read fourteen lines for each of seven columns, not eight times seven for each line."""
    found = made(conv("d", ("N", 64, "H", "W"), (64, 1, 7, 7), group=64, pads=(3,) * 4, form=2))
    (block,) = (s for s in found if isinstance(s, ReduceLoop) and len(s.targets) == 8)
    body = [s for s in statements(block.body) if not isinstance(s, Loop)]
    read = {n for s in body for x in values_of(s) for n in loads(x) if isinstance(n, Load)}
    assert len({n for n in read if n.lanes is not None and n.lanes.kind == "vector"}) == 14


@pytest.mark.parametrize("name", ["exchanged_open", "exchanged_open_inside", "exchanged_open_apart"])
def test_open_panels_go_on_across_lines_and_the_first_tile_makes_them(name: str) -> None:
    found = made(next(c for c in opened() if c.name == name))
    tiles = [s for s in found if isinstance(s, Tile) and isinstance(s.left, Packed) and s.right.buffer == SIDE]
    assert any(t.right.source is not None for t in tiles)
    assert any(isinstance(s, Loop) and s.axis.name == "ll" for s in found), "results are stored line by line"


@pytest.mark.parametrize("name", ["exchanged_open_strides", "exchanged_open_far"])
def test_open_panels_end_with_lines_where_more_lies_between_them(name: str) -> None:
    found = made(next(c for c in opened() if c.name == name))
    assert any(isinstance(s, Tile) and s.right.buffer == SIDE for s in found)
    assert not any(isinstance(s, Loop) and s.axis.name == "ll" for s in found)


@pytest.mark.parametrize("name", ["turned_open", "turned_open_line"])
def test_open_images_are_transposed_in_registers_with_their_padding(name: str) -> None:
    """When they are copied, and as results: element by element where rows of a tile are of two images."""
    kernel = kernel_of(next(c for c in opened() if c.name == name), TARGET)
    assert isinstance(kernel, Kernel)
    copied, multiplied = ([*statements(phase.body)] for phase in kernel.phases)
    assert any(isinstance(s, Pack) for s in copied)
    assert not any(isinstance(s, Store) and s.scattered for s in copied)
    assert any(isinstance(s, Pack) for s in multiplied)
    seldom = [x for s in multiplied if isinstance(s, Loop) and s.kind == "seldom" for x in statements(s.body)]
    scattered = [s for s in multiplied if isinstance(s, Store) and s.scattered]
    assert scattered and all(s in seldom for s in scattered)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_ends_of_open_images_are_blocks_that_leave_the_padding_out(op: str) -> None:
    """Four lines at either end read six, less one in the padding; eight lines inside read ten."""
    graph = pool(op, "N", 64, "H", "W", kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    found = made(Case("p", graph))
    blocks = [s for s in found if isinstance(s, ReduceLoop) and len(s.targets) > 1]
    assert [len(s.targets) for s in blocks] == [8, 4, 4]
    assert not any(isinstance(s, When) for block in blocks for s in statements(block.body))
    read = [{n for s in statements(b.body) for x in values_of(s) for n in loads(x) if n.index} for b in blocks]
    assert [len(each) for each in read] == [10, 5, 5]


def test_loads_of_windows_share_their_masks() -> None:
    """All lines of a window are cut at the same columns: what lanes these are is computed once for each tap."""
    kernel = kernel_of(conv("m", ("N", 6, "H", "W"), (6, 1, 5, 5), group=6, pads=(2,) * 4, form=0), TARGET)
    assert isinstance(kernel, Kernel)
    text = cpp.render(kernel, "m", "m").text
    assert text.count("lanes_between(") == 3  # in eight lines of the interior, and in four at either end
    assert text.count("lanes_held(") == 12 + 6 + 6
