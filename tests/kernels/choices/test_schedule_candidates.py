"""Of the schedule candidates of a contraction, the one predicted fast on few cores and on many is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import ZERO, Axis, Index, Symbol
from onnxfuse.ir.kernel import Kernel, Loop, Param, Phase, Split, Store
from onnxfuse.ir.layout import Layout
from onnxfuse.ir.scalar import Load
from onnxfuse.schedule.cpu import candidates
from onnxfuse.schedule.cpu.candidates import USUAL_ROWS, CostRanking, ScheduleCandidate, usual_rows
from onnxfuse.target import CPUS
from tests.kernels.cases.contraction import gemm
from tests.kernels.compiled import Case, kernel_of

TARGET = CPUS["x86-64-v4"]
SIZE = 1 << 20
M = Index.of(Symbol("s0"))


def judge(symbols: tuple[Symbol, ...] = ()) -> CostRanking:
    def param(name: str) -> Param:
        return Param(name, name, F32, (Index.of(SIZE),), Layout())

    return CostRanking(Kernel((param("in0"),), (param("out0"),), (), (), ()), symbols, TARGET, (), 0.0)


def copy(name: str, tasks: int, times: Index) -> ScheduleCandidate:
    """All elements copied so many times by at most so many tasks."""
    first, last, again = Axis("a", Index.of(tasks)), Axis("b", Index.of(tasks + 1)), Axis("again", times)
    row, j = Axis("i", Index.of(tasks)), Axis("j", Index.of(SIZE // tasks))
    at = Index.of(row) * (SIZE // tasks) + j
    store = Store("out0", at, Load("in0", (at,), F32))
    inner = Loop(again, ZERO, times, "serial", (Loop(j, ZERO, j.extent, "vector", (store,)),))
    body = Loop(row, Index.of(first), Index.of(last), "serial", (inner,))
    return ScheduleCandidate(name, (Phase((Split(first, last, Index.of(tasks)),), Index.of(10**12), (), (body,)),))


def test_the_fastest_is_chosen_and_all_are_reported():
    ways = [copy("twice", 64, Index.of(2)), copy("once", 64, Index.of(1)), copy("thrice", 64, Index.of(3))]
    best, (choice,) = judge().best(ways, [Index.of(8)])
    assert best.name == "once"
    assert [name for name, _ in choice.candidates] == ["once", "twice", "thrice"]
    assert [s for _, s in choice.candidates] == sorted(s for _, s in choice.candidates)


def test_of_equal_candidates_the_first_is_chosen():
    ways = [copy(name, 64, Index.of(1)) for name in "abc"]
    assert judge().best(ways, [Index.of(8)])[0].name == "a"
    assert judge().best(ways[::-1], [Index.of(8)])[0].name == "c"


def test_a_candidate_is_legalized_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch):
    legalized = []
    real = candidates.legalize
    monkeypatch.setattr(candidates, "legalize", lambda kernel: (legalized.append(kernel), real(kernel))[1])
    one, other = (judge((Symbol("s0"),)).best([copy(n, 64, M) for n in "ab"], [M])[1] for _ in range(2))
    assert one == other and len(legalized) == 4  # two candidates, ranked at two sizes each, twice


def test_a_single_candidate_has_no_predicted_time():
    assert judge().best([copy("only", 4, M)], []) == (copy("only", 4, M), ())


def test_tasks_for_two_cores_are_too_few():
    """Two tasks do as well as 64 on two cores."""
    few, many = copy("few", 2, Index.of(1)), copy("many", 64, Index.of(1))
    best, (choice,) = judge().best([few, many], [Index.of(8)])
    assert best.name == "many"
    times = dict(choice.candidates)
    assert times["few"] == pytest.approx(times["many"], rel=0.1)


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([], 1),
        ([Index.of(0)], 1),
        ([Index.of(3), Index.of(5)], 15),
        ([M], USUAL_ROWS),
        ([M, Index.of(49)], 49),
        ([M, M], USUAL_ROWS),
    ],
)
def test_rows_that_are_not_known_are_as_many_as_usual(rows: list[Index], count: int):
    assert usual_rows(rows) == count


def test_symbols_stand_for_as_many_rows():
    """A way that takes time for each row is judged by the usual number of rows, or by one where others are known."""
    symbol = Symbol("s0")
    ways = [copy("by rows", 64, M), copy("64 times", 64, Index.of(64))]
    assert judge((symbol,)).best(ways, [M])[0].name == "64 times"
    assert judge((symbol,)).best(ways, [M, Index.of(49)])[0].name == "by rows"


def test_long_inputs_count_as_much_as_usual_ones():
    """At 128 rows the way by rows takes less than 300 times, at eight times as many more than three times as long."""
    symbol = Symbol("s0")
    for times, best in ((300, "fixed"), (500, "by rows")):
        ways = [copy("by rows", 64, M), copy("fixed", 64, Index.of(times))]
        assert judge((symbol,)).best(ways, [M])[0].name == best


def made(rows: int | str, depth: int, columns: int, **changes: int) -> Kernel:
    kernel = kernel_of(Case("g", gemm(rows, depth, columns)), replace(TARGET, **changes))
    assert isinstance(kernel, Kernel) and not isinstance(kernel, Decision)
    return kernel


def test_the_candidates_are_kept_with_the_kernel():
    kernel = made(128, 96, 128)
    (choice,) = kernel.choices
    names = [name for name, _ in choice.candidates]
    assert len(names) == len(set(names)) >= 3
    assert replace(kernel, choices=()) == kernel


def test_one_row_is_read_in_place():
    kernel = made(1, 768, 3072)
    assert kernel.choices == () and not kernel.scratch


def test_the_depth_is_taken_in_parts_only_where_rows_do_not_stay():
    for l2_bytes, parts in ((1 << 20, True), (8 << 20, False)):
        (choice,) = made(128, 3072, 512, l2_bytes=l2_bytes).choices
        assert any("K in " in name for name, _ in choice.candidates) == parts


def test_blocks_of_rows_are_even():
    """Nine of ten tiles of rows fit in L2: blocks of five, since a block of one would read all weights again."""
    (choice,) = made(128, 3072, 512, l2_bytes=2 << 20).choices
    assert {name for name, _ in choice.candidates if "over N" in name and "K in" not in name} == {
        "A packed, parallel over N, blocks of 5 x 13 rows",
        "A unpacked, parallel over N, blocks of 5 x 13 rows",
    }


def test_rows_are_divided_where_they_are_larger_than_weights_and_l2_is_small():
    """523 tiles, of which 64 fit in L2: ten blocks for two cores rather than nine. 22 are fewer bytes than weights.

    A larger L2 holds 128, and five blocks are as good as six.
    """
    found = {}
    for l2, rows in ((1 << 19, 3136), (1 << 20, 3136), (1 << 19, 128)):
        kernel = kernel_of(Case("g", gemm(rows, 256, 512)), replace(CPUS["x86-64-v3"], l2_bytes=l2))
        assert isinstance(kernel, Kernel)
        found[l2, rows] = [name.removeprefix("A unpacked, parallel over ") for name, _ in kernel.choices[0].candidates]
    assert found[1 << 19, 3136][0] == "M, blocks of 53 x 6 rows"
    assert found[1 << 20, 3136][0] == "M, blocks of 105 x 6 rows"
    assert found[1 << 19, 128][0].startswith("N, ")
