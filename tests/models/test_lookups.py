"""Lookups at indices computed in the same kernel: correct at every size, negative ones wrapped, never out of bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxfuse.report.result import Result
from onnxfuse.runtime.engine import open_session, options
from tests.models.fused import Array, Feeds
from tests.models.test_bodies import built, worst
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
RANDOM = np.random.default_rng(12)

# Bucket of a distance as T5 has it: exact below 4, logarithmic up to 16, the same on from there; 8 more where it is
# ahead.
BUCKETS = """buckets (int64[S] q, int64[T] k, float[2, S, T] scores) => (float[2, S, T] y) {
  q2 = Unsqueeze (q, last)
  k2 = Unsqueeze (k, first)
  d = Sub (k2, q2)
  ahead = Greater (d, zero)
  ahead1 = Cast <to = 7> (ahead)
  offset = Mul (ahead1, eight)
  far = Abs (d)
  near = Less (far, four)
  real = Cast <to = 1> (far)
  part = Div (real, four_)
  log = Log (part)
  scaled = Mul (log, slope)
  whole = Cast <to = 7> (scaled)
  later = Add (whole, four)
  most = Min (later, seven)
  bucket = Where (near, far, most)
  at = Add (bucket, offset)
  bias = Gather (table, at)
  bias1 = Transpose <perm = [2, 0, 1]> (bias)
  sum = Add (scores, bias1)
  y = Softmax <axis = -1> (sum)
}"""
SHIFTED = """shifted (int64[B, S] ids, float[B, S, 8] x) => (float[B, S, 8] y) {
  back = Sub (ids, three)
  rows = Gather (table, back)
  sum = Add (rows, x)
  y = Relu (sum)
}"""
# The mask of a Hugging Face encoder: looked up at pairs (sequence, place).
PAIRS = """pairs (int64[B, S] mask, int64[B] of, int64[S] place, float[B, 2, S, S] x) => (float[B, 2, S, S] y) {
  seen = Cast <to = 9> (mask)
  of3 = Unsqueeze (of, second)
  one = Mul (of3, zero)
  place1 = Add (place, zero)
  of4 = Add (of3, place1)
  of5 = Sub (of4, place1)
  row = Add (of5, one)
  col = Add (one, place1)
  row1 = Unsqueeze (row, last)
  col1 = Unsqueeze (col, last)
  both = Concat <axis = -1> (row1, col1)
  found = GatherND (seen, both)
  keep = Unsqueeze (found, middle)
  hidden = Where (keep, x, least)
  y = Softmax <axis = -1> (hidden)
}"""
ALONG = """along (int64[B, S] at, float[B, T] x) => (float[B, S] y) {
  half = Div (at, two)
  up = Add (half, three)
  rest = Mod (up, four)
  found = GatherElements <axis = 1> (x, rest)
  y = Exp (found)
}"""
# Words as floating-point numbers, as Keras gives them to its embeddings.
TRUNCATED = """truncated (float[B, S] x) => (float[B, S, 8] y) {
  at = Cast <to = 6> (x)
  rows = Gather (table, at)
  x1 = Unsqueeze (x, last)
  sum = Add (rows, x1)
  y = Relu (sum)
}"""
INTEGERS = {"zero": 0, "two": 2, "three": 3, "four": 4, "seven": 7, "eight": 8}
AXES = {"first": [0], "second": [1], "last": [-1], "middle": [1, 2]}


def made(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(HEAD + text)
    arrays: dict[str, Array] = {k: np.array(v, np.int64) for k, v in {**INTEGERS, **AXES}.items()}
    arrays |= {"four_": np.float32(4), "slope": np.float32(4 / np.log(4)), "least": np.float32(-1e9)}
    arrays["table"] = RANDOM.normal(size=(16, 2) if text is BUCKETS else (6, 8)).astype(np.float32)
    read = {v for n in model.graph.node for v in n.input}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), k) for k, a in arrays.items() if k in read)
    return model


def floats(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def feeds(text: str, n: int, m: int) -> Feeds:
    if text is BUCKETS:
        return {"q": np.arange(n), "k": np.arange(m), "scores": floats(2, n, m)}
    if text is SHIFTED:
        return {"ids": RANDOM.integers(0, 6, (m, n)), "x": floats(m, n, 8)}
    if text is PAIRS:
        mask = np.ones((m, n), np.int64)
        mask[:, n // 2 + 1 :] = 0
        return {"mask": mask, "of": np.arange(m), "place": np.arange(n), "x": floats(m, 2, n, n)}
    if text is TRUNCATED:
        return {"x": RANDOM.uniform(-5.9, 5.9, (m, n)).astype(np.float32)}
    return {"at": RANDOM.integers(0, 40, (m, n)), "x": floats(m, 4 + n)}


@pytest.mark.parametrize(
    "text",
    [BUCKETS, SHIFTED, PAIRS, ALONG, TRUNCATED],
    ids=["buckets", "shifted", "pairs", "along", "truncated"],
)
def test_integers_that_are_computed_and_looked_up_are_one_kernel_with_what_reads_there(
    text: str, tmp_path: Path
) -> None:
    result = built(made(text), tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    sizes = ((1, 1), (2, 3), (7, 1), (31, 2), (64, 5))
    assert worst(tmp_path, result, [feeds(text, n, m) for n, m in sizes]) <= 1e-6


def failure(folder: Path, result: Result, given: Feeds) -> str:
    session = open_session(str(folder / "fused.onnx"), options(libraries=[str(result.output.library)]))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument) as raised:
        session.run(None, given)
    return str(raised.value)


def test_a_computed_integer_outside_of_the_table_is_an_error(tmp_path: Path) -> None:
    result = built(made(SHIFTED), tmp_path)
    wrong = feeds(SHIFTED, 5, 2)
    for bad in (9, -4):
        wrong["ids"][1, 3] = bad
        assert failure(tmp_path, result, wrong)


def test_a_lookup_in_an_empty_tensor_is_an_error(tmp_path: Path) -> None:
    """All rows but the first, of which there may be none: an error as in the runtime, unless nothing is asked for."""
    text = """rest (float[N, 4] x, int64[M] at) => (float[M, 4] y) <int64[1] one = {1}, int64[1] most = {1000}> {
      rest = Slice (x, one, most)
      rows = Gather <axis = 0> (rest, at)
      y = Relu (rows)
    }"""
    result = built(onnx.parser.parse_model(HEAD + text), tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    sizes = ((5, 3), (2, 1), (1, 0), (9, 64))
    sets = [{"x": floats(n, 4), "at": RANDOM.integers(0, max(1, n - 1), m)} for n, m in sizes]
    assert worst(tmp_path, result, sets) == 0
    assert failure(tmp_path, result, {"x": floats(1, 4), "at": np.zeros(2, np.int64)})


def test_unread_operands_of_a_concat_stay_inputs(tmp_path: Path) -> None:
    text = """ends (float[2, N] x, float[2, N] z) => (float[N] y) <int64 last = {-1}, int64 third = {2}> {
      both = Concat <axis = 0> (x, z)
      a = Gather <axis = 0> (both, last)
      b = Gather <axis = 0> (both, third)
      y = Sub (a, b)
    }"""
    result = built(onnx.parser.parse_model(HEAD + text), tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    sets = [{"x": floats(2, n), "z": floats(2, n)} for n in (1, 7, 64)]
    assert worst(tmp_path, result, sets) == 0


def test_rows_are_written_at_places_that_do_not_fit_into_a_function(tmp_path: Path) -> None:
    text = """written (float[512, W] x, float[400, W] u) => (float[512, W] y) {
      twice = Add (u, u)
      put = ScatterND (x, places, twice)
      y = Neg (put)
    }"""
    model = onnx.parser.parse_model(HEAD + text)
    places = RANDOM.permutation(512)[:400, None] - 256
    model.graph.initializer.append(numpy_helper.from_array(places, "places"))
    result = built(model, tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    assert worst(tmp_path, result, [{"x": floats(512, n), "u": floats(400, n)} for n in (1, 7, 64)]) == 0


def test_constants_written_into_a_filled_tensor_are_a_constant(tmp_path: Path) -> None:
    text = """bank (float[N, 300] x) => (float[N, 64] y) <int64[1] size = {19200}, int64[2] shape = {300, 64}> {
      empty = ConstantOfShape (size)
      flat = ScatterElements <axis = 0> (empty, places, values)
      matrix = Reshape (flat, shape)
      product = MatMul (x, matrix)
      y = Relu (product)
    }"""
    model = onnx.parser.parse_model(HEAD + text)
    for name, array in (("places", RANDOM.permutation(19200)[:900]), ("values", floats(900))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    result = built(model, tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    assert [g.ops for g in result.groups] == [("MatMul", "Relu")]
    assert worst(tmp_path, result, [{"x": floats(n, 300)} for n in (1, 7, 64)]) <= 1e-6
