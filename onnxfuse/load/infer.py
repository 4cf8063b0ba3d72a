"""ONNX's own shape inference, once for the whole model, and for single nodes without a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.ir.dtype import dtype_of
from onnxfuse.ir.graph import Constant, Node, TensorType
from onnxfuse.ir.index import Index
from onnxfuse.load.dims import Dim, declared_dims
from onnxfuse.runtime import inference

Claim = tuple[int, tuple[Dim, ...]]  # ONNX element type and dimensions, with the names of ONNX inference or the model


def inferred(proto: onnx.ModelProto, inputs: Mapping[str, TensorType | None]) -> dict[str, Claim]:
    """Types of all values by ONNX inference from the inputs only; types that the model declares are not used."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    for info in bare.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for info in bare.graph.input:
        inside = info.type.sequence_type.elem_type
        if info.type.HasField("sequence_type") and inside.HasField("tensor_type"):
            inside.tensor_type.ClearField("shape")  # nobody checks what callers put into a sequence
        known = inputs.get(info.name)
        if known is not None:
            info.type.CopyFrom(type_proto(known, repr))
    for node in bare.graph.node:
        if node.op_type == "STFT" and not any(a.name == "onesided" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))  # the default, unlike in inference
    done = inference.of_model(bare)
    if done is None:
        return {}
    types = {v.name: v.type for v in (*done.graph.input, *done.graph.value_info, *done.graph.output)}
    for node in bare.graph.node:
        is_encoder = (node.domain, node.op_type) == ("ai.onnx.ml", "LabelEncoder")
        for source, made in zip(node.input, node.output, strict=False) if is_encoder else ():
            if source in types and made in types:
                _keep_shape(types[source].tensor_type, types[made].tensor_type)
    return {v.name: c for v in (*done.graph.value_info, *done.graph.output) if (c := _claim(v.type)) is not None}


def _keep_shape(made_from: onnx.TypeProto.Tensor, made: onnx.TypeProto.Tensor) -> None:
    """Give a result the shape of its input: inference tells only the element type of LabelEncoder in its version 1."""
    if made_from.HasField("shape") and not made.HasField("shape"):
        made.shape.CopyFrom(made_from.shape)


def _claim(t: onnx.TypeProto) -> Claim | None:
    number, dims = declared_dims(t)
    return (number, dims) if number and dims is not None else None


def type_proto(t: TensorType, name: Callable[[Index], str]) -> onnx.TypeProto:
    """A type as TypeProto; `name` gives the names of symbolic extents."""
    dims = [n if (n := e.constant) is not None and n < 1 << 63 else name(e) for e in t.shape]
    return onnx.helper.make_tensor_type_proto(t.dtype.onnx, dims)


@dataclass(slots=True)
class NodeInference:
    """ONNX inference of single nodes, with the types and constants found by our propagation."""

    opset: int
    raw: Mapping[str, onnx.NodeProto]
    _spelled: dict[str, Index] = field(default_factory=dict)

    def infer(
        self,
        node: Node,
        types: Mapping[str, TensorType | None],
        arrays: Callable[[str], np.ndarray[Any, Any] | None],
    ) -> dict[str, tuple[int, tuple[Index | None, ...]]]:
        """(ONNX element type, extents) of the outputs; an unknown extent is None."""
        raw = self.raw.get(node.name)
        if raw is None or node.raw is not None or not node.standard:
            return {}
        given = {i: t for i in node.inputs if i and (t := types.get(i)) is not None}
        if len(given) != len({i for i in node.inputs if i}):
            return {}
        found = inference.of_node(
            raw,
            self.opset,
            {i: type_proto(t, self._spell) for i, t in given.items()},
            {i: numpy_helper.from_array(a, i) for i in given if (a := arrays(i)) is not None},
        )
        return {o: (number, dims) for o, t in found.items() for number, dims in self._read(t)}

    def _spell(self, e: Index) -> str:
        self._spelled[repr(e)] = e
        return repr(e)

    def _read(self, t: onnx.TypeProto) -> Iterable[tuple[int, tuple[Index | None, ...]]]:
        claim = _claim(t)
        if claim is None:
            return
        yield claim[0], tuple(Index.of(d) if isinstance(d, int) else self._spelled.get(d or "") for d in claim[1])


def numbers(constant: Constant | None) -> np.ndarray[Any, Any] | None:
    """The array of a small constant for ONNX inference; None for others."""
    if (
        constant is None
        or constant.size > 64
        or dtype_of(constant.dtype.onnx) is None
        or constant.dtype.name == "bfloat16"
    ):
        return None
    return constant.load()


def contradict(mine: TensorType, claim: Claim) -> bool:
    """Whether a claim cannot be true when `mine` is."""
    number, dims = claim
    if number != mine.dtype.onnx or len(dims) != len(mine.shape):
        return True
    pairs = [(e.constant, d) for e, d in zip(mine.shape, dims, strict=True) if isinstance(d, int)]
    return any(n is not None and n != d for n, d in pairs)


def claim_text(claim: Claim) -> str:
    """A claim as users read it, such as `float32[?, 4]`."""
    dtype = dtype_of(claim[0])
    return f"{dtype or f'type {claim[0]}'}[{', '.join('?' if d is None else str(d) for d in claim[1])}]"
