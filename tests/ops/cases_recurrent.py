"""Cases of recurrent layers, for `test_rows`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.ops.case import Array, Case, data, ints

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CONSTANT = (1, 2, 3)  # weights and biases
REFERENCE = "onnx"  # which has one direction, one set of activations and neither of the resets of a GRU right


def inputs(
    op: str, steps: int, batch: int, features: int, units: int, directions: int = 1, *, bias: bool = True
) -> tuple[Array | None, ...]:
    """Input, weights, recurrent weights and biases of a layer."""
    rows = GATES[op] * units
    return (
        data(steps, batch, features),
        data(directions, rows, features, seed=1, low=-0.7, high=0.7),
        data(directions, rows, units, seed=2, low=-0.7, high=0.7),
        data(directions, 2 * rows, seed=3, low=-0.5, high=0.5) if bias else None,
    )


def layers() -> Iterator[Case]:
    """Every operator: sizes, directions, first states, biases, outputs that are left out."""
    for op in GATES:
        outputs, states = 3 if op == "LSTM" else 2, 2 if op == "LSTM" else 1
        for steps, batch, features, units in ((1, 1, 1, 1), (7, 1, 3, 5), (4, 3, 2, 8), (2, 13, 9, 17)):
            attrs: dict[str, Any] = {"hidden_size": units}
            given = {"length": features + units, "factor": 8.0 * steps, "constants": CONSTANT, "wrong": REFERENCE}
            begun = tuple(data(1, batch, units, seed=4 + k) for k in range(states))
            back = {"direction": "reverse"}
            both = {"direction": "bidirectional"}
            begun_both = tuple(data(2, batch, units, seed=4 + k) for k in range(states))
            one, two = inputs(op, steps, batch, features, units), inputs(op, steps, batch, features, units, 2)
            yield Case(op, one, attrs, 14, outputs, **given)
            yield Case(op, one, attrs | back, 7, 1, **given)
            yield Case(op, two, attrs | both, 22, outputs, **given)
            yield Case(op, (*one, None, *begun), attrs | back, 14, outputs, **given)
            yield Case(op, (*two, None, *begun_both), attrs | both, 14, outputs, **given)
            bare = inputs(op, steps, batch, features, units, bias=False)
            yield Case(op, (*bare, None, *begun), attrs, 14, outputs, **(given | {"constants": (1, 2)}))


def variants() -> Iterator[Case]:
    """Where the state of a GRU is reset, activations that are not the usual ones."""
    given = {"length": 24, "factor": 32.0, "constants": CONSTANT, "wrong": REFERENCE}
    for batch, directions in ((1, 1), (3, 2)):
        way = {"direction": "bidirectional"} if directions == 2 else {}
        gru = inputs("GRU", 5, batch, 3, 9, directions)
        yield Case("GRU", gru, {"hidden_size": 9, "linear_before_reset": 1} | way, 14, 2, **given)
        rnn = inputs("RNN", 5, batch, 3, 9, directions)
        yield Case("RNN", rnn, {"hidden_size": 9, "activations": ["Relu"] * directions} | way, 14, 2, **given)
        named = ["Sigmoid", "Tanh", "Relu"] * directions
        lstm = inputs("LSTM", 5, batch, 3, 9, directions)
        yield Case("LSTM", lstm, {"hidden_size": 9, "activations": named} | way, 14, 3, **given)


def lengths() -> Iterator[Case]:
    """Sequences that end before the last step, some of them before the first one."""
    given = {"length": 24, "factor": 32.0, "wrong": REFERENCE}
    for op in GATES:
        outputs, states = 3 if op == "LSTM" else 2, 2 if op == "LSTM" else 1
        for steps, ends in ((1, (1,)), (5, (4,)), (6, (0, 6, 3)), (3, (1, 3, 2, 1, 3, 0, 2, 2, 3, 1, 1, 3, 2))):
            for direction in ("forward", "reverse", "bidirectional"):
                directions, attrs = 1 + (direction == "bidirectional"), {"hidden_size": 9, "direction": direction}
                layer = inputs(op, steps, len(ends), 3, 9, directions)
                begun = tuple(data(directions, len(ends), 9, seed=4 + k) for k in range(states))
                for first in ((), begun):
                    given_all = (*layer, ints(*ends, dtype="int32"), *first)
                    yield Case(op, given_all, attrs, 14, outputs, constants=CONSTANT, **given)


CASES: tuple[Case, ...] = (*layers(), *variants(), *lengths())
