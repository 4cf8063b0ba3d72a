"""Cases of recurrent layers: operators, directions, first states, outputs, sizes, and what is moved around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Case, Sizes
from tests.rules.build import Build

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = ("forward", "reverse", "bidirectional")
OPEN: tuple[Sizes, ...] = ({"T": 5, "N": 3}, {"T": 1, "N": 1}, {"T": 2, "N": 29}, {"T": 3, "N": 0})
Extents = tuple[int | str, ...]


def small(b: Build, *shape: int) -> str:
    """Constant numbers with which states neither saturate nor amplify differences."""
    return b.constant((b.rng.normal(size=shape) / (1 + shape[-1]) ** 0.5).astype(np.float32))


def layer(
    b: Build, op: str, x: str, features: int, units: int, *states: str, bias: bool = True, shared: bool = False,
    **attrs: Any,
) -> tuple[str, ...]:  # fmt: skip
    """The results of a layer with constant weights, which may be those of its state too."""
    count, rows = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[op] * units
    w = small(b, count, rows, features)
    r = w if shared else small(b, count, rows, units)
    inputs = [x, w, r, small(b, count, 2 * rows) if bias else "", "", *states]
    while not inputs[-1]:
        inputs.pop()
    outputs: tuple[str, ...] = b.node(op, *inputs, count=3 if op == "LSTM" else 2, hidden_size=units, **attrs)
    return outputs


def alone(
    op: str, size: Extents, units: int, *, begun: bool = False, results: slice = slice(None), opset: int = 17,
    **attrs: Any,
) -> Graph:  # fmt: skip
    """A layer whose first states are inputs, or 0."""
    b, count = Build(opset), 2 if attrs.get("direction") == "bidirectional" else 1
    x, kinds = b.input("x", *size), ("h", "c")[: 2 if op == "LSTM" else 1]
    states = [b.input(name, count, size[1], units) for name in kinds] if begun else []
    features = size[2]
    assert isinstance(features, int)
    return b.graph(*layer(b, op, x, features, units, *states, **attrs)[results])


def moved(op: str, size: Extents, units: int) -> Graph:
    """A layer as exporters write it: batch first, states cut from one tensor, directions beside each other."""
    b = Build()
    batch, steps, features = size
    assert isinstance(features, int)
    x = b.node("Transpose", b.input("x", batch, steps, features), perm=(1, 0, 2))
    given = b.input("s", 6, batch, units)
    cut = b.node("Slice", given, b.ints(2), b.ints(4), b.ints(0))
    states = (cut, cut) if op == "LSTM" else (cut,)
    y, *last = layer(b, op, x, features, units, *states, direction="bidirectional")
    y = b.node("Reshape", b.node("Transpose", y, perm=(0, 2, 1, 3)), b.ints(0, 0, -1))
    return b.graph(b.node("Relu", b.node("Transpose", y, perm=(1, 0, 2))), *last)


def shared(op: str, direction: str, **attrs: Any) -> Graph:
    """A layer whose weights are those of its state, too."""
    b = Build()
    return b.graph(*layer(b, op, b.input("x", 3, 5, 16), 16, 16, shared=True, direction=direction, **attrs))


def backwards(op: str) -> Graph:
    """A layer over steps in reversed order."""
    b = Build()
    x = b.node("Slice", b.input("x", 5, 3, 8), b.ints(-1), b.ints(-1000), b.ints(0), b.ints(-1))
    return b.graph(layer(b, op, x, 8, 8)[0])


def cases() -> list[Case]:
    """All of them."""
    out = []
    sizes: dict[str, tuple[Extents, int]] = {
        "one": ((1, 1, 1), 1), "lone": ((4, 1, 3), 16), "few": ((3, 2, 5), 3), "whole": ((2, 6, 7), 16),
        "odd": ((3, 7, 2), 17), "many": ((2, 50, 3), 15), "step": ((1, 5, 4), 8), "wide": ((2, 13, 33), 64),
    }  # fmt: skip
    kinds: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("lstm", "LSTM", {}), ("gru", "GRU", {}), ("gru_after", "GRU", {"linear_before_reset": 1}), ("rnn", "RNN", {}),
    )  # fmt: skip
    for kind, op, attrs in kinds:
        for at, (name, (size, units)) in enumerate(sizes.items()):
            for k, direction in enumerate(DIRECTIONS):
                way, begun = attrs | {"direction": direction}, (at + k) % 2 == 0
                out.append(Case(f"{kind}_{name}_{direction}", alone(op, size, units, begun=begun, **way)))
        for direction in DIRECTIONS:
            way = attrs | {"direction": direction}
            for begun in (False, True):
                graph = alone(op, ("T", "N", 5), 16, begun=begun, **way)
                out.append(Case(f"{kind}_open_{direction}_{begun}", graph, OPEN))
            out.append(Case(f"{kind}_shared_{direction}", shared(op, direction, **attrs)))
        out.append(Case(f"{kind}_bare", alone(op, (3, 4, 5), 8, bias=False, **attrs)))
        out.append(Case(f"{kind}_all", alone(op, (3, 4, 5), 8, results=slice(1), **attrs)))
        out.append(Case(f"{kind}_last", alone(op, (3, 4, 5), 9, results=slice(1, None), **attrs)))
    for op in GATES:
        out.append(Case(f"{op.lower()}_moved", moved(op, (4, 3, 6), 8)))
        out.append(Case(f"{op.lower()}_moved_open", moved(op, ("N", "T", 6), 8), OPEN[:3]))
        out.append(Case(f"{op.lower()}_backwards", backwards(op)))
    relu = {"activations": ["Relu"]}
    return [*out, Case("rnn_relu", alone("RNN", (4, 3, 5), 16, **relu)), *_stacked()]


def _stacked() -> list[Case]:
    """Two layers in one kernel, one behind the other and beside each other."""
    b = Build()
    y, *_ = layer(b, "LSTM", b.input("x", 4, 3, 5), 5, 16)
    first = b.graph(*layer(b, "LSTM", b.node("Squeeze", y, b.ints(1)), 16, 8))
    b = Build()
    x = b.input("x", 4, 3, 5)
    beside = b.graph(b.node("Add", layer(b, "GRU", x, 5, 8)[0], layer(b, "RNN", x, 5, 8)[0]))
    return [Case("behind", first), Case("beside", beside)]


CASES = tuple(cases())
