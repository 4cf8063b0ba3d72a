"""What sampled iterations take indices for that are loaded from tensors."""

from __future__ import annotations

from onnxfuse.ir.dtype import F32, I32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.index import Loaded as LoadedIndex
from onnxfuse.ir.kernel import Bind, Kernel, Loop, Param, Phase, Store
from onnxfuse.ir.layout import PLAIN
from onnxfuse.ir.scalar import Const, Guard, Load
from onnxfuse.ir.verify import verify

AT, AGAIN, FOUR = Axis("i", Index.of(4)), Axis("the_same_place", Index.of(4)), Index.of(4)


def length_at(place: Index) -> Index:
    """A loaded integer from 0 to 4."""
    return Index.of(LoadedIndex("in0", (place,), FOUR + 1))


def kernel(guarded: Index, read: Index) -> Kernel:
    """Reads the element before a loaded index, if there is one before another."""
    last = Load("in1", (length_at(read) - 1,), F32, (Guard(length_at(guarded) - 1, FOUR),), Const(0.0, F32))
    body = (Bind(AGAIN, Index.of(AT)), Store("out0", Index.of(AT), last))
    phase = Phase((), ONE, (), (Loop(AT, ZERO, FOUR, "serial", body),))
    inputs = (Param("in0", "lengths", I32, (FOUR,), PLAIN), Param("in1", "x", F32, (FOUR,), PLAIN))
    return Kernel(inputs, (Param("out0", "y", F32, (FOUR,), PLAIN),), (), (), (phase,))


def test_an_element_is_the_same_wherever_it_is_read() -> None:
    assert verify(kernel(Index.of(AT), Index.of(AT))) == ()
    assert verify(kernel(Index.of(AT), Index.of(AGAIN))) == ()


def test_elements_differ() -> None:
    (fault,) = verify(kernel(Index.of(AT), Index.of(3) - AT))
    assert "reads in1[-1], which has 4 elements" in fault
