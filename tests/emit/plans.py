"""Hand-made plans: models whose chosen nodes are groups, with kernels that have parameters and layouts but no code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.emit.body import Body, body
from onnxfuse.emit.model import Emitted, LibraryEntry, emit
from onnxfuse.emit.names import identity
from onnxfuse.emit.planned import Fused
from onnxfuse.emit.staged import Staged
from onnxfuse.emit.write import write
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Group, Plan, group_of
from onnxfuse.ir.index import Index
from onnxfuse.ir.kernel import Kernel, Param
from onnxfuse.ir.layout import PLAIN, Layout
from onnxfuse.load import load, simplify_shapes
from onnxfuse.ops.rows import ROWS

DOMAIN = "onnxfuse.0123456789ab"
LIBRARY = LibraryEntry(DOMAIN, "libm.so", "m.fuse.json", ("x86-64-v4", "x86-64-v3"))
Layouts = Mapping[str, Layout]
Feeds = Mapping[str, np.ndarray[Any, Any]]


def model(text: str, weights: Feeds | None = None) -> onnx.ModelProto:
    """A model in ONNX text form, its initializers given as arrays."""
    proto = onnx.parser.parse_model(text)
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def graph_of(source: onnx.ModelProto | Path, **options: Any) -> Graph:
    """The loaded model, with its shape arithmetic done."""
    given = source if isinstance(source, Path) else source.SerializeToString()
    return simplify_shapes(load(given, Options(**options)))


def group(graph: Graph, made: str) -> Group:
    """The nodes whose first outputs are named, in the graph's order."""
    wanted = made.split()
    nodes = tuple(n for n in graph.nodes if n.outputs[0] in wanted)
    assert len(nodes) == len(wanted), f"{made}: not all are there"
    readers = dict.fromkeys(graph.outputs, 1)
    for n in graph.nodes:
        for v in dict.fromkeys(n.reads):
            readers[v] = readers.get(v, 0) + 1
    return group_of(f"g_{wanted[0]}", nodes, readers)


def kernel_of(graph: Graph, group: Group, layouts: Layouts, dtypes: Mapping[str, DType] | None = None) -> Kernel:
    """A kernel that takes what the nodes compute with: no shapes, no constants of one element."""
    computed: dict[str, None] = {}
    for n in group.nodes:
        row = ROWS.find(n, graph.opset)
        shaping = row.quiet_inputs if row else ()
        for i, v in enumerate(n.inputs):
            constant = graph.constants.get(v)
            if v in group.inputs and i not in shaping and (constant is None or constant.size > 1):
                computed[v] = None
    ins = tuple(_param(f"in{i}", v, graph, layouts, dtypes) for i, v in enumerate(computed))
    outs = tuple(_param(f"out{i}", v, graph, layouts, dtypes) for i, v in enumerate(group.outputs))
    return Kernel(ins, outs, (), (), ())


def _param(name: str, value: str, graph: Graph, layouts: Layouts, dtypes: Mapping[str, DType] | None) -> Param:
    found, constant = graph.types[value], graph.constants.get(value)
    shape = tuple(map(Index.of, constant.shape)) if constant is not None else found.shape if found else ()
    dtype = constant.dtype if constant is not None else found.dtype if found else None
    assert dtype is not None
    return Param(name, value, (dtypes or {}).get(value, dtype), shape, layouts.get(value, PLAIN))


def bodied(
    graph: Graph, groups: Iterable[Group], layouts: Layouts | None = None, dtypes: Mapping[str, DType] | None = None
) -> list[Fused]:
    """The groups with their bodies; the kernel text is what a renderer would make of it: its types."""
    out: list[Fused] = []
    for g in groups:
        kernel = kernel_of(graph, g, layouts or {}, dtypes)
        made = body(g, kernel, graph)
        assert isinstance(made, Body), made
        text = repr([(p.dtype, p.storage) for p in (*kernel.inputs, *kernel.outputs)])
        out.append(Fused(g, kernel, made, identity(text, made)))
    return out


def refusal(graph: Graph, g: Group, layouts: Layouts | None = None) -> Decision:
    """Why a group has no body."""
    made = body(g, kernel_of(graph, g, layouts or {}), graph)
    assert isinstance(made, Decision), made
    return made


def fused(
    proto: onnx.ModelProto | Path,
    groups: Sequence[str],
    layouts: Layouts | None = None,
    dtypes: Mapping[str, DType] | None = None,
    **options: Any,
) -> Emitted:
    """A model in which groups of nodes (see `group`) are fused; constants and values in the layouts given for them."""
    graph = graph_of(proto, **options)
    made = [group(graph, g) for g in groups]
    between = {v: y for v, y in (layouts or {}).items() if v not in graph.constants}
    return emit(Plan(graph, tuple(made), between), bodied(graph, made, layouts, dtypes), LIBRARY)


def written(emitted: Emitted, path: Path, *, full: bool = True, **how: bool) -> onnx.ModelProto:
    """The model after it was written to `path`, checked by onnx, with its data read."""
    with Staged(overwrite=how.pop("overwrite", False)) as staged:
        write(emitted, path, staged, **how)
        staged.commit()
    onnx.checker.check_model(str(path), full_check=full)
    return onnx.load(path)


def outputs(path: Path | onnx.ModelProto, feeds: Feeds, *, optimize: bool = True) -> list[np.ndarray[Any, Any]]:
    """A model's outputs in ONNX Runtime."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    given = str(path) if isinstance(path, Path) else path.SerializeToString()
    session = ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def assert_same(before: onnx.ModelProto | Path, after: Path, feeds: Feeds, tolerance: float = 2e-6) -> None:
    """Both models compute the same, with optimizations and without, relative to the largest output."""
    wanted = outputs(before, feeds, optimize=False)
    for optimize in (True, False):
        for want, have in zip(wanted, outputs(after, feeds, optimize=optimize), strict=True):
            assert (want.dtype, want.shape) == (have.dtype, have.shape)
            scale = float(np.abs(want.astype(np.float64)).max(initial=1e-30))
            np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol=0, atol=tolerance * scale)


def random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal random numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
