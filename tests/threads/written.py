"""Hand-written GPU kernels, and the graphs that define what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.fragments import TENSOR_CORES, Core, Fragment
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Symbol, floor_div, least, modulo
from onnxfuse.ir.kernel import (
    Accumulate,
    Buffer,
    ExtentBind,
    Kernel,
    Let,
    Loop,
    LoopKind,
    Param,
    Phase,
    ReduceLoop,
    ReduceScope,
    Stmt,
    Store,
    When,
)
from onnxfuse.ir.launch import Commit, CopyAsync, Launch, Mma, Sync, Wait
from onnxfuse.ir.layout import PLAIN
from onnxfuse.ir.scalar import Guard, Load, Scalar, apply, const, variable
from onnxfuse.schedule.passes.block_reductions import in_warps
from tests.kernels.cases.row import one
from tests.kernels.compiled import Case
from tests.rules.build import Build

ROWS = Symbol("N")
N, BLOCKS = Index.of(ROWS), Index.of(8)  # more rows than blocks: they go on in strides of the grid
SIZES = ({"N": 5}, {"N": 1}, {"N": 19})


@dataclass(frozen=True)
class Written:
    """A kernel of threads and the case that it computes."""

    case: Case
    kernel: Kernel


def axis(name: str, extent: int | Index) -> Axis:
    return Axis(name, Index.of(extent))


def loop(a: Axis, kind: LoopKind, *body: Stmt, end: int | None = None) -> Loop:
    return Loop(a, ZERO, a.extent if end is None else Index.of(end), kind, body)


def reduced(name: str, combine: str, scope: ReduceScope, *body: Stmt) -> ReduceLoop:
    return ReduceLoop((name,), combine, F32, body, scope=scope)


def into(name: str, combine: str, value: Scalar) -> Accumulate:
    return Accumulate((name,), combine, (value,))


def at(buffer: str, offset: Index | Axis, dtype: DType = F32) -> Load:
    return Load(buffer, (Index.of(offset),), dtype)


def of(name: str) -> Load:
    return variable(name, F32)


def param(name: str, value: str, dtype: DType, *shape: Index | int) -> Param:
    return Param(name, value, dtype, tuple(map(Index.of, shape)), PLAIN)


def by_rows(graph: Graph, inputs: tuple[Param, ...], columns: int, phase: Phase) -> Kernel:
    """A kernel over rows of any number."""
    out = param("out0", graph.outputs[0], F32, N, columns)
    return Kernel(inputs, (out,), (), (ExtentBind(ROWS, 0, 0),), (phase,))


# Rows -----------------------------------------------------------------------------------------------------------------

COLUMNS, THREADS, WARPS = 200, 128, 4


def softmax() -> Written:
    """A block for each row, its maximum and sum by shuffles in warps and through shared memory between them."""
    graph = one("Softmax", "N", COLUMNS, axis=-1)
    row = axis("row", N)
    here = Index.of(row) * COLUMNS
    i, j, k = (axis(name, COLUMNS) for name in "ijk")
    x = at("in0", here + i)
    e = apply("exp", apply("sub", at("in0", here + j), of("%most")))
    body = (
        reduced("%warp_most", "max", "warp", loop(i, "thread", into("%warp_most", "max", x))),
        *shared_between_warps("%warp_most", "%most", "max", "a"),
        reduced(
            "%warp_sum", "sum", "warp",
            loop(j, "thread", Let("%e", e), Store("exps", Index.of(j), of("%e")), into("%warp_sum", "sum", of("%e"))),
        ),
        Sync("block"),
        *shared_between_warps("%warp_sum", "%sum", "sum", "b"),
        loop(k, "thread", Store("out0", here + k, apply("div", at("exps", k), of("%sum")))),
        Sync("block"),
    )  # fmt: skip
    buffers = (
        Buffer("exps", F32, Index.of(COLUMNS), "shared", 0),
        Buffer("parts", F32, Index.of(WARPS), "shared", 4 * COLUMNS),
    )
    launch = Launch(least(N, BLOCKS), Index.of(THREADS), Index.of(4 * (COLUMNS + WARPS)))
    phase = Phase((), ONE, buffers, (loop(row, "block", *body),), launch=launch)
    return Written(Case("softmax", graph, SIZES), by_rows(graph, (param("in0", "x", F32, N, COLUMNS),), COLUMNS, phase))


def shared_between_warps(part: str, whole: str, combine: str, names: str) -> tuple[Stmt, ...]:
    """What each warp has left, combined by every warp for itself."""
    warp, first, lane = axis(f"w{names}", WARPS), axis(f"f{names}", 1), axis(f"l{names}", WARPS)
    return (
        loop(warp, "warp", loop(first, "lane", Store("parts", Index.of(warp), of(part)))),
        Sync("block"),
        reduced(whole, combine, "warp", loop(lane, "lane", into(whole, combine, at("parts", lane)))),
    )


FEATURES, WIDE, PIECES, HALF_BLOCK = 512, 4, 2, 64


def layer_norm(*, spelled: bool = True) -> Written:
    """A row in the registers of a block, read and stored four elements at a time, under reductions of the block.

    These are spelled out by a pass.
    """
    graph = one("LayerNormalization", "N", FEATURES, inputs=2, opset=17, axis=-1, epsilon=1e-5)
    row, here = axis("row", N), Index.of(axis("row", N)) * FEATURES
    mean, inverse = of("%mean"), of("%deviation")
    phase = Phase(
        (),
        ONE,
        (Buffer("x", F32, Index.of(WIDE * PIECES), "register"),),
        (
            loop(
                row,
                "block",
                reduced("%sum", "sum", "block", *pieces("a", lambda p, r: (
                    Store("x", r, at("in0", here + p)), into("%sum", "sum", at("x", r))))),
                Let("%mean", apply("div", of("%sum"), const(FEATURES))),
                reduced("%squares", "sum", "block", *pieces("b", lambda p, r: (
                    Let("%d", apply("sub", at("x", r), mean)),
                    into("%squares", "sum", apply("mul", of("%d"), of("%d")))))),
                Let("%variance", apply("add", apply("div", of("%squares"), const(FEATURES)), const(1e-5))),
                Let("%deviation", apply("sqrt", of("%variance"))),
                *pieces("c", lambda p, r: (Store("out0", here + p, apply("add", apply(
                    "mul", apply("div", apply("sub", at("x", r), mean), inverse), at("in1", p)), at("in2", p))),)),
            ),
        ),
        launch=Launch(least(N, BLOCKS), Index.of(HALF_BLOCK)),
    )  # fmt: skip
    weights = tuple(graph.nodes[0].inputs[1:])
    inputs = (
        param("in0", "x", F32, N, FEATURES),
        *(param(f"in{k}", str(name), F32, FEATURES) for k, name in enumerate(weights, 1)),
    )
    return Written(
        Case("layer_norm", graph, SIZES), by_rows(graph, inputs, FEATURES, in_warps(phase) if spelled else phase)
    )


def pieces(names: str, body: Callable[[Index, Index], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """What each thread does with its elements of a row: body(place in the row, register)."""
    t, k, v = axis(f"t{names}", HALF_BLOCK), axis(f"k{names}", PIECES), axis(f"v{names}", WIDE)
    place = (Index.of(k) * HALF_BLOCK + t) * WIDE + v
    made = body(place, Index.of(k) * WIDE + v)
    return (loop(t, "thread", loop(k, "unroll", loop(v, "vector", *made))),)


# Products -------------------------------------------------------------------------------------------------------------

SIDE, DEPTH = 16, 64
CORE: Core = TENSOR_CORES[0]


def matmul(depth: int) -> Graph:
    b = Build()
    return b.graph(b.node("MatMul", b.input("x", SIDE, depth, dtype=F16), b.input("y", depth, SIDE, dtype=F16)))


def elements(name: str, f: Fragment, body: Callable[[Index, Index, Index], tuple[Stmt, ...]]) -> Loop:
    """A loop over what the lanes hold of a matrix: body(row, column, register)."""
    lane, register = axis(f"lane_{name}", f.lanes), axis(f"register_{name}", f.registers)
    made = body(*f.element(Index.of(lane), Index.of(register)), Index.of(register))
    return loop(lane, "lane", loop(register, "unroll", *made))


def fragment(name: str, f: Fragment, times: int = 1) -> Buffer:
    return Buffer(name, f.dtype, Index.of(f.registers * times), "fragment")


def of_halves(graph: Graph, depth: int, phase: Phase) -> Kernel:
    """A kernel of a product of 16-bit floating matrices."""
    inputs = (param("in0", "x", F16, SIDE, depth), param("in1", "y", F16, depth, SIDE))
    return Kernel(inputs, (param("out0", graph.outputs[0], F16, SIDE, SIDE),), (), (), (phase,))


def product() -> Written:
    """16x16x16 in one warp: two products of a tensor core, which makes eight columns at a time."""
    graph, half = matmul(SIDE), axis("half", SIDE // CORE.n)
    columns = Index.of(half) * CORE.n
    body = (
        elements("a", CORE.left, lambda m, k, r: (Store("a", r, at("in0", m * SIDE + k, F16)),)),
        loop(
            half,
            "unroll",
            elements("b", CORE.right, lambda k, n, r: (Store("b", r, at("in1", k * SIDE + columns + n, F16)),)),
            elements("z", CORE.sums, lambda m, n, r: (Store("c", r, const(0.0)),)),
            Mma(CORE, "c", ZERO, "a", ZERO, "b", ZERO),
            elements("c", CORE.sums, lambda m, n, r: (
                Store("out0", m * SIDE + columns + n, cast_to_half(at("c", r))),)),
        ),
    )  # fmt: skip
    buffers = (fragment("a", CORE.left), fragment("b", CORE.right), fragment("c", CORE.sums))
    phase = Phase((), ONE, buffers, body, launch=Launch(ONE, Index.of(32)))
    return Written(Case("product", graph), of_halves(graph, SIDE, phase))


def cast_to_half(x: Scalar) -> Scalar:
    return apply("cast", x, dtype=F16)


PANEL = SIDE * SIDE  # elements of one side for one step


def pipelined() -> Written:
    """16x16x64: the next step's sides are copied in the background while this one's are multiplied."""
    graph, step, half = matmul(DEPTH), axis("step", DEPTH // SIDE), axis("half", SIDE // CORE.n)
    columns, here = Index.of(half) * CORE.n, modulo(Index.of(step), Index.of(2)) * PANEL
    inside = (Guard(Index.of(step) + 1, Index.of(DEPTH // SIDE)),)
    sums = Index.of(half) * CORE.sums.registers
    body = (
        zeroed(2 * CORE.sums.registers),
        *copied("first", ZERO),
        Commit(),
        loop(
            step,
            "serial",
            When(inside, copied("next", Index.of(step) + 1)),
            Commit(),
            Wait(1),
            Sync("block"),
            elements("a", CORE.left, lambda m, k, r: (Store("a", r, at("left", here + m * SIDE + k, F16)),)),
            loop(
                half,
                "unroll",
                elements("b", CORE.right, lambda k, n, r: (
                    Store("b", r, at("right", here + k * SIDE + columns + n, F16)),)),
                Mma(CORE, "c", sums, "a", ZERO, "b", ZERO),
            ),
            Sync("block"),
        ),
        Wait(0),
        loop(replace(half, name="half_out"), "unroll", stored()),
    )  # fmt: skip
    buffers = (
        fragment("a", CORE.left),
        fragment("b", CORE.right),
        fragment("c", CORE.sums, 2),
        Buffer("left", F16, Index.of(2 * PANEL), "shared", 0),
        Buffer("right", F16, Index.of(2 * PANEL), "shared", 4 * PANEL),
    )
    phase = Phase((), ONE, buffers, body, launch=Launch(ONE, Index.of(32), Index.of(8 * PANEL)))
    return Written(Case("pipelined", graph), of_halves(graph, DEPTH, phase))


def zeroed(registers: int) -> Stmt:
    register = axis("register_zero", registers)
    return loop(register, "unroll", Store("c", Index.of(register), const(0.0)))


def stored() -> Stmt:
    """The sums of one half."""
    half = Index.of(axis("half_out", SIDE // CORE.n))

    def one(m: Index, n: Index, r: Index) -> tuple[Stmt, ...]:
        return (Store("out0", m * SIDE + half * CORE.n + n, cast_to_half(at("c", half * CORE.sums.registers + r))),)

    return elements("c", CORE.sums, one)


def copied(names: str, step: Index) -> tuple[Stmt, ...]:
    """Both sides of a step, eight elements by each thread."""
    t = axis(f"t_{names}", 32)
    line, part = floor_div(Index.of(t), Index.of(2)), modulo(Index.of(t), Index.of(2)) * 8
    to = modulo(step, Index.of(2)) * PANEL + Index.of(t) * 8
    return (
        loop(
            t,
            "thread",
            CopyAsync("left", to, "in0", line * DEPTH + step * SIDE + part, 8),
            CopyAsync("right", to, "in1", (step * SIDE + line) * SIDE + part, 8),
        ),
    )


WRITTEN = {w.case.name: w for w in (softmax(), layer_norm(), product(), pipelined())}


# All blocks together --------------------------------------------------------------------------------------------------

LONG, GRID = 4096, 4


def column_sum() -> Written:
    """The sum of a long vector: of each block, and, behind a barrier of the grid, of what all blocks have left."""
    b = Build(13)
    graph = b.graph(b.node("ReduceSum", b.input("x", LONG), b.ints(0), keepdims=1))
    i, block, first, again, last = (
        axis(name, extent) for name, extent in (("i", LONG // GRID), ("b", GRID), ("f", 1), ("l", GRID), ("z", 1))
    )
    here = Index.of(block) * (LONG // GRID) + i
    body = (
        loop(
            block,
            "block",
            reduced("%part", "sum", "block", loop(i, "thread", into("%part", "sum", at("in0", here)))),
            loop(first, "thread", Store("parts", Index.of(block), of("%part"))),
        ),
        Sync("grid"),
        reduced("%sum", "sum", "warp", loop(again, "lane", into("%sum", "sum", at("parts", again)))),
        loop(axis("o", 1), "block", loop(last, "thread", Store("out0", ZERO, of("%sum")))),
    )
    phase = Phase((), ONE, (), body, launch=Launch(Index.of(GRID), Index.of(64), cooperative=True))
    kernel = Kernel(
        (param("in0", "x", F32, LONG),),
        (param("out0", graph.outputs[0], F32, 1),),
        (Buffer("parts", F32, Index.of(GRID), "global"),),
        (),
        (in_warps(phase),),
    )
    return Written(Case("column_sum", graph), kernel)


COOPERATIVE = column_sum()
