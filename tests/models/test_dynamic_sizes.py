"""Networks with symbolic sizes: optimized once, correct at six sizes each, with few nodes left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from models.classes import CLASSES
from models.dynamic.networks import SMALL_SIZES
from models.networks import network
from models.opened import opened
from onnxfuse.verify.compare import FLOORS
from tests.models.fused import Feeds
from tests.models.sizes import built, left, wrong
from tests.models.test_networks import needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

GOAL = 0.10  # of the nodes whose operator has a row: so many may be left to the runtime
# More is left today, by network: the share of those nodes. None may come back.
LEFT: dict[str, float] = {}
# Ways and sizes (numbers in SMALL_SIZES) that are wrong today: what is mended is to be taken out.
WRONG: dict[str, set[str]] = {}
LIMITS = {"sentences": FLOORS["quantized"]}
LONG = {"yolov8", "pyramid", "ocr-detector-sized"}  # most kernels to compile and sizes to run: half a minute and more

STEP = """<ir_version: 10, opset_import: ["" : 23]>
step (float[B, 4, Q, 16] q, float[B, 2, K, 16] k, float[B, 2, K, 8] v, float[B, 2, P, 16] pk, float[B, 2, P, 8] pv) =>
  (float[B, 4, Q, 8] y, float[B, 2, R, 16] keys, float[B, 2, R, 8] values) {
  a, keys, values = Attention (q, k, v, , pk, pv)
  y = Neg (a)
}"""


def feeds_of(name: str) -> list[Feeds]:
    """Inputs at each of the sizes; where there is a mask, it hides something in every other one."""
    row = network(f"tiny-{name}.dynamic")
    out = []
    for number, sizes in enumerate(SMALL_SIZES[name]):
        hidden = min(3, sizes.get("past", 0) + sizes.get("sequence", 1) - 1) if number % 2 else 0
        out.append(row.sample(seed=number + 1, padding=hidden, **sizes))
    return out


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in SMALL_SIZES]
)
def test_one_build_is_right_at_every_size(name: str, tmp_path: Path) -> None:
    sets = feeds_of(name)
    assert len(sets) == 6
    result = built(network(f"tiny-{name}.dynamic").build(), tmp_path)
    assert result.kernels > 0
    found = wrong(tmp_path, result, sets, LIMITS.get(name, FLOORS["float32"]))
    after, before = left(tmp_path)
    assert set(found) == WRONG.get(name, set()), found
    assert after / before <= LEFT.get(name, GOAL)


def test_bounds_are_of_networks_that_are_there() -> None:
    assert set(LEFT) | set(WRONG) | LONG <= set(SMALL_SIZES)


def test_attention_with_a_cache_is_a_kernel(tmp_path: Path) -> None:
    """Its keys and values become longer: ONNX's inference leaves their lengths open."""
    result = built(onnx.parser.parse_model(STEP), tmp_path)
    assert result.kernels == 1
    sets = [step_feeds(*sizes) for sizes in ((1, 1, 0), (1, 1, 7), (2, 3, 5), (3, 1, 64), (1, 17, 31))]
    assert wrong(tmp_path, result, sets, FLOORS["float32"]) == {}


def step_feeds(batch: int, new: int, past: int) -> Feeds:
    """Queries and keys of `new` positions after `past` ones."""
    made = np.random.default_rng(new + past)
    shapes = {"q": (4, new, 16), "k": (2, new, 16), "v": (2, new, 8), "pk": (2, past, 16), "pv": (2, past, 8)}
    return {name: made.standard_normal((batch, *shape)).astype(np.float32) for name, shape in shapes.items()}


def test_extents_that_weights_fix_stay_known() -> None:
    model, sizes = opened(CLASSES["depthwise 3x3"].build(14))
    (image,) = model.graph.input
    dims = image.type.tensor_type.shape.dim
    assert [bool(d.dim_param) for d in dims] == [True, False, True, True]
    assert [sizes[d.dim_param] for d in (dims[0], dims[2], dims[3])] == [1, 14, 14]


def test_an_extent_that_two_inputs_share_is_one_symbol() -> None:
    """As it has to be: they are added. Another extent is another symbol."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 7, 5] x, float[2, 7, 5] z, float[4] w) => (float[2, 7, 5] y, float[4] v) {
      y = Add (x, z)
      v = Neg (w)
    }"""
    model, sizes = opened(onnx.parser.parse_model(text))
    x, z, w = ([d.dim_param for d in value.type.tensor_type.shape.dim] for value in model.graph.input)
    assert x == z and [sizes[name] for name in x] == [2, 7, 5]
    assert [sizes[name] for name in w] == [4] and not {*w} & {*x}
