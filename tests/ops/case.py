"""One call of an operator with its inputs, what its row says about it, and what ONNX and ONNX Runtime say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from onnxfuse.ir.graph import Constant, Decision, Node, TensorType
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.ops.evaluate import meaning
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import Definition, View, define
from tests.elements import dtype_of_numpy

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One call of `op`, named as rows name it.

    `inputs` may hold None for absent ones. `constants` are positions that the graph knows as initializers, `known`
    those whose integers it knows (shape inputs always). `length` is the longest sum behind one element, `factor` how
    many roundings (of `precision`, if not the result's type) each step may cost. `wrong` names the references ("onnx",
    "runtime") that do not follow the specification here, or do not know the operator; `wanted` are NumPy's results.
    """

    op: str
    inputs: tuple[Array | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    constants: tuple[int, ...] = ()
    known: tuple[int, ...] = ()
    length: int = 1
    factor: float = 4.0
    precision: str = ""
    wrong: str = ""
    wanted: tuple[Array, ...] = ()
    note: str = ""

    @property
    def id(self) -> str:
        shapes = "_".join("x".join(map(str, i.shape)) or "0d" if i is not None else "none" for i in self.inputs)
        kind = next((str(i.dtype) for i in self.inputs if i is not None), "")
        attrs = ",".join(f"{k}={_short(v)}" for k, v in self.attrs.items())
        return "-".join(filter(None, (self.op, str(self.opset), kind, shapes, attrs, self.note)))

    @property
    def spelled(self) -> tuple[str, str]:
        """Domain and operator type."""
        domain, _, op = self.op.rpartition("::")
        return domain, op

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"x{k}" if x is not None else "" for k, x in enumerate(self.inputs))

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(f"y{k}" for k in range(self.outputs))

    @property
    def arrays(self) -> dict[str, Array]:
        return {n: x for n, x in zip(self.names, self.inputs, strict=True) if x is not None}


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.tolist()}"
    return str(value).replace(" ", "")


def data(*shape: int, dtype: str = "float32", seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Random numbers, the same for the same arguments; halves of integers for integer types, both values for bool."""
    rng = np.random.default_rng(crc32(repr((shape, dtype, seed)).encode()))
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if np.issubdtype(np.dtype(dtype), np.integer):
        return np.asarray(rng.integers(int(low * 5), int(high * 5) + 1, shape)).astype(dtype)
    return np.asarray(rng.random(shape) * (high - low) + low).astype(dtype)


def ints(*values: int, dtype: str = "int64") -> Array:
    """A one-dimensional tensor of integers."""
    return np.array(values, dtype)


# What the row says ----------------------------------------------------------------------------------------------------


def view(case: Case, extents: Mapping[int, Index] | None = None) -> View:
    """The case as its row sees it; `extents` replaces the extents of inputs that are no constants."""
    row = ROWS.rows[case.op][0]
    shaping = {k for k in (*row.shape_inputs, *case.known) if k < len(case.inputs)}
    types: dict[str, TensorType | None] = {}
    constants: dict[str, Constant] = {}
    known: dict[str, tuple[Index, ...]] = {}
    for k, (name, x) in enumerate(zip(case.names, case.inputs, strict=True)):
        if x is None:
            continue
        dtype = dtype_of_numpy(x.dtype)
        assert dtype is not None
        fixed = k in case.constants or k in shaping
        shape = tuple(Index.of(e) if fixed or extents is None else extents.get(e, Index.of(e)) for e in x.shape)
        types[name] = TensorType(dtype, shape)
        if fixed:
            constants[name] = Constant.of(x, dtype)
        if k in shaping and x.ndim <= 1 and np.issubdtype(x.dtype, np.integer):
            known[name] = tuple(Index.of(int(v)) for v in x.reshape(-1))
    attrs = {k: _attribute(v) for k, v in case.attrs.items()}
    domain, op = case.spelled
    node = Node(op, case.names, case.results, attrs, "node", domain)
    return View(node, types, constants, known, case.opset)


def _attribute(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        dtype = dtype_of_numpy(value.dtype)
        assert dtype is not None
        return Constant.of(value, dtype)
    return tuple(value) if isinstance(value, list) else value


def definitions(case: Case) -> tuple[Definition, ...]:
    """The definitions of a case that its row must serve."""
    found = define(ROWS, view(case))
    assert not isinstance(found, Decision), found.reason
    return found


def ours(case: Case) -> list[Array]:
    """The outputs by the row's meaning, of the types and shapes that the row declares."""
    found = definitions(case)
    made = meaning(found, case.arrays, {})
    for d in found:
        assert d.type.static_shape == made[d.name].shape and d.type.dtype.numpy == made[d.name].dtype
    return [made[name] for name in case.results]


def ours_symbolic(case: Case) -> list[Array] | Decision:
    """The same with every extent above 1 of an input that is no constant a symbol, or the row's refusal."""
    sizes = {e for x in case.inputs if x is not None for e in x.shape if e > 1}
    found = define(ROWS, view(case, {e: Index.of(Symbol(f"n{e}")) for e in sizes}))
    if isinstance(found, Decision):
        return found
    made = meaning(found, case.arrays, {f"n{e}": e for e in sizes})
    return [made[name] for name in case.results]


# What others say ------------------------------------------------------------------------------------------------------


def model(case: Case, types: Sequence[np.dtype[Any]]) -> onnx.ModelProto:
    """A model of one node; constants are initializers."""
    attrs = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in case.attrs.items()}
    domain, op = case.spelled
    node = helper.make_node(op, case.names, case.results, "node", domain=domain, **attrs)
    fixed = {case.names[k] for k in case.constants}
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in case.arrays.items()
        if n not in fixed
    ]
    made = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(t), None)
        for n, t in zip(case.results, types, strict=True)
    ]
    known = [numpy_helper.from_array(case.arrays[n], n) for n in sorted(fixed)]
    graph = helper.make_graph([node], "case", values, made, known)
    imports = [helper.make_opsetid("", case.opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds(case: Case) -> dict[str, Array]:
    return {
        n: x
        for k, (n, x) in enumerate(zip(case.names, case.inputs, strict=True))
        if x is not None and k not in case.constants
    }


def onnx_says(case: Case, proto: onnx.ModelProto) -> list[Array]:
    """The ONNX reference evaluator."""
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(proto).run(None, feeds(case))]


def runtime_says(case: Case, proto: onnx.ModelProto) -> list[Array] | None:
    """ONNX Runtime without optimizations, or None where it has no kernel for these types or does not know the opset."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except (ort_errors.NotImplemented, ort_errors.Fail) as problem:
        if isinstance(problem, ort_errors.Fail) and "Current official support for domain" not in str(problem):
            raise
        return None
    return [np.asarray(y) for y in session.run(None, feeds(case))]


def check(case: Case, got: Sequence[Array], want: Sequence[Array], who: str) -> None:
    """Same types, same shapes, and values within dtype epsilon x length x factor of the largest finite value."""
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype, f"{who}: {w.dtype}, we say {g.dtype}"
        assert g.shape == w.shape, f"{who}: {w.shape}, we say {g.shape}"
        if not np.issubdtype(g.dtype, np.floating):
            assert np.array_equal(g, w), f"{who}: {w}, we say {g}"
            continue
        finite = w[np.isfinite(w)].astype(np.float64)
        scale = max(1.0, float(np.max(np.abs(finite), initial=0.0)))
        bound = float(np.finfo(case.precision or g.dtype).eps) * case.length * case.factor * scale
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=0, atol=bound, err_msg=who)


# Many cases in one test -----------------------------------------------------------------------------------------------


def by_operator(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """The cases of each operator: one test for all of them costs less than a test for each."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.op, []).append(case)
    return found


def hold(test: Callable[[Case], None], cases: Iterable[Case]) -> None:
    """Assert that a test passes for all cases; the names of those for which it does not, with what it says."""
    failed: dict[str, str] = {}
    for case in cases:
        try:
            test(case)
        except Exception as problem:
            failed[case.id] = repr(problem)
    assert not failed, "\n".join(f"{name}: {said}" for name, said in failed.items())
