"""A recurrent layer as a product over all steps and a recurrence over hidden states.

What a layer does with its input is one product of all steps, which no step has to wait for. What it does with the
hidden state is a recurrence (`Definition.recurrent`): a product with the recurrent weights, and the state that the
gates make of it. Steps are numbered as they are computed, for the reverse direction from the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from onnxfuse.ir.compose import inside
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.scalar import Guard, Load, Scalar, apply, const
from onnxfuse.ops.lookup import loaded
from onnxfuse.ops.spec import Definition, View
from onnxfuse.ops.stages import At, Element, here, total

W, R, B, LENGTHS, STATE = 1, 2, 3, 4, 5  # inputs: weights, recurrent weights, biases, lengths, first hidden state
CELL, PEEPHOLES = 6, 7  # and of an LSTM: first cell state, weights from the cell state to the gates


def added(*terms: Scalar) -> Scalar:
    """The sum of some terms."""
    return reduce(lambda a, b: apply("add", a, b), terms)


def gate_of(x: Scalar) -> Scalar:
    """The sigmoid of x, by a shorter way: a gate, of 0 to 1, needs no relative precision near 0."""
    half = const(0.5, x.dtype)
    return added(apply("mul", half, apply("tanh", apply("mul", half, x))), half)


DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}  # with their number
ACTIVATIONS: dict[str, Callable[[Scalar], Scalar]] = {
    "sigmoid": gate_of,
    "tanh": lambda x: apply("tanh", x),
    "relu": lambda x: apply("max", x, const(0, x.dtype)),
}
Activation = Callable[[Scalar], Scalar]


@dataclass(slots=True)
class RecurrentLayer:
    """A recurrent layer with so many gates, and the definitions that were made of it.

    Values of a recurrence have the axes [step, direction, batch, unit], as the runtime has its results.
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
        return (self.steps, self.directions, self.batch, self.units)

    def checked(self) -> None:
        """Raise Refused for what these definitions do not state."""
        view, refuse = self.view, self.view.refuse
        for i, rank in ((0, 3), (W, 3), (R, 3)):
            view.ranked(i, rank, rank)
        if any(view.dtype(i) != F32 for i in (0, W, R)):
            raise refuse("E-NO-KERNEL", f"{view.dtype(0)} has no kernel, float32 has")
        if view.attr("layout", 0) != 0 or "clip" in view.node.attrs or view.attr("input_forget", 0) != 0:
            raise refuse("E-NO-KERNEL", "layout, clip and input_forget have no kernel")
        if view.has(PEEPHOLES):
            raise refuse("E-NO-KERNEL", f"{view.node.inputs[PEEPHOLES]} has no kernel, its default has", "leave it out")
        if self.units.constant is None or view.node.inputs[R] not in view.constants:
            raise view.computed(R)
        direction = view.attr("direction", "forward")
        if direction not in DIRECTIONS:
            raise refuse("E-INVALID", f"there is no direction {direction}")
        if view.attr("hidden_size", None) != self.units.constant:
            said = f"hidden_size is {view.attr('hidden_size', 'absent')}, and the weights are of {self.units!r} units"
            raise refuse("E-INVALID", said)
        view.demand(self.steps, "is at least", ONE)  # of none, the runtime gives what was in memory, or aborts
        directions = DIRECTIONS[direction]
        wanted = {
            W: (Index.of(directions), self.units * self.gates, view.shape(0)[2]),
            R: (Index.of(directions), self.units * self.gates, self.units),
            B: (Index.of(directions), self.units * (2 * self.gates)),
            LENGTHS: (self.batch,),
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

    def bias(self, at: At, gate: int) -> tuple[Scalar, ...]:
        """The bias of a gate for the hidden state, if there are biases."""
        return (self._bias(at[1], at[3] + self.units * gate, recurrent=True),) if self.view.has(B) else ()

    def _bias(self, d: Index, row: Index, *, recurrent: bool) -> Scalar:
        return self.view.load(B, (d, row + self.units * (self.gates * recurrent)))

    def value(self, tag: str, shape: At, body: Element, *, recurrent: bool) -> Element:
        """An intermediate value of this shape, computed once per element."""
        axes = self.view.axes(shape, f"{tag}{self.name}")
        d = Definition(self.name + tag, axes, body(here(axes)), recurrent=recurrent)
        self.made.append(d)
        return lambda at: Load(d.name, at, F32)

    def of_inputs(self, gates: int) -> Element:
        """What the gates get of the input, by the step at which they read it: the sum over all features, and biases.

        Those of the hidden state are added to the first `gates` of them only.
        """
        view, features = self.view, Axis(f"{self.name}%x:r", self.view.shape(0)[2])

        def one(at: At) -> Scalar:
            step, d, batch, row = at
            x = view.load(0, (step, batch, Index.of(features)))
            product = total("sum", (features,), apply("mul", x, view.load(W, (d, row, Index.of(features)))))
            if not view.has(B):
                return product
            of_state = self._bias(d, row, recurrent=True)
            if gates < self.gates:
                of_state = inside((Guard(row, self.units * gates),), of_state, const(0, F32))
            return added(product, self._bias(d, row, recurrent=False), of_state)

        read = self.value("%x", (*self.shape[:3], self.units * self.gates), one, recurrent=False)
        return lambda at: self._in_time(read, at)

    def _in_time(self, read: Element, at: At) -> Scalar:
        """The value at the place in time of a step, or at the step of a place; 0 behind the end of a sequence.

        In the reverse direction one is as far from the end of the sequence as the other from its begin.
        """
        step, d, b, row = at
        direction, left = self.view.attr("direction", "forward"), self._length(b) - 1 - step
        back = left - step
        other = step if direction == "forward" else step + (back if direction == "reverse" else back * d)
        return self._if_any(left, read((other, d, b, row)))

    def _if_any(self, place: Index, value: Scalar) -> Scalar:
        """A value; 0 where a place in its sequence, from either end, is negative, which only lengths allow."""
        return inside((Guard(place, self.steps),) if self.view.has(LENGTHS) else (), value, const(0, F32))

    def _length(self, b: Index) -> Index:
        """The number of steps of a sequence."""
        return loaded(self.view, LENGTHS, (b,), self.steps + 1) if self.view.has(LENGTHS) else self.steps

    def before(self, tag: str, first: int) -> Element:
        """A state of the recurrence before a step: that of the step before, or input `first`, if there is one, or 0.

        A layer of one step is no recurrence: what was before is never a state of its own.
        """

        def read(at: At) -> Scalar:
            step, *place = at
            begun = self.view.load(first, (*place,)) if self.view.has(first) else const(0, F32)
            if self.steps == ONE:
                return begun
            return Load(self.name + tag, (step - 1, *place), F32, (Guard(step - 1, self.steps),), begun)

        return read

    def of_states(self, tag: str, gates: int, state: Element, first: int = 0) -> Element:
        """What gates from `first` on get of a hidden state, the sum over all units; nothing of one that is 0."""
        if self.steps == ONE and not self.view.has(STATE):
            return lambda at: const(0, F32)
        units = Axis(f"{self.name}{tag}:r", self.units)

        def one(at: At) -> Scalar:
            step, d, batch, row = at
            weight = self.view.load(R, (d, row + self.units * first, Index.of(units)))
            return total("sum", (units,), apply("mul", state((step, d, batch, Index.of(units))), weight))

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
            self.made.append(Definition(outputs[0], axes, self._in_time(self._state("state"), here(axes))))
        for tag, k in last.items():
            if outputs[k]:
                axes = self.view.axes((self.directions, self.batch, self.units), output=k)
                end = self._length(Index.of(axes[1])) - 1
                self.made.append(Definition(outputs[k], axes, self._if_any(end, self._state(tag)((end, *here(axes))))))
        return tuple(self.made)

    def _state(self, tag: str) -> Element:
        """A state of the recurrence behind a step."""
        return lambda at: Load(f"{self.name}%{tag}", at, F32)
