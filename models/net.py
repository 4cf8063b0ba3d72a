"""`Net` writes an ONNX graph node by node, with random weights that depend on their names alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Form: TypeAlias = Literal["modern", "decomposed"]
Extent: TypeAlias = int | str
Array: TypeAlias = npt.NDArray[Any]
UNNAMED = "?"  # an unknown extent without a name


@dataclass(frozen=True, slots=True)
class Spread:
    """The normal distribution from which a weight is drawn."""

    deviation: float
    mean: float = 0.0


class Net:
    """A graph under construction: each method adds to it and returns the name of the value added.

    The two forms differ as the two exporters of torch do: `modern` keeps constants as shared initializers, writes
    equal nodes once and the inferred shape of every value; `decomposed` writes one Constant node per use, no shapes.
    """

    def __init__(self, name: str, form: Form, opset: int, seed: int) -> None:
        self.name, self.form, self.opset, self.seed = name, form, opset, seed
        self._inputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._known: dict[str, str] = {}

    def input(self, name: str, elem_type: int, shape: Sequence[Extent]) -> str:
        """A graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, elem_type, _unnamed(shape)))
        return name

    def node(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """A node with one output, named `out` if given; the modern form uses an equal node already there."""
        key = repr((op, inputs, sorted(attributes.items())))
        if self.form == "modern" and not out and key in self._known:
            return self._known[key]
        out = self._known[key] = out or f"{op.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [out], name=f"node_{out}", **attributes))
        return out

    def nodes(self, op: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        outputs = [f"{op.lower()}_{len(self._nodes)}_{number}" for number in range(count)]
        self._nodes.append(helper.make_node(op, list(inputs), outputs, name=f"node_{outputs[0]}", **attributes))
        return outputs

    def weight(self, name: str, values: Array) -> str:
        """A float32 initializer."""
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(values, dtype=np.float32), name))
        return name

    def draw(self, name: str, shape: Sequence[int], spread: Spread) -> npt.NDArray[np.float64]:
        """Random values for the weight `name`: the same in every form of the network, in any order."""
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        return random.normal(spread.mean, spread.deviation, tuple(shape))

    def constant(self, values: Array | Sequence[int] | int | float) -> str:
        """A constant: Python integers become int64, Python floats float32, arrays keep their type."""
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        if self.form == "decomposed":
            return self.node("Constant", value=numpy_helper.from_array(array))
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = f"const_{len(self._constants)}"
            self._initializers.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def model(self, outputs: dict[str, tuple[Extent, ...]]) -> onnx.ModelProto:
        """The finished model with these float32 outputs, accepted by the ONNX checker."""
        graph = helper.make_graph(
            self._nodes,
            self.name,
            self._inputs,
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, _unnamed(shape))
                for name, shape in outputs.items()
            ],
            self._initializers,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model: onnx.ModelProto = helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=helper.find_min_ir_version_for(opsets),
            producer_name="onnxfuse-models",
        )
        onnx.checker.check_model(model, full_check=True)
        return onnx.shape_inference.infer_shapes(model) if self.form == "modern" else model


def _unnamed(shape: Sequence[Extent]) -> list[int | str | None]:
    """A shape for ONNX, in which UNNAMED is an extent that nothing is said about."""
    return [None if extent == UNNAMED else extent for extent in shape]
