"""Reads before any store are found from the order of statements."""

from dataclasses import replace

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.kernel import Buffer, Kernel, Loop, Param, Phase, Stmt, Store
from onnxfuse.ir.layout import PLAIN
from onnxfuse.ir.scalar import Load
from onnxfuse.ir.verify.order import disorder, early_reads

AT = Axis("i", Index.of(4))
LOCAL, SHARED = Buffer("local", F32, Index.of(4), "local"), Buffer("shared", F32, Index.of(4), "global")


def copied(source: str, to: str) -> Stmt:
    store = Store(to, Index.of(AT), Load(source, (Index.of(AT),), F32))
    return Loop(AT, ZERO, Index.of(4), "serial", (store,))


def kernel(*bodies: tuple[Stmt, ...]) -> Kernel:
    phases = tuple(Phase((), ONE, (LOCAL,), body) for body in bodies)
    one = (Index.of(4),)
    return Kernel((Param("in0", "x", F32, one, PLAIN),), (Param("out0", "y", F32, one, PLAIN),), (SHARED,), (), phases)


def test_in_order():
    assert early_reads(kernel((copied("in0", "local"), copied("local", "out0")))) == ()


def test_a_read_before_its_store_is_found():
    assert early_reads(kernel((copied("local", "out0"), copied("in0", "local")))) == ("local",)


def test_buffers_that_later_phases_read():
    assert early_reads(kernel((copied("in0", "shared"),), (copied("shared", "out0"),))) == ()
    assert early_reads(kernel((copied("shared", "out0"),), (copied("in0", "shared"),))) == ("shared",)


def test_locals_end_with_their_phase():
    assert early_reads(kernel((copied("in0", "local"),), (copied("local", "out0"),))) == ("local",)


def test_an_output_that_nothing_stores_is_found():
    made = kernel((copied("in0", "out0"),))
    assert disorder(made) == ()
    left_out, empty = Param("out1", "z", F32, (Index.of(4),), PLAIN), Param("out2", "e", F32, (ZERO,), PLAIN)
    found = disorder(replace(made, outputs=(*made.outputs, left_out, empty)))
    assert found == ("out1 is an output, and nothing is stored there",)
