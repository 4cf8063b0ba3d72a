"""Row and elementwise chains against ONNX Runtime: as primitive operators, and as the one operator it has for each.

A chain in primitive operators is built by the command line into one kernel; it is raced with the runtime's own run of
the same nodes and with the runtime's operator that does the whole chain at once, a process each, in turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.networks import Built, optimize
from onnxfuse.measure.profile import profile_models

Shape = tuple[int, int]
Nodes = list[onnx.NodeProto]

SHAPES: tuple[Shape, ...] = (
    (128, 768), (197, 768), (1024, 1024), (8192, 4096), (64, 30000), (750000, 32), (127, 769), (31, 97),
)  # fmt: skip
QUICK: tuple[Shape, ...] = ((128, 768), (31, 97))
EPSILON = 1e-5
MICROSOFT = "com.microsoft"
ENGINES = ("operator", "primitives", "fused")  # the runtime's own two, and ours of the primitives


@dataclass(frozen=True, slots=True)
class Chain:
    """One computation on x [rows, columns] to y of the same shape: in primitive operators and as one operator.

    `scalars` are constants of the primitives, `vectors` those of one row.
    """

    name: str
    primitives: Callable[[], Nodes]
    operator: Callable[[], Nodes]
    scalars: dict[str, float]
    vectors: tuple[str, ...] = ()


def _node(op: str, inputs: str, output: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"make_{output}", domain=domain, **attributes)


def _softmax() -> Nodes:
    return [
        _node("ReduceMax", "x last", "most"),
        _node("Sub", "x most", "below"),
        _node("Exp", "below", "e"),
        _node("ReduceSum", "e last", "sum"),
        _node("Div", "e sum", "y"),
    ]


def _layer_norm() -> Nodes:
    return [
        _node("ReduceMean", "x last", "mean"),
        _node("Sub", "x mean", "d"),
        _node("Mul", "d d", "square"),
        _node("ReduceMean", "square last", "variance"),
        _node("Add", "variance epsilon", "positive"),
        _node("Sqrt", "positive", "deviation"),
        _node("Div", "d deviation", "unit"),
        _node("Mul", "unit scale", "scaled"),
        _node("Add", "scaled bias", "y"),
    ]


def _rms_norm() -> Nodes:
    return [
        _node("Mul", "x x", "square"),
        _node("ReduceMean", "square last", "mean"),
        _node("Add", "mean epsilon", "positive"),
        _node("Sqrt", "positive", "root"),
        _node("Reciprocal", "root", "inverse"),
        _node("Mul", "x inverse", "unit"),
        _node("Mul", "unit scale", "y"),
    ]


def _gelu() -> Nodes:
    return [
        _node("Mul", "x root_half", "u"),
        _node("Erf", "u", "erf"),
        _node("Add", "erf one", "share"),
        _node("Mul", "x share", "twice"),
        _node("Mul", "twice half", "y"),
    ]


def _gelu_tanh() -> Nodes:
    return [
        _node("Mul", "x x", "x2"),
        _node("Mul", "x2 x", "x3"),
        _node("Mul", "x3 cubic", "small"),
        _node("Add", "x small", "inner"),
        _node("Mul", "inner root", "u"),
        _node("Tanh", "u", "tanh"),
        _node("Add", "tanh one", "share"),
        _node("Mul", "x share", "twice"),
        _node("Mul", "twice half", "y"),
    ]


def _bias_gelu() -> Nodes:
    nodes = _gelu()
    for node in nodes:
        node.input[:] = ["shifted" if name == "x" else name for name in node.input]
    return [_node("Add", "x bias", "shifted"), *nodes]


_ERF = {"root_half": math.sqrt(0.5), "one": 1.0, "half": 0.5}
_TANH = {"cubic": 0.044715, "root": math.sqrt(2 / math.pi), "one": 1.0, "half": 0.5}

CHAINS = (
    Chain("softmax", _softmax, lambda: [_node("Softmax", "x", "y")], {}),
    Chain(
        "layer norm", _layer_norm, lambda: [_node("LayerNormalization", "x scale bias", "y", epsilon=EPSILON)],
        {"epsilon": EPSILON}, ("scale", "bias"),
    ),
    Chain(
        "RMS norm", _rms_norm, lambda: [_node("SimplifiedLayerNormalization", "x scale", "y", epsilon=EPSILON)],
        {"epsilon": EPSILON}, ("scale",),
    ),
    Chain("Gelu", _gelu, lambda: [_node("Gelu", "x", "y")], _ERF),
    Chain("Gelu by tanh", _gelu_tanh, lambda: [_node("FastGelu", "x", "y", MICROSOFT)], _TANH),
    Chain("bias and Gelu", _bias_gelu, lambda: [_node("BiasGelu", "x bias", "y", MICROSOFT)], _ERF, ("bias",)),
)  # fmt: skip


def write(chain: Chain, shape: Shape, nodes: Nodes, path: Path) -> Path:
    """A model of these nodes at `path`."""
    random = np.random.default_rng(0)
    constants = {name: np.float32(value) for name, value in chain.scalars.items()}
    constants |= {name: random.normal(1.0, 0.1, shape[1]).astype(np.float32) for name in chain.vectors}
    constants["last"] = np.array([-1], np.int64)
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in read],
    )
    sets = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), path)
    return path


def build(chain: Chain, shape: Shape, folder: Path) -> tuple[Path, Path, Built]:
    """Files in `folder`: the chain as one operator, in primitives, and ours of these."""
    stem = f"{chain.name.replace(' ', '_')}_{shape[0]}x{shape[1]}"
    operator = write(chain, shape, chain.operator(), folder / f"{stem}.operator.onnx")
    primitives = write(chain, shape, chain.primitives(), folder / f"{stem}.onnx")
    return (
        operator,
        primitives,
        optimize(primitives, folder / f"{stem}.fused.onnx", folder / "cache", "--min-group", "1"),
    )


def race(files: tuple[Path, Path, Built], threads: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of the three engines, and how often ours goes into each of the others, by minima and medians."""
    operator, primitives, ours = files
    libraries = [None, None, ours.library]
    profile = profile_models([operator, primitives, ours.model], libraries=libraries, threads=threads, duration=seconds)
    times = dict(zip(ENGINES, (asdict(each.latency_ms) for each in profile.models), strict=True))
    ratios = {
        kind: {name: times[name][kind] / times["fused"][kind] for name in ENGINES[:2]} for kind in ("min", "median")
    }
    return {"threads": threads, "ms": times, "speedup": ratios["min"], "of_medians": ratios["median"],
            "spread": profile.spread}  # fmt: skip


def measure(
    folder: Path, counts: Sequence[int], seconds: float, shapes: Sequence[Shape] = SHAPES
) -> Iterator[dict[str, Any]]:
    """A row for each chain, shape and number of threads; what is built stays in `folder`."""
    for chain in CHAINS:
        for shape in shapes:
            files = build(chain, shape, folder)
            result = files[-1].result
            moved = 8 * shape[0] * shape[1]
            for count in counts:
                row = race(files, count, seconds)
                yield {
                    "chain": chain.name, "shape": shape, "kernels": result["kernels"], "left": result["nodes_left"],
                    "gbytes": moved / row["ms"]["fused"]["min"] / 1e6, **row,
                }  # fmt: skip
