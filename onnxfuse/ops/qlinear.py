"""Rows of ONNX Runtime's operators between codes.

Each is an operator of numbers, on the numbers that codes stand for, and what it makes coded anew; the runtime takes
tables and integers for that where it can.
"""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.compose import inline
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Node, TensorType
from onnxfuse.ops import elementwise, movement, normalization, pooling
from onnxfuse.ops.own import MICROSOFT
from onnxfuse.ops.quantized import coded, dequantize, single
from onnxfuse.ops.spec import Define, Definition, Row, Speller, View

_CODES = 10  # the first opset that codes numbers
_FAMILIES = (elementwise, movement, normalization, pooling)


def between_codes(op: str, first: int, result: int, *, plain: int = 0) -> Define:
    """The definition of an operator of codes, given that of `op` for numbers.

    Inputs before `first` are the scale and zero point of the result, where `result` is 0, or `plain` operands that are
    no codes. From `first` on, up to `result`, or to the end, follow operands: codes, their scale, their zero point.
    The node's attributes are those of `op` in the `opset`, where one is named.
    """

    def define(view: View) -> tuple[Definition, ...]:
        if view.attr("channels_last", 0):
            raise view.refuse("E-NO-KERNEL", "channels are last already")
        end = result or len(view.node.inputs)
        numbers = [_decoded(view, i, f"{view.out()}%{i}") for i in range(first, end, 3)]
        node = replace(
            view.node,
            op=op,
            domain="",
            inputs=(*view.node.inputs[:plain], *(d.name for d in numbers)),
            outputs=(f"{view.out()}%numbers",),
        )
        types = {**view.types, **{d.name: TensorType(F32, d.shape) for d in numbers}}
        of_numbers = replace(view, node=node, types=types, opset=view.attr("opset", view.opset))
        row = next(r for f in _FAMILIES for r in f.ROWS if r.op == op and r.since <= of_numbers.opset <= r.until)
        producers = {d.name: (d.axes, d.value) for d in numbers}
        made = [replace(d, value=inline(d.value, producers)) for d in row.define(of_numbers)]
        last = made.pop()
        dtype = view.dtype(result + 1) if view.has(result + 1) else view.dtype(first)
        zero = single(view, result + 1) if view.has(result + 1) else None
        code = coded(last.value, single(view, result), zero, dtype)
        return (*made, Definition(view.out(), last.axes, code))

    return define


def _decoded(view: View, i: int, name: str) -> Definition:
    """The numbers that the codes of input i stand for, with the scale and the zero point behind it."""
    node = Node("DequantizeLinear", view.node.inputs[i : i + 3], (name,), {}, view.node.name)
    return dequantize(replace(view, node=node))[0]


def _spelled_concat(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Of numbers: in a body the runtime takes the result for one of the scale's type."""
    if put.opset < _CODES:
        raise view.refuse("E-OPSET", f"codes are not in opset {put.opset}", f"an opset of {_CODES} or newer")
    scale, zero, *operands = inputs
    numbers = [put.add("DequantizeLinear", *operands[i : i + 3]) for i in range(0, len(operands), 3)]
    return (put.add("QuantizeLinear", put.add("Concat", *numbers, axis=view.attr("axis", 0)), scale, zero),)


ROWS: tuple[Row, ...] = (
    Row(MICROSOFT + "QLinearAdd", between_codes("Add", 0, 6)),
    Row(MICROSOFT + "QLinearMul", between_codes("Mul", 0, 6)),
    Row(MICROSOFT + "QLinearSigmoid", between_codes("Sigmoid", 0, 3)),
    Row(MICROSOFT + "QLinearLeakyRelu", between_codes("LeakyRelu", 0, 3)),
    Row(MICROSOFT + "QLinearSoftmax", between_codes("Softmax", 0, 3)),
    Row(MICROSOFT + "QLinearAveragePool", between_codes("AveragePool", 0, 3)),
    Row(MICROSOFT + "QLinearGlobalAveragePool", between_codes("GlobalAveragePool", 0, 3)),
    Row(MICROSOFT + "QLinearWhere", between_codes("Where", 1, 7, plain=1)),
    Row(MICROSOFT + "QLinearConcat", between_codes("Concat", 2, 0), spell=_spelled_concat),
)
