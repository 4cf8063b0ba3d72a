"""The node tests of ONNX's own backend suite, as models that ONNX Runtime and the compiler both accept."""

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
OLDEST, NEWEST = 7, 26  # opsets that are fused, and that the installed ONNX Runtime loads
PACKAGE = "onnx.backend.test.case.node"


@dataclass(frozen=True)
class NodeTest:
    """One test of the suite: a model of one node, its inputs and the outputs it must have.

    Inputs whose values only shape the result are initializers, as exporters write them. The opset is the test's own
    where it is between OLDEST and NEWEST, else the nearest of them in which the node means the same.
    """

    name: str
    op: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    outputs: tuple[Array, ...]
    rtol: float
    atol: float


@cache
def modules() -> dict[str, str]:
    """The suite's modules by what is left of their names without case and underscores: `reducel1`, `and`."""
    return {m.name.replace("_", ""): m.name for m in pkgutil.iter_modules(suite.__path__)}


@cache
def tests_of(op: str) -> tuple[NodeTest, ...]:
    """The tests of an operator; those of tensors that NumPy does not have, and of functions expanded, are left out."""
    module = modules().get(op.lower())
    if module is None:
        return ()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        importlib.import_module(f"{PACKAGE}.{module}")
    return tuple(t for t in map(_node_test, list(suite._NodeTestCases)) if t is not None and t.op == op)


def _node_test(case: TestCase) -> NodeTest | None:
    (node, *more), graph = case.model.graph.node, case.model.graph
    if more or node.domain not in ("", "ai.onnx") or "_expanded" in case.name:
        return None
    ((inputs, outputs),) = case.data_sets
    made = [_array(x) for x in (*inputs, *outputs)]
    if any(x is None for x in made):
        return None
    arrays = [x for x in made if x is not None]
    feeds = dict(zip([i for i in node.input if i], arrays, strict=False))
    version = min(max(next(o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx")), OLDEST), NEWEST)
    rows = ROWS.rows.get(node.op_type, ())
    shaping = {node.input[i] for r in rows for i in r.shape_inputs if i < len(node.input)}
    fixed = {name: x for name, x in feeds.items() if name in shaping}
    values = [v for v in graph.input if v.name not in fixed]
    known = [numpy_helper.from_array(x, name) for name, x in fixed.items()]
    one = helper.make_graph([node], "test", values, graph.output, known)
    model = helper.make_model(one, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
    given = {name: x for name, x in feeds.items() if name not in fixed}
    return NodeTest(case.name, node.op_type, model, given, tuple(arrays[len(inputs) :]), case.rtol, case.atol)


def _array(x: Any) -> Array | None:
    """A tensor of the suite as an array, None for sequences, optionals, strings and types that NumPy does not have."""
    if isinstance(x, TensorProto):
        x = numpy_helper.to_array(x)
    x = np.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else None
    return x if x is not None and x.dtype.kind in "fiub" and x.dtype.name != "bfloat16" else None


def operators() -> Iterator[str]:
    """Every operator of the default domain that has a schema."""
    yield from sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated})
