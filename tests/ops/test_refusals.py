"""Unsupported nodes are refused with a stable code, a reason and, if there is one, an unlock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, defs

from onnxfuse.ir.graph import Decision, Node
from onnxfuse.ir.unsupported import ABSENT, BY_FUNCTION
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import define
from tests.ops import cases_attention
from tests.ops.case import Array, Case, data, ints, ours_symbolic, view
from tests.ops.cases_recurrent import CONSTANT, inputs
from tests.ops.test_rows import CASES

X, C = data(2, 3, 4, 5), data(3, seed=1)
ONE, CODES = np.array(1, np.float32), data(2, 3, 4, 5, dtype="int8")
BATCH_NORM = (X, C, C, C, np.abs(C))
SCALES = np.array([1, 1, 2, 2], np.float32)
EMPTY = ints()
HALF_SCALE = (ONE.astype(np.float16), CODES[0, 0, 0, 0], CODES, ONE, CODES[0, 0, 0, 0])
REAL_RANGE = tuple(np.array(n, np.float32) for n in (0.5, 3.5, 0))
TRAINING = (X, np.array(0.5, np.float32), np.array(True))

REFUSED: tuple[tuple[Case, str, str], ...] = (
    (
        Case("Add", (data(2, 2), data(2)), {"broadcast": 1, "axis": 0}, 6),
        "E-NO-KERNEL",
        "Add of opset 6 is not supported",
    ),
    (Case("PRelu", (X, C), {}, 6), "E-NO-KERNEL", "PRelu of opset 6"),
    (Case("Concat", (X, X), {}, 3), "E-NO-KERNEL", "Concat of opset 3"),
    (Case("BatchNormalization", BATCH_NORM, {"spatial": 0}, 7), "E-NO-KERNEL", "statistics per element"),
    (Case("BatchNormalization", BATCH_NORM, {"training_mode": 1}, 15), "E-NO-KERNEL", "training mode"),
    (Case("Dropout", TRAINING, {}, 13, constants=(1, 2)), "E-RANDOM", "training mode"),
    (Case("Dropout", (X,), {}, 13, outputs=2), "E-RANDOM", "the mask output is used"),
    (Case("Cast", (X,), {"to": TensorProto.STRING}), "E-DTYPE", "element type 8"),
    (Case("Cast", (X,), {"to": TensorProto.FLOAT8E4M3FN}, 19), "E-DTYPE", "element type 17"),
    (Case("Cast", (X,), {"to": TensorProto.INT4}, 21), "E-DTYPE", "element type 22"),
    (Case("QuantizeLinear", (X, ONE), {"output_dtype": TensorProto.INT4}, 21), "E-DTYPE", "element type 22"),
    (Case("QuantizeLinear", (X, ONE), {"precision": TensorProto.FLOAT16}, 23), "E-DTYPE", "precision other than"),
    (Case("QuantizeLinear", (X, ONE, ints(0, dtype="int32")[0]), {}, 21), "E-DTYPE", "quantized values of type int32"),
    (Case("DequantizeLinear", (X, ONE), {}, 21), "E-DTYPE", "quantized values of type float32"),
    (
        Case("DequantizeLinear", (CODES, C, CODES[0, 0, 0, 0]), {}, 21),
        "E-INVALID",
        "the shapes of scale and zero point differ",
    ),
    (Case("DequantizeLinear", (CODES, C), {"axis": 2}, 21), "E-BROADCAST", "do not fit an axis of 4"),
    (Case("Pad", (data(3), ints(1, 1)), {"mode": "mirror"}), "E-NO-KERNEL", "mode mirror"),
    (Case("BitShift", (data(3, dtype="uint8"), data(3, dtype="uint8"))), "E-NO-KERNEL", "direction"),
    (Case("Resize", (X, None, SCALES), {"mode": "spline"}, 13), "E-NO-KERNEL", "mode spline"),
    (Case("Resize", (X, SCALES), {}, 13), "E-INVALID", "neither scales nor sizes are given"),
    (Case("Resize", (X, None, SCALES * np.float32(np.inf)), {}, 13), "E-INVALID", "scales are"),
    (Case("Resize", (X, None, -SCALES), {}, 13), "E-INVALID", "scales are"),
    (Case("GridSample", (X, data(2, 3, 3, 2)), {"mode": "asymmetric"}, 20), "E-INVALID", "mode asymmetric"),
    (Case("Resize", (X.astype(np.uint8), None, SCALES), {"mode": "linear"}, 13), "E-DTYPE", "linear of uint8"),
    (Case("Einsum", (data(2, 3), data(4, 5)), {"equation": "ij,jk"}), "E-BROADCAST", "3 and 4 differ"),
    (Case("Einsum", (data(2, 3),), {"equation": "ijk"}), "E-INVALID", "does not fit"),
    (Case("MaxPool", (X,), {"kernel_shape": [2, 2]}, 12, outputs=2), "E-NO-KERNEL", "the indices are used"),
    (Case("GatherND", (data(2, 3), ints(0, 1, 1))), "E-INVALID", "tuples of 3 do not fit ranks 2 and 1"),
    (Case("GatherND", (X, ints(0, 1)), {"batch_dims": 2}), "E-INVALID", "2 batch axes and tuples of 2 do not fit"),
    (Case("DepthToSpace", (data(2, 3),), {"blocksize": 2}), "E-INVALID", "x0 has rank 2, not 4"),
    (Case("Einsum", (data(2, 3),), {"equation": "ij,jk->ik"}), "E-INVALID", "the equation has 2 entries, not 1"),
    (Case("Conv", (X, data(4, 3, 3)), {}, 11), "E-INVALID", "x1 has rank 3, not 4"),
    (Case("Conv", (X, data(4, 3, 3, 3), data(8)), {}, 11), "E-INVALID", "x2 has 8 elements, not 4"),
    (Case("ConvTranspose", (X, data(4, 3, 3)), {}, 11), "E-INVALID", "x1 has rank 3, not 4"),
    (Case("ConvTranspose", (X, data(3, 4, 3, 3), data(8)), {}, 11), "E-INVALID", "x2 has 8 elements, not 4"),
    (Case("OneHot", (ints(0, 1), ints(3), data(3)), {}, 11, known=(1,)), "E-BROADCAST", "3 and 2 differ"),
    (Case("OneHot", (ints(0, 1), EMPTY, data(2)), {}, 11, known=(1,)), "E-INVALID", "x1 has 0 entries, not 1"),
    (Case("Range", (EMPTY, ints(3), ints(1)), {}, 11, known=(0, 1, 2)), "E-INVALID", "x0 has 0 entries, not 1"),
    (Case("Range", REAL_RANGE, {}, 11, constants=(0, 1, 2)), "E-INVALID", "0.5 to 3.5 by 0.0"),
    (Case("CumSum", (X, EMPTY), {}, 14, known=(1,)), "E-INVALID", "x1 has 0 entries, not 1"),
    (Case("Trilu", (X, EMPTY), {}, 14, known=(1,)), "E-INVALID", "x1 has 0 entries, not 1"),
    (Case("Pad", (data(3), ints(1, 1), data(2)), {}, 13, known=(1,)), "E-BROADCAST", "2 and 1 differ"),
    (Case("Flatten", (X,), {"axis": 7}), "E-INVALID", "axis 7 is outside rank 5"),
    (Case("Unsqueeze", (X, ints(1, 1)), {}, 13, known=(1,)), "E-INVALID", "different axes has 1 entry, not 2"),
    (Case("com.microsoft::FastGelu", (X, CODES[0, 0, 0])), "E-INVALID", "add takes no operands of types float32, int8"),
    (Case("com.microsoft::QLinearConcat", HALF_SCALE), "E-INVALID", "a scale is not float32"),
    (Case("Trilu", (C,), {}, 14), "E-INVALID", "x0 has rank 1, not 2 or more"),
    (Case("Conv", (X, data(2, 1, 3, 3)), {"group": 2}, 11), "E-BROADCAST", "3 and 2 differ"),
    (Case("Pad", (data(3), ints(-4, 1)), {"mode": "reflect"}), "E-NO-KERNEL", "a tensor is empty"),
    (Case("LpNormalization", (X,), {"p": 3}), "E-NO-KERNEL", "a norm with p = 3"),
    (Case("GroupNormalization", (X, C, C), {"num_groups": 2}, 21), "E-SHAPE-UNKNOWN", "3 channels do not make 2"),
    (Case("Add", (data(2, 3), data(2, 4))), "E-BROADCAST", "3 and 4 differ"),
    (Case("MatMul", (data(2, 3), data(4, 5))), "E-BROADCAST", "3 and 4 differ"),
    (Case("Softmax", (data(2, 3),), {"axis": 2}, 13), "E-INVALID", "axis 2 is outside rank 2"),
    (Case("Concat", (C,) * 231, {"axis": 0}), "E-NO-KERNEL", "231 tensors, more than 64"),
    (Case("Sum", (C,) * 300), "E-NO-KERNEL", "300 tensors, more than 64"),
)


LSTM, GRU, RNN = (inputs(op, 3, 2, 4, 5) for op in ("LSTM", "GRU", "RNN"))
UNITS: dict[str, Any] = {"hidden_size": 5}


def recurrent(op: str, given: tuple[Array | None, ...], **attrs: Any) -> Case:
    return Case(op, given, UNITS | attrs, 14, constants=CONSTANT)


REFUSED_LAYERS: tuple[tuple[Case, str, str], ...] = (
    (recurrent("LSTM", LSTM, direction="sideways"), "E-INVALID", "no direction sideways"),
    (recurrent("LSTM", LSTM, direction="bidirectional"), "E-BROADCAST", "1 and 2 differ"),
    (recurrent("RNN", RNN, hidden_size=-1), "E-INVALID", "hidden_size is -1"),
    (recurrent("GRU", GRU, hidden_size=6), "E-INVALID", "hidden_size is 6"),
    (Case("GRU", GRU, {}, 14, constants=CONSTANT), "E-INVALID", "hidden_size is absent"),
    (recurrent("LSTM", LSTM, clip=1.0), "E-NO-KERNEL", "clip"),
    (recurrent("LSTM", LSTM, input_forget=1), "E-NO-KERNEL", "input_forget"),
    (recurrent("RNN", RNN, layout=1), "E-NO-KERNEL", "layout"),
    (recurrent("RNN", RNN, activations=["Affine"]), "E-NO-KERNEL", "activations Affine"),
    (recurrent("LSTM", LSTM, activations=["HardSigmoid", "Tanh", "Tanh"]), "E-NO-KERNEL", "HardSigmoid"),
    (recurrent("LSTM", LSTM, activations=["Tanh"]), "E-INVALID", "1 activations, not 3"),
    (recurrent("GRU", (*GRU, ints(3, 2, 1, dtype="int32"))), "E-BROADCAST", "3 and 2 differ"),
    (recurrent("LSTM", (*LSTM, None, None, None, data(1, 15))), "E-NO-KERNEL", "has no kernel, its default has"),
    (recurrent("RNN", (data(3, 2), *RNN[1:])), "E-INVALID", "rank 2, not 3"),
    (recurrent("RNN", (RNN[0], data(1, 5), *RNN[2:])), "E-INVALID", "rank 2, not 3"),
    (recurrent("RNN", (RNN[0], data(1, 5, 3), *RNN[2:])), "E-BROADCAST", "3 and 4 differ"),
    (recurrent("RNN", (*RNN[:2], data(1, 5, 4), RNN[3])), "E-INVALID", "the weights are of 4 units"),
    (recurrent("RNN", (*RNN[:3], data(1, 5))), "E-BROADCAST", "5 and 10 differ"),
    (recurrent("RNN", (*RNN, None, data(1, 1, 5))), "E-BROADCAST", "1 and 2 differ"),
    (recurrent("RNN", (data(0, 2, 4), *RNN[1:])), "E-BROADCAST", "0 and 1 do not fit"),
    (Case("RNN", RNN, UNITS, 14, constants=(1,)), "E-SHAPE-UNKNOWN", "only known when the model runs"),
    (
        Case("RNN", tuple(x.astype(np.float64) for x in RNN if x is not None), UNITS, 14, constants=CONSTANT),
        "E-NO-KERNEL",
        "float64 has no kernel",
    ),
)


@pytest.mark.parametrize(
    ("case", "code", "reason"),
    (*REFUSED, *REFUSED_LAYERS, *cases_attention.REFUSED),
    ids=lambda c: c.id if isinstance(c, Case) else "",
)
def test_calls_that_rows_do_not_support_are_refused(case: Case, code: str, reason: str) -> None:
    found = define(ROWS, view(case))
    assert isinstance(found, Decision)
    assert (found.code, found.nodes) == (code, ("node",))
    assert reason in found.reason


def test_an_unknown_operator_names_its_neighbours() -> None:
    plain = view(Case("Relu", (data(2),)))
    for node, code, said, unlock in (
        (
            Node("Sigmoidal", ("x0",), ("y0",), {}, "node"),
            "E-NO-KERNEL",
            "ONNX has no operator Sigmoidal (similar: Sigmoid, HardSigmoid)",
            "correct its name",
        ),
        (Node("Zzz", ("x0",), ("y0",), {}, "node"), "E-NO-KERNEL", "no operator Zzz", "none: it is not known"),
        (
            Node("Relu", ("x0",), ("y0",), {}, "node", "com.example"),
            "E-OPAQUE",
            "belongs to another domain",
            "a function com.example::Relu in the model, of operators of ONNX",
        ),
    ):
        found = define(ROWS, replace(plain, node=node))
        assert isinstance(found, Decision) and (found.code, found.unlock) == (code, unlock)
        assert found.reason.endswith(said)


def test_every_operator_of_onnx_has_a_row_or_a_reason() -> None:
    """None is said to be like another one, as a misspelt operator is."""
    schemas = {s.name for s in defs.get_all_schemas_with_history() if s.domain == ""}
    served = set(ROWS.rows) | set(ABSENT) | BY_FUNCTION
    assert schemas - served == set() and set(ABSENT) - schemas == set() and not set(ABSENT) & set(ROWS.rows)
    for op, (code, reason, unlock) in ABSENT.items():
        node = Node(op, (), ("y",), {}, "node")
        found = define(ROWS, replace(view(Case("Relu", (data(2),))), node=node))
        assert found == Decision(code, ("node",), f"{op} {reason}", unlock)


def test_unknown_types_and_values_are_refused() -> None:
    add = view(Case("Add", (data(2), data(2))))
    found = define(ROWS, replace(add, types={**add.types, "x0": None}))
    assert isinstance(found, Decision) and found.code == "E-SHAPE-UNKNOWN" and "--input-shape" in found.unlock
    reshape = view(Case("Reshape", (data(2, 3), ints(6))))
    found = define(ROWS, replace(reshape, known={}, constants={}))
    assert isinstance(found, Decision) and "only known when the model runs" in found.reason


def test_every_row_serves_symbols() -> None:
    served = {case.op for case in CASES if not isinstance(ours_symbolic(case), Decision)}
    assert served == set(ROWS.rows)
