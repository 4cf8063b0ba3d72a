"""Contractions that are alike share the choice of a schedule, whatever else is in their kernels, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.graph import Graph
from onnxfuse.ir.group import Plan, group_of
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.layout import channels_last
from onnxfuse.lower import lower
from onnxfuse.lower.lowered import Lowered
from onnxfuse.ops.rows import ROWS
from onnxfuse.schedule.cpu import convolution
from onnxfuse.schedule.cpu.scheduler import schedule
from onnxfuse.target import CPUS
from tests.kernels.compiled import forget
from tests.rules.build import Build

TARGET = CPUS["x86-64-v4"]
LAST = {v: channels_last(4) for v in ("x", "a", "b", "y")}


def three(*sizes: int) -> Graph:
    """Convolutions of 1x1 or 3x3, each with a Relu, of 64 channels of 28x28."""
    b = Build()
    x = b.input("x", 1, 64, 28, 28)
    for size, out in zip(sizes, ("a", "b", "y"), strict=True):
        w = b.constant((b.rng.normal(size=(64, 64, size, size)) / 24).astype(np.float32))
        made = b.node("Conv", x, w, kernel_shape=(size, size), pads=(size // 2,) * 4)
        x = b.node("Relu", made, out=out)
    return b.graph("y")


def kernel(graph: Graph, first: int, last: int) -> Kernel:
    """The kernel of some of the convolutions, by number."""
    nodes = graph.nodes[2 * first : 2 * last + 2]
    group = group_of("g", nodes, {v: 1 for n in graph.nodes for v in n.inputs} | {"y": 1})
    made = lower(group, Plan(graph, (group,), LAST), ROWS)
    assert isinstance(made, Lowered)
    found = schedule(made, LAST, graph.constants, TARGET, winograd=True)
    assert isinstance(found, Kernel)
    return found


@pytest.mark.parametrize("sizes", [(1, 3, 1), (3, 3, 3), (3, 1, 1)])
def test_kernels_do_not_depend_on_what_was_scheduled_before(sizes: tuple[int, ...]) -> None:
    graph = three(*sizes)
    parts = [(0, 2), (0, 0), (1, 2), (1, 1), (0, 1), (2, 2)]
    cold = {}
    for part in parts:
        forget()
        cold[part] = kernel(graph, *part)
    forget()
    assert {part: kernel(graph, *part) for part in parts} == cold
    forget()
    assert {part: kernel(graph, *part) for part in reversed(parts)} == cold


def test_equal_convolutions_of_other_kernels_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = three(3, 3, 3)
    seen: list[Any] = []
    real = convolution.ContractionPhase.decided
    monkeypatch.setattr(convolution.ContractionPhase, "decided", lambda of: (seen.append(of), real(of))[1])
    forget()
    kernel(graph, 1, 1)
    assert len(seen) == 1
    kernel(graph, 0, 2)
    assert len(seen) == 1  # its three are like the one before
    kernel(three(3, 1, 3), 1, 1)
    assert len(seen) == 2


def test_a_choice_does_not_depend_on_the_names_of_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel with another image the symbols of a convolution have other numbers; it is chosen once."""
    b = Build()
    other, x = b.input("z", "M", 8, "h", "w"), b.input("x", "N", 64, "H", "W")
    w = b.constant((b.rng.normal(size=(64, 64, 3, 3)) / 24).astype(np.float32))
    b.node("Relu", other, out="r")
    made = b.node("Conv", x, w, kernel_shape=(3, 3), pads=(1,) * 4, out="c")
    b.node("Relu", made, out="y")
    graph = b.graph("r", "y")
    seen: list[Any] = []
    real = convolution.ContractionPhase.decided
    monkeypatch.setattr(convolution.ContractionPhase, "decided", lambda of: (seen.append(of), real(of))[1])

    def phases(*names: str) -> Kernel:
        nodes = [n for n in graph.nodes if n.outputs[0] in names]
        group = group_of("g", nodes, {v: 1 for n in graph.nodes for v in n.inputs} | {"r": 1, "y": 1})
        layouts = {v: channels_last(4) for v in ("x", "c", "y", "z", "r")}
        lowered = lower(group, Plan(graph, (group,), layouts), ROWS)
        assert isinstance(lowered, Lowered)
        found = schedule(lowered, layouts, graph.constants, TARGET, winograd=True)
        assert isinstance(found, Kernel)
        return found

    cold = []
    for names in (("c", "y"), ("r", "c", "y")):
        forget()
        cold.append(phases(*names))
    assert len({tuple(s.name for s in of.ranking.symbols) for of in seen}) == 2
    forget()
    seen.clear()
    assert [phases("c", "y"), phases("r", "c", "y")] == cold
    assert len(seen) == 1
