"""Predicted times of all kernels of the golden cases, and how they depend on the machine and on shapes."""

from dataclasses import replace
from pathlib import Path

import pytest

from onnxfuse import cost
from onnxfuse.cost import COMPUTE, L3, MEMORY, Cost, cost_of, number, symbols_at, weight_bytes
from onnxfuse.cost.means import Means
from onnxfuse.cost.traffic import Access, Fetched, fetched
from onnxfuse.ir.dtype import F32, I64, DType
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Symbol, floor_div
from onnxfuse.ir.indexing import product as product_of
from onnxfuse.ir.kernel import Bind, Kernel, Loop, Pack, Param, Phase, Stmt, Store, When, statements
from onnxfuse.ir.layout import Layout
from onnxfuse.ir.products import CODES, DOT_BF16, SINGLE, WIDENED_BF16, WIDENED_F16, ProductKind
from onnxfuse.ir.scalar import Const, FromIndex, Guard, Load, apply, const
from onnxfuse.ir.tasks import few_parts_of, parts_of
from onnxfuse.ir.tile import Packed, Panel, Tile, TileCore
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CPU
from onnxfuse.schedule.passes.legalize import legalize
from onnxfuse.target import CPUS, Cpu
from onnxfuse.target.processors import PROCESSORS
from tests.golden.case import FOLDER, GoldenCase, kernels, model_of, planned, read
from tests.kernels.compiled import Case, kernel_of
from tests.rules.build import Build

V4 = CPUS["x86-64-v4"]
CASES = sorted(FOLDER.glob("*.case"))


def made(text: str, weights: str = "") -> tuple[Kernel, frozenset[str]]:
    """The one kernel of a model, and its constants."""
    plan = planned(GoldenCase("", {"weights": weights, "options": "min_group=1"}, text, {}))
    ((_, kernel),) = kernels(plan)
    return kernel, frozenset(plan.graph.constants)


def product(rows: object, depth: int = 256, columns: int = 512) -> tuple[Kernel, frozenset[str]]:
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[{rows}, {depth}] x) => (float[{rows}, {columns}] y) {{ h = MatMul(x, w) y = Relu(h) }}"""
    return made(text, f"w float32[{depth}, {columns}]")


def chain(rows: int, columns: int) -> tuple[Kernel, frozenset[str]]:
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[{rows}, {columns}] x) => (float[{rows}, {columns}] y) {{ a = Exp(x) b = Add(a, x) y = Tanh(b) }}"""
    return made(text)


def predicted(case: tuple[Kernel, frozenset[str]], **changes: float) -> Cost:
    kernel, constants = case
    found = cost_of(kernel, replace(V4, **changes), constants, weight_bytes([kernel], constants))
    assert found is not None
    return found


@pytest.mark.parametrize("path", CASES, ids=lambda p: Path(p).stem)
def test_every_golden_kernel_has_a_time(path: Path):
    """All kinds of statement are counted; where extents are symbols, only with their values."""
    plan = planned(read(path))
    for name, kernel in kernels(plan):
        symbols = {b.symbol.name: 7 for b in kernel.binds}
        for target in CPUS.values():
            found = cost_of(kernel, target, plan.graph.constants, 1e9, symbols)
            assert found is not None, name
            assert 0 < found.seconds < 1, name
            assert all(value >= 0 for phase in found.phases for value in (phase.compute, phase.l2, phase.l3)), name
        assert (cost_of(kernel, V4) is None) == bool(symbols), name


def stored(kernel: Kernel, target: Cpu, symbols: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Bytes that the phases store in all, by buffer."""
    seen: dict[str, float] = {}

    def spied(accesses: list[Access], sizes: dict[str, float], *capacities: float) -> tuple[Fetched, ...]:
        found = fetched(accesses, sizes, *capacities)
        for name, count in found[-1].stores.items():
            seen[name] = seen.get(name, 0.0) + count
        return found

    cost._phase.cache_clear()
    monkeypatch.setattr(cost, "fetched", spied)
    assert cost_of(kernel, target, symbols=symbols) is not None
    return seen


def filled(by: Index, j: Axis) -> float:
    """Predicted seconds of computing: every element is compared with an index."""
    at = FromIndex(by, I64)
    value = apply("select", apply("less", at, const(0, I64)), Load("in0", (Index.of(j),), F32), const(0.0, F32))
    loop = Loop(j, ZERO, j.extent, "vector", (Store("out0", Index.of(j), value),))
    a, b = Param("in0", "x", F32, (j.extent,), Layout()), Param("out0", "y", F32, (j.extent,), Layout())
    kernel = Kernel((a,), (b,), (), (), (Phase((), Index.of(10**6), (), (loop,)),))
    found = cost_of(legalize(kernel), V4)
    assert found is not None
    return found.parts[COMPUTE]


def test_an_index_of_each_lane_costs_more_than_one_of_known_slope():
    """Lanes that are compared with an index that grows by 2 or by -3 are those from one on, or up to one."""
    j = Axis("j", Index.of(4096))
    plain = filled(Index.of(j) - 100, j)
    assert all(filled(Index.of(j) * step - 100, j) == pytest.approx(plain, rel=0.1) for step in (2, -3))
    assert filled(floor_div(Index.of(j), Index.of(3)) - 100, j) > 5 * plain


def test_rows_that_map_to_one_cache_set_cost_more():
    """Rows of 4 KB lie in the same lines of a cache, those of 4 KB and 64 bytes do not."""
    (same,), (apart,) = (predicted(product(52, depth, 32)).phases for depth in (1024, 1040))
    assert same.compute * 1040 / 1024 > 1.1 * apart.compute


def test_the_last_block_is_short_where_tasks_are_many():
    """Ten tiles in blocks of three: what 32 tasks do on two cores is half of all, as with blocks of five."""
    (phase,) = predicted(product(128, 256, 1024)).phases
    assert phase.tasks >= 8
    one, two = (predicted(product(128, 256, 1024), cores=cores).parts[COMPUTE] for cores in (1, 2))
    assert two == pytest.approx(one / 2, rel=0.1)


@pytest.mark.parametrize("rows", [784, 841, 3136])
def test_consecutive_contractions_are_divided_among_cores(rows: int):
    """A chain goes through blocks of its own part of the rows: each of two cores counts about half of them."""
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[{rows}, 144] x) => (float[{rows}, 240] y) {{ a = MatMul(x, w) y = MatMul(a, v) }}"""
    case = GoldenCase("", {"weights": "w float32[144, 40]; v float32[40, 240]", "options": "min_group=1"}, text, {})
    weights_come_from_memory = replace(CPU, targets=lambda archs: (replace(V4, l3_bytes=0),))
    joined = plan(
        load(model_of(case).SerializeToString(), case.options), ROWS, case.options, legality=weights_come_from_memory
    )
    ((_, kernel),) = kernels(joined)
    assert [phase.few for phase in kernel.phases] == [True]
    chained = (kernel, frozenset(joined.graph.constants))
    one, two, four = (predicted(chained, cores=cores).parts[COMPUTE] for cores in (1, 2, 4))
    assert two == pytest.approx(one / 2, rel=0.2)
    assert four == pytest.approx(one / 4, rel=0.35)


def test_values_of_other_phases_are_as_far_as_those_of_other_kernels():
    """What a phase does not touch does not decide from which cache it reads."""
    kernel, constants = chain(256, 256)
    (read,) = kernel.inputs
    large = replace(read, name="large", value="large", shape=(Index.of(1 << 13), Index.of(1 << 13)))
    found = predicted((replace(kernel, inputs=(read, large)), constants))
    assert found == predicted((kernel, constants))
    assert found.seconds < predicted((kernel, constants), l2_bytes=1 << 16).seconds


def test_scratch_that_the_weights_of_a_layer_drove_out_comes_from_memory():
    """Rows are packed in a phase of their own; the weights of this product are 9.4 MB, those of a layer 28."""
    kernel, constants = product(128, 3072, 768)
    assert any(isinstance(s, Pack) for s in statements(kernel.phases[0].body))

    def memory(l3_bytes: int, run_weight_bytes: float) -> float:
        found = cost_of(kernel, replace(V4, l3_bytes=l3_bytes), constants, run_weight_bytes)
        assert found is not None
        return found.phases[0].memory

    packed = 128 * 3072 * 4
    assert memory(32 << 20, 1e9) == pytest.approx(2 * packed / min(2 * V4.bandwidth, V4.memory_gbps) * 1e-9)
    assert memory(48 << 20, 1e9) == 0
    assert memory(32 << 20, 1e7) == 0, "a model without other weights"


def test_stores_that_are_written_back_at_a_time_count_once():
    """Half of the bytes of a pass that is bound by a cache are stored, which count once instead of twice."""
    twice, once = (predicted(chain(1024, 1024), stored=stored, gflops=1e5).parts[L3] for stored in (2.0, 1.0))
    assert once == pytest.approx(twice * 2 / 3)


def test_vectors_that_are_stored_in_part_have_the_price_of_the_machine():
    for rows, columns, more in ((64, 112, False), (64, 113, True)):  # rows of softmax are loops of their own
        text = f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[{rows}, {columns}] x) => (float[{rows}, {columns}] y) {{ a = Exp(x) y = Softmax(a) }}"""
        case = made(text)
        least, most = (predicted(case, tail=tail).parts[COMPUTE] for tail in (0.0, 6.0))
        assert (most > least) == more


def test_sums_of_a_chain_wait_for_the_clock_not_for_the_units():
    """Units of half the width take twice as long for a vector, but a sum is there after as many clocks."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[64, 4096, 16] x) => (float[64, 16] y) { y = ReduceSum <keepdims = 0> (x, axes) }"""
    case = made(text, "axes int64[1] = 1")
    whole, halves = (predicted(case, clocks=clocks).parts[COMPUTE] for clocks in (1.0, 2.0))
    assert halves == pytest.approx(whole / 2, rel=0.1)


def test_symbols_given_are_as_good_as_static():
    static = predicted(product(128))
    kernel, constants = product('"n"')
    (bind,) = kernel.binds
    dynamic = cost_of(kernel, V4, constants, weight_bytes([kernel], constants), {bind.symbol.name: 128})
    assert dynamic is not None
    assert dynamic.seconds == pytest.approx(static.seconds, rel=0.25)


@pytest.mark.parametrize("rows", [13, 56, 199])
def test_a_product_takes_time_for_its_flops(rows: int):
    """At least that of the peak of two cores, less than twice that where tiles are full."""
    flops = 2 * rows * 256 * 512
    found = predicted(product(rows))
    least = flops / (2 * V4.gflops * 1e9)
    assert least <= found.parts[COMPUTE] <= 2 * least
    assert found.bound == COMPUTE


def test_one_row_is_bound_by_its_weights():
    found = predicted(product(1, 1024, 8192))
    assert found.bound == MEMORY
    assert found.parts[MEMORY] == pytest.approx(4 * 1024 * 8192 / V4.memory_gbps * 1e-9, rel=0.1)
    faster = {"memory_gbps": 4 * V4.memory_gbps, "bandwidth": 4 * V4.bandwidth}
    assert predicted(product(1, 1024, 8192), **faster).seconds < 0.75 * found.seconds


def test_a_chain_moves_its_inputs_and_outputs_once():
    rows, columns = 4096, 3000
    (phase,) = predicted(chain(rows, columns)).phases
    once = 4 * rows * columns
    assert phase.bytes == pytest.approx(3 * once, rel=0.1)  # what is stored to is fetched first
    assert phase.memory > phase.compute


def test_a_machine_of_twice_the_speed_takes_half_the_time():
    slow, fast = predicted(chain(64, 700)), predicted(chain(64, 700), gflops=2 * V4.gflops)
    assert fast.parts[COMPUTE] == pytest.approx(slow.parts[COMPUTE] / 2)


def tile(kind: ProductKind) -> float:
    """Seconds of computing of one register tile of 14 rows by 32 columns over 1024 steps."""

    def param(name: str, dtype: DType, size: int) -> Param:
        return Param(name, name, dtype, (Index.of(size),), Layout())

    depth = Index.of(1024)
    inputs = (param("in0", kind.left, 14 * 1024), param("in1", kind.right, 32 * 1024))
    (out,) = outputs = (param("out0", kind.sums, 14 * 32),)
    one = Tile(
        out.name, ZERO, Index.of(14), TileCore(14, 32, kind), Packed("in0", ZERO, 1, depth), Panel("in1", ZERO)
    )  # fmt: skip
    found = cost_of(legalize(Kernel(inputs, outputs, (), (), (Phase((), Index.of(1), (), (one,)),))), V4)
    assert found is not None
    return found.parts[COMPUTE]


def test_steps_are_multiplied_together_only_where_rows_are_short():
    single = tile(SINGLE)
    assert tile(DOT_BF16) == pytest.approx(single / 2, rel=0.1)
    assert tile(CODES[0]) == pytest.approx(single / 4, rel=0.1)
    for widened in (WIDENED_F16, WIDENED_BF16):
        assert single < tile(widened) < 1.1 * single


def test_tasks_are_those_of_the_kernels():
    """As `parts_of` of loops.h divides: two tasks from 8 us, then tasks of 10 us, as many for each core."""
    us = 1_000_000
    assert parts_of(2, 7 * us, 100, 1) == parts_of(1, 15 * us, 100, 1) == (1, 1)
    assert parts_of(2, 8 * us, 100, 1) == parts_of(16, 15 * us, 100, 1) == (2, 1)
    assert parts_of(2, 35 * us, 100, 1) == (4, 1)
    assert parts_of(2, 10_000 * us, 100, 9) == (32, 1)
    assert parts_of(2, 10_000 * us, 4, 9) == (4, 8)
    assert parts_of(2, 50 * us, 7, 1) == (7, 1)
    assert parts_of(1, 10_000 * us, 100, 9) == (1, 1)
    assert parts_of(2, 50 * us, 0, 1) == (0, 0)


@pytest.mark.parametrize(
    ("cores", "first", "parts"), [(2, 12, (2, 1)), (16, 12, (12, 1)), (4, 0, (0, 0)), (1, 9, (1, 1))]
)
def test_tasks_that_all_read_the_weights_are_as_many_as_cores(cores: int, first: int, parts: tuple[int, int]):
    assert few_parts_of(cores, 10**9, first) == parts
    assert few_parts_of(cores, 10**7, first) == (min(first, cores, 2), min(first, 1))
    assert few_parts_of(cores, 7 * 10**6, first) == (min(first, 1), min(first, 1))


def test_cores_without_a_panel_share_those_of_others():
    """Blocks of rows are divided where there are fewer panels than cores, into no more tasks than cores."""
    asked = [(16, 8, 2), (16, 4, 9), (16, 12, 9), (16, 3, 9), (2, 8, 9), (16, 1, 3)]
    assert [few_parts_of(n, 10**9, *parts) for n, *parts in asked] == [
        (8, 2), (4, 4), (12, 1), (3, 5), (2, 1), (1, 3),
    ]  # fmt: skip


def test_the_mean_of_bounds_lies_between_them():
    """Panels of 32 columns, the last one short: of a million of them few are looked at."""
    panels = 1 << 20
    p, jn, j = Axis("p", Index.of(panels)), Axis("jn", Index.of(33)), Axis("j", Index.of(32))
    columns = 32 * panels - 5
    inner = Loop(j, ZERO, Index.of(jn), "vector", (Store("out0", Index.of(p) * 32 + j, Const(1.0, F32)),))
    body = (Bind(jn, Index.of(columns) - Index.of(p) * 32, Index.of(32)), inner)
    out = Param("out0", "y", F32, (Index.of(columns),), Layout())
    phase = Phase((), Index.of(1), (), (Loop(p, ZERO, p.extent, "serial", body),))
    found = cost_of(legalize(Kernel((), (out,), (), (), (phase,))), V4)
    assert found is not None
    vectors = columns / V4.lanes
    assert vectors * V4.cycle <= found.parts[COMPUTE] <= 3 * vectors * V4.cycle


@pytest.mark.parametrize("columns", [32 * 8, 32 * 7 + 16])
def test_work_of_some_panels_counts_for_those(columns: int):
    """Whole panels in one way, the last one in another: all of them once, not twice."""
    panels = Index.of(8)
    p, jn, j = Axis("p", panels), Axis("jn", Index.of(33)), Axis("j", Index.of(32))
    out = Param("out0", "y", F32, (panels * 32,), Layout())
    fill = Loop(j, ZERO, Index.of(32), "vector", (Store("out0", Index.of(p) * 32 + j, Const(1.0, F32)),))
    known = Bind(jn, Index.of(columns) - Index.of(p) * 32, Index.of(32))
    whole, part = Guard(32 - Index.of(jn), ONE), Guard(31 - Index.of(jn), Index.of(32))

    def seconds(*body: Stmt) -> float:
        phase = Phase((), Index.of(1), (), (Loop(p, ZERO, panels, "serial", (known, *body)),))
        found = cost_of(legalize(Kernel((), (out,), (), (), (phase,))), V4)
        assert found is not None
        return found.parts[COMPUTE]

    apart = seconds(When((whole,), (fill,)), When((part,), (fill,)))
    assert apart < 1.4 * seconds(fill)
    assert apart < 0.8 * seconds(fill, fill)
    assert seconds(When((part,), (fill,))) < 0.8 * seconds(fill)


def test_phases_have_tasks_for_all_that_their_statements_take():
    """A pool and a turned image compute little and move much: many cores are to share that as well."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[N, 3, H, 160] x) => (float[N, 32, P, 80] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        r = LeakyRelu(c)
        y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    }"""
    plan = planned(GoldenCase("", {"weights": "w float32[32, 3, 3, 3]", "options": "min_group=1"}, text, {}))
    shapes = {"x": (1, 3, 300, 160), "w": (32, 3, 3, 3)} | dict.fromkeys("cr", (1, 32, 300, 160))
    pairs = []
    for _, kernel in kernels(plan):
        sizes = symbols_at(kernel, shapes)
        costs = [cost_of(kernel, replace(V4, cores=n), plan.graph.constants, 0.0, sizes) for n in (1, 16)]
        pairs += zip(*(cost.phases for cost in costs if cost is not None), strict=True)
    long = [(one, many) for one, many in pairs if one.seconds > 30e-6]
    assert len(long) > 1, "the image is turned and pooled in phases of their own"
    assert [many.tasks for _, many in long if many.tasks < 16] == []
    assert all(many.seconds < one.seconds / 5 for one, many in long)


def test_columns_are_divided_at_whole_vectors():
    """Each task reads its columns of all rows: parts of less than a vector would read every line again."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[N, M, 96] x) => (float[N, 1, 96] y) { a = Abs(x) y = ReduceMax <axes = [1]> (a) }"""
    kernel, _ = made(text)
    (phase,) = kernel.phases
    assert [str(s.pieces) for s in phase.splits] == ["s0", "6"]
    cost = cost_of(kernel, replace(V4, cores=16), symbols={"s0": 1, "s1": 40_000})
    assert cost is not None
    assert cost.phases[0].tasks == 6


@pytest.mark.parametrize("size", [120, 160, 224])
def test_blocks_of_strips_are_counted_whole(size: int):
    """Strips have fractions of blocks in the mean: no candidate takes less than its products at the peak."""
    target = CPUS["x86-64-v3"].on(PROCESSORS["zen3"])
    b = Build()
    y = b.node("Conv", b.input("x", 1, 3, size, size), b.weights(64, 3, 7, 7), pads=(3,) * 4, strides=(2, 2))
    y = b.node("MaxPool", b.node("Relu", y), kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4)
    graph = b.graph(y)
    kernel = kernel_of(Case("stem", graph, last=graph.outputs), target)
    assert isinstance(kernel, Kernel)
    least = 2 * (size // 2) ** 2 * 64 * 3 * 7 * 7 / (target.gflops * 1e9 * target.cores)
    candidates = [(way, seconds) for choice in kernel.choices for way, seconds in choice.candidates]
    assert any("strips" in way for way, _ in candidates)
    assert [way for way, seconds in candidates if seconds < least] == []


@pytest.mark.parametrize("path", CASES, ids=lambda p: Path(p).stem)
def test_every_byte_of_a_result_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch):
    """What a kernel's phases store to an output is counted whole, wherever the loops over it begin."""
    plan = planned(read(path))
    for name, kernel in kernels(plan):
        symbols = {b.symbol.name: 7 for b in kernel.binds}
        for target in CPUS.values():
            found = stored(kernel, replace(target, cores=1), symbols, monkeypatch)
            for p in kernel.outputs:
                size = number(product_of(list(p.storage)), symbols) * p.dtype.bytes
                assert found.get(p.name, 0.0) >= 0.9 * size, (name, target.name, p.name)


def test_the_mean_of_a_remainder_is_no_part_of_the_way_to_the_next() -> None:
    """A block's number modulo one block is 0: copies of less than a block had a negative price."""
    blocks = (Index.of(Symbol("n")) + 255) // 256
    number = Index.of(Axis("m", 4 * blocks)) % blocks
    assert [Means(symbols={"n": n}).number(256 * number) for n in (16, 300, 1000)] == [0, 128, 384]
