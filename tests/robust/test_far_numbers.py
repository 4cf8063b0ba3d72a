"""Numbers that 64-bit indices do not hold are refused by name, and cost only their group."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from onnxfuse import optimize
from onnxfuse.ir.index import Axis, Entry, Index, IndexTable, Least, Symbol, floor_div, modulo
from onnxfuse.lower.widths import bound

MOST = (1 << 63) - 1


def refusals(line: str, shape: str = "N, 4, H", **numbers: list[int]) -> list[tuple[str, str]]:
    """The codes and reasons of a build of `line`, from x to y, with these initializers."""
    graph = parser.parse_graph(f"g (float[{shape}] x) => (float[?] y) {{ {line}\n z = Exp(x) }}")
    graph.output.add().CopyFrom(helper.make_empty_tensor_value_info("z"))
    graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), name) for name, v in numbers.items())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = optimize(model.SerializeToString(), stop_after="render", min_group=1, strict=True)
    assert result.kernels == 1  # of z
    return [(r.code, r.reason) for r in result.refusals]


@pytest.mark.parametrize(
    ("pads", "why"),
    [
        ([0, 0, MOST, 0, 0, 0], "may be beyond 2**60"),
        ([1 << 20, 0, MOST, -1, 3, 1], "has more than 2**60 bytes"),
        ([-(1 << 63), 0, 0, 0, 0, 0], "may be beyond 2**60"),
        ([-(1 << 63), MOST, -1, 2, -(1 << 63), 1 << 31], "has more than 2**60 bytes"),
        ([7, 2, 1 << 32, 7, 1 << 32, 0], "has more than 2**60 bytes"),
    ],
)
def test_far_padding_of_any_size(pads: list[int], why: str) -> None:
    found = refusals("p = Pad(x, pads)\n c = Concat<axis = 1>(p, p)\n y = Neg(c)", pads=pads)
    assert {code for code, _ in found} == {"E-RESOURCE"}
    assert any(why in reason or "more than 2**60 bytes" in reason for _, reason in found)


def test_slices_to_the_end_are_near() -> None:
    graph = parser.parse_graph("g (float[N, 4] x) => (float[?, 4] y) { s = Slice(x, one, most, zero)\n y = Exp(s) }")
    numbers = {"one": [1], "most": [MOST], "zero": [0]}
    graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), name) for name, v in numbers.items())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = optimize(model.SerializeToString(), stop_after="render", min_group=1, strict=True)
    assert (result.kernels, result.refusals) == (1, ())


@pytest.mark.parametrize("seed", range(4))
def test_no_index_is_beyond_its_bound(seed: int) -> None:
    """At sizes up to that which a symbol counts for, indices of random polynomials are within their bounds."""
    rng = np.random.default_rng(seed)
    n, m = (int(k) for k in rng.integers(1, 1 << 10, 2))
    i, j = int(rng.integers(0, 7)), int(rng.integers(0, m))
    table = IndexTable((3, -50, 8, 1, 0, -2, 4))
    atoms = {Symbol("n"): n, Axis("i", Index.of(7)): i, Axis("j", Index.of(Symbol("m"))): j, Symbol("m"): m}
    for _ in range(200):
        picked = rng.integers((0, -9), (4, 9), (3, 2)).tolist()
        a, b, c = (Index.of(list(atoms)[k]) * factor for k, factor in picked)
        e = a * b + c
        value = _at(e, atoms)
        made = [(e, value), (floor_div(e, Index.of(5)), value // 5), (modulo(e, Index.of(Symbol("m"))), value % m)]
        made += [(Index.of(Least(a, b)), min(_at(a, atoms), _at(b, atoms)))]
        made += [(Index.of(Entry(table, Index.of(Axis("i", Index.of(7))))) * 3, table.values[i] * 3)]
        assert all(abs(v) <= bound(x) for x, v in made)


def _at(e: Index, atoms: dict[object, int]) -> int:
    return sum(c * int(np.prod([atoms[a] for a in mono])) for mono, c in e.terms)
