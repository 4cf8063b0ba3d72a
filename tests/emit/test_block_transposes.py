"""Rewritten chains of movement are equivalent, with fewer and simpler Transposes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfuse.emit.block_transposes import in_blocks
from onnxfuse.emit.spell import Spelling
from onnxfuse.ir.graph import Node
from onnxfuse.ir.index import Index

Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Steps = list[tuple[str, tuple[int, ...]]]


def computed(nodes: list[Node], x: Array) -> dict[str, Array]:
    """Every value that the nodes make of the input `x`."""
    values = {"x": x}
    for n in nodes:
        if n.op == "Constant":
            values[n.outputs[0]] = n.attrs["value"].load()
        elif n.op == "Transpose":
            values[n.outputs[0]] = values[n.inputs[0]].transpose(n.attrs["perm"])
        elif n.op == "Reshape":
            values[n.outputs[0]] = values[n.inputs[0]].reshape(values[n.inputs[1]])
        elif n.op == "Slice":
            starts, ends, axes = (values[i].tolist() for i in n.inputs[1:])
            cut = {a: slice(start, end) for a, start, end in zip(axes, starts, ends, strict=True)}
            x = values[n.inputs[0]]
            values[n.outputs[0]] = x[tuple(cut.get(a, slice(None)) for a in range(x.ndim))]
        else:
            values[n.outputs[0]] = -values[n.inputs[0]]
    return values


def spelled(shape: tuple[int, ...], steps: Steps) -> tuple[Spelling, str]:
    """The steps as nodes, with a Neg behind them, and the name of the result."""
    spell = Spelling(17, {"x": tuple(map(Index.of, shape))})
    x, have = "x", shape
    for op, dims in steps:
        if op == "Transpose":
            x, have = spell.add("Transpose", x, perm=dims), tuple(have[p] for p in dims)
        else:
            x, have = spell.reshape(x, tuple(map(Index.of, have)), tuple(map(Index.of, dims))), dims
    return spell, spell.add("Neg", x)


def transposes(spell: Spelling) -> list[tuple[int, ...]]:
    return [n.attrs["perm"] for n in spell.nodes if n.op == "Transpose"]


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], Steps]:
    """A shape of at most 5 axes and up to 4 steps that fit it."""
    sizes = st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=5)
    shape = have = tuple(draw(sizes))
    steps: Steps = []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            perm = tuple(draw(st.permutations(range(len(have)))))
            steps.append(("Transpose", perm))
            have = tuple(have[p] for p in perm)
        else:
            have = draw(_shapes_of(prod(have)))
            steps.append(("Reshape", have))
    return shape, steps


def _shapes_of(total: int) -> st.SearchStrategy[tuple[int, ...]]:
    found = [(total,), (1, total)]
    found += [(a, total // a) for a in (2, 3, 4, 6) if total % a == 0]
    found += [(total // (a * b), a, b) for a in (2, 3) for b in (2, 4) if total % (a * b) == 0]
    return st.sampled_from(found)


@given(chains())
def test_the_same_elements(chain: tuple[tuple[int, ...], Steps]):
    shape, steps = chain
    spell, last = spelled(shape, steps)
    x = np.arange(prod(shape)).reshape(shape)
    expected = computed(spell.nodes, x)[last]
    in_blocks(spell, {"x": shape}, [last])
    np.testing.assert_array_equal(computed(spell.nodes, x)[last], expected, strict=True)
    assert last in {o for n in spell.nodes for o in n.outputs}


@pytest.mark.parametrize(
    ("shape", "steps", "perms"),
    [
        pytest.param(
            (2, 27, 32),
            [("Transpose", (1, 0, 2)), ("Reshape", (3, 3, 3, 64)), ("Transpose", (3, 2, 0, 1))],
            [(0, 2, 1, 3), (0, 2, 1)],
            id="panels of a 3x3 convolution: taps behind channels, then rows behind columns",
        ),
        pytest.param(
            (4, 64, 32), [("Transpose", (1, 0, 2)), ("Reshape", (64, 128)), ("Transpose", (1, 0))], [(0, 2, 1)],
            id="panels of a matrix that is read transposed",
        ),
        pytest.param((5, 7), [("Transpose", (1, 0)), ("Transpose", (1, 0))], [], id="nothing moves"),
        pytest.param((3, 4, 5), [("Transpose", (0, 2, 1))], [(0, 2, 1)], id="one block: stays"),
        pytest.param((3, 4, 5), [("Transpose", (2, 1, 0))], [(1, 0, 2), (1, 0)], id="mirrored"),
    ],
)  # fmt: skip
def test_moves_of_single_blocks(shape: tuple[int, ...], steps: Steps, perms: list[tuple[int, ...]]):
    spell, last = spelled(shape, steps)
    in_blocks(spell, {"x": shape}, [last])
    assert transposes(spell) == perms


def test_values_with_other_readers_stay():
    spell, last = spelled((2, 3, 4), [("Transpose", (2, 1, 0)), ("Transpose", (1, 0, 2))])
    between = next(n for n in spell.nodes if n.op == "Transpose").outputs[0]
    other = spell.add("Neg", between)
    before = list(spell.nodes)
    in_blocks(spell, {"x": (2, 3, 4)}, [last, other])
    x = np.arange(24).reshape(2, 3, 4)
    for name in (last, other):
        np.testing.assert_array_equal(computed(spell.nodes, x)[name], computed(before, x)[name])


@pytest.mark.parametrize(("start", "perms"), [(0, [(1, 0, 2), (1, 0)]), (1, [(2, 1, 0)])])
def test_slices_before_a_chain_of_movement(start: int, perms: list[tuple[int, ...]]):
    spell = Spelling(17, {"x": tuple(map(Index.of, (3, 5, 8)))})
    cut = spell.add("Slice", "x", spell.ints((start,)), spell.ints((-1,)), spell.ints((1,)))
    last = spell.add("Neg", spell.add("Transpose", cut, perm=(2, 1, 0)))
    x = np.arange(120).reshape(3, 5, 8)
    expected = computed(spell.nodes, x)[last]
    in_blocks(spell, {"x": (3, 5, 8)}, [last])
    np.testing.assert_array_equal(computed(spell.nodes, x)[last], expected, strict=True)
    assert transposes(spell) == perms


def test_only_the_inputs_that_are_named():
    spell, last = spelled((3, 4, 5), [("Transpose", (2, 1, 0))])
    in_blocks(spell, {}, [last])
    assert transposes(spell) == [(2, 1, 0)]
