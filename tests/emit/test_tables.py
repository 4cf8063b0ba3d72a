"""A table of which rows are looked up and that a product reads too is stored once; others stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxfuse.pipeline import optimize
from onnxfuse.runtime.engine import open_session, options
from tests.models.fused import CACHE
from tests.models.test_networks import needs_compiler

ROWS, COLUMNS = 4099, 64  # of a table: 1 MB, and a last panel that is not full
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
LOOKED_UP = "e = Gather (table, ids)  f = Add (e, b)  g = Tanh (f)"
AS_IT_IS = "z = Gemm <transB = 1> (g, table, c)"
TURNED = "t = Transpose <perm = [1, 0]> (table)  z0 = MatMul (g, t)  z = Add (z0, c)"
# As in language models: what is looked up has several readers, so that the lookup is in no group with one of them.
ALONE = f"d = Tanh (e)  k = MatMul (d, w)  r = Add (k, e)  {AS_IT_IS.replace('(g,', '(r,')}"
RANDOM = np.random.default_rng(5)
WEIGHTS = {
    "table": RANDOM.normal(size=(ROWS, COLUMNS)).astype(np.float32),
    "b": RANDOM.normal(size=COLUMNS).astype(np.float32),
    "c": RANDOM.normal(size=ROWS).astype(np.float32),
    "w": RANDOM.normal(size=(COLUMNS, COLUMNS)).astype(np.float32),
}


def saved(folder: Path, body: str, outputs: str = "float[N, 4099] y") -> Path:
    model = parser.parse_model(f"{HEAD}g (int64[N] ids) => ({outputs}) {{ {LOOKED_UP} {body} y = Sigmoid (z) }}")
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in WEIGHTS.items())
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def tables(model: Path, **changes: object) -> list[tuple[int, ...]]:
    """The shapes of the large initializers of what a model becomes."""
    made = model.with_name("o.onnx")
    optimize(model, made, verify=False, gain=False, strict=True, cache_dir=str(CACHE), overwrite=True, **changes)
    return [tuple(t.dims) for t in onnx.load(made).graph.initializer if np.prod(t.dims) >= ROWS * COLUMNS]


@needs_compiler
@pytest.mark.parametrize("product", [AS_IT_IS, TURNED, ALONE], ids=["as it is", "turned", "lookup alone"])
def test_a_table_is_stored_once(product: str, tmp_path: Path) -> None:
    """Every row of it is found, counted from either end, with the library and without."""
    original = saved(tmp_path, product)
    (shape,) = tables(original)
    assert len(shape) == 3, "as the product reads it"
    sizes = [path.stat().st_size for path in (original, tmp_path / "o.onnx", tmp_path / "libo.so")]
    assert sizes[1] + sizes[2] < 1.1 * sizes[0]
    paths, library = (str(original), str(tmp_path / "o.onnx")), str(tmp_path / "libo.so")
    ways = [open_session(path, options()) for path in paths]
    ways.append(open_session(paths[1], options(libraries=[library])))
    for ids in (np.arange(ROWS)[::61], -1 - np.arange(ROWS)[::97], np.array([0]), np.array([ROWS - 1, -ROWS])):
        wanted, *found = (way.run(None, {"ids": ids})[0] for way in ways)
        for each in found:
            np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (AS_IT_IS, "float[N, 4099] y, float[4099, 64] table"),
        (f"{AS_IT_IS} h = ReduceSum <keepdims = 0> (table)", "float[N, 4099] y, float h"),
    ],
    ids=["an output", "read as a whole"],
)
def test_a_table_that_others_read_stays(body: str, outputs: str, tmp_path: Path) -> None:
    assert (ROWS, COLUMNS) in tables(saved(tmp_path, body, outputs), skip_node=("h",))


@needs_compiler
def test_a_table_with_subnormals_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are zeros in weights of products; of what is looked up they have a sign, a logarithm and a reciprocal."""
    table = WEIGHTS["table"].copy()
    table[9] = -1e-39
    monkeypatch.setitem(WEIGHTS, "table", table)
    original = saved(tmp_path, f"{AS_IT_IS} s = Sign (e)", "float[N, 4099] y, float[N, 64] s")
    assert (ROWS, COLUMNS) in tables(original)
    found = open_session(str(tmp_path / "o.onnx"), options(libraries=[str(tmp_path / "libo.so")]))
    assert np.all(found.run(["s"], {"ids": np.array([9])})[0] == -1)


@needs_compiler
def test_a_small_table_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfuse.emit.tables.LARGE", 4 * ROWS * COLUMNS + 1)
    assert len(tables(saved(tmp_path, AS_IT_IS))) == 2
