"""Rows of recurrent layers: LSTM, GRU and RNN, as products over all steps and recurrences over hidden states."""

from __future__ import annotations

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.scalar import Scalar, apply, const
from onnxfuse.ops.recurrent.layer import CELL, STATE, RecurrentLayer, added
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At


def lstm(view: View) -> tuple[Definition, ...]:
    """LSTM: gates of input, output, forgetting and cell."""
    layer = RecurrentLayer(view, 4)
    layer.checked()
    f, g, h = layer.activations(("Sigmoid", "Tanh", "Tanh"))
    x, state, cell = layer.of_inputs(4), layer.before("%state", STATE), layer.before("%cell", CELL)
    z = layer.of_states("%gates", 4, state)

    def gate(at: At, k: int) -> Scalar:
        return added(layer.gate(x, at, k), layer.gate(z, at, k))

    kept = layer.states(
        "%cell",
        lambda at: added(
            apply("mul", f(gate(at, 2)), cell(at)),
            apply("mul", f(gate(at, 0)), g(gate(at, 3))),
        ),
    )
    layer.states("%state", lambda at: apply("mul", f(gate(at, 1)), h(kept(at))))
    return layer.results(state=1, cell=2)


def gru(view: View) -> tuple[Definition, ...]:
    """GRU: gates of update, reset and hidden state."""
    layer = RecurrentLayer(view, 3)
    layer.checked()
    f, g = layer.activations(("Sigmoid", "Tanh"))
    after = view.attr("linear_before_reset", 0) != 0  # whether the state is reset after its product
    x, state = layer.of_inputs(2 if after else 3), layer.before("%state", STATE)
    z = layer.of_states("%gates", 3 if after else 2, state)

    def gate(at: At, k: int) -> Scalar:
        return f(added(layer.gate(x, at, k), layer.gate(z, at, k)))

    if not after:
        reset = layer.states("%reset", lambda at: apply("mul", gate(at, 1), state(at)))
        of_reset = layer.of_states("%hidden", 1, reset, 2)

    def hidden(at: At) -> Scalar:
        if not after:
            return of_reset(at)
        return apply("mul", gate(at, 1), added(layer.gate(z, at, 2), *layer.bias(at, 2)))

    def new(at: At) -> Scalar:
        update, made = gate(at, 0), g(added(layer.gate(x, at, 2), hidden(at)))
        return added(apply("mul", apply("sub", const(1, F32), update), made), apply("mul", update, state(at)))

    layer.states("%state", new)
    return layer.results(state=1)


def rnn(view: View) -> tuple[Definition, ...]:
    """RNN: an activation of the sum of what input and hidden state give."""
    layer = RecurrentLayer(view, 1)
    layer.checked()
    (f,) = layer.activations(("Tanh",))
    x, state = layer.of_inputs(1), layer.before("%state", STATE)
    z = layer.of_states("%gates", 1, state)
    layer.states("%state", lambda at: f(added(x(at), z(at))))
    return layer.results(state=1)


ROWS = (Row("LSTM", lstm), Row("GRU", gru), Row("RNN", rnn))
