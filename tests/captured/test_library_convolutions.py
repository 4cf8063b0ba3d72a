"""Convolutions by cuDNN and what follows them: the launcher over stand-ins for the library and the driver.

Runs are captured, and their graphs launched on other inputs, with all tensors in memory that the host cannot read.
Results are compared with NumPy's, so that layouts, steps, groups and epilogues have to be right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.compose import elements_read
from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.kernel import Kernel, statements
from onnxfuse.ir.launch import LibraryConvolution
from onnxfuse.ir.layout import Layout, channels_last
from onnxfuse.ir.verify import verify
from onnxfuse.schedule.gpu.scheduler import schedule
from tests.captured.child import THEN
from tests.captured.prepared import Prepared, Unit, compiled, prepared
from tests.captured.test_library_products import TOLERANCE, ran, result
from tests.kernels.compiled import Case, lowered_of
from tests.kernels.pool_host import compiler
from tests.rules.build import Build
from tests.threads.scheduled import TARGET

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the library is found by the loader of Linux"),
]
Array = np.ndarray[Any, Any]
ALL = ("x", "y", "r")  # what lies channels last: image, result and residual


@dataclass(frozen=True)
class Wanted:
    """activation(convolution of x by w + b + r), of images N, C, H, W or N, C, L."""

    name: str
    dtype: DType = F16
    image: tuple[int | str, ...] = (2, 16, 9, 11)
    filters: tuple[int, ...] = (24, 16, 3, 3)
    pads: tuple[int, ...] = (1, 1, 1, 1)
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    group: int = 1
    activation: str = "Relu"
    bias: bool = True
    residual: bool = False
    last: tuple[str, ...] = ALL

    @property
    def batch(self) -> int:
        """Images."""
        return 3 if isinstance(self.image[0], str) else self.image[0]

    @property
    def made(self) -> tuple[int, ...]:
        """The result's shape."""
        rank = len(self.strides)
        low, high = self.pads[:rank], self.pads[rank:]
        along = zip(self.image[2:], low, high, self.dilations, self.filters[2:], self.strides, strict=True)
        sizes = [(int(n) + a + b - d * (k - 1) - 1) // s + 1 for n, a, b, d, k, s in along]
        return (self.batch, self.filters[0], *sizes)

    def graph(self) -> Graph:
        """As ONNX nodes."""
        b = Build(22)
        x, w = b.input("x", *self.image, dtype=self.dtype), b.input("w", *self.filters, dtype=self.dtype)
        steps = {"pads": self.pads, "strides": self.strides, "dilations": self.dilations}
        y = b.node("Conv", x, w, group=self.group, **steps)
        ones = (1,) * len(self.strides)
        y = b.node("Add", y, b.input("b", self.filters[0], *ones, dtype=self.dtype)) if self.bias else y
        shape = (self.image[0], *self.made[1:])
        y = b.node("Add", b.input("r", *shape, dtype=self.dtype), y) if self.residual else y
        ends = (b.constant(x, self.dtype.numpy) for x in (0.0, 6.0)) if self.activation == "Clip" else ()
        return b.graph(b.node(self.activation or "Identity", y, *ends))

    def numpy(self, given: dict[str, Array]) -> Array:
        """In float64."""
        rank, low = len(self.strides), self.pads[: len(self.strides)]
        margins = [(0, 0), (0, 0), *zip(low, self.pads[rank:], strict=True)]
        x, w = np.pad(given["x"], margins), given["w"]
        y = np.zeros(self.made)
        per, deep = self.filters[0] // self.group, self.filters[1]
        for g, taps in product(range(self.group), product(*map(range, self.filters[2:]))):
            spans = zip(taps, self.dilations, self.strides, self.made[2:], strict=True)
            at = tuple(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in spans)
            mine = x[(slice(None), slice(g * deep, (g + 1) * deep), *at)]
            part = w[(slice(g * per, (g + 1) * per), slice(None), *taps)]
            y[:, g * per : (g + 1) * per] += np.einsum("nc...,kc->nk...", mine, part)
        y = y + given.get("b", np.float64(0)) + given.get("r", np.float64(0))
        six = np.clip(y + 3, 0, 6) / 6
        return {"": y, "Relu": np.maximum(y, 0), "HardSwish": y * six, "Clip": np.clip(y, 0, 6)}[self.activation]

    @property
    def layouts(self) -> dict[str, Layout]:
        """Of image, result and residual."""
        (out,) = self.graph().outputs
        rank = len(self.filters)
        return {out if v == "y" else v: channels_last(rank) for v in self.last}

    @property
    def case(self) -> Case:
        """As a case of kernels."""
        open_ = isinstance(self.image[0], str)
        sizes: Any = ({self.image[0]: 3},) if open_ else ({},)
        return Case(f"convolution_{self.name}", self.graph(), sizes=sizes)


LINE: dict[str, Any] = {"image": (2, 16, 37), "pads": (2, 2), "strides": (2,), "dilations": (2,)}
WANTED = (
    *(Wanted(f"relu_{t}", t) for t in (F32, F16, BF16)),
    *(Wanted(f"relu_of_residual_{t}", t, residual=True) for t in (F32, F16, BF16)),
    Wanted("plain", activation="", bias=False),
    Wanted("plain_float32", F32, activation="", bias=False),
    Wanted("bias", activation=""),
    Wanted("residual", activation="", residual=True),
    Wanted("points", filters=(24, 16, 1, 1), pads=(0, 0, 0, 0)),
    Wanted("points_apart", filters=(24, 16, 1, 1), pads=(0, 0, 0, 0), strides=(2, 2)),
    Wanted("strides", strides=(2, 1)),
    Wanted("odd", image=(1, 13, 7, 5), filters=(19, 13, 3, 5), pads=(1, 2, 1, 2), strides=(2, 3)),
    Wanted("dilations", pads=(2, 3, 2, 3), dilations=(2, 3)),
    Wanted("uneven_but_alike", image=(1, 16, 8, 8), pads=(1, 1, 0, 0), strides=(2, 2)),
    Wanted("uneven_dilated", image=(1, 16, 8, 8), filters=(24, 16, 1, 3), pads=(0, 1, 0, 0), strides=(1, 2)),
    Wanted("whole", image=(2, 16, 3, 3), pads=(0, 0, 0, 0)),
    Wanted("few_channels", image=(1, 3, 19, 17), filters=(16, 3, 7, 7), pads=(3, 3, 3, 3), strides=(2, 2)),
    Wanted("groups", filters=(24, 4, 3, 3), group=4),
    Wanted("each_its_own", image=(2, 24, 9, 11), filters=(24, 1, 3, 3), group=24),
    Wanted("several_each", image=(2, 12, 9, 11), filters=(24, 1, 3, 3), group=12),
    Wanted("line", filters=(24, 16, 5), **LINE),
    Wanted("line_residual", filters=(24, 16, 5), residual=True, activation="", **LINE),
    Wanted("images_unknown", image=("N", 16, 9, 11)),
)


TURNED = (
    (Wanted("image", last=("y",)), [False, True]),
    (Wanted("result", last=("x",)), [True, False]),
    (Wanted("both", last=()), [False, True, False]),
    (Wanted("residual", last=("x", "y"), residual=True), [True, False]),
    (Wanted("activation", activation="HardSwish"), [True, False]),
    (Wanted("cut_off", activation="Clip"), [True, False]),
    (Wanted("without_bias", bias=False), [True, False]),
    (Wanted("activation_of_all", last=(), activation="HardSwish", residual=True), [False, True, False]),
    (Wanted("line", filters=(24, 16, 5), last=(), **LINE), [False, True, False]),
    (Wanted("unknown", image=("N", 16, 9, 11), last=()), [False, True, False]),
)
SYMBOLS = {w: f"made_{n}" for n, w in enumerate((*WANTED, *(w for w, _ in TURNED)))}  # of launchers


def kernel(wanted: Wanted) -> Kernel:
    """Its kernel, whose filters lie channels last."""
    layouts = {**wanted.layouts, "w": channels_last(len(wanted.filters))}
    made = schedule(lowered_of(wanted.case), layouts, TARGET)  # type: ignore[arg-type]
    assert isinstance(made, Kernel), made
    assert not verify(made)
    return made


def by_library(made: Kernel) -> list[bool]:
    """Which phases the library may compute."""
    return [isinstance(p.library, LibraryConvolution) for p in made.phases]


def assert_right(made: Prepared, wanted: Wanted, limit: float = 0.0) -> None:
    """The graph's result is that of NumPy on the inputs that were given last."""
    given = {}
    for p, x in zip(made.kernel.inputs, made.feeds, strict=True):
        given[p.value] = (np.moveaxis(x, -1, 1) if p.layout.steps else x).astype(np.float64) * THEN
    expected = wanted.numpy(given)
    got = result(made, wanted.dtype).astype(np.float64)
    got = np.moveaxis(got, -1, 1) if made.kernel.outputs[0].layout.steps else got
    limit = (limit or TOLERANCE[wanted.dtype]) * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=0, atol=limit)


def made_with_all(folder: Path, wanted: Wanted, *, library: bool = True) -> Prepared:
    """The launcher of a kernel, which is compiled with those of all others here."""
    symbol = SYMBOLS[wanted]
    return prepared(folder, wanted.case, kernel(wanted), library=library, unit=unit(), symbol=symbol)


@cache
def unit() -> Unit:
    return compiled({symbol: kernel(wanted) for wanted, symbol in SYMBOLS.items()})


@pytest.mark.parametrize("wanted", WANTED, ids=lambda w: w.name)
def test_the_library_computes_what_numpy_does(wanted: Wanted, tmp_path: Path) -> None:
    assert by_library(kernel(wanted)) == [True]
    made = made_with_all(tmp_path, wanted)
    calls = ran(made)
    assert not [c for c in calls if c.startswith(("refused", "launch"))]
    size = " ".join(map(str, wanted.made if len(wanted.made) > 3 else (*wanted.made[:2], 1, *wanted.made[2:])))
    how = f"mode {1 if wanted.activation else 5} beta {int(wanted.residual)}" if wanted.bias else "plain"
    first = wanted.dtype != F32 and (wanted.activation != "" or not wanted.bias)
    said = f"convolution {size} {how} algorithm {0 if first else 1} math {3 if wanted.dtype == F32 else 1}"
    assert [c for c in calls if c.startswith("convolution")] == [said] * 2, "a warm-up run, and a captured one"
    asked = 2 if wanted.dtype == F32 else 1  # most sessions round
    assert len([c for c in calls if c.startswith("asked")]) == asked, "once per shape"
    assert_right(made, wanted)


@pytest.mark.parametrize(("wanted", "phases"), TURNED, ids=[w.name for w, _ in TURNED])
@pytest.mark.parametrize("library", [True, False], ids=["library", "kernels"])
def test_what_lies_otherwise_is_turned_and_what_is_no_epilogue_is_behind(
    wanted: Wanted, phases: list[bool], library: bool, tmp_path: Path
) -> None:
    assert by_library(kernel(wanted)) == phases
    made = made_with_all(tmp_path, wanted, library=library)
    names = [c.split()[0] for c in ran(made) if c.startswith(("convolution", "launch", "refused"))]
    assert names == [("convolution" if each and library else "launch") for each in phases] * 2
    assert_right(made, wanted)


WITHOUT = [
    (False, {}),
    (True, {"CUDNN_FINDS": "0"}),
    (True, {"CUDNN_TAKES": "0"}),
    (True, {"ONNXFUSE_CUDNN": "0"}),
]


@pytest.mark.parametrize(("library", "environment"), WITHOUT, ids=["missing", "no algorithm", "refused", "left out"])
@pytest.mark.parametrize("wanted", [w for w in WANTED if w.name in ("odd", "groups", "relu_of_residual_float16")],
                         ids=lambda w: w.name)  # fmt: skip
def test_the_phase_is_launched_where_the_library_does_not_compute(
    wanted: Wanted, library: bool, environment: dict[str, str], tmp_path: Path
) -> None:
    made = made_with_all(tmp_path, wanted, library=library)
    calls = ran(made, **environment)
    assert len([c for c in calls if c.startswith("launch")]) == 2
    assert not [c for c in calls if c.startswith("convolution")]
    assert_right(made, wanted)


def test_an_algorithm_that_is_refused_gives_way_to_the_next_and_is_not_tried_again(tmp_path: Path) -> None:
    wanted = WANTED[1]
    made = made_with_all(tmp_path, wanted)
    calls = [c.split()[0] for c in ran(made, CUDNN_TAKES="last")]
    assert [c for c in calls if c in ("not", "convolution", "launch")] == ["not", "convolution", "convolution"]
    assert_right(made, wanted)


def test_a_failure_of_the_moment_is_no_refusal(tmp_path: Path) -> None:
    """The run computes by a kernel, and the next one asks the library again, for the same algorithm."""
    wanted = WANTED[1]
    made = made_with_all(tmp_path, wanted)
    calls = ran(made, CUDNN_FAILS="1")
    told = [c for c in calls if c.split()[0] in ("failed", "convolution", "launch")]
    assert [c.split()[0] for c in told] == ["failed", "launch", "convolution"]
    assert " algorithm 0 " in told[-1]
    assert_right(made, wanted)


def half(b: Build, x: float) -> str:
    """A number in float16."""
    return b.constant(np.array(x, np.float16))


BEHIND: tuple[tuple[str, Callable[[Build, str], str], str], ...] = (
    ("a small number", lambda b, y: b.node("Add", b.node("Relu", y), half(b, 1e-6)), "relu"),
    ("at least a small number", lambda b, y: b.node("Max", y, half(b, 1e-6)), ""),
    ("a limit of the type", lambda b, y: b.node("Clip", y, half(b, -65504), half(b, 65504)), ""),
    ("the sums again", lambda b, y: b.node("Add", b.node("Relu", y), y), ""),
)


@pytest.mark.parametrize(("after", "activation"), [row[1:] for row in BEHIND], ids=[row[0] for row in BEHIND])
def test_what_changes_sums_a_little_or_reads_them_twice_is_behind(
    after: Callable[[Build, str], str], activation: str
) -> None:
    """The call has the largest part that it computes exactly; nothing convolves again."""
    b = Build(22)
    x, w = b.input("x", 2, 16, 9, 11, dtype=F16), b.input("w", 24, 16, 3, 3, dtype=F16)
    y = b.node("Add", b.node("Conv", x, w, pads=(1, 1, 1, 1)), b.input("b", 24, 1, 1, dtype=F16))
    graph = b.graph(after(b, y))
    last = {name: channels_last(4) for name in ("x", "w", *graph.outputs)}
    made = schedule(lowered_of(Case("behind", graph)), last, TARGET)  # type: ignore[arg-type]
    assert isinstance(made, Kernel), made
    first, second = made.phases
    assert isinstance(first.library, LibraryConvolution) and first.library.activation == activation
    assert second.library is None
    again = (each for s in statements(second.body) for f in fields(s) for each in elements_read(getattr(s, f.name)))
    assert not {"in0", "in1"} & {load.source for load in again}


def test_float32_is_rounded_where_the_session_rounds(tmp_path: Path) -> None:
    """To 10 bits behind the point, as the runtime's own convolutions are then; algorithms are asked for apart."""
    wanted = WANTED[0]
    made = made_with_all(tmp_path, wanted)
    calls = ran(made, ROUNDS="1")
    assert [c.split("algorithm")[1] for c in calls if c.startswith("convolution")] == [" 0 math 0"] * 2
    assert len([c for c in calls if c.startswith("asked")]) == 1, "when the kernel is made"
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_right(made, wanted)
    assert_right(made, wanted, limit=2e-3)


def test_a_known_shape_is_asked_for_when_the_kernel_is_made(tmp_path: Path) -> None:
    """So that nothing is left to find while a graph is captured; open sizes are found in the warm-up run."""
    made = made_with_all(tmp_path, WANTED[0])
    names = [c.split()[0] for c in ran(made)]
    assert names.index("handle") < names.index("asked") < names.index("load") < names.index("convolution")


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"made": (9, 12)}, "a result of another size"),
    ({"channels": 32}, "an operand that is not the device's memory"),
    ({"groups": 5}, "channels that do not make the groups"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES, ids=["size", "channels", "groups"])
def test_the_stand_in_refuses_wrong_tensors_and_a_kernel_is_launched(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    wanted = replace(WANTED[1], name="wrong", image=(2, 16, 9, 11))
    made = kernel(wanted)
    library = made.phases[0].library
    assert isinstance(library, LibraryConvolution)
    wrong = replace(made, phases=(replace(made.phases[0], library=replace(library, **change)),))
    assert verify(wrong), "the verifier finds it too"
    calls = ran(prepared(tmp_path, wanted.case, wrong, library=True))
    assert f"refused {why}" in calls
    assert len([c for c in calls if c.startswith("launch")]) == 2


def test_what_the_library_does_not_convolve_has_no_call() -> None:
    """Padding that differs between the sides of an axis, and volumes."""
    uneven = Wanted("uneven", image=(1, 16, 9, 9), pads=(1, 1, 0, 0), strides=(2, 2))
    assert by_library(kernel(uneven)) == [False]
    volume = Wanted("volume", image=(1, 8, 5, 5, 5), filters=(8, 8, 3, 3, 3), pads=(1,) * 6, strides=(1,) * 3,
                    dilations=(1,) * 3, last=())  # fmt: skip
    assert not any(by_library(kernel(volume)))


def test_constant_filters_of_one_group_are_stored_channels_last() -> None:
    """Those of several groups, and filters that are computed, stay as they are, and have no call."""

    def made(wanted: Wanted, *constants: str) -> tuple[bool, list[bool]]:
        found = schedule(lowered_of(wanted.case), wanted.layouts, TARGET, constants=constants)  # type: ignore[arg-type]
        assert isinstance(found, Kernel)
        return bool(found.inputs[1].layout.steps), by_library(found)

    one, own = Wanted("constant"), next(w for w in WANTED if w.name == "each_its_own")
    assert made(one, "w") == (True, [True])
    assert made(one) == (False, [False])
    assert made(own, "w") == (False, [False])
