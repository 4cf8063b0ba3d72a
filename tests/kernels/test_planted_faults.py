"""Faults inserted into kernels are found by `verify`, which runs nothing, or by the interpreter, as stated for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.dtype import BF16, F16, F32, I32, I64
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.interpret import KernelFault, interpret
from onnxfuse.ir.kernel import (
    Accumulate,
    Buffer,
    HorizontalReduce,
    Kernel,
    Let,
    Loop,
    Pack,
    Param,
    Phase,
    ReduceLoop,
    Split,
    Store,
)
from onnxfuse.ir.layout import PLAIN
from onnxfuse.ir.products import AMX, CODES, WIDENED_F16
from onnxfuse.ir.scalar import Apply, Guard, Lanes, Load
from onnxfuse.ir.tile import Coding, Tile
from onnxfuse.ir.verify import verify
from tests.kernels.compiled import BUILDS, Case, check, expected, fed, kernel_of, packed
from tests.kernels.tables import TABLES

Change = Callable[[Any], Any]


def case_named(name: str) -> Case:
    return next(c for table in TABLES.values() for c in table.cases if c.name == name)


def changed(x: Any, change: Change) -> Any:
    """x with `change` applied to every value in it, the inner ones first."""
    if isinstance(x, tuple):
        return change(tuple(changed(each, change) for each in x))
    if not is_dataclass(x) or isinstance(x, (Index, Axis)):
        return change(x)
    made = {f.name: changed(getattr(x, f.name), change) for f in fields(x) if f.init}
    return change(replace(x, **made))


def only_first(kind: type, change: Change, when: Callable[[Any], bool] = lambda _: True) -> Change:
    """A change of the first value of a kind."""
    done: list[bool] = []

    def go(x: Any) -> Any:
        if not isinstance(x, kind) or done or not when(x):
            return x
        done.append(True)
        return change(x)

    return go


def in_phases(kernel: Kernel, change: Change) -> Kernel:
    made = replace(kernel, phases=changed(kernel.phases, change))
    assert made != kernel, "nothing was planted"
    return made


def fault_of(kernel: Kernel, case: Case, target: str) -> tuple[str, str]:
    """Who finds a fault in a kernel, and what is said."""
    if found := verify(kernel):
        return "verify", "; ".join(found)
    try:
        outputs = interpret(kernel, fed(kernel, case, 0), BUILDS[target].lanes)
        for p, got in zip(kernel.outputs, outputs, strict=True):
            check(got, p.dtype, *(packed(p.layout, a) for a in expected(case, 0)[p.value]))
    except KernelFault as fault:
        return "interpret", str(fault)
    except AssertionError as wrong:
        return "interpret", str(wrong)
    return "", ""


def longer(loop: Loop) -> Loop:
    return replace(loop, end=loop.end + 1)


def shorter(loop: Loop) -> Loop:
    return replace(loop, end=loop.end - 1)


def shallower(t: Tile) -> Tile:
    return replace(t, left=replace(t.left, length=t.left.length - 1))


def beside(t: Tile) -> Tile:
    return replace(t, right=replace(t.right, at=t.right.at + 1))


def is_vector(loop: Loop) -> bool:
    return loop.kind == "vector"


def unguarded(load: Load) -> Load:
    return replace(load, guards=(), otherwise=None)


def is_guarded(load: Load) -> bool:
    return bool(load.guards)


def is_element(load: Load) -> bool:
    return bool(load.index)


def is_table(b: Buffer) -> bool:
    return b.space == "pointers"


def has_part(s: ReduceLoop) -> bool:
    return s.part is not None


def is_strided(load: Load) -> bool:
    return load.lanes is not None and load.lanes.kind == "strided"


def last_first(body: tuple[Any, ...]) -> tuple[Any, ...]:
    return (body[-1], *body[:-1])


def lets_first(body: Any) -> bool:
    return len(body) > 1 and isinstance(body[0], Let) and isinstance(body[-1], Store)


def renamed(old: str, new: str) -> Change:
    """One buffer in place of another: their values are alive at the same time."""

    def go(x: Any) -> Any:
        if isinstance(x, tuple) and any(isinstance(b, Buffer) for b in x):
            return tuple(b for b in x if b.name != old)
        names = ("out", "buffer", "source")
        mine = {n: new for n in names if getattr(x, n, None) == old} if is_dataclass(x) else {}
        return replace(x, **mine) if mine else x

    return go


FAULTS = {
    "a vector loop one iteration too long": (
        "chain_softmax_wide", only_first(Loop, longer, is_vector), "verify", "in0["),
    "a vector loop one iteration too short": (
        "Relu_float32", only_first(Loop, shorter, is_vector), "interpret", "are never stored"),
    "padding that is read": (
        "attention_of_joined", only_first(Load, unguarded, is_guarded), "verify", "reads in2["),
    "a buffer that is too short": (
        "attention", only_first(Buffer, lambda b: replace(b, size=b.size - 100), lambda b: b.name == "acc"),
        "verify", "acc["),
    "a tile of too many rows": (
        "attention", only_first(Tile, lambda t: replace(t, rows=t.rows + 3)), "verify", "more rows"),
    "a sum that leaves its last step out": (
        "attention", only_first(Tile, shallower), "interpret", "times the bound"),
    "two buffers of one name": (
        "attention", only_first(Buffer, lambda b: replace(b, name="acc"), lambda b: b.name != "acc"),
        "verify", "buffers acc"),
    "two live values in one buffer": (
        "attention_of_joined", renamed("v0%right", "out0%right"), "verify", "out0%right["),
    "a panel of codes at an odd place": (
        "codes_plain", only_first(Tile, beside), "verify", "not a multiple of 4"),
    "a vector loop that begins at an unaligned offset": (
        "chain_softmax_wide", only_first(Loop, lambda s: replace(s, begin=s.begin + 1), is_vector),
        "verify", "not a multiple of 16"),
    "vectors of sums that are added up one by one": (
        "chain_softmax_wide", only_first(ReduceLoop, lambda s: replace(s, scope="serial"), lambda s: s.scope == "lane"),
        "verify", "is serial, expected lane: the reduction contains a vector loop"),
    "a variable before its definition": (
        "chain_softmax_wide", only_first(tuple, last_first, lets_first), "verify", "has no value yet"),
    "rows that are packed behind their tile": (
        "half_14_8_32", only_first(Pack, lambda p: replace(p, out="nowhere")), "verify", "before anything is stored"),
    "a block of rows that is packed beside its place": (
        "half_14_8_32", only_first(Pack, lambda p: replace(p, at=p.at + 1)), "verify", "packed["),
    "lanes that lie apart, loaded as if side by side": (
        "max_halves_form_1", only_first(Load, lambda x: replace(x, lanes=Lanes("vector")), is_strided),
        "verify", "does not allow"),
    "a load of which nobody says how": (
        "chain_softmax_wide", only_first(Load, lambda x: replace(x, lanes=None), lambda x: x.lanes is not None),
        "verify", "are not set"),
    "lanes that are scattered over one line": (
        "chain_softmax_wide", only_first(Store, lambda s: replace(s, scattered=True)),
        "verify", "expected False by its offset"),
    "a vector loop that forgets what it carries": (
        "chain_softmax_wide", only_first(Loop, lambda s: replace(s, carries=0), lambda s: s.carries > 0),
        "verify", "carries of the loop"),
    "numbers that are stored together as codes": (
        "chain_softmax_wide", only_first(Loop, lambda s: replace(s, together=4)),
        "verify", "is 4, expected 0"),
    "sums to which lanes are added again": (
        "chain_softmax_wide", only_first(Loop, lambda s: replace(s, again=True), lambda s: s.carries > 0),
        "verify", "again of the loop"),
    "codes of which each vector is narrowed by itself": (
        "codes_plain", only_first(Loop, lambda s: replace(s, together=0), lambda s: s.together > 0),
        "verify", "is 0, expected more than 0"),
    "codes side by side of which each vector is narrowed by itself": (
        "codes_made", only_first(Loop, lambda s: replace(s, together=0), lambda s: s.together > 0),
        "verify", "is 0, expected more than 0"),
    "a sum of lanes that is merged as one number": (
        "chain_softmax_wide", only_first(Accumulate, lambda s: replace(s, carried=False), lambda s: s.carried),
        "verify", "is False, expected True"),
    "a largest element whose place is forgotten": (
        "ArgMax_last", only_first(Accumulate, lambda s: replace(s, merged=s.merged[:1])), "verify", "merged of"),
    "streams that nobody waits for": (
        "Relu_float32", only_first(Phase, lambda p: replace(p, streams=True)), "verify", "True, expected False"),
    "a matrix unit that nobody uses": (
        "attention", only_first(Phase, lambda p: replace(p, matrix_unit=(AMX, 32))),
        "verify", "matrix unit is amx for 32 rows, expected none"),
    "a store that all tasks make": (
        "Relu_float32", only_first(Store, lambda s: replace(s, offset=ZERO)), "verify", "two tasks store"),
    # Element types
    "a load of another type": (
        "Relu_float32", only_first(Load, lambda x: replace(x, dtype=I64), is_element),
        "verify", "a load from in0 is int64, expected float32"),
    "a load of fewer bits": (
        "Relu_float32", only_first(Load, lambda x: replace(x, dtype=F16), is_element),
        "verify", "a load from in0 is float16, expected float32"),
    "a buffer of integers": (
        "attention", only_first(Buffer, lambda b: replace(b, dtype=I32), lambda b: b.name == "acc"),
        "verify", "sums in acc is int32, expected float32"),
    "a table of pointers to other rows": (
        "attention", only_first(Buffer, lambda b: replace(b, dtype=BF16), is_table),
        "verify", "is float32, expected bfloat16"),
    "a reduction of integers": (
        "chain_softmax_wide", only_first(ReduceLoop, lambda s: replace(s, dtype=I64)),
        "verify", "is float32, expected int64"),
    "a tile of 16-bit panels": (
        "attention", only_first(Tile, lambda t: replace(t, core=replace(t.core, product=WIDENED_F16))),
        "verify", "is float32, expected float16"),
    "a tile of codes": (
        "attention", only_first(Tile, lambda t: replace(t, core=replace(t.core, product=CODES[0]))),
        "verify", "a tile of Pointers rows has the product codes_"),
    "codes of another sign": (
        "codes_plain", only_first(Coding, lambda c: replace(c, left=c.right, right=c.left)),
        "verify", "the type of quantized rows is"),
    "a function of too few operands": (
        "chain_softmax_wide", only_first(Apply, lambda x: replace(x, args=x.args[:1]), lambda x: len(x.args) == 2),
        "verify", "has 1 operands, expected 2"),
    "a difference that is an integer": (
        "chain_softmax_wide", only_first(Apply, lambda x: replace(x, dtype=I32), lambda x: x.fn == "sub"),
        "verify", "sub of (float32, float32) gives int32"),
    # Closed sets
    "a register buffer of a task": (
        "attention", only_first(Buffer, lambda b: replace(b, space="register"), lambda b: b.space == "local"),
        "verify", "expected one of the tasks' spaces: local, pointers"),
    "pointers in a buffer of numbers": (
        "attention", only_first(Buffer, lambda b: replace(b, space="local"), is_table),
        "verify", "expected a buffer of pointers"),
    "a reduction of a scope that nobody knows": (
        "chain_softmax_wide", only_first(ReduceLoop, lambda s: replace(s, scope="foo")),
        "verify", "ReduceLoop.scope is 'foo', expected one of serial, lane, warp, block"),
    "a reduction by a monoid that nobody knows": (
        "chain_softmax_wide", only_first(ReduceLoop, lambda s: replace(s, combine="foo")),
        "verify", "ReduceLoop.combine is 'foo', expected one of sum"),
    "lanes of a kind that nobody knows": (
        "chain_softmax_wide", only_first(Lanes, lambda x: replace(x, kind="foo")), "verify", "Lanes.kind is 'foo'"),
    # Reductions, names and slots
    "a sum that is accumulated as a minimum": (
        "chain_softmax_wide", only_first(Accumulate, lambda s: replace(s, combine="min")),
        "verify", "is accumulated by min, expected"),
    "lanes that are combined unlike their vectors": (
        "softmax_rows", only_first(HorizontalReduce, lambda s: replace(s, combine="min")),
        "verify", "HorizontalReduce of parts combines by min, expected"),
    "a vector accumulator beside its place": (
        "softmax_rows", only_first(ReduceLoop, lambda s: replace(s, part=(s.part[0], s.part[1] + 1)), has_part),
        "verify", "an offset in parts is not a multiple of 16"),
    "a buffer that is one lane too short for its 13 rows": (
        "softmax_rows", only_first(Buffer, lambda b: replace(b, size=Index.of(207)), lambda b: b.name == "parts"),
        "verify", "parts[192 to 207], which has 207"),
    "an axis that shadows itself": (
        "attention", only_first(Loop, lambda s: replace(s, body=(s,))), "verify", "shadows another one"),
    "buffers on the stack that are said to be in scratch memory": (
        "attention", only_first(Phase, lambda p: replace(p, slots=not p.slots), lambda p: p.locals),
        "verify", "by the sizes of its local buffers"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    of, change, finder, said = FAULTS[name]
    case, target = case_named(of), "x86-64-v4"
    kernel = kernel_of(case, BUILDS[target])
    assert isinstance(kernel, Kernel)
    assert fault_of(kernel, case, target) == ("", "")
    found = fault_of(in_phases(kernel, change), case, target)
    assert found[0] == finder, found
    assert said in found[1]


# Two phases of one element for each task: what one stores the other one reads.
AT, FIRST, LAST = Axis("i", Index.of(40)), Axis("a", Index.of(40)), Axis("b", Index.of(41))
SPLIT = Split(FIRST, LAST, Index.of(40))
ONE_LINE = (Index.of(40),)


HERE = Index.of(AT)


def copied(source: str, at: Index, to: str, place: Index = HERE) -> Loop:
    body = (Store(to, place, Load(source, (at,), F32)),)
    return Loop(AT, Index.of(FIRST), Index.of(LAST), "serial", body)


def of_phases(*bodies: tuple[Loop, ...]) -> Kernel:
    return Kernel(
        (Param("in0", "x", F32, ONE_LINE, PLAIN),),
        (Param("out0", "y", F32, ONE_LINE, PLAIN),),
        (Buffer("shared", F32, Index.of(40), "global"),),
        (),
        tuple(Phase((SPLIT,), ONE, (), body) for body in bodies),
    )


def ran(kernel: Kernel) -> tuple[str, Any]:
    x = np.arange(40, dtype=np.float32)
    if found := verify(kernel):
        return "verify", found[0]
    try:
        return "", interpret(kernel, [x], 16)[0]
    except KernelFault as fault:
        return "interpret", str(fault)


TO, FROM = copied("in0", Index.of(AT), "shared"), copied("shared", 39 - Index.of(AT), "out0")
BESIDE = copied("shared", (Index.of(AT) + 17) % 40, "out0")


def test_a_barrier_between_two_phases() -> None:
    finder, out = ran(of_phases((TO,), (FROM,)))
    assert not finder
    assert (out == np.arange(40)[::-1]).all()


@pytest.mark.parametrize(("reader", "finder"), [(FROM, "verify"), (BESIDE, "interpret")])
def test_a_missing_barrier(reader: Loop, finder: str) -> None:
    found = ran(of_phases((TO, reader)))
    assert found[0] == finder
    assert "another one" in found[1]


def test_phases_in_the_wrong_order() -> None:
    assert ran(of_phases((FROM,), (TO,))) == ("verify", "shared is read before anything is stored there")


def test_tasks_that_store_into_one_element() -> None:
    found = ran(of_phases((TO,), (copied("shared", Index.of(AT), "out0", Index.of(AT) // 2),)))
    assert found[0] == "verify"
    assert "two tasks store" in found[1]


def test_a_task_that_goes_into_the_next() -> None:
    one_more = replace(TO, end=Index.of(LAST) + 1, body=(replace(TO.body[0], offset=Index.of(AT) % 40),))
    found = ran(of_phases((one_more,), (FROM,)))
    assert found[0] == "verify"
    assert "in0[40]" in found[1]


def test_guarded_reads_stay_inside() -> None:
    beyond = Load("in0", (Index.of(AT) + 3,), F32, (Guard(Index.of(AT) + 3, Index.of(40)),), Load("in0", (ZERO,), F32))
    loop = Loop(AT, Index.of(FIRST), Index.of(LAST), "vector", (Store("out0", Index.of(AT), beyond),))
    finder, out = ran(of_phases((loop,)))
    assert not finder
    assert out[36] == 39
    assert (out[37:] == 0).all()
    bare = replace(loop, body=(Store("out0", Index.of(AT), replace(beyond, guards=(), otherwise=None)),))
    assert ran(of_phases((bare,))) == ("verify", "phase 0: reads in0[42], which has 40 elements")
