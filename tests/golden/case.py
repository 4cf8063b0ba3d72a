"""Golden cases: a model in ONNX text, with its plan, kernel and generated code for one machine class.

A case file holds a sentence, fields (`weights: w float32[4, 8]; ids int64[3] = 0 1 2`, `options: min_group=1`,
`cpp: full`), the model, and the sections `# plan`, `# kernel` and `# cpp`. Of C++ it holds a digest, unless `full`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.group import Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.kernel_text import kernel_lines
from onnxfuse.ir.text import text
from onnxfuse.load import load, simplify_shapes
from onnxfuse.lower import lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.render.cpp import render
from onnxfuse.rewrite import rewrite
from onnxfuse.schedule.cpu.scheduler import schedule
from onnxfuse.target import CPUS

FOLDER = Path(__file__).resolve().parent
SECTIONS = ("plan", "kernel", "cpp")
TARGET = CPUS["x86-64-v4"]  # named, not native: goldens are the same on every machine
_WEIGHT = re.compile(r"(\w+) (\w+)\[([\d, ]*)\](?: = (.*))?")
_NUMBERS = {"true": True, "false": False}


@dataclass(frozen=True)
class GoldenCase:
    """A case as it is in its file. `head` is everything up to the first section."""

    head: str
    fields: Mapping[str, str]
    model: str
    sections: Mapping[str, str]

    @property
    def options(self) -> Options:
        given: dict[str, Any] = {}
        for pair in self.fields.get("options", "").split():
            name, _, value = pair.partition("=")
            given[name] = _NUMBERS[value] if value in _NUMBERS else int(value) if value.isdigit() else (value,)
        return Options(**given)


def read(path: Path, *others: str) -> GoldenCase:
    """The case in a file, which may have other fields too; ValueError where it is none."""
    head, *rest = re.split(r"^# (plan|kernel|cpp)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    title, _, body = head.partition("\n")
    if not title.startswith("# ") or not title.endswith("."):
        raise ValueError(f"{path.name}: the first line is `# a sentence.`")
    fields: dict[str, str] = {}
    while found := re.match(r"\s*(\w+): (.*)\n", body):
        fields[found[1]] = found[2]
        body = body[found.end() :]
    unknown = set(fields) - {"weights", "options", "cpp", *others}
    if unknown:
        raise ValueError(f"{path.name}: no such field: {', '.join(sorted(unknown))}")
    return GoldenCase(head, fields, body, {name: sections.get(name, "") for name in SECTIONS})


def model_of(case: GoldenCase) -> onnx.ModelProto:
    """The model of a case; weights are drawn by their names."""
    proto = onnx.parser.parse_model(case.model)
    for weight in filter(None, case.fields.get("weights", "").split("; ")):
        found = _WEIGHT.fullmatch(weight)
        if found is None:
            raise ValueError(f"no weight: {weight!r}")
        name, dtype, dims, values = found.groups()
        shape = tuple(int(d) for d in dims.split(",") if d.strip())
        drawn = np.random.default_rng(crc32(name.encode())).normal(size=shape)
        array = np.array(values.split()).reshape(shape) if values else drawn
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    for number, node in enumerate(proto.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    onnx.checker.check_model(proto)
    return proto


def planned(case: GoldenCase) -> Plan:
    """The plan for a case's model."""
    graph = simplify_shapes(load(model_of(case).SerializeToString(), case.options))
    graph, _ = rewrite(graph, case.options)
    return plan(graph, ROWS, case.options)


def kernels(made: Plan, *, direct: bool = False) -> Iterator[tuple[str, Kernel]]:
    """The kernels of a plan by the names of their groups; none of a golden case is refused."""
    for group in made.groups:
        lowered = lower(group, made, ROWS)
        assert not isinstance(lowered, Decision), lowered
        layouts = {v: made.layouts[v] for v in (*lowered.inputs, *lowered.outputs) if v in made.layouts}
        kernel = schedule(lowered, layouts, made.graph.constants, TARGET, winograd=not direct)
        assert not isinstance(kernel, Decision), kernel
        yield group.name, kernel


def current(case: GoldenCase) -> dict[str, str]:
    """The sections of a case as they are now."""
    made = planned(case)
    found = list(kernels(made, direct=case.options.winograd is False))
    shown = {
        "plan": [text(made)],
        "kernel": [line for name, k in found for line in (f"kernel of {name}", *(f"  {e}" for e in kernel_lines(k)))],
        "cpp": [],
    }
    for number, (name, kernel) in enumerate(found):
        source = render(kernel, f"k{number}", f"k{number}").text
        digest = hashlib.sha256(source.encode()).hexdigest()[:32]
        full = case.fields.get("cpp") == "full"
        shown["cpp"] += [f"// {name}", source.rstrip()] if full else [f"{digest} {name}"]
    return {name: "\n".join(lines) + "\n\n" for name, lines in shown.items()}


def whole(case: GoldenCase, sections: Mapping[str, str]) -> str:
    """The text of a case file with these sections."""
    parts = [case.head.rstrip("\n") + "\n\n", *(f"# {name}\n{sections[name]}" for name in SECTIONS)]
    return "".join(parts).rstrip("\n") + "\n"
