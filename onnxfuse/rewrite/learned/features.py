"""Operators of ai.onnx.ml that prepare features, and linear models, as arithmetic, which can become kernels.

Models of trees and of support vectors stay as they are: `load/fallback_types.py` tells their types. Results are those
of the runtime: its norm MAX is the largest element, not the largest absolute value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from onnxfuse.ir.dtype import F32, I32, I64
from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph
from onnxfuse.rewrite.steps import StructuralRule

_DOMAIN = "ai.onnx.ml"
_SCORES = {"NONE": "", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}  # what is done with the scores of a classifier


def as_arithmetic(work: MutableGraph, at: int, trust: bool) -> Draft:
    """An operator that prepares features, or a linear model, as operators of the default domain."""
    node, draft = work.nodes[at], Draft(work, at)
    if len(work.type(node.inputs[0]).shape) != 2:
        raise Miss("the features are not a matrix")
    for old, new in zip(node.outputs, _OPERATORS[node.op](draft, node), strict=False):
        if old:
            draft.replace(old, new, typed=False)
    return draft


def _scaled(draft: Draft, node: Node) -> tuple[str, ...]:
    centred = draft.node("Sub", (_floats(draft, node), _row(draft, node, "offset")))
    return (draft.node("Mul", (centred, _row(draft, node, "scale"))),)


def _imputed(draft: Draft, node: Node) -> tuple[str, ...]:
    x, missing = _float(draft, node), _number(draft, node, "replaced_value_float", 0.0)
    values = _row(draft, node, "imputed_value_floats")
    if math.isnan(missing):
        return (draft.node("Where", (draft.node("IsNaN", (x,)), values, x)),)
    return (draft.node("Where", (draft.node("Equal", (x, draft.number(missing, F32))), values, x)),)


def _binarized(draft: Draft, node: Node) -> tuple[str, ...]:
    threshold = draft.number(_number(draft, node, "threshold", 0.0), F32)
    above = draft.node("Greater", (_float(draft, node), threshold))
    return (draft.node("Cast", (above,), {"to": F32.onnx}),)


def _normalized(draft: Draft, node: Node) -> tuple[str, ...]:
    """Rows of zeros, and those whose norm is zero, stay as they are."""
    x, norm = _floats(draft, node), draft.work.view(node).attr("norm", "MAX")
    if norm == "MAX":
        whole = _of_rows(draft, "ReduceMax", x)
    elif norm == "L1":
        whole = _of_rows(draft, "ReduceL1", x)
    elif norm == "L2":
        whole = draft.node("Sqrt", (_of_rows(draft, "ReduceSumSquare", x),))
    else:
        raise Miss(f"the norm {norm} is not known")
    none = draft.node("Equal", (whole, draft.number(0.0, F32)))
    return (draft.node("Where", (none, x, draft.node("Div", (x, whole)))),)


def _regression(draft: Draft, node: Node) -> tuple[str, ...]:
    if draft.work.view(node).attr("post_transform", "NONE") != "NONE":
        raise Miss("the results of the regression are transformed")
    return (_product(draft, node, int(draft.work.view(node).attr("targets", 1)), _float(draft, node)),)


def _classification(draft: Draft, node: Node) -> tuple[str, ...]:
    view = draft.work.view(node)
    labels, then = view.attr("classlabels_ints", ()), view.attr("post_transform", "NONE")
    if len(labels) < 2 or len(labels) != len(view.attr("intercepts", ())) or then not in _SCORES:
        raise Miss(
            "the labels are not integers, one for each column of scores, or the scores are transformed otherwise"
        )
    scores = _product(draft, node, len(labels), _floats(draft, node))
    best = draft.node("ArgMax", (scores,), {"axis": 1, "keepdims": 0})
    found = draft.node("Gather", (draft.array(np.asarray(labels), I64, "labels", node.op), best))
    op = _SCORES[then]
    return found, draft.node(op, (scores,), {"axis": 1} if op == "Softmax" else {}) if op else scores


def _product(draft: Draft, node: Node, columns: int, x: str) -> str:
    """The product with the coefficients, plus the intercepts."""
    view, width = draft.work.view(node), _width(draft, node)
    weights = np.asarray(view.attr("coefficients", ()), np.float32)
    added = np.asarray(view.attr("intercepts", (0.0,) * columns), np.float32)
    if weights.size != columns * width or added.size != columns:
        raise Miss("there is another number of coefficients or intercepts")
    rows = draft.array(weights.reshape(columns, width).T, F32, "coefficients", node.op)
    return draft.node("Gemm", (x, rows, draft.array(added, F32, "intercepts", node.op)))


def _of_rows(draft: Draft, op: str, x: str) -> str:
    """A reduction of each row, but a sum; its axes are an input from version 18 on."""
    if draft.work.opset >= 18:
        return draft.node(op, (x, draft.ints((1,))), {"keepdims": 1})
    return draft.node(op, (x,), {"axes": (1,), "keepdims": 1})


def _float(draft: Draft, node: Node) -> str:
    """The features, where they are float32."""
    if draft.type(node.inputs[0]).dtype != F32:
        raise Miss("the features are not float32")
    return node.inputs[0]


def _floats(draft: Draft, node: Node) -> str:
    """The features as float32; of float64 the runtime rounds results only."""
    if draft.type(node.inputs[0]).dtype not in (I32, I64):
        return _float(draft, node)
    return draft.node("Cast", node.inputs[:1], {"to": F32.onnx})


def _width(draft: Draft, node: Node) -> int:
    width = draft.type(node.inputs[0]).shape[1].constant
    if width is None:
        raise Miss("the number of features is not known")
    return width


def _row(draft: Draft, node: Node, name: str) -> str:
    """An attribute with one number, or one for each feature."""
    values = np.asarray(draft.work.view(node).attr(name, ()), np.float32)
    if values.size not in (1, _width(draft, node)):
        raise Miss(f"{name} has another number of values than there are features")
    return draft.array(values, F32, name, node.op)


def _number(draft: Draft, node: Node, name: str, default: float) -> float:
    return float(np.float32(draft.work.view(node).attr(name, default)))


_OPERATORS: dict[str, Callable[[Draft, Node], tuple[str, ...]]] = {
    "Binarizer": _binarized,
    "Imputer": _imputed,
    "LinearClassifier": _classification,
    "LinearRegressor": _regression,
    "Normalizer": _normalized,
    "Scaler": _scaled,
}
STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "features-as-arithmetic",
        "Scaler(x) => (x - offset) * scale, and likewise of ai.onnx.ml what prepares features, and linear models",
        "reassociates",
        as_arithmetic,
        frozenset(f"{_DOMAIN}::{op}" for op in _OPERATORS),
        ("features are a matrix of known width", "labels of classes are integers"),
    ),
)
