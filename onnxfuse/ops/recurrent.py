"""Rows of recurrent layers: LSTM, GRU and RNN, as products over all steps and recurrences over hidden states.

What a layer does with its input is one product of all steps, which no step has to wait for. What it does with the
hidden state is a recurrence (`Definition.recurrent`): a product with the recurrent weights, and the state that the
gates make of it. Steps are numbered as they are computed, for the reverse direction from the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.scalar import Guard, Load, Scalar, apply, const
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, here, total

W, R, B, LENGTHS, STATE = 1, 2, 3, 4, 5  # inputs: weights, recurrent weights, biases, lengths, first hidden state
CELL, PEEPHOLES = 6, 7  # and of an LSTM: first cell state, weights from the cell state to the gates

ACTIVATIONS: dict[str, Callable[[Scalar], Scalar]] = {
    "sigmoid": lambda x: apply("sigmoid", x),
    "tanh": lambda x: apply("tanh", x),
    "relu": lambda x: apply("max", x, const(0, x.dtype)),
}
Activation = Callable[[Scalar], Scalar]


def added(*terms: Scalar) -> Scalar:
    """The sum of some terms."""
    return reduce(lambda a, b: apply("add", a, b), terms)


@dataclass(slots=True)
class Layer:
    """A recurrent layer with so many gates, and the definitions that were made of it.

    Values of a recurrence have the axes [step, batch, direction, unit], as the runtime has its results.
    """

    view: View
    gates: int
    made: list[Definition] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The first of the node's results that it has, after which its values are named."""
        return next(filter(None, self.view.node.outputs))

    @property
    def steps(self) -> Index:
        """The number of steps."""
        return self.view.shape(0)[0]

    @property
    def batch(self) -> Index:
        """The number of sequences."""
        return self.view.shape(0)[1]

    @property
    def directions(self) -> Index:
        """1 or 2."""
        return self.view.shape(W)[0]

    @property
    def units(self) -> Index:
        """The size of the hidden state."""
        return self.view.shape(R)[2]

    @property
    def shape(self) -> At:
        """The shape of a state at all steps."""
        return (self.steps, self.batch, self.directions, self.units)

    def checked(self, used: Iterable[int], *, clips: bool = True) -> None:
        """Raise Refused for what these definitions do not state."""
        view, refuse = self.view, self.view.refuse
        for i, rank in ((0, 3), (W, 3), (R, 3)):
            view.ranked(i, rank, rank)
        if any(view.dtype(i) != F32 for i in (0, W, R)):
            raise refuse("E-NO-KERNEL", f"{view.dtype(0)} has no kernel, float32 has")
        if view.attr("layout", 0) != 0 or "clip" in view.node.attrs or view.attr("input_forget", 0) != 0:
            raise refuse("E-NO-KERNEL", "layout, clip and input_forget have no kernel")
        absent = [i for i in (LENGTHS, PEEPHOLES) if view.has(i) and i not in used]
        if absent:
            raise refuse("E-NO-KERNEL", f"{view.node.inputs[absent[0]]} has no kernel, its default has", "leave it out")
        if self.units.constant is None or view.node.inputs[R] not in view.constants:
            raise view.computed(R)
        directions = 2 if view.attr("direction", "forward") == "bidirectional" else 1
        wanted = {
            W: (Index.of(directions), self.units * self.gates, view.shape(0)[2]),
            R: (Index.of(directions), self.units * self.gates, self.units),
            B: (Index.of(directions), self.units * (2 * self.gates)),
            STATE: (Index.of(directions), self.batch, self.units),
            CELL: (Index.of(directions), self.batch, self.units),
        }
        for i, shape in wanted.items():
            if view.has(i):
                view.ranked(i, len(shape), len(shape))
                for have, want in zip(view.shape(i), shape, strict=True):
                    view.demand(have, "equals", want)

    def activations(self, usual: Sequence[str]) -> tuple[Activation, ...]:
        """The activation functions of a direction. Raises Refused for others than the usual ones and Relu."""
        names = [x.decode() if isinstance(x, bytes) else x for x in self.view.attr("activations", ())] or [*usual]
        own, count = [x.lower() for x in names], len(usual)
        if any(x not in ACTIVATIONS for x in own) or any(own[k] != own[k % count] for k in range(len(own))):
            raise self.view.refuse("E-NO-KERNEL", f"the activations {', '.join(names)} have no kernel")
        if len(own) not in (count, count * (self.directions.constant or 1)):
            raise self.view.refuse("E-INVALID", f"there are {len(own)} activations, not {count} for each direction")
        return tuple(ACTIVATIONS[x] for x in own[:count])

    def bias(self, at: At, gate: int, *, recurrent: bool) -> Scalar:
        """The bias of a gate for the input, or for the hidden state."""
        _, _, d, unit = at
        if not self.view.has(B):
            return const(0, F32)
        return self.view.load(B, (d, unit + self.units * (gate + self.gates * recurrent)))

    def value(self, tag: str, shape: At, body: Element, *, recurrent: bool) -> Element:
        """An intermediate value of this shape, computed once per element."""
        axes = self.view.axes(shape, f"{tag}{self.name}")
        d = Definition(self.name + tag, axes, body(here(axes)), recurrent=recurrent)
        self.made.append(d)
        return lambda at: Load(d.name, at, F32)

    def of_inputs(self) -> Element:
        """What the gates get of the input, by the step at which they read it, the sum over all features."""
        view, features = self.view, Axis(f"{self.name}%x:r", self.view.shape(0)[2])

        def one(at: At) -> Scalar:
            step, batch, d, gate = at
            x = view.load(0, (step, batch, Index.of(features)))
            return total("sum", (features,), apply("mul", x, view.load(W, (d, gate, Index.of(features)))))

        read = self.value("%x", (*self.shape[:3], self.units * self.gates), one, recurrent=False)
        return lambda at: self._in_order(read, at)

    def _in_order(self, read: Element, at: At) -> Scalar:
        """An element at the place where the step of each direction lies."""
        step, batch, d, unit = at
        back = (self.steps - 1 - step, batch, d, unit)
        direction = self.view.attr("direction", "forward")
        if direction != "bidirectional":
            return read(at if direction == "forward" else back)
        one, two = read((step, batch, ZERO, unit)), read((*back[:2], ONE, unit))
        assert isinstance(one, Load)
        return Load(one.source, one.index, one.dtype, (Guard(d, ONE),), two)

    def before(self, tag: str, first: int) -> Element:
        """A state of the recurrence before a step: that of the step before, or input `first`, if there is one, or 0."""

        def read(at: At) -> Scalar:
            step, batch, d, unit = at
            begun = self.view.load(first, (d, batch, unit)) if self.view.has(first) else const(0, F32)
            return Load(self.name + tag, (step - 1, batch, d, unit), F32, (Guard(step - 1, self.steps),), begun)

        return read

    def of_states(self, tag: str, gates: int, state: Element, first: int = 0) -> Element:
        """What gates from `first` on get of a hidden state, the sum over all units."""
        units = Axis(f"{self.name}{tag}:r", self.units)

        def one(at: At) -> Scalar:
            step, batch, d, gate = at
            weight = self.view.load(R, (d, gate + self.units * first, Index.of(units)))
            return total("sum", (units,), apply("mul", state((step, batch, d, Index.of(units))), weight))

        return self.value(tag, (*self.shape[:3], self.units * gates), one, recurrent=True)

    def gate(self, read: Element, at: At, gate: int) -> Scalar:
        """A value of a gate for a unit."""
        return read((*at[:3], at[3] + self.units * gate))

    def states(self, tag: str, body: Element) -> Element:
        """A state at all steps."""
        return self.value(tag, self.shape, body, recurrent=True)

    def results(self, **last: int) -> tuple[Definition, ...]:
        """All definitions: the hidden states are output 0, the last ones of each kind the outputs of these numbers."""
        outputs = [*self.view.node.outputs, "", "", ""]
        if outputs[0]:
            axes = self.view.axes((self.steps, self.directions, self.batch, self.units))
            step, d, batch, unit = here(axes)
            value = self._in_order(lambda at: Load(f"{self.name}%state", at, F32), (step, batch, d, unit))
            self.made.append(Definition(outputs[0], axes, value))
        for tag, k in last.items():
            if outputs[k]:
                axes = self.view.axes((self.directions, self.batch, self.units), output=k)
                d, batch, unit = here(axes)
                value = self.before(f"%{tag}", STATE if tag == "state" else CELL)((self.steps, batch, d, unit))
                self.made.append(Definition(outputs[k], axes, value))
        return tuple(self.made)


def lstm(view: View) -> tuple[Definition, ...]:
    """LSTM: gates of input, output, forgetting and cell."""
    layer = Layer(view, 4)
    layer.checked(())
    f, g, h = layer.activations(("Sigmoid", "Tanh", "Tanh"))
    x, state, cell = layer.of_inputs(), layer.before("%state", STATE), layer.before("%cell", CELL)
    z = layer.of_states("%gates", 4, state)

    def gate(at: At, k: int) -> Scalar:
        bias = (layer.bias(at, k, recurrent=False), layer.bias(at, k, recurrent=True)) if view.has(B) else ()
        return added(layer.gate(x, at, k), layer.gate(z, at, k), *bias)

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
    layer = Layer(view, 3)
    layer.checked(())
    f, g = layer.activations(("Sigmoid", "Tanh"))
    x, state = layer.of_inputs(), layer.before("%state", STATE)
    after = view.attr("linear_before_reset", 0) != 0  # whether the state is reset after its product
    z = layer.of_states("%gates", 3 if after else 2, state)

    def gate(at: At, k: int) -> Scalar:
        bias = (layer.bias(at, k, recurrent=False), layer.bias(at, k, recurrent=True)) if view.has(B) else ()
        return f(added(layer.gate(x, at, k), layer.gate(z, at, k), *bias))

    if after:

        def hidden(at: At) -> Scalar:
            product = added(layer.gate(z, at, 2), layer.bias(at, 2, recurrent=True))
            return added(apply("mul", gate(at, 1), product), layer.bias(at, 2, recurrent=False))
    else:
        reset = layer.states("%reset", lambda at: apply("mul", gate(at, 1), state(at)))
        of_reset = layer.of_states("%hidden", 1, reset, 2)

        def hidden(at: At) -> Scalar:
            biases = (layer.bias(at, 2, recurrent=False), layer.bias(at, 2, recurrent=True))
            return added(of_reset(at), *biases)

    def new(at: At) -> Scalar:
        update, made = gate(at, 0), g(added(layer.gate(x, at, 2), hidden(at)))
        return added(apply("mul", apply("sub", const(1, F32), update), made), apply("mul", update, state(at)))

    layer.states("%state", new)
    return layer.results(state=1)


def rnn(view: View) -> tuple[Definition, ...]:
    """RNN: an activation of the sum of what input and hidden state give."""
    layer = Layer(view, 1)
    layer.checked(())
    (f,) = layer.activations(("Tanh",))
    x, state = layer.of_inputs(), layer.before("%state", STATE)
    z = layer.of_states("%gates", 1, state)
    biases = (False, True) if view.has(B) else ()
    layer.states("%state", lambda at: f(added(x(at), z(at), *(layer.bias(at, 0, recurrent=r) for r in biases))))
    return layer.results(state=1)


ROWS = (Row("LSTM", lstm), Row("GRU", gru), Row("RNN", rnn))
