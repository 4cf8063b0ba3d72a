"""Measuring a gain: which measurements are made in the time there is, by the real clock."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxfuse import optimize
from onnxfuse.errors import DeviceError
from onnxfuse.measure import gain_child
from onnxfuse.measure.gain import CROWDED, gained_of, seconds_needed
from onnxfuse.measure.gain_child import FEWEST, LONG, PROFILED, _in_time
from onnxfuse.runtime.memory import LoadCost
from onnxfuse.runtime.provider import CPU, Provider
from tests.caches import own_cache
from tests.runtime.test_sizes import saved

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TRIPS = 10000  # of a loop at sizes with which the model does not run: each of them takes tens of milliseconds
RUN = 10 * LONG  # seconds of a long run; delays of a sleep on a busy machine are short beside it


@pytest.mark.parametrize(
    ("rounds", "profiled"),
    [(FEWEST + PROFILED + 4, 1), (FEWEST + 0.5, 0), (FEWEST - 2, None)],
    ids=["node by node too", "turns alone", "too few turns"],
)
def test_long_runs_are_raced_where_that_fits(rounds: float, profiled: int | None):
    def call() -> None:
        time.sleep(RUN)

    until = time.monotonic() + RUN + 2 * RUN * rounds
    if profiled is None:
        with pytest.raises(DeviceError, match="are left for the measurement"):
            _in_time([call], until)
    else:
        assert _in_time([call], until) == profiled


def test_the_first_run_may_take_longer():
    first = [2 * RUN]

    def call() -> None:
        time.sleep(first.pop() if first else LONG / 2)

    assert _in_time([call], time.monotonic() + 14 * RUN) == PROFILED


def test_runs_that_do_not_fit_beside_other_work_may_fit_by_themselves():
    """A YOLO-V4 of 0.37 s: 1.3 s beside other work, where three seconds and fifteen percent of its build are four."""
    crowded, made = LoadCost("original", 0.3, 0, 1.3), LoadCost("with library", 0.1, 0, 0.12, True)
    assert seconds_needed(crowded, made, crowded=CROWDED) < 4.0 < seconds_needed(crowded, made)
    minutes = LoadCost("original", 0.3, 0, 8.0)
    assert seconds_needed(minutes, made, crowded=CROWDED) > 4.0, "what surely takes too long is not begun"


def test_on_a_device_the_original_is_counted_as_the_build():
    """What verification timed of the original is its run on the CPU, which takes longer and says nothing."""
    original, made = LoadCost("original", 9.0, 0, 5.0), LoadCost("with library", 0.3, 0, 0.001, True)
    device = Provider("CUDAExecutionProvider", {}, "cuda", bound=True)
    assert 1.0 < seconds_needed(original, made, provider=device) < 2.0 < seconds_needed(original, made)


def test_what_takes_long_to_find_is_measured(tmp_path: Path):
    """Runs with wrong sizes take so long that a search takes more than the time of the whole measurement."""
    least = helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    kept = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("went",)]
    carried = [helper.make_tensor_value_info(name, FLOAT, [48, 48]) for name in ("m", "next")]
    body = helper.make_graph(
        [helper.make_node("MatMul", ["m", "m"], ["next"]), helper.make_node("Identity", ["go"], ["went"])],
        "body", [*least, carried[0]], [*kept, carried[1]],
    )  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], name="n"),
        helper.make_node("Sub", ["n", "right"], ["away"], name="away"),
        helper.make_node("Abs", ["away"], ["far"], name="far"),
        helper.make_node("Min", ["far", "one"], ["wrong"], name="wrong"),
        helper.make_node("Mul", ["wrong", "trips"], ["many"], name="many"),
        helper.make_node("Squeeze", ["many"], ["count"], name="count"),
        helper.make_node("Loop", ["count", "", "eye"], ["rest"], body=body, name="rest"),
        helper.make_node("ReduceSum", ["rest"], ["total"], keepdims=0, name="total"),
        helper.make_node("Sub", ["many", "many"], ["nothing"], name="nothing"),
        helper.make_node("Add", ["shape", "nothing"], ["shaped"], name="shaped"),
        helper.make_node("Add", ["x", "total"], ["z"], name="z"),
        helper.make_node("Relu", ["z"], ["p"], name="p"),
        helper.make_node("Reshape", ["p", "shaped"], ["y"], name="image"),
    ]
    held = {"right": [35], "one": [1], "trips": [TRIPS], "eye": np.eye(48, dtype=np.float32), "shape": [5, 7]}
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n"])}, ["y"], **held)
    out = tmp_path / "o.onnx"
    optimize(path, out, min_group=1, verify=False, gain=False, cache_dir=own_cache(tmp_path / "cache"))
    request: dict[str, Any] = {
        "do": "turns", "original": str(path), "made": str(out), "libraries": [str(tmp_path / "libo.so")], "custom": [],
        "kernels": {}, "sizes": [{}], "inputs": None, "seed": 0, "threads": 1, "nodes": None, "last": None,
        "until": time.monotonic() + 0.7, "provider": asdict(CPU),
    }  # fmt: skip
    begin = time.monotonic()
    found = gained_of(gain_child.main(request))
    assert time.monotonic() - begin > 1.4, "the search took no longer than the measurement: make it longer"
    assert [dict(each.shapes) for each in found.sizes] == [{"x": (35,)}]
