"""The verb `inspect`: the contents of a model, or of a kernel library with its manifest and model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from onnxfuse.backends import TARGETS
from onnxfuse.build.cache import file_digest
from onnxfuse.config import Options
from onnxfuse.errors import OnnxFuseError, UsageError, counted
from onnxfuse.ir.graph import Graph
from onnxfuse.load import everywhere, load
from onnxfuse.load.source import source_of
from onnxfuse.pipeline.groups import facts_of
from onnxfuse.pipeline.outputs import STREAM
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
    graph = load(show.given() if name == STREAM else name, Options())
    source = source_of(graph)
    operators = _operators(graph)
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
        "inputs": {name: repr(graph.types[name]) for name in graph.inputs},
        "outputs": {name: repr(graph.types[name]) for name in graph.outputs},
        "operators": operators,
        "metadata": source.metadata,
        "notes": source.warnings,
    }
    return Answer(document("inspect", model=facts), tuple(_inspected(facts)))


def _operators(graph: Graph) -> list[dict[str, Any]]:
    """Operators with their count, mapping types and operations; "-" and None where unknown."""
    count = Counter[str]()
    classes: dict[str, Counter[str]] = {}
    work: dict[str, int | None] = {}
    for within, node in ((g, n) for g in everywhere(graph) for n in g.nodes):
        name = f"{node.domain}::{node.op}" if node.domain else node.op
        facts = facts_of(within, node)
        count[name] += 1
        classes.setdefault(name, Counter())[facts.type.label if facts is not None else "-"] += 1
        each, before = facts.flops.constant if facts is not None else None, work.get(name, 0)
        work[name] = None if each is None or before is None else before + each
    return [
        {"operator": name, "count": n, "mapping_types": dict(classes[name]), "flops": work[name]}
        for name, n in count.most_common()
    ]


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
