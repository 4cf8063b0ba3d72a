"""Winograd's algorithm: exact transforms, chosen where predicted faster, and the reach of a NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from onnxfuse.cost import Cost, number
from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.group import Plan
from onnxfuse.ir.index import ONE, ZERO, Index
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.scalar import Apply, Const, Scalar, variable
from onnxfuse.ir.tasks import few_parts_of
from onnxfuse.lower import lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.schedule.cpu import convolution
from onnxfuse.schedule.cpu.candidates import CostRanking, ScheduleCandidate
from onnxfuse.schedule.cpu.scheduler import schedule
from onnxfuse.schedule.cpu.toom import FOUR, TWO, Transform, combined
from onnxfuse.schedule.cpu.winograd import HALF, WinogradBlocking
from onnxfuse.schedule.nests.sliding import TAPS, Windows
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.target import CPUS, Cpu, Target, runs_here
from onnxfuse.target.processors import PROCESSORS
from tests.kernels.cases.window import conv, pads
from tests.kernels.cases.winograd import CASES, WAYS
from tests.kernels.compiled import Array, Case, fed, forget, group_of_all, kernel_of, library_of, scheduled
from tests.kernels.pool_host import Pool, compiler
from tests.rules.build import Build

PADDED = {"pads": pads(1)}
FLAT = ("winograd_dot_four", "winograd_line_blocks")  # images of one line: nothing slides over lines
LEFT = [variable(f"%{i}", F32) for i in range(8)]


def value(x: Scalar, of: dict[Scalar, float]) -> float:
    """An expression in float64."""
    if x in of:
        return of[x]
    if isinstance(x, Const):
        return float(x.value)
    assert isinstance(x, Apply)
    args = [value(a, of) for a in x.args]
    return {"add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": lambda a: -a}[x.fn](*args)


def transformed(rows: tuple[tuple[float, ...], ...], values: Array) -> Array:
    """The rows on values, as kernels compute them."""
    loads = LEFT[: len(values)]
    of = dict(zip(loads, values, strict=True))
    return np.array([value(x, of) for x in combined(rows, loads)])


@pytest.mark.parametrize("t", [TWO, FOUR], ids=["two", "four"])
def test_products_of_transforms_are_the_filtered_values(t: Transform) -> None:
    rng = np.random.default_rng(3)
    d, g = rng.integers(-9, 10, t.size).astype(float), rng.integers(-9, 10, TAPS).astype(float)
    found = transformed(t.results, transformed(t.filters, g) * transformed(t.inputs, d))
    assert np.allclose(found, np.convolve(d, g[::-1], "valid"), rtol=0, atol=1e-5)  # constants are of float32


@pytest.mark.parametrize(("t", "most"), [(TWO, 4.0), (FOUR, 12.0)], ids=["two", "four"])
def test_errors_are_a_small_multiple_of_those_of_direct_sums(t: Transform, most: float) -> None:
    """Relative L2 errors of lines of sums over 256 channels."""
    rng = np.random.default_rng(5)
    d = np.maximum(rng.normal(size=(40, 256, t.size)), 0).astype(np.float32)
    g = rng.normal(size=(256, TAPS)).astype(np.float32)
    left, right, back = (np.array(m, np.float32) for m in (t.inputs, t.filters, t.results))
    sums = np.einsum("ncp,cp->np", d @ left.T, g @ right.T, dtype=np.float32, casting="same_kind")
    want = np.stack([np.einsum("nck,ck->n", d[..., i : i + TAPS], g, dtype=np.float64) for i in range(t.outputs)], -1)
    plain = np.stack([d[..., i : i + TAPS].reshape(40, -1) @ g.reshape(-1) for i in range(t.outputs)], -1)
    off, own = (np.sqrt(((x - want) ** 2).sum() / (want**2).sum()) for x in (sums @ back.T, plain))
    assert off < most * max(own, 1e-7)


def chosen(case: Case, target: Cpu = CPUS["x86-64-v4"], *, winograd: bool = True) -> Kernel:
    """The kernel of a case, whose convolution may be computed by Winograd's algorithm."""
    group = group_of_all(case.graph)
    lowered = lower(group, Plan(case.graph, (group,), case.layouts), ROWS)
    assert not isinstance(lowered, Decision)
    made = schedule(lowered, case.layouts, case.graph.constants, target, case.half, winograd=winograd)
    assert isinstance(made, Kernel), made
    return made


def by_winograd(case: Case, target: str = "x86-64-v4", *, winograd: bool = True) -> bool:
    """Whether a case's kernel makes fewer products than taps."""
    made = chosen(case, CPUS[target], winograd=winograd)
    return any(b.name == "filters" for p in made.phases for b in p.locals)


SHAPES = {  # of ResNets and others: image, filters, whether it pays
    "28x28x64": ((1, 64, 28, 28), (64, 64, 3, 3), True),
    "56x56x32": ((1, 32, 56, 56), (32, 32, 3, 3), True),
    "56x56x64": ((1, 64, 56, 56), (64, 64, 3, 3), True),
    "28x28x128": ((1, 128, 28, 28), (128, 128, 3, 3), True),
    "14x14x256": ((1, 256, 14, 14), (256, 256, 3, 3), True),
    "any batch": (("N", 256, 14, 14), (256, 256, 3, 3), True),
    "any image": ((1, 64, "H", "W"), (64, 64, 3, 3), True),
    "8x8x64": ((1, 64, 8, 8), (64, 64, 3, 3), False),
    "1x1": ((1, 64, 56, 56), (64, 64, 1, 1), False),
    "5x5": ((1, 64, 56, 56), (64, 64, 5, 5), False),
    "few channels": ((1, 3, 56, 56), (64, 3, 3, 3), False),
    "few filters": ((1, 64, 56, 56), (4, 64, 3, 3), False),
    "one filter": ((1, 64, 56, 56), (1, 64, 3, 3), False),
}


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("name", SHAPES)
def test_winograd_is_chosen_where_predicted_faster(name: str, dtype: DType) -> None:
    x, filters, pays = SHAPES[name]
    case = conv("c", x, filters, pads=pads(filters[-1] // 2), sizes=(), dtype=dtype)
    assert by_winograd(case) is pays
    assert not by_winograd(case, winograd=False)


@pytest.mark.parametrize("name", SHAPES)
def test_winograd_is_listed_before_the_direct_candidates(name: str) -> None:
    """With times at the same sizes, clearly less than those of the direct algorithm."""
    x, filters, pays = SHAPES[name]
    case = conv("c", x, filters, pads=pads(filters[-1] // 2), sizes=())
    (choice,) = chosen(case).choices or (None,)
    names = [name for name, _ in choice.candidates] if choice is not None else []
    assert [each.startswith("Winograd F(") for each in names] == [pays and at == 0 for at in range(len(names))]
    assert choice is None or choice.substitutable is not pays
    if pays and choice is not None:
        assert choice.candidates[0][1] < convolution.GAIN * choice.candidates[1][1]


ZEN3 = CPUS["x86-64-v3"].on(PROCESSORS["zen3"])


@pytest.mark.parametrize(("side", "channels", "block"), [(28, 128, 3), (14, 256, 3), (7, 512, 1)])
def test_small_images_are_one_block_where_l2_is_small(side: int, channels: int, block: int) -> None:
    """Filters of 14x14 are transformed once, although the transformed image is 1.1 times the L2 of a core."""
    case = conv("c", (1, channels, side, side), (channels, channels, 3, 3), **PADDED, sizes=())
    (choice,) = chosen(case, ZEN3).choices
    expected = f"Winograd {WinogradBlocking(FOUR, block, by_panels=True, keep=False)}"
    assert [name for name, _ in choice.candidates if name.startswith("Winograd")] == [expected]


def behind_pooling(x: tuple[int | str, ...], window: int, stride: int) -> Case:
    """A 3x3 convolution of 64 filters that reads a MaxPool; all in one kernel."""
    b = Build()
    pooled = b.node("MaxPool", b.input("x", *x), kernel_shape=(window,) * 2, strides=(stride,) * 2)
    w = b.constant((b.rng.normal(size=(64, 64, 3, 3)) / 24).astype(np.float32))
    y = b.node("Conv", pooled, w, kernel_shape=(3, 3), **PADDED)
    return Case("c", b.graph(b.node("Relu", y, out="y")), (), ("x", "y"))


def test_two_cores_share_tiles_where_panels_are_not_equal() -> None:
    """48 filters are a panel and a half: by panels, one core has twice what the other has to store."""
    case = conv("one_and_a_half", (1, 48, 32, 32), (48, 48, 3, 3), pads=pads(1))
    (phase,) = chosen(case, CPUS["x86-64-v4"]).phases
    tiles, panels = (number(s.extent, {}) for s in phase.splits)
    assert few_parts_of(2, number(phase.work, {}), tiles, panels) == (2, 1)
    assert few_parts_of(16, number(phase.work, {}), tiles, panels) == (6, 2)


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("stride", [2, 3])
def test_open_sizes_behind_pooling_get_the_algorithm_of_known_ones(window: int, stride: int) -> None:
    """The kernel's symbols are those of the image in front of the pool too, of which the convolution knows nothing."""
    side = 56 * stride + window - stride
    assert by_winograd(behind_pooling((1, 64, side, side), window, stride))
    assert by_winograd(behind_pooling((1, 64, "H", "W"), window, stride))
    assert by_winograd(behind_pooling(("N", 64, "H", "W"), window, stride))


def test_a_candidate_without_a_price_is_an_error() -> None:
    """A symbol without an assumed size may not make every form lose."""
    case = conv("c", ("N", 64, "H", "W"), (64, 64, 3, 3), **PADDED)
    kernel = kernel_of(case, CPUS["x86-64-v4"])
    assert isinstance(kernel, Kernel)
    ranking = CostRanking(kernel, (), CPUS["x86-64-v4"], (), 0.0)
    with pytest.raises(AssertionError, match="no size is assumed"):
        ranking.best_kernel([kernel, kernel])


BOUNDS = {
    **{name: (x, filters) for name, (x, filters, _) in SHAPES.items()},
    "prime": ((2, 37, 29, 31), (41, 37, 3, 3)),
    "narrow": ((1, 8, 80, 80), (8, 8, 3, 3)),
    "several panels": (("N", 96, 20, 20), (200, 96, 3, 3)),
    "many channels": ((1, 512, 7, 7), (512, 512, 3, 3)),
    "two groups": ((1, 256, 28, 28), (256, 128, 3, 3)),
    "three groups": (("N", 384, 14, 14), (384, 128, 3, 3)),
}


BOUNDED = [  # machine classes take turns: they differ in numbers that the bound and the prediction share
    pytest.param(name, target, marks=[pytest.mark.slow] if (at + turn) % 3 else [])
    for at, name in enumerate(BOUNDS)
    for turn, target in enumerate(("x86-64-v3", "x86-64-v4", "aarch64"))
]


@pytest.mark.parametrize(("name", "target"), BOUNDED)
def test_candidates_excluded_by_a_bound_would_not_have_been_chosen(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is below what is predicted, and without it kernels are the same, for more work."""
    x, filters = BOUNDS[name]
    assert isinstance(x[1], int)
    case = conv("c", x, filters, pads=pads(filters[-1] // 2), last="", sizes=(), group=x[1] // filters[1])
    pairs: list[tuple[float, float]] = []
    waiting: list[float] = []
    least, cost = convolution.least_seconds, CostRanking.cost

    def kernel() -> Kernel | Decision:
        group = group_of_all(case.graph)
        lowered = lower(group, Plan(case.graph, (group,), case.layouts), ROWS)
        assert not isinstance(lowered, Decision)
        forget()
        return schedule(lowered, case.layouts, case.graph.constants, CPUS[target], winograd=True)

    made = kernel()

    def none(t: Tiled, w: Windows, d: WinogradBlocking, machine: Target, sizes: Mapping[str, int]) -> float:
        if machine.cores == CPUS[target].cores:
            waiting.append(least(t, w, d, machine, sizes))
        return 0.0

    def noted(
        judge: CostRanking, way: ScheduleCandidate, made: Kernel, sizes: Mapping[str, int], machine: Target
    ) -> Cost:
        found = cost(judge, way, made, sizes, machine)
        if waiting and way.name.startswith("Winograd") and machine.cores == CPUS[target].cores:
            pairs.append((waiting.pop(0), found.seconds))
        return found

    monkeypatch.setattr(convolution, "least_seconds", none)
    monkeypatch.setattr(CostRanking, "cost", noted)
    assert kernel() == made
    assert all(0 < bound < found for bound, found in pairs), pairs
    assert bool(pairs) == (filters[2:] == (3, 3) and filters[0] > 1)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_case_of_the_table_uses_winograd(case: Case) -> None:
    kernel = scheduled(case, "x86-64-v4")
    assert isinstance(kernel, Kernel)
    found = HALF in {b.name for phase in kernel.phases for b in phase.locals}
    assert found != (case.name in FLAT)


@pytest.mark.parametrize("side", [32, 36, 44])
def test_two_cores_have_as_many_tiles_each(side: int) -> None:
    """Of 64, 81 and 121 tiles of the image, which would be 5, 6 and 9 tiles of rows."""
    case = Case("w", conv("even", (1, 48, side, side), (48, 48, 3, 3), **PADDED).graph, winograd=WAYS["four"])
    kernel = kernel_of(case, CPUS["x86-64-v4"])
    assert isinstance(kernel, Kernel)
    assert [s.extent.constant for s in kernel.phases[-1].splits] == [{32: 6, 36: 6, 44: 10}[side]]


def test_dilated_convolutions_use_it_too() -> None:
    for dilations in ((2, 2), (2, 1), (1, 3)):
        assert by_winograd(conv("c", (1, 64, 56, 56), (64, 64, 3, 3), **PADDED, dilations=dilations))


@pytest.mark.parametrize("group", [2, 3, 6, 12])
def test_groups_of_channels_use_it_too(group: int) -> None:
    """Of 192, 128, 64 and 32 channels: lanes over the channels of several small groups take longer."""
    case = conv("c", (1, 384, 28, 28), (384, 384 // group, 3, 3), group=group, **PADDED)
    assert by_winograd(case)
    (phase, *before) = reversed(chosen(case).phases)
    groups, _ = (number(s.extent, {}) for s in phase.splits)
    assert (groups, before) == (group, [])


def taken(case: Case, target: Cpu, side: int) -> bool:
    """Whether a case's kernel goes by Winograd's algorithm on an image of so many lines: all its phases or none do."""
    made = chosen(case, target)
    sizes = {b.symbol.name: side for b in made.binds}
    running = [p for p in made.phases if all(number(s.extent, sizes) for s in p.splits)]
    (found,) = {HALF in {b.name for b in p.locals} for p in running}
    return found


@pytest.mark.parametrize("target", [CPUS["x86-64-v4"], ZEN3], ids=["v4", "zen3"])
@pytest.mark.parametrize(("dilation", "from_"), [(1, 16), (2, 16), (6, 24), (24, 96)])
def test_kernels_for_any_image_have_both_algorithms(dilation: int, from_: int, target: Cpu) -> None:
    """A tile of four lines 24 apart computes 96: an image of 16 lines took 36 times the products of its outputs."""
    wide = {"dilations": (dilation, dilation), "pads": [dilation] * 4}
    case = conv("c", (1, 64, "H", "W"), (128, 64, 3, 3), **wide)
    assert [taken(case, target, side) for side in (1, 2, from_ // 3)] == [False] * 3
    one = len(chosen(case, target).phases) == 1  # direct
    assert [taken(case, target, side) for side in (from_, 96, 192)] == [not one] * 3
    assert not one or dilation == 24


def test_images_of_one_line_need_more_positions() -> None:
    """Three quarters of what tiles of four lines compute are outside them."""
    large = convolution.LargeEnough(750, 3400)
    square, line = ((8 * 8, 2 * 2), (1 * 64, 1 * 16))
    assert large.holds(*map(Index.of, square)) == ONE
    assert large.holds(*map(Index.of, line)) == ZERO


def test_other_convolutions_are_direct() -> None:
    x, filters = (1, 64, 56, 56), (64, 64, 3, 3)
    for attrs in ({"strides": (2, 2)}, {"strides": (1, 2)}, {"strides": (2, 2), "dilations": (2, 2)}):
        assert not by_winograd(conv("c", x, filters, **PADDED, **attrs))
    assert not by_winograd(conv("c", x, (64, 4, 3, 3), group=16, **PADDED))
    assert not by_winograd(replace(conv("c", x, filters, **PADDED), half=BF16))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_a_nan_and_an_infinity_reach_the_tiles_that_read_them_and_no_others() -> None:
    """Direct sums confine them to the windows around them; here they are NaN in every result of these tiles."""
    case = next(c for c in CASES if c.name == "winograd_fours_four")
    kernel = kernel_of(case, CPUS["x86-64-v4"])
    assert isinstance(kernel, Kernel) and case.winograd == WAYS["four"]
    if not runs_here(CPUS["x86-64-v4"]):
        pytest.skip("this machine cannot run x86-64-v4")
    inputs = fed(kernel, case, 0)
    image = next(i for i, p in enumerate(kernel.inputs) if p.value == "x")
    with Pool(2) as pool:
        loaded = pool.load(library_of((case,), "x86-64-v4"), f"onnxfuse_{case.name}")
        clean = loaded.run(*inputs)[0].copy()
        for odd in (np.nan, np.inf):
            inputs[image] = inputs[image].copy()
            inputs[image][0, 1, 5] = odd  # read by the first two tiles of the first line of tiles
            got = loaded.run(*inputs)[0]
            assert not np.isfinite(got[0, 0:3, 4:7]).any(), "what reads it directly"
            assert np.array_equal(got[0, 4:], clean[0, 4:])
            assert np.array_equal(got[0, :4, 8:], clean[0, :4, 8:])
