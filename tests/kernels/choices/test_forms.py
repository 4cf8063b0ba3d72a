"""Convolutions on channels-first images: which form is chosen, and the loops and tiles of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxfuse.ir.compose import loads, walk
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.kernel import Kernel, Let, Loop, ReduceLoop, Store, When, statements
from onnxfuse.ir.lanes import cutting, masked
from onnxfuse.ir.scalar import Load
from onnxfuse.ir.tile import Tile
from onnxfuse.lower.extents import Sized, sized
from onnxfuse.lower.lowered import Lowered
from onnxfuse.plan.legality import CPU
from onnxfuse.schedule.analysis.canonical import canonical
from onnxfuse.schedule.analysis.forms import forms_of
from onnxfuse.schedule.cpu.exchange import SIDE
from onnxfuse.schedule.cpu.gemm import PACKED
from onnxfuse.target import CPUS
from tests.kernels.cases.form import CASES, EXCHANGED
from tests.kernels.cases.window import conv, pads
from tests.kernels.compiled import Case, kernel_of, lowered_of


def kernel(case: Case) -> Kernel:
    made = kernel_of(case, CPUS["x86-64-v4"])
    assert isinstance(made, Kernel), made
    return made


def tiles(made: Kernel) -> list[Tile]:
    return [s for phase in made.phases for s in statements(phase.body) if isinstance(s, Tile)]


def exchanged(made: Kernel) -> bool:
    """Whether there are tiles, all of which have filters for rows and places of a line for columns."""
    found = tiles(made)
    return bool(found) and all(tile.right.buffer == SIDE for tile in found)


@pytest.mark.parametrize("case", [c for c in CASES if c.name.startswith("exchanged")], ids=lambda c: c.name)
def test_sides_are_exchanged(case: Case) -> None:
    assert exchanged(kernel(case))


def test_panels_of_places_are_stored_in_whole_vectors() -> None:
    """Lanes behind the last place would hold what memory held: subnormal numbers are multiplied 50 times as slowly."""
    for strides in ((1, 1), (1, 2)):
        how = {"pads": pads(1), "strides": strides, "form": EXCHANGED}
        made = kernel(conv("panel", (1, 16, 14, 14), (16, 16, 3, 3), **how, last=""))
        assert exchanged(made)
        lanes, width = CPUS["x86-64-v4"].lanes, CPUS["x86-64-v4"].panel
        whens = [s for phase in made.phases for s in statements(phase.body) if isinstance(s, When)]
        whens = [w for w in whens if any(_stores(s, SIDE) for s in statements(w.body)) and not _has_whens(w)]
        whole, part = ([s for s in whens if _holds(s, width) == n] for n in ([width], [*range(1, width)]))
        for when in (*whole, *part):
            (loop,) = [s for s in statements(when.body) if isinstance(s, Loop) and s.kind == "vector"]
            assert any(_stores(x, SIDE) for x in loop.body)
            assert _masks(loop) == (strides[1] if when in part else None)
            assert all(evaluate(loop.end, lambda _, n=n: n) % lanes == 0 for n in (1, 14, 16, 32))
        assert len(whole) == len(part) == 1


def _has_whens(when: When) -> bool:
    return any(isinstance(s, When) for s in statements(when.body))


def _holds(when: When, width: int) -> list[int]:
    """For how many places of a panel a guard holds."""
    (guard,) = when.guards
    ends = [(evaluate(guard.index, lambda _, n=n: n), guard.extent.constant or 0) for n in range(1, width + 1)]
    return [n for n, (at, extent) in enumerate(ends, 1) if 0 <= at < extent]


def _masks(loop: Loop) -> int | None:
    """The distance of lanes that are loaded under a mask."""
    (read,) = [n for x in loop.body if isinstance(x, Let) for n in walk(x.value) if isinstance(n, Load)]
    return masked(read, loop.axis)


def _stores(s: object, buffer: str) -> bool:
    return isinstance(s, Store) and s.buffer == buffer


LONE = {
    "seven": ((64, 40, 40), 7, 1),
    "three": ((37, 23, 23), 3, 1),
    "every_second": ((24, 56, 56), 3, 2),
    "small": ((576, 7, 7), 3, 1),
}


@pytest.mark.parametrize("name", LONE)
def test_an_isolated_depthwise_convolution_works_on_lines_in_place(name: str) -> None:
    """No copy, no lane loaded by itself: what padding cuts is loaded under masks, several lines at a time."""
    (channels, *image), taps, stride = LONE[name]
    how = {"group": channels, "pads": pads(taps // 2), "strides": (stride, stride)}
    made = kernel(conv(name, (1, channels, *image), (channels, 1, taps, taps), **how, last=""))
    assert len(made.phases) == 1
    assert not made.scratch
    (body,) = [phase.body for phase in made.phases]
    lanes = [s.axis for s in statements(body) if isinstance(s, Loop) and s.kind == "vector"]
    reads = [n for s in statements(body) if isinstance(s, Let) for n in walk(s.value) if isinstance(n, Load)]
    cut = [n for n in reads for axis in lanes if cutting(n, axis)]
    assert cut
    assert all(any(masked(n, axis) is not None for axis in lanes) for n in cut)
    assert any(len(s.targets) > 1 for s in statements(body) if isinstance(s, ReduceLoop))


def test_one_filter_works_on_lines_in_place() -> None:
    made = kernel(conv("one", (1, 32, 28, 28), (1, 32, 3, 3), pads=pads(1), last=""))
    folds = [s for s in statements(made.phases[0].body) if isinstance(s, ReduceLoop)]
    assert not tiles(made)
    assert max(len(s.targets) for s in folds) == 7  # lines at a time, of 28


def test_few_filters_have_their_sides_exchanged() -> None:
    made = kernel(conv("few", (1, 128, 64, 64), (4, 128, 1, 1), last=""))
    assert exchanged(made)


@pytest.mark.parametrize(("shape", "copied"), [((1, 64, 40, 40), True), ((2, 64, 8, 8), False), ((1, 64, 1, 7), False)])
def test_rows_that_lie_side_by_side_are_packed_by_copying(shape: tuple[int, ...], copied: bool) -> None:
    """Pixels of an image whose channels come first, for a result with channels last: not element by element."""
    made = kernel(conv("along", shape, (64, 64, 1, 1), last="y"))
    body = [s for phase in made.phases for s in statements(phase.body)]
    packed = [s for s in body if isinstance(s, Store) and s.buffer == PACKED]
    assert bool(packed) == copied
    assert all(x.lanes is not None and x.lanes.kind == "vector" for s in packed for v in s.values for x in loads(v))


def test_images_with_channels_last_have_one_form() -> None:
    made = kernel(conv("last", (1, 64, 28, 28), (64, 64, 3, 3), pads=pads(1)))
    assert not exchanged(made)


def test_windows_without_padding_that_are_strided_have_tiles() -> None:
    """The feature encoder of a speech network: 512 segments of three elements, which a tile cannot read."""
    made = kernel(conv("encoder", (1, 512, 399), (512, 512, 3), strides=(2,), last=""))
    assert tiles(made)


def test_an_input_that_only_says_extents_is_not_copied() -> None:
    """An image of the network, which says how many lines the tokens of an attention are as an image again."""
    case = conv("said", (1, 64, 28, 28), (64, 1, 3, 3), group=64, pads=pads(1), last="")
    lowered = lowered_of(case, CPU.widened)
    assert isinstance(lowered, Lowered)
    group = sized(lowered, {})
    assert isinstance(group, Sized)
    c = canonical(group)
    more = replace(c, inputs=(*c.inputs, replace(c.inputs[0], name="in9")))
    last = [form for form in forms_of(more, ["in1", "in2"]) if form.layouts]
    assert len(last) == 1
    assert all(n.source != "in9" for form in last for d in form.definitions for n in loads(d.value))
