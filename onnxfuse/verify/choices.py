"""Models that choose by value: what is chosen is given to both, as the original chooses it.

TopK, NonMaxSuppression and their like turn the last bit of a float into another place, length or order. Then outputs
say nothing of what computed the floats. So both models are cut there: what choosing nodes make becomes inputs, what
they read becomes outputs, held to the limits of outputs. The nodes themselves are the runtime's in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxfuse.runtime import engine, feed_limits
from onnxfuse.verify import codes, compare, trial
from onnxfuse.verify.pieces import tapped, whole
from onnxfuse.verify.run_modes import Note

CHOOSING = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "TopK", "Unique"})
MOST_BYTES = 512 << 20  # of a model: the cut ones are written with their weights, and held several times


def write(
    note: Note,
    a: str,
    b: str,
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    out: str,
) -> dict[str, str]:
    """Write both models, cut where they choose, and their inputs to the folder `out`; nothing where they do not.

    Returns the paths of what is written: `a`, `b` and `inputs`. Raises DeviceError where `a` does not run.
    """
    note("the original, for what it chooses")
    skeleton = feed_limits.skeleton(Path(a))
    if not any(n.op_type in CHOOSING for n in skeleton.graph.node):
        return {}
    first, second = whole(a), whole(b)
    pairs = chosen(first.graph, second.graph)
    names = [v for n, _ in pairs for v in n.output if v]
    if not pairs or first.ByteSize() > MOST_BYTES:
        return {}
    read = _read(first.graph, second.graph, pairs)
    also = list(dict.fromkeys((*names, *(x for x, _ in read))))
    settings = engine.options(libraries=custom, optimize=codes.needs_optimizations(skeleton), lean=True)
    session = engine.open_session(tapped(first, also).SerializeToString(), settings)
    found = trial.input_sets(session, trial.InputRequest(skeleton, inputs, seed, dims, also=also))
    values = [dict(zip(also, row[-len(also) :], strict=True)) for row in found.results]
    chose = [{name: each[name] for name in names} for each in values]
    masks = [all(_is_long_mask(each[x]) for each in values) for x, _ in read]
    files = {"a": str(Path(out, "a.onnx")), "b": str(Path(out, "b.onnx"))}
    first = cut(first, [n for n, _ in pairs], chose[0], [x for x, _ in read], masks)
    onnx.save(first, files["a"])
    onnx.save(cut(second, [n for _, n in pairs], chose[0], [y for _, y in read], masks), files["b"])
    for number, (given, own) in enumerate(zip(found.values, chose, strict=True)):
        _write_set(Path(out, f"test_data_set_{number}"), [i.name for i in first.graph.input], given | own)
    return files | {"inputs": out}


def chosen(a: GraphProto, b: GraphProto) -> list[tuple[NodeProto, NodeProto]]:
    """The nodes that choose, of two graphs that make the same values by them."""
    there = {tuple(n.output): n for n in b.node if n.op_type in CHOOSING}
    pairs = [(n, there[tuple(n.output)]) for n in a.node if n.op_type in CHOOSING and tuple(n.output) in there]
    return [(n, m) for n, m in pairs if n.op_type == m.op_type and _attributes(n) == _attributes(m)]


def _attributes(node: NodeProto) -> dict[str, bytes]:
    return {a.name: a.SerializeToString() for a in node.attribute}


def _read(a: GraphProto, b: GraphProto, pairs: Sequence[tuple[NodeProto, NodeProto]]) -> list[tuple[str, str]]:
    """What choosing nodes read that others compute, by its names in both graphs."""
    first, second = (_computed(g) - {v for n, _ in pairs for v in n.output} for g in (a, b))
    read = dict.fromkeys((x, y) for n, m in pairs for x, y in zip(n.input, m.input, strict=False))
    found: dict[str, str] = {}  # each name once in either graph
    for x, y in read:
        if x in first and y in second and x not in found and y not in found.values():
            found[x] = y
    return list(found.items())


def _computed(graph: GraphProto) -> set[str]:
    """What nodes of a graph compute that is no output of it."""
    return {v for n in graph.node for v in n.output if v} - {o.name for o in graph.output}


def _is_long_mask(value: engine.Array) -> bool:
    """Whether a value is so many booleans that a few of them may be on a tie."""
    return value.dtype == np.bool_ and value.size >= compare.ONE_OF


def cut(
    model: ModelProto,
    nodes: Sequence[NodeProto],
    values: Mapping[str, engine.Array],
    read: Sequence[str],
    masks: Sequence[bool],
) -> ModelProto:
    """The model, changed: without these nodes; what they make, such `values`, are inputs, and `read` outputs too.

    Those that are `masks` are outputs as codes of 8 bits, of which a few may differ (`compare.distance`).
    """
    graph, gone = model.graph, {v for n in nodes for v in n.output if v}
    left = [n for n in graph.node if gone.isdisjoint(n.output)]
    left += [
        helper.make_node("Cast", [v], [f"{v}/codes"], to=TensorProto.UINT8)
        for v, m in zip(read, masks, strict=True)
        if m
    ]
    shown = [f"{v}/codes" if mask else v for v, mask in zip(read, masks, strict=True)]
    outputs = [*(o for o in graph.output if o.name not in gone), *(ValueInfoProto(name=v) for v in shown)]
    known = [v for v in graph.value_info if v.name not in gone]
    del graph.node[:], graph.output[:], graph.value_info[:]
    graph.node.extend(left)
    graph.output.extend(outputs)
    graph.value_info.extend(known)
    for name in (v for n in nodes for v in n.output if v):
        kind = helper.np_dtype_to_tensor_dtype(values[name].dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, [None] * values[name].ndim))
    return model


def _write_set(folder: Path, names: Sequence[str], values: Mapping[str, engine.Array]) -> None:
    """A set of inputs as ONNX's tests have them."""
    folder.mkdir()
    for at, name in enumerate(names):
        tensor = numpy_helper.from_array(values[name], name)
        (folder / f"input_{at}.pb").write_bytes(tensor.SerializeToString())
