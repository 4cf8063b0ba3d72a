"""A model with fused nodes, the library of its hand-written kernel (twice.cpp), and the plain model it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfuse import build
from onnxfuse.build.cache import Cache
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.render import ort_glue
from onnxfuse.render.source import Source
from tests.models.fused import CACHE

DOMAIN = "onnxfuse.0123456789ab"


def built(folder: Path, glue: Sequence[Source], *, defines: str = "", family: str = "auto") -> Path:
    """`libtwice.so` in `folder`, of the kernel (changed by `defines`, see twice.cpp) and of `glue`."""
    folder.mkdir(parents=True, exist_ok=True)
    kernel = (Path(__file__).parent / "twice.cpp").read_text(encoding="utf-8")
    made = folder / "libtwice.so"
    sources = [Source("twice", f"{defines}\n{kernel}")]
    build.build_library(build.BuildRequest(sources, glue, find_toolchain(family), Cache(CACHE), 2, made))
    return made


def glue(*features: str, domain: str = DOMAIN) -> Sequence[Source]:
    """The registration of the one kernel."""
    return ort_glue.registration(domain, [ort_glue.Variant("any", ("twice",), features)])


def several(folder: Path, **needs: tuple[str, ...]) -> Path:
    """A library with the kernel for several instruction sets, best first; that of the first is 1 % wrong, and so on."""
    text = (Path(__file__).parent / "twice.cpp").read_text(encoding="utf-8")
    sources = [
        Source(
            f"twice_{name}", f"#define GAIN {1 + at / 100}f\n{text.replace('onnxfuse_twice', f'onnxfuse_twice_{name}')}"
        )
        for at, name in enumerate(needs, 1)
    ]
    variants = [ort_glue.Variant(name, (f"twice_{name}",), features) for name, features in needs.items()]
    made = folder / "libseveral.so"
    registered = ort_glue.registration(DOMAIN, variants)
    build.build_library(build.BuildRequest(sources, registered, find_toolchain(), Cache(CACHE), 2, made))
    return made


def _value(name: str, dims: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def _body(x: str, y: str, prefix: str) -> list[onnx.NodeProto]:
    constants = [
        helper.make_node("Constant", [], [prefix + name], value=numpy_helper.from_array(np.float32(value)))
        for name, value in (("two", 2), ("one", 1))
    ]
    products = helper.make_node("Mul", [x, prefix + "two"], [prefix + "t"], name=prefix + "mul")
    return [*constants, products, helper.make_node("Add", [prefix + "t", prefix + "one"], [y], name=prefix + "add")]


def model(*, nodes: int = 1, fused: bool = True, rank: int = 2) -> onnx.ModelProto:
    """`y = -(2 x + 1)`, the inner part `nodes` times in a row, each time one fused node or two plain ones."""
    dims: list[int | str] = ["batch", "features", "more"][:rank]
    graph = onnx.GraphProto(name="twice", input=[_value("x", dims)], output=[_value("y", dims)])
    at = "x"
    for i in range(nodes):
        after, prefix = f"f{i}", f"part{i}_"
        if fused:
            node = helper.make_node("Twice", [at], [after], domain=DOMAIN, name=f"fused{i}")
            node.metadata_props.add(key="onnxfuse.origin", value=f'["{prefix}mul", "{prefix}add"]')
            graph.node.append(node)
            graph.value_info.append(_value(after, dims))
        else:
            graph.node.extend(_body(at, after, prefix))
        at = after
    graph.node.append(helper.make_node("Neg", [at], ["y"], name="neg"))
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function(DOMAIN, "Twice", ["X"], ["Y"], _body("X", "Y", ""), opsets)
    made = helper.make_model(graph, opset_imports=[*opsets, *[helper.make_opsetid(DOMAIN, 1)] * fused], ir_version=8)
    made.functions.extend([function] * fused)
    return made
