"""Models in which no two nodes share 8-bit constants, as the runtime needs to multiply them exactly (decision 0202)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.inliner import inline_local_functions

from onnxfuse.runtime.graphs import all_nodes, written_nodes


def with_codes_apart(model: str | bytes, has_kernels: Callable[[str], bool]) -> bytes:
    """A model file, or a serialized model, with a copy of signed 8-bit constants for each node that reads them.

    Where they are dequantized for several nodes at once, each of these gets a DequantizeLinear: the runtime does that
    too, but all of its copies read the same constants. Functions of the model are inlined, unless kernels run instead
    of those of a domain. External data of a serialized model lie in the current folder.

    Raises ValueError or OSError where it is larger than two gigabytes, or its external data cannot be read.
    """
    if isinstance(model, bytes):
        proto = onnx.load_from_string(model)
        onnx.load_external_data_for_model(proto, str(Path.cwd()))
    else:
        proto = onnx.load(model)
    made = proto if any(has_kernels(each.domain) for each in proto.functions) else inline_local_functions(proto)
    codes = {tensor.name: tensor for tensor in _codes(made)}
    _dequantize_for_each(made.graph, codes)
    read: Counter[str] = Counter()
    for node in all_nodes(made.graph):
        for at, name in enumerate(node.input):
            if name in codes:
                if read[name]:
                    copy = made.graph.initializer.add()
                    copy.CopyFrom(codes[name])
                    copy.name = node.input[at] = f"{name}%{read[name]}"
                read[name] += 1
    return bytes(made.SerializeToString())


def lacks_zero_points(model: str | bytes) -> bool:
    """Whether codes of a model, a file or serialized, are dequantized without zero points.

    The runtime's optimizations that make products exact give codes of several scales a single zero point then, with
    which they cannot be dequantized. False for what is no model.
    """
    try:
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model, load_external_data=False)
    except (DecodeError, OSError):
        return False
    return any(n.op_type == "DequantizeLinear" and not any(n.input[2:]) for n in written_nodes(proto))


def _dequantize_for_each(graph: GraphProto, codes: Collection[str]) -> None:
    """Gives each node that reads dequantized codes, named here, a DequantizeLinear for itself."""
    shared = {n.output[0]: n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in codes}
    read = Counter(each.name for each in graph.output)
    copies: defaultdict[str, list[NodeProto]] = defaultdict(list)
    for node in all_nodes(graph):
        for at, name in enumerate(node.input):
            if name in shared:
                if read[name]:
                    copy = NodeProto()
                    copy.CopyFrom(shared[name])
                    copy.name = copy.output[0] = node.input[at] = f"{name}%{read[name]}"
                    copies[name].append(copy)
                read[name] += 1
    every = [each for node in graph.node for each in (node, *copies[next(iter(node.output), "")])]
    del graph.node[:]
    graph.node.extend(every)


def _codes(model: ModelProto) -> Iterator[TensorProto]:
    """Signed 8-bit constants under the names by which nodes read them."""
    yield from (tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.INT8)
    for node in (node for node in all_nodes(model.graph) if node.op_type == "Constant"):
        for value in (a.t for a in node.attribute if a.t.data_type == TensorProto.INT8):
            tensor = TensorProto()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
            yield tensor
