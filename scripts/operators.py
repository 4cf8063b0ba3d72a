"""Writes docs/operators.md: every operator with a row, and what an example of it means to the compiler."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx.defs import get_all_schemas_with_history

from onnxfuse.ir.dtype import BOOL, F32, I64, U8, U32, DType
from onnxfuse.ir.graph import Constant, Decision, Graph, Node, TensorType
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.ops import contrib, reduction
from onnxfuse.ops.classify import NodeFacts, node_facts
from onnxfuse.ops.rows import FAMILIES, ROWS
from onnxfuse.ops.spec import Row, define, view_of

OUT = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
LONGEST = 150  # characters of a definition that is shown
NEWEST = 24
N, C = Symbol("N"), Symbol("C")
MATRIX, IMAGE, ROW, IDS = (N, C), (N, 8, 32, 32), (C,), (N, 16)


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs: shapes, known integers (lists), constants (arrays), a number of a type, absent (None); attributes; types.

    `others` is that of all inputs but the first, where it differs.
    """

    inputs: tuple[Any, ...] = (MATRIX,)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtype: DType = F32
    outputs: int = 1
    others: DType | None = None


def weights(*shape: int) -> np.ndarray[Any, Any]:
    """Constant weights of a recurrent layer of one direction."""
    return np.ones((1, *shape), np.float32)


M = contrib.MICROSOFT
CODED = (F32, U8)  # a scale and a zero point
POOL = {"kernel_shape": (2, 2), "strides": (2, 2)}
EXAMPLES: dict[str, Example] = {
    **{op: Example((MATRIX, ROW)) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean", "Pow", "PRelu")},
    **{op: Example((MATRIX, ROW)) for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")},
    **{op: Example((MATRIX, ROW), dtype=BOOL) for op in ("And", "Or", "Xor")},
    **{op: Example((MATRIX, ROW), dtype=I64) for op in ("Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitwiseNot": Example(dtype=I64),
    "BitShift": Example((MATRIX, ROW), {"direction": "LEFT"}, dtype=U32),
    "CastLike": Example((MATRIX, [1])),
    "Not": Example(dtype=BOOL),
    "Where": Example((MATRIX, MATRIX, ROW), dtype=BOOL, others=F32),
    "Cast": Example(attrs={"to": I64.onnx}),
    "Clip": Example((MATRIX, (), ())),
    "BatchNormalization": Example((IMAGE, (8,), (8,), (8,), (8,))),
    "Reshape": Example(((N, C, 4, 16), [0, 0, -1])),
    "Squeeze": Example(((N, 1, C), [1])),
    "Unsqueeze": Example((MATRIX, [1])),
    "Flatten": Example(((N, 4, 16),)),
    "Expand": Example(((N, 1), [1, 8])),
    "Slice": Example(((N, 64), [4], [60], [1], [2])),
    "Split": Example(((N, 64),), {"axis": 1}, outputs=2),
    "Concat": Example((MATRIX, MATRIX), {"axis": 1}),
    "Pad": Example((MATRIX, [0, 1, 0, 1])),
    "Gather": Example((MATRIX, ROW)),
    "GatherElements": Example((MATRIX, MATRIX)),
    "GatherND": Example((MATRIX, (C, 1))),
    "ScatterElements": Example(((3, C), np.array([[2], [0]]), (2, 1))),
    "ScatterND": Example(((3, C), np.array([[2], [0]]), (2, C))),
    "CenterCropPad": Example(((N, 64), [48]), {"axes": (1,)}),
    "ReverseSequence": Example(((C, N), (N,))),
    "OneHot": Example((ROW, [8], (2,))),
    "Resize": Example((IMAGE, None, None, [N, 8, 64, 64]), {"mode": "linear"}),
    "Upsample": Example((IMAGE, np.array([1, 1, 2, 2], np.float32))),
    "RoiAlign": Example((IMAGE, (6, 4), np.zeros(6, np.int64)), {"sampling_ratio": 2}),
    "GridSample": Example((IMAGE, (N, 8, 8, 2)), {"mode": "nearest", "padding_mode": "border"}),
    "LSTM": Example(((C, N, 64), weights(128, 64), weights(128, 32), weights(256)), {"hidden_size": 32}),
    "GRU": Example(((C, N, 64), weights(96, 64), weights(96, 32), weights(192)), {"hidden_size": 32}),
    "RNN": Example(((C, N, 64), weights(32, 64), weights(32, 32), weights(64)), {"hidden_size": 32}),
    "CumSum": Example((MATRIX, [1])),
    "CumProd": Example((MATRIX, [1])),
    "LpPool": Example((IMAGE,), POOL),
    "GlobalLpPool": Example((IMAGE,)),
    "ConvTranspose": Example((IMAGE, (8, 16, 4, 4)), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "Col2Im": Example(((N, 8 * 4, 15 * 15), [16, 16], [2, 2])),
    "Einsum": Example(((N, 4, C), (N, 8, C)), {"equation": "bic,bjc->bij"}),
    "Range": Example(([0], [64], [2])),
    "ConstantOfShape": Example(([4, 8],)),
    "Tile": Example((MATRIX, [1, 2])),
    "DepthToSpace": Example((IMAGE,), {"blocksize": 2}),
    "SpaceToDepth": Example((IMAGE,), {"blocksize": 2}),
    **{r.op: Example((MATRIX, [1])) for r in reduction.ROWS if r.op.startswith("Reduce")},
    "LayerNormalization": Example((MATRIX, ROW, ROW)),
    "RMSNormalization": Example((MATRIX, ROW)),
    "SimplifiedLayerNormalization": Example((MATRIX, ROW)),
    "InstanceNormalization": Example((IMAGE, (8,), (8,))),
    "GroupNormalization": Example((IMAGE, (8,), (8,)), {"num_groups": 2}),
    "MeanVarianceNormalization": Example((IMAGE,)),
    "LRN": Example((IMAGE,), {"size": 5}),
    "MaxPool": Example((IMAGE,), POOL),
    "AveragePool": Example((IMAGE,), POOL),
    "GlobalAveragePool": Example((IMAGE,)),
    "GlobalMaxPool": Example((IMAGE,)),
    "MatMul": Example((MATRIX, (C, 64))),
    "ai.onnx.ml::ArrayFeatureExtractor": Example((MATRIX, (8,))),
    "com.microsoft::BiasGelu": Example((MATRIX, ROW)),
    "com.microsoft::FusedMatMul": Example((MATRIX, (64, C)), {"transB": 1}),
    "com.microsoft::FusedGemm": Example((MATRIX, (C, 64), (64,)), {"activation": "Relu"}),
    "com.microsoft::FusedConv": Example((IMAGE, (16, 8, 3, 3)), {"activation": "Relu"}),
    "com.microsoft::SkipLayerNormalization": Example((MATRIX, MATRIX, ROW, ROW)),
    "com.microsoft::SkipSimplifiedLayerNormalization": Example((MATRIX, MATRIX, ROW)),
    "com.microsoft::EmbedLayerNormalization": Example(
        (IDS, IDS, (1000, 64), (128, 64), (2, 64), (64,), (64,)), dtype=I64, outputs=2
    ),
    "com.microsoft::Attention": Example(((N, C, 64), (64, 192), (192,)), {"num_heads": 4}),
    "com.microsoft::MultiHeadAttention": Example(((N, C, 64),) * 3, {"num_heads": 4}),
    **{m + "QuantizeLinear": Example((MATRIX, ())) for m in ("", M)},
    **{m + "DequantizeLinear": Example((MATRIX, ()), dtype=U8, others=F32) for m in ("", M)},
    "ImageScaler": Example(((N, 3, 32, 32),), {"scale": 0.5, "bias": (1.0, 2.0, 3.0)}),
    "Crop": Example((IMAGE,), {"border": (1, 2, 3, 4)}),
    "Gemm": Example((MATRIX, (C, 64), (64,))),
    "MatMulInteger": Example((MATRIX, (C, 64)), dtype=U8),
    M + "MatMulIntegerToFloat": Example((MATRIX, (C, 64), F32, F32), dtype=U8),
    "ConvInteger": Example((IMAGE, (16, 8, 3, 3)), {"pads": (1, 1, 1, 1)}, dtype=U8),
    "QLinearMatMul": Example((MATRIX, *CODED, (C, 64), *CODED, *CODED), dtype=U8),
    "QLinearConv": Example((IMAGE, *CODED, (16, 8, 3, 3), *CODED, *CODED), {"pads": (1, 1, 1, 1)}, dtype=U8),
    M + "QGemm": Example((MATRIX, *CODED, (C, 64), *CODED, None, *CODED), dtype=U8),
    **{M + f"QLinear{op}": Example((MATRIX, *CODED, ROW, *CODED, *CODED), dtype=U8) for op in ("Add", "Mul")},
    **{M + f"QLinear{op}": Example((MATRIX, *CODED, *CODED), dtype=U8) for op in ("Sigmoid", "LeakyRelu", "Softmax")},
    M + "QLinearAveragePool": Example((IMAGE, *CODED, *CODED), POOL, dtype=U8),
    M + "QLinearGlobalAveragePool": Example((IMAGE, *CODED, *CODED), dtype=U8),
    M + "QLinearWhere": Example((MATRIX, MATRIX, *CODED, MATRIX, *CODED, *CODED), dtype=BOOL, others=U8),
    M + "QLinearConcat": Example((*CODED, MATRIX, *CODED, MATRIX, *CODED), dtype=U8),
    "Conv": Example((IMAGE, (16, 8, 3, 3)), {"pads": (1, 1, 1, 1)}),
}
INDEXED = {"Gather", "GatherElements", "GatherND", "ReverseSequence", "ai.onnx.ml::ArrayFeatureExtractor"}
INTRODUCED: dict[str, int] = {}
for schema in get_all_schemas_with_history():
    if schema.domain == "":
        INTRODUCED[schema.name] = min(schema.since_version, INTRODUCED.get(schema.name, schema.since_version))

HEAD = """\
# Operators

Made by `scripts/operators.py` from the rows in `onnxfuse/ops`; a test keeps it current. Everything that the compiler
knows about an operator follows from the definition in its row: shapes, mapping types, loops, work and meaning. An
operator without a row is left to ONNX Runtime.

The mapping types are those of an example with symbolic extents `N` and `C`, one per input; `-` marks an input whose
elements are not read (its values only shape the result).
"""


def example_graph(op: str, opset: int) -> Graph:
    """The example of an operator (by its key) as a graph of one node."""
    e = EXAMPLES.get(op, Example())
    types: dict[str, TensorType | None] = {}
    known: dict[str, tuple[Index, ...]] = {}
    constants: dict[str, Constant] = {}
    names = []
    for k, given in enumerate(e.inputs):
        name = "abcdefghi"[k] if given is not None else ""
        names.append(name)
        if given is None:
            continue
        if isinstance(given, np.ndarray):
            dtype = I64 if given.dtype == np.int64 else F32
            constants[name] = Constant.of(given, dtype)
            types[name] = TensorType(dtype, tuple(map(Index.of, given.shape)))
            continue
        if isinstance(given, list):
            known[name] = tuple(map(Index.of, given))
            types[name] = TensorType(I64, () if op == "Range" else (Index.of(len(given)),))
            continue
        if isinstance(given, DType):
            types[name] = TensorType(given, ())
            continue
        dtype = I64 if op in INDEXED and k == 1 else e.dtype if k == 0 else e.others or e.dtype
        types[name] = TensorType(dtype, tuple(map(Index.of, given)))
    outputs = ("y", "z")[: e.outputs]
    domain, _, plain = op.rpartition("::")
    node = Node(plain, tuple(names), outputs, e.attrs, op, domain)
    return Graph((node,), tuple(names), outputs, types, constants, known, opset)


def facts_of(op: str, opset: int) -> NodeFacts:
    """The facts of an operator's example."""
    graph = example_graph(op, opset)
    node = graph.nodes[0]
    found = define(ROWS, view_of(graph, node))
    if isinstance(found, Decision):
        raise SystemExit(f"operators: the example of {op} is refused: {found.reason}")
    return node_facts(graph, node, found)


def line(row: Row) -> str:
    """One line of the table."""
    found = facts_of(row.op, min(row.until, NEWEST))
    edges = ", ".join("-" if t is None else t.label for t in found.edges)
    shown = re.sub(r"\b([yz]):(\w+)", r"\1\2", "; ".join(map(repr, found.definitions))).replace(" - 1*", " - ")
    if len(shown) > LONGEST:
        shown = f"{len(found.definitions)} definitions" if len(found.definitions) > 1 else shown[:LONGEST] + " ..."
    own = INTRODUCED.get(row.op, row.until + 1) > row.until
    first = max(row.since, 1 if own else INTRODUCED[row.op])
    opsets = f"{first}" if row.until > NEWEST else f"{first} to {row.until}"
    if own:
        opsets = "ONNX Runtime's" if row.until > NEWEST else f"ONNX Runtime's to {row.until}"
    return f"| {row.op} | {opsets} | {found.kind} | {edges} | `{shown}` |"


def document() -> str:
    """The whole page."""
    parts = [HEAD]
    for family in FAMILIES:
        name = family.__name__.rsplit(".", 1)[-1].replace("_", "-").capitalize()
        parts.append(f"## {name}\n\n{(family.__doc__ or '').splitlines()[0]}\n")
        parts.append(
            "| Operator | From opset | Kind | Mapping types | Definition of the example |\n|---|---|---|---|---|"
        )
        parts.append("\n".join(line(row) for row in sorted(family.ROWS, key=lambda r: r.op)) + "\n")
    return "\n".join(parts)


def main() -> None:
    OUT.write_text(document(), encoding="utf-8")
    print(f"wrote {OUT.relative_to(OUT.parents[1])}", file=sys.stderr)


if __name__ == "__main__":
    main()
