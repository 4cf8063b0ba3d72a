"""Names of values made unique, as the runtime resolves them, and distinct from names made by the compiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import helper

from onnxfuse.load.inline import defined
from onnxfuse.runtime.graphs import graphs, subgraphs

_TENSOR = onnx.TensorProto
_LISTS = {
    **dict.fromkeys(("value_int", "value_ints"), _TENSOR.INT64),
    **dict.fromkeys(("value_float", "value_floats"), _TENSOR.FLOAT),
    **dict.fromkeys(("value_string", "value_strings"), _TENSOR.STRING),
}
OWN = "%"  # occurs in all names that the compiler gives to values inside operators, and in no loaded name


def respelled(proto: onnx.ModelProto) -> dict[str, str]:
    """Rename values whose names contain OWN, in place. Returns the original names by the new ones."""
    every = {name for graph in graphs(proto.graph) for name in _names(graph)}
    found: dict[str, str] = {}
    for name in sorted(n for n in every if OWN in n):
        found[_fresh(name.replace(OWN, "_"), every)] = name
    rename(proto.graph, {name: plain for plain, name in found.items()})
    return found


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of values in a graph, without its subgraphs."""
    for info in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield info.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for node in graph.node:
        yield from node.input
        yield from node.output


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give values of a graph other names, and values of these names in all graphs inside it."""
    for each in graphs(graph) if names else ():
        _rename_in(each, names)


def rename_here(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """The same, but for values of graphs inside it that hide one of these names."""
    _rename_in(graph, names)
    for node in graph.node:
        for inner in subgraphs(node):
            own = defined(inner)
            rename_here(inner, {old: name for old, name in names.items() if old not in own})


def _rename_in(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give values other names wherever a graph has them, its subgraphs left out."""
    for info in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        info.name = names.get(info.name, info.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = names.get(annotation.tensor_name, annotation.tensor_name)
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = names.get(entry.value, entry.value)
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(v, v) for v in values]


def unhidden(proto: onnx.ModelProto) -> None:
    """Give values of bodies other names where a graph around them has the same, in place: they hide that one."""
    if any(True for node in proto.graph.node for _ in subgraphs(node)):
        _unhide(proto.graph, set(), {name for graph in graphs(proto.graph) for name in _names(graph)})


def _unhide(graph: onnx.GraphProto, around: set[str], every: set[str]) -> None:
    around = around | defined(graph)
    for node in graph.node:
        for inner in subgraphs(node):
            hiding = sorted(defined(inner) & around)
            if hiding:
                rename_here(inner, {name: _fresh(name, every) for name in hiding})
            _unhide(inner, around, every)


def _fresh(name: str, taken: set[str]) -> str:
    """The name, or the first one with a number that is not taken; from then on it is."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def defined_once(proto: onnx.ModelProto) -> None:
    """Of several constants with the same name, keep the one that the runtime uses, in place.

    That is the last Constant node, or without one the last initializer. If the name is an input too, it is the default
    value of that input.
    """
    for graph in graphs(proto.graph):
        stored = Counter(t.name for t in graph.initializer)
        made = Counter(o for n in graph.node if _is_constant(n) for o in n.output)
        listed = {v.name for v in graph.input}
        twice = {name for name, count in (made + stored).items() if count > 1} | (made.keys() & listed)
        if twice:
            _keep_last(graph, twice, listed)


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.output) == 1


def _keep_last(graph: onnx.GraphProto, twice: Iterable[str], listed: Iterable[str]) -> None:
    last = {n.output[0]: k for k, n in enumerate(graph.node) if _is_constant(n) and n.output[0] in twice}
    nodes = [n for k, n in enumerate(graph.node) if not _is_constant(n) or last.get(n.output[0], k) == k]
    inputs = {n.output[0]: n for n in nodes if _is_constant(n) and n.output[0] in listed}
    stored = {t.name: t for t in graph.initializer if t.name not in last}
    stored |= {name: _tensor(node) for name, node in inputs.items()}
    left = [n for n in nodes if not (_is_constant(n) and n.output[0] in inputs)]
    copy = onnx.GraphProto(node=left, initializer=stored.values())
    for field in ("node", "initializer"):
        graph.ClearField(field)
    graph.MergeFrom(copy)


def _tensor(node: onnx.NodeProto) -> onnx.TensorProto:
    """The value of a Constant node, as an initializer."""
    found = onnx.TensorProto()
    for a in node.attribute:
        if a.name == "value":
            found.CopyFrom(a.t)
        elif a.name in _LISTS:
            values = helper.get_attribute_value(a)
            shape = [len(values)] if a.name.endswith("s") else []
            found = helper.make_tensor("", _LISTS[a.name], shape, values if shape else [values])
    found.name = node.output[0]
    return found
