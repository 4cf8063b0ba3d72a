"""Kernels between nodes of the runtime: which swap their operands, and which transpose blocks in registers."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from unittest.mock import patch

import pytest

from onnxfuse.cost import cost_of
from onnxfuse.ir.index import Index, axes_of
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.kernel import Bind, Kernel, Loop, Pack, Prefetch, Stmt, Store, When, statements
from onnxfuse.ir.tile import Packed, Tile
from onnxfuse.schedule.cpu.candidates import CostRanking
from onnxfuse.schedule.cpu.exchange import SIDE
from onnxfuse.target import CPUS, Cpu
from tests.kernels.cases.border import CASES
from tests.kernels.compiled import kernel_of

TARGET = "x86-64-v4"


def made(name: str, target: Cpu = CPUS[TARGET]) -> list[Stmt]:
    """The statements in the kernel of a case."""
    kernel = kernel_of(next(c for c in CASES if c.name == name), target)
    assert isinstance(kernel, Kernel)
    return [s for phase in kernel.phases for s in statements(phase.body)]


def kinds(name: str, target: str = TARGET) -> set[type]:
    """The kinds of statements in the kernel of a case; tiles are those that make some columns alone."""
    found = made(name, CPUS[target])
    return {type(s) for s in found if not isinstance(s, Tile) or isinstance(s.left, Packed)}


@pytest.mark.parametrize(
    "name",
    [
        c.name
        for c in CASES
        if c.name.startswith("exchanged") and c.name not in ("exchanged_far", "exchanged_line_of_one")
    ],
)
def test_sides_are_exchanged(name: str) -> None:
    assert Tile in kinds(name)
    assert (Pack in kinds(name)) == (name == "exchanged_last")


@pytest.mark.parametrize(
    "name", ["turned_9_257", "turned_beside_331_33", "padded_lines", "padded_all_round", "padded_and_turned"]
)
def test_blocks_are_transposed_in_registers(name: str) -> None:
    assert Pack in kinds(name)


@pytest.mark.parametrize("name", [c.name for c in CASES if c.name.startswith("turned_any")])
def test_blocks_are_transposed_at_open_sizes(name: str) -> None:
    """No element is stored by itself: where sides are powers of two, all lanes are in one set of L1."""
    kernel = kernel_of(next(c for c in CASES if c.name == name), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    found = [s for phase in kernel.phases for s in statements(phase.body)]
    assert any(isinstance(s, Pack) for s in found)
    assert not any(isinstance(s, Store) and s.scattered for s in found)


@pytest.mark.parametrize(
    ("name", "target", "steps"),
    [("turned_9_257", TARGET, 64), ("turned_9_257", "x86-64-v3", 56), ("padded_and_turned_prime", TARGET, 256)],
)
def test_lines_of_a_prime_length_are_transposed_in_long_blocks(name: str, target: str, steps: int) -> None:
    """They were transposed step by step: no other number divides their length."""
    kernel = kernel_of(next(c for c in CASES if c.name == name), CPUS[target])
    assert isinstance(kernel, Kernel)
    body = [s for phase in kernel.phases for s in statements(phase.body)]
    pack = next(s for s in body if isinstance(s, Pack))
    end = next(s for s in body if isinstance(s, Bind) and s.axis in axes_of(pack.k.extent))
    (block,) = axes_of(end.value)
    assert coefficient(end.value, block) == Index.of(steps)


@pytest.mark.parametrize(("shape", "panels"), [("1025_33", 2), ("1037_33", 1)])
def test_blocks_whose_lines_compete_for_a_set_are_kept_together(shape: str, panels: int) -> None:
    """33 lines 4100 bytes apart are in three sets of L1; 4148 bytes apart, each is in one of its own."""
    kernel = kernel_of(next(c for c in CASES if c.name == f"turned_{shape}"), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    (buffer,) = (b for phase in kernel.phases for b in phase.locals)
    (pack,) = (s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, Pack))
    assert buffer.size == pack.k.extent * CPUS[TARGET].panel * panels


@pytest.mark.parametrize(("target", "pitch"), [(TARGET, 32), ("x86-64-v3", 64)])
def test_blocks_lie_side_by_side_where_masks_are_slow(target: str, pitch: int) -> None:
    """Four blocks are kept together there: vectors go through the whole line."""
    (pack,) = (s for s in made("turned_1025_33", CPUS[target]) if isinstance(s, Pack))
    assert pack.pitch == Index.of(pitch) and pack.apart == (pitch > CPUS[target].panel)


@pytest.mark.parametrize(("name", "again"), [("mean_padded_form_0", True), ("turned_9_257", False)])
def test_loops_over_whole_axes_may_run_twice(name: str, again: bool) -> None:
    """Not those over a part of an axis, such as a block of a transposition."""
    assert any(isinstance(s, Loop) and s.again for s in made(name)) == again


@pytest.mark.parametrize(("name", "splits"), [("max_line_form_0", 1), ("max_halves_form_1", 2)])
def test_lanes_of_one_vector_are_not_divided(name: str, splits: int) -> None:
    kernel = kernel_of(next(c for c in CASES if c.name == name), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    assert [len(phase.splits) for phase in kernel.phases] == [splits]


@pytest.mark.parametrize(("first", "taken"), [((33.0, 20.0, 6.0), 1), ((24.0, 17.0, 6.0), 0)])
def test_few_cores_do_not_pay_much_for_many(first: tuple[float, ...], taken: int) -> None:
    """Microseconds on one core, on two and on sixteen, of two forms of a transposed convolution of 14 x 14 pixels."""
    kernel = kernel_of(next(c for c in CASES if c.name == "turned_9_257"), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    both = [kernel, replace(kernel)]
    times = {id(both[0]): first, id(both[1]): (20.0, 15.0, 15.0)}
    with patch.object(CostRanking, "seconds", lambda ranking, *_: times[id(ranking.kernel)]):
        found = CostRanking(kernel, (), CPUS[TARGET], frozenset(), 0.0).best_kernel(both)
    assert found is both[taken]


@pytest.mark.parametrize(
    ("name", "fetched"),
    [
        ("exchanged_together", True),
        ("exchanged_together_windows", True),
        ("exchanged_points", False),  # it stays in L2
        ("exchanged_any_width", False),  # nobody knows
        ("max_far", True),
        ("max_padded_form_0", False),
    ],
)
def test_more_streams_than_a_machine_follows_are_fetched_ahead(name: str, fetched: bool) -> None:
    assert (Prefetch in kinds(name, "x86-64-v3")) == fetched
    found = [s for s in made(name) if isinstance(s, Prefetch)]
    assert all(s.near for s in found), "a machine class whose streams were not counted"


@pytest.mark.parametrize(
    ("name", "fetched"),
    [
        ("exchanged_together", True),
        ("exchanged_any_width", True),  # where it turns out to be large
        ("exchanged_points", False),  # it stays in L2
    ],
)
def test_lines_of_large_results_are_fetched_before_they_are_computed(name: str, fetched: bool) -> None:
    """A tile's own: its products take longer than the lines."""
    found = made(name, replace(CPUS[TARGET], l2_bytes=256 << 10))
    assert any(isinstance(s, Prefetch) and s.near for s in found) == fetched
    guarded = [s for w in found if isinstance(w, When) for s in statements(w.body) if isinstance(s, Prefetch)]
    assert bool(guarded) == (name == "exchanged_any_width")
    assert not any(isinstance(s, Prefetch) and s.near for s in made(name, CPUS["x86-64-v3"]))


def test_images_whose_panels_are_multiplied_together_are_read_once() -> None:
    """Whoever multiplies four panels together reads the whole image, block by block."""
    case = next(c for c in CASES if c.name == "exchanged_together")
    kernel = kernel_of(case, CPUS["x86-64-v3"])
    assert isinstance(kernel, Kernel)
    for cores in (1, 2):
        cost = cost_of(kernel, replace(CPUS["x86-64-v3"], cores=cores), frozenset(case.graph.constants))
        assert cost is not None
        assert 7 * 113 * 127 * 4 < sum(p.bytes for p in cost.phases) < (7 + 2 * 13) * 113 * 127 * 4 * 1.1


@pytest.mark.parametrize(
    ("name", "target", "panels"),
    [
        ("exchanged_seams_exact", "x86-64-v3", 49),  # 784 pixels
        ("exchanged_seams_exact", "x86-64-v4", 25),
        ("exchanged_seams_strided", "x86-64-v3", 12),  # 10 lines of 19
        ("exchanged_several_lines", "x86-64-v3", 8),  # a vector is in three lines: with what is between them
    ],
)
def test_panels_go_on_in_the_next_line(name: str, target: str, panels: int) -> None:
    kernel = kernel_of(next(c for c in CASES if c.name == name), CPUS[target])
    assert isinstance(kernel, Kernel)
    assert prod(s.extent.constant or 0 for s in kernel.phases[-1].splits) == panels


@pytest.mark.parametrize(
    ("name", "made", "packed"),
    [
        ("exchanged_points_whole", 1, False),  # of the first of two tiles
        ("exchanged_points", 1, True),  # the last panel is not whole
        ("exchanged_seams_long", 1, True),  # nor are those in two lines
        ("exchanged_seams_exact", 0, True),  # each panel is in two lines
        ("exchanged_stride", 0, True),  # pixels do not lie side by side
        ("exchanged_narrow", 0, True),  # a tile of three rows waits for its sums
    ],
)
def test_the_first_tile_of_a_panel_makes_it(name: str, made: int, packed: bool) -> None:
    kernel = kernel_of(next(c for c in CASES if c.name == name), CPUS["x86-64-v4"])
    assert isinstance(kernel, Kernel)
    body = list(statements(kernel.phases[-1].body))
    assert sum(s.right.source is not None for s in body if isinstance(s, Tile)) == made
    assert any(isinstance(s, Store) and s.buffer == SIDE for s in body) == packed


MIRRORED = ("mirrored", "mirrored_any", "mirrored_last_any", "mirrored_few_filters", "mirrored_columns", "repeated")


@pytest.mark.parametrize(
    "name", [*MIRRORED, *(f"mirrored_{kind}" for kind in ("steps", "apart", "channels", "groups"))]
)
def test_an_image_is_mirrored_once(name: str) -> None:
    """Not for each tap of a window: places in a copy with its border are linear in the pixel and the tap."""
    kernel = kernel_of(next(c for c in CASES if c.name == name), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    made = [b.name for b in kernel.scratch]
    assert sum("%bent" in each for each in made) == 1
    assert not any(each.endswith("%left") for each in made)
