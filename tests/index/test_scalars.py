"""Inlining, substitution and guards agree with evaluating the definitions one after another."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import (
    cost,
    free_axes,
    indices_of,
    inline,
    loads,
    rename_ranges,
    sources,
    substitute_axes,
    walk,
)
from onnxfuse.ir.dtype import BOOL, F16, F32, I32, I64
from onnxfuse.ir.index import ZERO, Axis, Index, Loaded, Symbol, floor_div, modulo
from onnxfuse.ir.scalar import (
    REMEMBERED,
    Apply,
    Const,
    FromIndex,
    Guard,
    Load,
    Reduce,
    Scalar,
    apply,
    by_identity,
    cast,
    const,
)
from onnxfuse.ops.evaluate import meaning
from onnxfuse.ops.spec import Definition

S = Symbol("s")
SYMBOLS = {"s": 5}
N, M = 6, 5  # both tensors are N x M; the second extent is the symbol s
SHAPE = (Index.of(N), Index.of(S))


def axes(name: str, shape: tuple[Index, ...] = SHAPE) -> tuple[Axis, ...]:
    return tuple(Axis(f"{name}:{i}", e) for i, e in enumerate(shape))


def load(name: str, *at: Index, guards: tuple[Guard, ...] = (), otherwise: Scalar | None = None) -> Load:
    return Load(name, at, F32, guards, otherwise)


def _square(name: str, x: str, y: str) -> Definition:
    i, j = map(Index.of, axes(name))
    return Definition(name, axes(name), apply("mul", load(x, i, j), apply("add", load(y, i, j), const(2.0))))


def _flip(name: str, x: str, y: str) -> Definition:
    i, j = map(Index.of, axes(name))
    return Definition(name, axes(name), apply("sub", load(x, N - 1 - i, j), load(y, i, SHAPE[1] - 1 - j)))


def _mixed(name: str, x: str, y: str) -> Definition:
    """The same elements in flat order shifted within rows of the flat tensor."""
    i, j = map(Index.of, axes(name))
    flat = modulo(i * S + j + 7, Index.of(S) * N)
    return Definition(name, axes(name), load(x, floor_div(flat, Index.of(S)), modulo(flat, Index.of(S))))


def _padded(name: str, x: str, y: str) -> Definition:
    """x moved down by two rows with -1 above, as Pad does."""
    i, j = map(Index.of, axes(name))
    guard = (Guard(i - 2, SHAPE[0]),)
    return Definition(name, axes(name), load(x, i - 2, j, guards=guard, otherwise=const(-1.0)))


def _joined(name: str, x: str, y: str) -> Definition:
    """Three rows of x, then y, as Concat does."""
    i, j = map(Index.of, axes(name))
    piece = load(y, i - 3, j, guards=(Guard(i - 3, SHAPE[0]),), otherwise=const(0.5))
    return Definition(name, axes(name), load(x, i, j, guards=(Guard(i, Index.of(3)),), otherwise=piece))


def _window(name: str, x: str, y: str) -> Definition:
    """A sum over three neighbours, zero outside, plus a row sum."""
    i, j = map(Index.of, axes(name))
    r, q = Axis(f"{name}:r", Index.of(3)), Axis(f"{name}:q", Index.of(S))
    at = i + r - 1
    taps = Reduce("sum", (r,), (load(x, at, j, guards=(Guard(at, SHAPE[0]),), otherwise=const(0.0)),), F32)
    row = Reduce("max", (q,), (load(y, i, Index.of(q)),), F32)
    return Definition(name, axes(name), apply("add", taps, row))


def _product(name: str, x: str, y: str) -> Definition:
    """x times y transposed over their rows: a contraction with N x N results, read back as N x s."""
    i, j = map(Index.of, axes(name))
    k = Axis(f"{name}:k", Index.of(S))
    body = apply("mul", load(x, i, Index.of(k)), load(y, modulo(j, Index.of(N)), Index.of(k)))
    return Definition(name, axes(name), Reduce("sum", (k,), (body,), F32))


def _gathered(name: str, x: str, y: str) -> Definition:
    i, j = map(Index.of, axes(name))
    row = Index.of(Loaded("ids", (i,), SHAPE[0]))
    return Definition(name, axes(name), apply("add", load(x, row, j), load(y, i, ZERO)))


def _gathered_under_guard(name: str, x: str, y: str) -> Definition:
    i, j = map(Index.of, axes(name))
    row = Index.of(Loaded("ids", (i - 4,), SHAPE[0]))
    return Definition(name, axes(name), load(x, row, j, guards=(Guard(i - 4, SHAPE[0]),), otherwise=load(y, i, j)))


def _counted(name: str, x: str, y: str) -> Definition:
    i, j = map(Index.of, axes(name))
    here = FromIndex(i * S + j, I64)
    below = apply("less", load(x, i, j), load(y, i, j))
    return Definition(name, axes(name), apply("select", below, cast(here, F32), load(x, i, j)))


Step = Callable[[str, str, str], Definition]
STEPS: tuple[Step, ...] = (
    _square,
    _flip,
    _mixed,
    _padded,
    _joined,
    _window,
    _product,
    _gathered,
    _gathered_under_guard,
    _counted,
)
PAIRS = [(a, b) for a in STEPS for b in STEPS]


def arrays(rng: Random) -> dict[str, np.ndarray]:
    values = np.random.default_rng(rng.randrange(2**32))
    made: dict[str, np.ndarray] = {n: values.integers(-3, 4, (N, M)).astype(np.float32) for n in ("a", "b")}
    made["ids"] = values.integers(-N, N, N)
    return made


def check(definitions: list[Definition], rng: Random) -> None:
    """The last definition with all before it inlined means what it means after them."""
    *made, last = definitions
    known: dict[str, tuple[tuple[Axis, ...], Scalar]] = {}
    for d in made:
        known[d.name] = (d.axes, inline(d.value, known))
    value = inline(last.value, known)
    assert sources(value) <= {"a", "b", "ids"}
    assert free_axes(value) <= set(last.axes)
    data = arrays(rng)
    want = meaning(definitions, data, SYMBOLS)[last.name]
    got = meaning([Definition(last.name, last.axes, value)], data, SYMBOLS)[last.name]
    assert np.array_equal(got, want), f"{last}"


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_any_step_inlines_into_any_other(first: Step, second: Step) -> None:
    check([first("p", "a", "b"), second("q", "p", "b")], Random(1))
    check([first("p", "a", "b"), second("q", "b", "p")], Random(2))


def test_longer_chains_inline() -> None:
    rng = Random(3)
    for _ in range(40):
        names, made = ["a", "b"], []
        for step in range(rng.randint(2, 3)):
            made.append(rng.choice(STEPS[:-2])(f"v{step}", rng.choice(names[-2:]), rng.choice(names[-2:])))
            names.append(f"v{step}")
        check(made, rng)


def test_ranges_are_renamed_where_an_index_would_be_captured() -> None:
    """y = sum over r of x[i, r], read at [r, r'] inside a reduction over axes of those names."""
    i, j = axes("y")
    r = Axis("y:r", Index.of(S))
    inner = Reduce("sum", (r,), (apply("mul", load("a", Index.of(i), Index.of(r)), load("a", ZERO, Index.of(j))),), F32)
    r2, r3 = Axis("y:r", SHAPE[0]), Axis("y:r'", Index.of(S))
    outer = Reduce("sum", (r2, r3), (load("y", Index.of(r2), Index.of(r3)),), F32)
    check([Definition("y", (i, j), inner), Definition("z", (), outer)], Random(4))
    same, last = Axis("y:r", Index.of(S)), Axis("y:r'", SHAPE[0])
    outer = Reduce("sum", (same, last), (load("y", Index.of(last), Index.of(same)),), F32)
    check([Definition("y", (i, j), inner), Definition("z", (), outer)], Random(5))


def test_substitution_and_renaming() -> None:
    d = _window("w", "a", "b")
    i, j = d.axes
    moved = substitute_axes(d.value, {i: N - 1 - Index.of(i)})
    data = arrays(Random(6))
    want = meaning([d], data, SYMBOLS)["w"][::-1]
    assert np.array_equal(meaning([Definition("w", d.axes, moved)], data, SYMBOLS)["w"], want)
    ranges = {r for n in walk(d.value) if isinstance(n, Reduce) for r in n.ranges}
    other = rename_ranges(d.value, {r: Axis(r.name + "_new", r.extent) for r in ranges})
    assert {r.name for n in walk(other) if isinstance(n, Reduce) for r in n.ranges} == {"w:r_new", "w:q_new"}
    assert free_axes(other) == {i, j}
    assert np.array_equal(meaning([Definition("w", d.axes, other)], data, SYMBOLS)["w"], want[::-1])


def test_walking_sees_every_load_once() -> None:
    value = _joined("p", "a", "b").value
    assert [x.source for x in loads(value)] == ["b", "a"]
    assert sources(_gathered("g", "a", "b").value) == {"a", "b", "ids"}
    assert {repr(i) for i in indices_of(value)} >= {"p:0 - 3", "p:0", "p:1", "3", "6"}
    shared = apply("exp", load("a", ZERO, ZERO))
    assert cost(apply("add", shared, shared)) == cost(shared) + 1


def test_an_element_outside_its_tensor_is_an_error() -> None:
    i, j = map(Index.of, axes("p"))
    with pytest.raises(IndexError, match="leaves a tensor"):
        meaning([Definition("p", axes("p"), load("a", i - 1, j))], arrays(Random(7)), SYMBOLS)


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [(2.75, I32, 2), (-2.75, I64, -2), (0.0, BOOL, False), (float("nan"), BOOL, True), (1e9, F16, float("inf"))],
)
def test_casts_of_numbers(value: float, dtype: object, want: object) -> None:
    got = cast(const(value), dtype)  # type: ignore[arg-type]  # a DType
    assert isinstance(got, Const) and got.value == want and type(got.value) is type(want)


def test_constants_are_equal_by_their_bits() -> None:
    assert const(float("nan")) == const(float("nan")) and const(0.0) != const(-0.0)
    assert const(1.0) != Const(1, I64) and hash(const(0.5)) == hash(const(0.5))
    assert const(0.1).value == float(np.float32(0.1))


def test_types_of_results() -> None:
    x, y = load("a", ZERO, ZERO), const(1.0)
    assert apply("less", x, y).dtype is BOOL
    assert apply("select", apply("less", x, y), x, y).dtype is F32
    assert cast(x, F32) is x and isinstance(cast(x, F16), Apply)


def test_an_empty_reduction_is_its_unit() -> None:
    r = Axis("r", ZERO)
    units = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}
    for combine, unit in units.items():
        value = Reduce(combine, (r,), (load("e", Index.of(r)),), F32)
        assert meaning([Definition("z", (), value)], {"e": np.zeros(0, np.float32)}, {})["z"] == unit


def test_arg_reductions_take_the_first_of_equals() -> None:
    r, at = Axis("r", Index.of(5)), Axis("z:0", Index.of(2))
    x = np.array([[1, 3, 3, 0, 0], [7, 7, 7, 7, 7]], np.float32)
    for combine, want in (("argmax", [1, 0]), ("argmin", [3, 0])):
        body = (load("x", Index.of(at), Index.of(r)), FromIndex(Index.of(r), I64))
        value = Reduce(combine, (r,), body, I64, 1)
        assert meaning([Definition("z", (at,), value)], {"x": x}, {})["z"].tolist() == want


def test_what_was_made_of_a_scalar_is_remembered_for_that_object() -> None:
    seen: list[Scalar] = []

    @by_identity
    def value(x: Scalar) -> object:
        seen.append(x)
        return x.value if isinstance(x, Const) else None

    one, equal = const(1.0, F32), const(1.0, F32)
    assert [value(one), value(one), value(equal)] == [1.0, 1.0, 1.0]
    assert len(seen) == 2 and seen[0] is one and seen[1] is equal
    seen.clear()
    assert [value(const(float(n), F32)) for n in range(3 * REMEMBERED)] == list(range(3 * REMEMBERED))
    assert all(node is one for node in walk(one)) and all(node is equal for node in walk(equal))


def test_a_select_beside_a_guard_that_says_the_same_is_the_load() -> None:
    """Zeros joined in front of a value: where the place is before it, its guard fails, and the load gives 0 as well."""
    place = modulo(Index.of(Axis("i", Index.of(9))), Index.of(S)) - 1
    below = apply("less", FromIndex(place, I64), const(0, I64))
    read = Load("x", (place,), F32, (Guard(place, Index.of(S) - 1),), const(0.0, F32))
    assert simplify(apply("select", below, const(0.0, F32), read)) == read
    for other in (
        apply("select", below, const(1.0, F32), read),
        apply("select", apply("less", FromIndex(place - 1, I64), const(0, I64)), const(0.0, F32), read),
        apply("select", apply("equal", FromIndex(place, I64), const(0, I64)), const(0.0, F32), read),
    ):
        assert isinstance(made := simplify(other), Apply) and made.fn == "select"
