"""Channels-last layouts: around convolutions, but not around pools between nodes of the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from models.borders import BORDERS
from onnxfuse.config import Options
from onnxfuse.ir.group import Group
from onnxfuse.ir.layout import Layout, channels_last
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.price import Prices, Seconds
from onnxfuse.plan.search.layouts import MOST, with_cheaper_layouts
from tests.plan.priced import LEGALITY, costing
from tests.rules.build import Build

IMAGE = channels_last(4)


@pytest.mark.parametrize("name", ["max-pool", "max-pool-padded", "mean-pool", "pool-before", "pool-behind"])
def test_pools_at_the_border_lie_as_the_runtime_has_them(name: str) -> None:
    row = BORDERS[name]
    made = plan(load(row.build(row.sizes[-1]).SerializeToString(), Options()), ROWS, Options())
    assert not made.layouts


def test_pools_of_whole_images_take_in_what_is_before_them() -> None:
    row = BORDERS["global-pool"]
    made = plan(load(row.build(row.sizes[-1]).SerializeToString(), Options()), ROWS, Options())
    assert [[n.op for n in g.nodes] for g in made.groups] == [["Relu", "GlobalAveragePool", "Sigmoid"]]


def test_pools_between_convolutions_lie_channels_last() -> None:
    b = Build()
    x = b.node("Relu", b.node("Conv", b.input("x", 1, 3, 21, 21), b.weights(16, 3, 3, 3)), out="a")  # lines of 19
    x = b.node("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2), out="b")
    made = plan(b.graph(b.node("Relu", b.node("Conv", x, b.weights(16, 16, 3, 3)))), ROWS, Options())
    assert made.layouts == {"b": IMAGE}  # the pool is in the kernel of the convolution before it


@pytest.mark.parametrize("last", [False, True])
def test_images_that_are_resized_lie_as_their_results(last: bool) -> None:
    """Results of the model lie as the runtime has them: none of their elements is stored by itself."""
    b = Build()
    x = b.node("Conv", b.input("x", 1, 32, 7, 7), b.weights(21, 32, 1, 1), out="a")
    scales = b.constant([1.0, 1.0, 8.0, 8.0])
    x = b.node("Resize", b.node("Relu", x, out="b"), "", scales, mode="linear", out="c")
    if last:  # another convolution reads what is resized
        x = b.node("Conv", x, b.weights(16, 21, 3, 3))
    made = plan(b.graph(x), ROWS, Options(min_group=1))
    assert (made.layouts.get("b") == IMAGE) == last


class Known:
    """Prices of groups with channels last and without, on one core, on two and on many."""

    def __init__(self, last: Seconds, plain: Seconds | None) -> None:
        self.last, self.plain = last, plain
        self.asked: Mapping[str, Layout] = {}

    def of_groups(self, groups: Sequence[Group], layouts: Mapping[str, Layout]) -> Seconds | None:
        self.asked = layouts
        return self.last if layouts else self.plain

    def on_target(self, each_point: Seconds) -> Seconds:
        return each_point[:2]


@pytest.mark.parametrize(
    ("plain", "last"),
    [
        ((0.9, 0.9, 1.1), False),
        ((0.9, 0.9, 1.6), True),
        ((1.0, 0.99, 1.0), True),
        ((1.5, 1.5, 1.5), True),
        (None, True),
    ],
)
def test_islands_lie_as_is_cheaper(plain: Seconds | None, last: bool) -> None:
    """Not where a larger machine would lose much, nor where a kernel is refused so.

    The layouts that are taken are asked for last: what is known of a group's kernel, for `tune`, is of those.
    """
    row = BORDERS["few-filters"]
    made = plan(load(row.build(row.sizes[0]).SerializeToString(), Options()), ROWS, Options())
    assert len(made.layouts) == 2
    known = Known((1.0, 1.0, 1.0), plain)
    found = with_cheaper_layouts(made, cast(Prices, known))
    assert bool(found.layouts) == last
    assert known.asked == found.layouts


def test_groups_that_are_given_lie_as_the_search_that_found_them_had_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock gives groups, and no layouts."""
    monkeypatch.setattr("onnxfuse.plan.search.layouts.SAVED", -9.0)
    monkeypatch.setattr("onnxfuse.plan.search.layouts.LOST", 9.0)
    row = BORDERS["few-filters"]
    graph = load(row.build(row.sizes[0]).SerializeToString(), Options())
    found = plan(graph, ROWS, Options(), legality=LEGALITY, costing=costing())
    groups = [tuple(n.name for n in g.nodes) for g in found.groups]
    again = plan(graph, ROWS, Options(), legality=LEGALITY, costing=costing(), grouping=groups)
    assert not found.layouts
    assert [tuple(n.name for n in g.nodes) for g in again.groups] == groups
    assert again.layouts == found.layouts
    usual = Options(strategy="anchors")
    assert plan(graph, ROWS, usual, legality=LEGALITY, costing=costing(), grouping=groups).layouts


def test_few_islands_are_scheduled_once_more() -> None:
    """Networks may have many of them."""
    row = BORDERS["few-filters"]
    made = plan(load(row.build(row.sizes[0]).SerializeToString(), Options()), ROWS, Options())
    known = Known((1.0, 1.0, 1.0), (0.5, 0.5, 0.5))
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("onnxfuse.plan.search.layouts.IN_ALL", len(made.groups) - 1)
        assert with_cheaper_layouts(made, cast(Prices, known)) == made
    assert not known.asked


def test_few_filters_at_the_end_of_a_large_island_read_the_layout_of_the_runtime() -> None:
    """An image of three colours: what is before it transposes, and the rest keeps its channels last."""
    b = Build()
    x = b.input("x", 1, 32, 64, 64)
    for _ in range(MOST):
        x = b.node("Relu", b.node("Conv", x, b.weights(32, 32, 3, 3), pads=(1, 1, 1, 1)))
    y = b.node("Conv", x, b.weights(3, 32, 9, 9), pads=(4, 4, 4, 4))
    made = plan(b.graph(b.node("Tanh", y)), ROWS, Options(), legality=LEGALITY, costing=costing())
    assert x not in made.layouts
    assert len(made.layouts) == len(made.groups) - 2 > 1


def test_stages_of_few_channels_in_a_large_island_lie_as_the_runtime_has_them() -> None:
    """The last blocks of a vocoder: four filters as columns of a tile would leave most of it empty."""
    b = Build()
    x, before, stages = b.input("x", 1, 32, 6400), 32, dict[int, list[str]]()
    for channels in (32, 4):
        x = b.node("LeakyRelu", b.node("Conv", x, b.weights(channels, before, 3), pads=(1, 1)))
        ends, stages[channels], before = [], [x], channels
        for taps in (3, 7, 11):  # blocks side by side read the same image
            y, pad = x, taps // 2
            for dilation in (1, 3, 5):
                pads = (dilation * pad,) * 2
                z = b.node("Conv", y, b.weights(channels, channels, taps), pads=pads, dilations=(dilation,))
                z = b.node("Conv", b.node("LeakyRelu", z), b.weights(channels, channels, taps), pads=(pad, pad))
                y = b.node("Add", y, z)
                stages[channels].append(y)
            ends.append(y)
        x = b.node("Sum", *ends)
    x = b.node("Conv", x, b.weights(1, before, 7), pads=(3, 3))
    made = plan(b.graph(b.node("Tanh", x)), ROWS, Options(), legality=LEGALITY, costing=costing())
    between = {v for g in made.groups for v in (*g.inputs, *g.outputs)}
    last = {count: [v in made.layouts for v in values if v in between] for count, values in stages.items()}
    assert len(last[32]) > 1 < len(last[4])
    assert all(last[32])
    assert not any(last[4])
