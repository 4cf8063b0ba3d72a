"""Asserts invariants of an emitted model: consistent layouts, order, single assignment, calls that fit functions."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from onnxfuse.emit.planned import Fused
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.group import Plan
from onnxfuse.ir.layout import PLAIN, Layout
from onnxfuse.load.inline import defined, free_names
from onnxfuse.runtime.graphs import graphs, subgraphs

DOMAIN = "onnxfuse."  # prefix of the domains of fused nodes


def check_layouts(plan: Plan, fused: Iterable[Fused]) -> None:
    """Values are read in the layout they are produced in, which is plain for the runtime's nodes and graph outputs."""
    graph = plan.graph
    made: dict[str, tuple[Layout, DType]] = {p.value: (p.layout, p.dtype) for f in fused for p in f.kernel.outputs}
    inside = {n.outputs for f in fused for n in f.group.nodes}
    for value, (layout, _) in made.items():
        assert layout == plan.layout(value), f"emit: {value} is not made in the layout of the plan"
    for p in (p for f in fused for p in f.kernel.inputs if p.value not in graph.constants):
        have = made.get(p.value)
        assert (have or (PLAIN,))[0] == p.layout, f"emit: {p.value} is read in another layout than it is made in"
        assert have is None or have[1] == p.dtype, f"emit: {p.value} is read as {p.dtype} but made as {have[1]}"
    touched = {v for n in graph.nodes if n.outputs not in inside for v in n.reads} | {*graph.outputs}
    for value in touched & made.keys():
        have_type = graph.types[value]
        plain = (PLAIN, have_type.dtype if have_type is not None else None)
        assert made[value] == plain, f"emit: {value} is left to the runtime but not plain"


def check(proto: onnx.ModelProto) -> None:
    """Assert topological order, single assignment and calls that fit their functions, in linear time."""
    functions = {(f.domain, f.name): f for f in proto.functions}
    assert len(functions) == len(proto.functions), "emit: a function is defined twice"
    imported = {o.domain for o in proto.opset_import}
    for graph in graphs(proto.graph):
        fused = [n for n in graph.node if n.domain.startswith(DOMAIN)]
        if fused or graph is proto.graph:
            _check_order(graph, main=graph is proto.graph)
        for node in fused:
            f = functions.get((node.domain, node.op_type))
            fits = f is None or (len(node.input) == len(f.input) and len(node.output) == len(f.output))
            assert fits and (f is None or node.domain in imported), f"emit: {node.name} does not fit its function"
    for f in proto.functions:
        inner = {*f.input, ""}
        for node in f.node:
            assert inner.issuperset(node.input), f"emit: the body of {f.name} reads an undefined value"
            inner.update(node.output)
        assert inner.issuperset(f.output), f"emit: the body of {f.name} does not make an output"


def _check_order(graph: onnx.GraphProto, *, main: bool) -> None:
    """Each value of a graph is assigned once, before it is read; only subgraphs read outer values."""
    own = defined(graph)
    seen = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {""}
    seen |= {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        reads = (*node.input, *(name for inner in subgraphs(node) for name in free_names(inner)))
        missing = [i for i in reads if i not in seen and (main or i in own)]
        assert not missing, f"emit: {node.op_type} {node.name} reads {missing[0]} before its definition"
        again = [o for o in node.output if o and o in seen]
        assert not again, f"emit: {again[0]} is defined twice"
        seen.update(node.output)
    absent = [o.name for o in graph.output if o.name not in seen and (main or o.name in own)]
    assert not absent, f"emit: the output {absent[0]} is not defined"
