"""The verb `inspect`: the contents of a model, or of a kernel library with its manifest and model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxfuse.backends import TARGETS
from onnxfuse.build.cache import file_digest
from onnxfuse.config import Options
from onnxfuse.cost import number
from onnxfuse.errors import OnnxFuseError, UsageError, counted
from onnxfuse.ir.graph import Graph, Node, TensorType
from onnxfuse.load import everywhere, load
from onnxfuse.load.source import source_of
from onnxfuse.measure.operations import Bodies, inlined_types
from onnxfuse.pipeline.groups import facts_of, reads_shape
from onnxfuse.pipeline.outputs import STREAM
from onnxfuse.plan.sizes import input_symbols, sizes_at
from onnxfuse.report.document import parsed
from onnxfuse.runtime.entries import RUNTIME
from onnxfuse.target import runs_here

from . import show
from .results import Answer, document
from .show import bytes_text, count_text, sentence, table

_NODES = 3

# models --------------------------------------------------------------------------------------------------------------


def inspect(name: str) -> Answer:
    """The contents of a model or library; `-` is a model on standard input."""
    if name != STREAM and Path(name).is_file():
        with Path(name).open("rb") as file:
            if file.read(4) == b"\x7fELF":
                return _library(Path(name))
    model = show.given() if name == STREAM else name
    graph = load(model, Options())
    source = source_of(graph)
    counted_at = _at_usual_sizes(model, graph)
    operators = _operators(graph, counted_at)
    constants = {c for each in everywhere(graph) for c in each.constants.values()}  # each once, as subgraphs share some
    facts = {
        "path": name,
        "sha256": source.sha256,
        "bytes": source.bytes,
        "ir_version": source.ir_version,
        "opsets": source.opsets,
        "nodes": sum(len(each.nodes) for each in everywhere(graph)),
        "parameters": sum(c.size for c in constants),
        "weight_bytes": sum(c.bytes for c in constants),
        "flops": sum(o["flops"] or 0 for o in operators) if all(o["flops"] is not None for o in operators) else None,
        "counted_at": counted_at.sizes,
        "inputs": {v: _declared(graph, v, source.proto.graph.input) for v in graph.inputs},
        "outputs": {v: _declared(graph, v, source.proto.graph.output) for v in graph.outputs},
        "operators": operators,
        "metadata": source.metadata,
        "notes": source.warnings,
    }
    return Answer(document("inspect", model=facts), tuple(_inspected(facts)))


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """A model at fixed sizes, at which operations are counted; of one with kernels, the types of its values inlined."""

    graph: Graph
    sizes: Mapping[str, int]  # of the symbols in its inputs, by what people call them
    types: Mapping[str, TensorType | None]

    def flops(self, graph: Graph, node: Node, bodies: Bodies) -> int | None:
        """The operations of a node, of a kernel those of its function body; None where they are unknown."""
        facts = facts_of(graph, node)
        if facts is not None or not node.domain:
            return facts.flops.constant if facts is not None else 0 if reads_shape(node) else None
        found = [t for v in node.inputs if (t := self.types.get(v)) is not None]
        return bodies.work(node.op, [(t.dtype.onnx, shape) for t in found if (shape := t.static_shape) is not None])


def _at_usual_sizes(model: str | bytes, graph: Graph) -> _Counted:
    """A model at usual sizes; where it cannot be, as it is."""
    values = sizes_at([graph], {}, {})
    symbols = input_symbols(graph)
    shapes = {v: t.shape for v in graph.inputs if (t := graph.types.get(v)) is not None}
    given = tuple(f"{v}:{','.join(str(number(e, values)) for e in shape)}" for v, shape in shapes.items() if shape)
    with suppress(OnnxFuseError):
        made = load(model, Options(input_shape=given)) if symbols else graph
        fused = source_of(made).already_fused and isinstance(model, str)
        types = inlined_types(Path(str(model)), given) if fused else made.types
        return _Counted(made, {called: values[symbol] for symbol, called in symbols.items()}, types)
    return _Counted(graph, {}, {})


def _declared(graph: Graph, value: str, listed: Sequence[Any]) -> str:
    """The type of an input or output, with the names that the model gives to its dimensions."""
    found = graph.types.get(value)
    dims = next((each.type.tensor_type.shape.dim for each in listed if each.name == value), ())
    if found is None or len(dims) != len(found.shape):
        return repr(found)
    named = [d.dim_param or repr(e) for d, e in zip(dims, found.shape, strict=True)]
    return f"{found.dtype}[{', '.join(named)}]"


def _operators(graph: Graph, at: _Counted) -> list[dict[str, Any]]:
    """Operators with their count, mapping types and operations at sizes; "-" and None where unknown."""
    count = Counter[str]()
    classes: dict[str, Counter[str]] = {}
    for within, node in ((g, n) for g in everywhere(graph) for n in g.nodes):
        facts = facts_of(within, node)
        count[_key(node)] += 1
        classes.setdefault(_key(node), Counter())[facts.type.label if facts is not None else "-"] += 1
    work, bodies = dict.fromkeys(count, 0), Bodies(source_of(at.graph).proto.functions)
    unknown = set[str]()
    for within, node in ((g, n) for g in everywhere(at.graph) for n in g.nodes):
        flops = at.flops(within, node, bodies)
        work[_key(node)] = work.get(_key(node), 0) + (flops or 0)
        unknown |= {_key(node)} if flops is None else set()
    return [
        {"operator": op, "count": n, "mapping_types": dict(classes[op]), "flops": None if op in unknown else work[op]}
        for op, n in count.most_common()
    ]


def _key(node: Node) -> str:
    return f"{node.domain}::{node.op}" if node.domain else node.op


def _inspected(facts: Mapping[str, Any]) -> list[str]:
    opsets = ", ".join(f"{name or 'ai.onnx'} {number}" for name, number in facts["opsets"].items())
    lines = [
        f"{facts['path']}  {bytes_text(facts['bytes'])}, IR {facts['ir_version']}, opset {opsets}",
        f"{counted(facts['nodes'], 'node')}, {facts['parameters']:,} parameters in {bytes_text(facts['weight_bytes'])}",
    ]
    lines += [f"input   {name}: {kind}" for name, kind in facts["inputs"].items()]
    lines += [f"output  {name}: {kind}" for name, kind in facts["outputs"].items()]
    rows = [("operator", "count", "flops", "mapping type")]
    for o in facts["operators"]:
        classes = ", ".join(o["mapping_types"])
        rows.append((o["operator"], str(o["count"]), count_text(o["flops"]), classes))
    lines += ["", *table(rows, right=(1, 2))]
    if facts["counted_at"]:
        lines.append(f"flops counted at {', '.join(f'{name}={n}' for name, n in facts['counted_at'].items())}")
    lines += [f"{key} = {value}" for key, value in facts["metadata"].items() if key.startswith("onnxfuse.")]
    return lines + [line for note in facts["notes"] for line in sentence(f"note: {note}")]


# libraries ------------------------------------------------------------------------------------------------------------


def _library(path: Path) -> Answer:
    """The contents of a kernel library, from its strings, its manifest and its model; it is not loaded."""
    text = path.read_bytes()
    domains = sorted({m.decode() for m in re.findall(rb"onnxfuse\.[0-9a-f]{12}(?=\0)", text)})
    if not domains:
        raise UsageError(f"inspect: {path} is a library, but not one of onnxfuse", hint="name a model or its library")
    found = re.findall(rb"(?<=\0)(?:onnxfuse_)?([A-Za-z]\w*_[0-9a-f]{8})(?=\0)", text)
    digest = file_digest(path)
    said = _manifest(path, digest)
    build = said.get("build", {})
    stated = {t["name"]: list(t["features"]) for t in build.get("targets", ())}
    targets = [name for name in TARGETS if f"\0{name}\0".encode() in text]
    facts = {
        "path": str(path),
        "sha256": digest,
        "bytes": len(text),
        "domains": domains,
        "targets": targets,
        "features": {name: stated.get(name, []) for name in targets},
        "runs_here": any(runs_here(TARGETS[name]) for name in targets),
        "runtime": RUNTIME,
        "compiler": build.get("compiler"),
        "onnxfuse_version": said.get("onnxfuse_version"),
        "model": said.get("model"),
        "kernels": sorted({m.decode() for m in found}),
        "calls": _calls(path, said),
    }
    return Answer(document("inspect", library=facts), tuple(_library_lines(facts)))


def _manifest(path: Path, digest: str) -> Mapping[str, Any]:
    """The manifest beside a library whose digest matches; empty if there is none."""
    for each in sorted(path.parent.glob("*.json")):
        try:
            said = parsed(each.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(said, dict) and said.get("library_sha256") == digest:
            return said
    return {}


def _calls(path: Path, said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fused nodes: their original nodes, and the types of inputs and outputs from the model."""
    types: dict[str, tuple[list[str], list[str]]] = {}
    model = path.parent / Path(str(said.get("model") or "")).name
    if said.get("model") and model.is_file():
        with suppress(OnnxFuseError):
            types = dict(_types(load(model, Options())))
    return [
        {
            "name": each["name"],
            "kernel": each["kernel"],
            "nodes": list(each["nodes"]),
            "inputs": types.get(each["name"], ([], []))[0],
            "outputs": types.get(each["name"], ([], []))[1],
        }
        for each in said.get("kernels", ())
    ]


def _types(graph: Graph) -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
    """The types of inputs and outputs by name of the node."""
    for node in graph.nodes:
        inputs, outputs = ([_dtype(graph, v) for v in names if v] for names in (node.inputs, node.outputs))
        yield source_of(graph).nodes[node.name].name, (inputs, outputs)


def _dtype(graph: Graph, value: str) -> str:
    known = graph.constants.get(value) or graph.types.get(value)
    return str(known.dtype) if known is not None else "?"


def _library_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['path']}  {bytes_text(facts['bytes'])}, sha256 {facts['sha256']}"
    yield f"domain    {', '.join(facts['domains'])}"
    yield f"runtime   {facts['runtime']}"
    here = "runs here" if facts["runs_here"] else "does not run here, so function bodies do"
    for name in facts["targets"]:
        asks = ", ".join(facts["features"][name])
        yield f"for       {name}" + (f": {asks}" if asks else "")
    yield f"machine   {here}"
    if facts["compiler"]:
        yield f"made by   onnxfuse {facts['onnxfuse_version']} with {facts['compiler']}, for {facts['model']}"
    if not facts["calls"]:
        yield "note      the original nodes of its kernels are unknown, since it has no manifest beside it"
        yield from (f"kernel    {name}" for name in facts["kernels"])
        return
    rows = [("kernel", "types", "nodes", "stands for")]
    by_kernel: dict[str, list[Mapping[str, Any]]] = {}
    for each in facts["calls"]:
        by_kernel.setdefault(each["kernel"], []).append(each)
    for kernel, those in by_kernel.items():
        nodes = [node for each in those for node in each["nodes"]]
        more = f" and {len(nodes) - _NODES} more" if len(nodes) > _NODES else ""
        types = f"{_counted(those[0]['inputs'])} -> {_counted(those[0]['outputs'])}"
        rows.append((kernel, types, str(len(those)), ", ".join(nodes[:_NODES]) + more))
    yield from ("", *table(rows, right=(2,)))


def _counted(types: list[str]) -> str:
    """Distinct types with their counts."""
    return ", ".join(f"{n} {name}" if n > 1 else name for name, n in Counter(types).items()) or "?"
