"""The node tests of ONNX's own backend suite, as graphs that both ONNX Runtime and the compiler accept."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as suite
from onnx.backend.test.case.test_case import TestCase

from onnxfuse.ops.rows import ROWS

Array = np.ndarray[Any, Any]
OLDEST, NEWEST = 7, 26  # opsets in which tests are run: the first that is fused, the last that ONNX Runtime 1.31 knows
KINDS = "fiub"


@dataclass(frozen=True, eq=False)
class NodeTest:
    """One test of the suite: a graph of one node, its inputs, the outputs it must have and how near they must be.

    What only shapes the result (axes, shapes, scales) is an initializer, as exporters write it. The opset is the test's
    own between OLDEST and NEWEST, else the nearest in which the operator takes the same node.
    """

    name: str
    op: str
    opset: int
    graph: onnx.GraphProto
    inputs: dict[str, Array]
    outputs: tuple[Array, ...]
    rtol: float
    atol: float


def with_row() -> Iterator[str]:
    """Operators of the default domain that have a row."""
    yield from sorted(op for op in ROWS.rows if "::" not in op)


@cache
def _cases() -> dict[str, tuple[TestCase, ...]]:
    """The suite's cases of one node, by the operator; modules of operators without a row are not even imported."""
    wanted = {op.lower() for op in with_row()}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for module in pkgutil.iter_modules(suite.__path__):
            if module.name.replace("_", "") in wanted:
                importlib.import_module(f"{suite.__name__}.{module.name}")
    found: dict[str, list[TestCase]] = {}
    for case in suite._NodeTestCases:
        node, *more = case.model.graph.node
        if not more and node.domain in ("", "ai.onnx") and "_expanded" not in case.name:
            found.setdefault(node.op_type, []).append(case)
    return {op: tuple(cases) for op, cases in found.items()}


@cache
def cases_of(op: str) -> dict[str, NodeTest]:
    """The tests of an operator by their names; those with values that NumPy does not have are left out."""
    made = (_node_test(case) for case in _cases().get(op, ()))
    return {t.name: t for t in made if t is not None}


def _opset(op: str, version: int) -> int:
    """The newest opset where a test is of the operator's newest version: most tests then share one."""
    newest = onnx.defs.get_schema(op, NEWEST, "")
    return NEWEST if version >= newest.since_version and not newest.deprecated else min(max(version, OLDEST), NEWEST)


def _node_test(case: TestCase) -> NodeTest | None:
    (node,) = case.model.graph.node
    version = next(o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx"))
    version = _opset(node.op_type, version)
    ((inputs, outputs),) = case.data_sets
    arrays = [_array(x) for x in (*inputs, *outputs)]
    if any(x is None for x in arrays):
        return None
    feeds = dict(zip([i for i in node.input if i], [x for x in arrays if x is not None], strict=False))
    wanted = tuple(x for x in arrays[len(inputs) :] if x is not None)
    row = next((r for r in ROWS.rows.get(node.op_type, ()) if r.since <= version <= r.until), None)
    shaping = {node.input[i] for i in (row.shape_inputs if row else ()) if i < len(node.input)}
    known = [numpy_helper.from_array(x, name) for name, x in feeds.items() if name in shaping]
    values = [v for v in case.model.graph.input if v.name not in shaping]
    graph = helper.make_graph([node], "test", values, case.model.graph.output, known)
    given = {name: x for name, x in feeds.items() if name not in shaping}
    return NodeTest(case.name, node.op_type, version, graph, given, wanted, case.rtol, case.atol)


def _array(x: Any) -> Array | None:
    """A tensor of the suite as an array; None for sequences, strings and element types that NumPy does not have."""
    if isinstance(x, TensorProto):
        x = numpy_helper.to_array(x)
    if not isinstance(x, (np.ndarray, np.generic)):
        return None
    x = np.asarray(x)
    return x if x.dtype.kind in KINDS and x.dtype.isbuiltin == 1 else None
