"""Faults planted in GPU kernels are found by `verify` or by the interpreter, as stated for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onnxfuse.ir.dtype import BF16, I32, I64
from onnxfuse.ir.index import ZERO, Axis, Index
from onnxfuse.ir.interpret import KernelFault, interpret
from onnxfuse.ir.kernel import Accumulate, Buffer, Kernel, Let, Loop, ReduceLoop, Split, Store, When
from onnxfuse.ir.launch import CopyAsync, Launch, Mma, Sync, Wait, WideAccess
from onnxfuse.ir.scalar import Guard, Load
from onnxfuse.ir.verify import verify
from onnxfuse.schedule.gpu.scheduler import PASSES
from onnxfuse.schedule.passes.driver import Pass, through, verified
from onnxfuse.schedule.passes.legalize import legalize
from onnxfuse.target import GPUS
from tests.craft.sources import ROOT
from tests.kernels.compiled import check, expected, fed
from tests.kernels.test_planted_faults import FAULTS as OF_TASKS
from tests.kernels.test_planted_faults import Change, in_phases, last_first, only_first
from tests.threads.written import COOPERATIVE, WRITTEN, Written


def interpreted(written: Written, kernel: Kernel) -> str:
    """What the interpreter says about a kernel for its largest size, or how far off its results are."""
    number = len(written.case.sizes) - 1
    try:
        (got,) = interpret(kernel, fed(kernel, written.case, number), 1)
        (out,) = kernel.outputs
        check(got, out.dtype, *expected(written.case, number)[out.value])
    except (KernelFault, AssertionError) as fault:
        return str(fault)
    return ""


def dropped(kind: type, number: int) -> Change:
    """Without statement `number` of a kind."""
    count = [0]

    def go(x: Any) -> Any:
        if not isinstance(x, tuple) or not any(isinstance(s, kind) for s in x):
            return x
        kept = []
        for s in x:
            count[0] += isinstance(s, kind)
            if not isinstance(s, kind) or count[0] - 1 != number:
                kept.append(s)
        return tuple(kept)

    return go


def some_threads(body: Any) -> Any:
    """A barrier that the first half of the threads meets at."""
    thread = Axis("some", Index.of(128))
    return tuple(Loop(thread, ZERO, Index.of(64), "thread", (s,)) if isinstance(s, Sync) else s for s in body)


def in_even_rows(body: Any) -> Any:
    """A barrier that is met at in some iterations of a loop of the block: all its threads take the same branch."""
    guard = Guard(Index.of(Axis("row", Index.of(19))), Index.of(1))
    return tuple(When((guard,), (s,)) if isinstance(s, Sync) else s for s in body)


def has_sync(body: Any) -> bool:
    return any(isinstance(s, Sync) for s in body)


def uses_let(body: Any) -> bool:
    return len(body) == 3 and isinstance(body[0], Let) and isinstance(body[-1], Accumulate)


def named(name: str) -> Callable[[Any], bool]:
    return lambda b: b.name == name


def of_axis(name: str) -> Callable[[Any], bool]:
    return lambda s: s.axis.name == name


def of_kind(kind: str) -> Callable[[Any], bool]:
    return lambda s: s.kind == kind


def longer(s: Loop) -> Loop:
    return replace(s, end=s.end + 1)


def shorter(s: Loop) -> Loop:
    return replace(s, end=s.end - 1)


def shifted(x: Load) -> Load:
    """Rows that begin two elements before each other's end."""
    return replace(x, index=(x.index[0] - Index.of(Axis("row", Index.of(19))) * 2,))


BOTH, VERIFY, INTERPRETER = {"verify", "interpret"}, {"verify"}, {"interpret"}

# The kernel, what is planted, who finds it, and what is said by each of them.
FAULTS: dict[str, tuple[str, Change, set[str], str]] = {
    "no barrier between a store and a read": (
        "softmax", dropped(Sync, 0), BOTH, "a thread reads parts["),
    "no barrier before what is read is stored anew": (
        "softmax", dropped(Sync, 1), BOTH, "a thread stores into parts["),
    "no barrier at the end of a row": (
        "softmax", dropped(Sync, 3), BOTH, "a thread stores into parts["),
    "a block reduction without its barrier": (
        "layer_norm", dropped(Sync, 1), BOTH, "a thread reads warps_float32_2["),
    "no barrier behind copies": (
        "pipelined", dropped(Sync, 0), BOTH, "a thread reads left["),
    "no barrier before the next copies": (
        "pipelined", dropped(Sync, 1), BOTH, "without a barrier between"),
    "copies that are not waited for": (
        "pipelined", only_first(Wait, lambda w: replace(w, pending=2), lambda w: w.pending == 1),
        BOTH, "a copy is on its way"),
    "copies that are never waited for": (
        "pipelined", dropped(Wait, 1), BOTH, "never waited for"),
    "a barrier in a divergent branch": (
        "softmax", only_first(tuple, some_threads, has_sync), BOTH, "branch that not all"),
    "a barrier of the grid that is not launched at a time": (
        "softmax", only_first(Sync, lambda s: replace(s, scope="grid")), BOTH, "in a non-cooperative launch"),
    "no barrier between blocks": (
        "cooperative", dropped(Sync, 2), BOTH, "a thread reads parts["),
    "blocks that wait for each other and are not launched at a time": (
        "cooperative", only_first(Launch, lambda x: replace(x, cooperative=False)),
        VERIFY, "a grid barrier in a non-cooperative launch"),
    "a reduction that part of a warp takes part in": (
        "softmax", only_first(ReduceLoop, lambda r: Loop(Axis("some", Index.of(20)), ZERO, Index.of(20), "lane", (r,))),
        BOTH, "branch that not all"),
    "a store that all threads make": (
        "softmax", only_first(Loop, lambda s: s.body[0], of_axis("wa")), BOTH, ""),
    "a row one element too long": (
        "softmax", only_first(Loop, longer, of_axis("j")), BOTH, "exps[200]"),
    "a lane loop one iteration too short": (
        "softmax", only_first(Loop, shorter, of_axis("lb")), INTERPRETER, "times the bound"),
    "a wide access at an unaligned offset": (
        "layer_norm", only_first(Load, shifted, lambda x: x.source == "in0"), BOTH, "not aligned"),
    "wide accesses of rows of an odd length": (
        "layer_norm", only_first(Loop, lambda s: replace(s, end=Index.of(3)), of_axis("va")),
        BOTH, "expected from 0 to one of 1, 2, 4, 8"),
    "a copy between its places": (
        "pipelined", only_first(CopyAsync, lambda c: replace(c, to=c.to + 4)), BOTH, "not aligned"),
    "shared buffers that overlap": (
        "softmax", only_first(Buffer, lambda b: replace(b, at=784), named("parts")), VERIFY, "overlap"),
    "more shared memory than a block is given": (
        "softmax", only_first(Launch, lambda x: replace(x, shared=x.shared - 16)), VERIFY, "bytes of a block"),
    "a variable before its definition": (
        "softmax", only_first(tuple, last_first, uses_let), BOTH, "has no value yet"),
    "a fragment before it is loaded": (
        "product", only_first(tuple, lambda x: (x[2], *x[:2], *x[3:]), lambda x: len(x) == 4 and isinstance(x[2], Mma)),
        BOTH, "before anything is stored"),
    "a fragment of another element of the matrix": (
        "product", only_first(Mma, lambda m: replace(m, core=exchanged(m))), INTERPRETER, "times the bound"),
    "sums whose map holds an element twice": (
        "product", only_first(Mma, lambda m: replace(m, core=doubled(m))), BOTH, ""),
    "half a warp": (
        "product", only_first(Launch, lambda x: replace(x, block=Index.of(16))), BOTH, "warps of 32"),
    "more threads than a block has": (
        "softmax", only_first(Launch, lambda x: replace(x, block=Index.of(2048))), BOTH, "2048 threads"),
    "a register that is chosen while the kernel runs": (
        "layer_norm", only_first(Loop, lambda s: replace(s, kind="serial"), of_axis("ka")),
        VERIFY, "register index of"),
    "a shared buffer of integers": (
        "softmax", only_first(Buffer, lambda b: replace(b, dtype=I32), named("parts")),
        BOTH, "parts is float32, expected int32"),
    "an accumulation unlike its reduction": (
        "softmax", only_first(Accumulate, lambda s: replace(s, combine="min")), BOTH, "accumulated by min, expected"),
}  # fmt: skip

# Values in no closed set, and types: what is planted, and what `verify` says. The interpreter takes them.
MALFORMED: dict[str, tuple[str, Change, str]] = {
    "a barrier of an unknown scope": (
        "softmax", only_first(Sync, lambda s: replace(s, scope="foo")), "Sync.scope is 'foo', expected one of warp"),
    "a reduction of an unknown scope": (
        "softmax", only_first(ReduceLoop, lambda s: replace(s, scope="foo")), "ReduceLoop.scope is 'foo'"),
    "a reduction by an unknown monoid": (
        "softmax", only_first(ReduceLoop, lambda s: replace(s, combine="foo")), "ReduceLoop.combine is 'foo'"),
    "a loop of an unknown kind": (
        "softmax", only_first(Loop, lambda s: replace(s, kind="foo")), "Loop.kind is 'foo'"),
    "pointers of a thread": (
        "softmax", only_first(Buffer, lambda b: replace(b, space="pointers")), "expected one of the threads' spaces"),
    "groups of copies that are not there": (
        "pipelined", only_first(Wait, lambda w: replace(w, pending=-1)), "expected at least 0"),
    "lanes that are no part of a warp": (
        "softmax", only_first(Launch, lambda x: replace(x, lanes=24)), "groups of 24 lanes, expected one of 1, 2, 4"),
    "a copy between types": (
        "pipelined", only_first(Buffer, lambda b: replace(b, dtype=BF16), named("left")), "expected bfloat16"),
    "a load of another type": (
        "softmax", only_first(Load, lambda x: replace(x, dtype=I64), lambda x: bool(x.index)),
        "is int64, expected float32"),
    "a wide load of what is not contiguous": (
        "layer_norm", only_first(Loop, lambda s: replace(s, loads=(WideAccess("in0", ZERO),)), of_kind("vector")),
        "loads of the loop over"),
    "a store that copies what it computes": (
        "softmax", only_first(Store, lambda s: replace(s, copied=True)), "copied of the store into"),
    "an axis that shadows itself": (
        "softmax", only_first(Loop, lambda s: replace(s, body=(s,))), "shadows another one"),
}  # fmt: skip


def exchanged(m: Mma) -> Any:
    left = m.core.left
    return replace(m.core, left=replace(left, row=left.column, column=left.row))


def doubled(m: Mma) -> Any:
    sums = m.core.sums
    return replace(m.core, sums=replace(sums, row=ZERO))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    of, change, finders, said = FAULTS[name]
    written = (WRITTEN | {"cooperative": COOPERATIVE})[of]
    broken = in_phases(written.kernel, change)
    found = {"verify": "; ".join(verify(broken)), "interpret": interpreted(written, broken)}
    assert {finder for finder, text in found.items() if text} == finders, found
    assert any(said in text for text in found.values()), found


@pytest.mark.parametrize("at", range(3))
def test_a_pass_that_leaves_a_barrier_out_is_blamed(at: int) -> None:
    """Kernels are verified once all passes are through, and where threads meet at no barrier, those of all steps."""
    planted = Pass("planted", lambda kernel, _: in_phases(kernel, dropped(Sync, 0)))
    target, passes = GPUS["sm_90"], [step for step in PASSES if step.name != "block reductions"]
    kernel = WRITTEN["softmax"].kernel
    assert verify(through(passes, kernel, target, verified)) == ()
    with pytest.raises(AssertionError, match=r"^schedule: planted: a thread reads parts\["):
        through([*passes[:at], planted, *passes[at:]], kernel, target, verified)


def test_a_barrier_that_all_threads_of_a_block_come_by() -> None:
    """Under a branch that is the same for a block it is none that is missing from the kernel's text."""
    written = WRITTEN["softmax"]
    kernel = in_phases(written.kernel, only_first(tuple, in_even_rows, has_sync))
    assert not any("branch" in found for found in verify(kernel))


def test_a_phase_of_tasks_has_no_threads() -> None:
    written = WRITTEN["softmax"]
    (phase,) = written.kernel.phases
    found = verify(replace(written.kernel, phases=(replace(phase, launch=None),)))
    assert any("expected one of the tasks' spaces" in each for each in found)
    mine = tuple(replace(b, space="local") for b in phase.locals)
    found = verify(replace(written.kernel, phases=(replace(phase, launch=None, locals=mine),)))
    assert any("in a phase without a launch" in each for each in found)
    split = Split(Axis("a", Index.of(4)), Axis("b", Index.of(5)), Index.of(4))
    found = verify(replace(written.kernel, phases=(replace(phase, splits=(split,)),)))
    assert found == ("phase 0: phase has both splits and a launch",)


def test_a_grid_barrier_has_no_spelling_yet() -> None:
    """A kernel may be written with one and interpreted, but not be rendered."""
    assert verify(COOPERATIVE.kernel) == ()
    assert verify(legalize(COOPERATIVE.kernel)) == ("phase 0: a grid barrier, which no renderer spells",)


@pytest.mark.parametrize(("of", "change", "said"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_in_no_table_is_found(of: str, change: Change, said: str) -> None:
    found = "; ".join(verify(in_phases(WRITTEN[of].kernel, change)))
    assert said in found


def test_the_page_says_who_finds_a_fault() -> None:
    """The table of docs/kernels.md, but for its first line, which tells of two tests."""
    said = {frozenset(VERIFY): "`verify`", frozenset(INTERPRETER): "interpreter", frozenset(BOTH): "both"}
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8").partition("## Planted faults")[2]
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(lines) == 8
    for _, of_tasks, by, of_threads, by_either in lines:
        if of_tasks in OF_TASKS:
            assert said[frozenset({OF_TASKS[of_tasks][2]})] == by
        assert said[frozenset(FAULTS[of_threads][2])] == by_either
    assert sum(line[1] in OF_TASKS for line in lines) == 7
