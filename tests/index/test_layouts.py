"""Layouts: the packed array holds each element where `storage_index` says, and every layout can be undone."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import pytest

from onnxfuse.ir.index import Axis, Index, Symbol
from onnxfuse.ir.layout import PLAIN, Layout, PadHigh, Permute, Reshape, Step, Take, channels_last, code_panels, panels
from tests.index.twins import number, value_of

Shape = tuple[Index, ...]


def shape_of(*extents: Index | int) -> Shape:
    return tuple(map(Index.of, extents))


def axes_of(shape: Shape) -> tuple[Axis, ...]:
    return tuple(Axis(f"x{i}", e) for i, e in enumerate(shape))


def check(layout: Layout, extents: tuple[int, ...]) -> np.ndarray:
    """pack, storage_index, shape and undone agree; returns the packed array."""
    logical = shape_of(*extents)
    source = np.arange(1, prod(extents) + 1).reshape(extents)
    packed = layout.pack(source)
    assert packed.flags.c_contiguous
    assert shape_of(*packed.shape) == layout.shape(logical)
    axes = axes_of(logical)
    if not any(isinstance(step, Take) for step in layout.steps):
        at = layout.storage_index(tuple(map(Index.of, axes)), logical)
        where = [np.broadcast_to(value_of(i, axes, {}), extents) for i in at]
        assert np.array_equal(packed[tuple(where)], source)
    back = packed
    for step, shape in layout.undone(logical):
        static = tuple(number(e, {}) for e in shape)
        if isinstance(step, Permute):
            back = back.transpose(step.perm)
        elif isinstance(step, Reshape):
            back = back.reshape(static)
        elif isinstance(step, Take):
            back = back[list(step.order)]
        else:
            back = back[tuple(slice(0, e) for e in static)]
        assert back.shape == static
    assert np.array_equal(back, source)
    return packed


def random_layout(rng: Random, extents: tuple[int, ...]) -> Layout:
    steps: list[Step] = []
    shape = list(extents)
    for _ in range(rng.randint(0, 5)):
        kind = rng.randint(0, 2)
        if kind == 0:
            perm = rng.sample(range(len(shape)), len(shape))
            steps.append(Permute(tuple(perm)))
            shape = [shape[p] for p in perm]
        elif kind == 1:
            extra = [rng.randint(0, 2) for _ in shape]
            steps.append(PadHigh(tuple(extra)))
            shape = [e + x for e, x in zip(shape, extra, strict=True)]
        else:
            at = rng.randrange(len(shape))
            k = rng.choice([d for d in range(1, shape[at] + 1) if shape[at] % d == 0])
            shape[at : at + 1] = [shape[at] // k, k]
            steps.append(Reshape(shape_of(*shape)))
    return Layout(tuple(steps))


def test_any_layout_agrees_with_its_index() -> None:
    rng = Random(1)
    for _ in range(150):
        extents = tuple(rng.choice((1, 2, 3, 4, 5, 6)) for _ in range(rng.randint(1, 3)))
        check(random_layout(rng, extents), extents)


def test_blocks_of_lines_are_taken_in_an_order() -> None:
    blocks, matrix = Reshape(shape_of(3, 8)), Reshape(shape_of(6, 4))
    packed = check(Layout((Permute((1, 0)), blocks, Take((2, 0, 1)), matrix, *panels(6, 4, 3))), (4, 6))
    rows = np.arange(1, 25).reshape(4, 6).T[[4, 5, 0, 1, 2, 3]]
    assert np.array_equal(packed[0], rows[:, :3]) and np.array_equal(packed[1, :, 0], rows[:, 3])


def test_plain_order_is_the_identity() -> None:
    shape = shape_of(3, Symbol("s"))
    at = tuple(map(Index.of, axes_of(shape)))
    assert PLAIN.storage_index(at, shape) == at and PLAIN.shape(shape) == shape and not PLAIN.undone(shape)


@pytest.mark.parametrize("extents", [(2, 3, 5), (2, 3, 4, 5), (1, 7, 2, 3, 2)])
def test_channels_last(extents: tuple[int, ...]) -> None:
    packed = check(channels_last(len(extents)), extents)
    assert packed.shape == (extents[0], *extents[2:], extents[1])
    shape = shape_of(Symbol("n"), 64, Symbol("h"), *extents[3:])
    at = tuple(map(Index.of, axes_of(shape)))
    assert channels_last(len(shape)).storage_index(at, shape) == (at[0], *at[2:], at[1])


@pytest.mark.parametrize(("rows", "columns", "width"), [(4, 8, 4), (3, 7, 4), (5, 1, 16), (1, 33, 32), (2, 32, 32)])
def test_panels(rows: int, columns: int, width: int) -> None:
    layout = Layout(panels(rows, columns, width))
    packed = check(layout, (rows, columns))
    count = -(-columns // width)
    assert packed.shape == (count, rows, width)
    matrix = np.arange(1, rows * columns + 1).reshape(rows, columns)
    for c in range(count * width):
        column = matrix[:, c] if c < columns else np.zeros(rows)
        assert np.array_equal(packed[c // width, :, c % width], column)


def test_a_panel_index_has_no_division_by_rows() -> None:
    row, column = axes_of(shape_of(64, 96))
    layout = Layout(panels(64, 96, 32))
    at = layout.storage_index((Index.of(row), Index.of(column)), shape_of(64, 96))
    assert tuple(map(repr, at)) == ("(x1)//32", "x0", "(x1)%32")


def test_layouts_compose_and_refuse_wrong_shapes() -> None:
    layout = channels_last(4).then(Reshape(shape_of(2, 20, 3)))
    assert check(layout, (2, 3, 4, 5)).shape == (2, 20, 3)
    with pytest.raises(AssertionError, match="is not"):
        layout.shape(shape_of(2, 3, 4, 6))


@pytest.mark.parametrize(("segments", "length", "columns"), [(1, 8, 4), (3, 7, 5), (9, 3, 1), (2, 5, 9)])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_panels_of_codes(segments: int, length: int, columns: int, dtype: type) -> None:
    rng, width = np.random.default_rng(0), 4
    shape = (segments * length, columns)
    codes = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    layout = Layout(code_panels(segments, length, columns, width))
    packed = layout.pack(codes)
    assert packed.shape == tuple(e.constant for e in layout.shape(shape_of(*shape)))
    groups = -(-length // 4)
    for c in range(packed.shape[0] * width):
        column = codes[:, c].reshape(segments, length) if c < columns else np.zeros((segments, length), dtype)
        panel = packed[c // width, :, c % width]
        for s in range(segments):
            assert np.array_equal(panel[s * groups : (s + 1) * groups].reshape(-1)[:length], column[s])
            assert not panel[s * groups : (s + 1) * groups].reshape(-1)[length:].any()
        assert panel[-1].copy().view("<i4") == column.astype(np.int64).sum()
    undone = packed
    for step, after in layout.undone(shape_of(*shape)):
        static = [e.constant or 0 for e in after]
        if isinstance(step, Permute):
            undone = undone.transpose(step.perm)
        elif isinstance(step, Reshape):
            undone = undone.reshape(static)
        else:
            undone = undone[tuple(slice(0, e) for e in static)]
    assert np.array_equal(undone, codes)
