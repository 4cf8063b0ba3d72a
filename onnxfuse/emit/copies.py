"""Microbenchmark models: several copies of one kernel, or of one node, each with weights of its own.

All copies share their other inputs, which are thus in cache as after a producing kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import helper

from onnxfuse.emit.proto import node_proto
from onnxfuse.emit.spell import stored
from onnxfuse.ir.graph import Constant, Graph, Node
from onnxfuse.ir.kernel import Kernel
from onnxfuse.load.source import source_of

_IR = 8


def of_kernel(
    kernel: Kernel,
    op: str,
    domain: str,
    constants: Mapping[str, Constant],
    storage: Sequence[tuple[int, ...]],
    copies: int,
    path: Path,
) -> None:
    """Write a model of a kernel; `storage` are the storage shapes of its inputs and outputs."""
    inputs, weights = [], []
    params = (*kernel.inputs, *kernel.outputs)
    infos = [helper.make_tensor_value_info(p.name, p.dtype.onnx, s) for p, s in zip(params, storage, strict=True)]
    for p, shape, info in zip(kernel.inputs, storage, infos, strict=False):
        if p.value in constants:
            data = stored(p.layout.pack(constants[p.value].load()), p.dtype).tobytes()
            weights.append(onnx.TensorProto(name=p.name, data_type=p.dtype.onnx, dims=shape, raw_data=data))
        else:
            inputs.append(info)
    node = onnx.NodeProto(op_type=op, domain=domain, input=[p.name for p in kernel.inputs])
    node.output.extend(p.name for p in kernel.outputs)
    _write([node], inputs, infos[len(kernel.inputs) :], weights, copies, {"": 17, domain: 1}, path)


def of_node(node: Node, graph: Graph, shapes: Mapping[str, tuple[int, ...]], copies: int, path: Path) -> None:
    """Write a model of a node that stays with the runtime, for these shapes of its inputs and outputs."""
    source = source_of(graph)
    raw = node.raw if node.raw is not None else source.nodes.get(node.name)
    types = {v: t for v in shapes if (t := graph.types[v]) is not None}
    infos = {v: helper.make_tensor_value_info(v, types[v].dtype.onnx, shapes[v]) for v in types}
    names = list(dict.fromkeys(v for v in node.inputs if v))
    weights = [_weight(v, graph.constants[v]) for v in names if v in graph.constants]
    inputs = [infos[v] for v in names if v not in graph.constants]
    opsets = {"": graph.opset} | ({node.domain: source.opsets.get(node.domain, 1)} if node.domain else {})
    made = [infos[v] for v in node.outputs if v]
    _write([node_proto(node, graph.opset, raw)], inputs, made, weights, copies, opsets, path)


def _weight(name: str, constant: Constant) -> onnx.TensorProto:
    data = stored(constant.load(), constant.dtype).tobytes()
    return onnx.TensorProto(name=name, data_type=constant.dtype.onnx, dims=constant.shape, raw_data=data)


def _write(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto],
    copies: int,
    opsets: Mapping[str, int],
    path: Path,
) -> None:
    """Write a model with so many copies of these nodes, one after the other."""
    own = {t.name for t in weights} | {o.name for o in outputs}
    graph = onnx.GraphProto(name="copies", input=inputs)
    for copy in range(copies):
        for node in nodes:
            one = graph.node.add()
            one.CopyFrom(node)
            one.name = f"copy {copy}"
            one.input[:] = [f"{v}.{copy}" if v in own else v for v in node.input]
            one.output[:] = [f"{v}.{copy}" if v else v for v in node.output]
        for message, into in ((weights, graph.initializer), (outputs, graph.output)):
            for each in message:
                one = into.add()
                one.CopyFrom(each)
                one.name = f"{each.name}.{copy}"
    imports = [helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=_IR).SerializeToString())
