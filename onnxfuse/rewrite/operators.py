"""The scalar function of each elementwise operator, found by probing its row, so that laws apply to operators."""

from __future__ import annotations

from functools import lru_cache

from onnxfuse.ir.dtype import BOOL, F32, DType
from onnxfuse.ir.functions import FUNCTIONS, Function
from onnxfuse.ir.graph import Decision, Node, TensorType
from onnxfuse.ir.index import Index
from onnxfuse.ir.scalar import Apply, Load
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import View, define

_PROBE_OPSET = 20


@lru_cache(maxsize=1)
def functions() -> dict[str, Function]:
    """Operators whose row is one scalar function of all inputs in order."""
    found: dict[str, Function] = {}
    for op in ROWS.rows:
        for arity in (1, 2):
            for type_ in (F32, BOOL):
                name = _probed(op, arity, type_)
                if name is not None:
                    found.setdefault(op, FUNCTIONS[name])
    return found


def _probed(op: str, arity: int, dtype: DType) -> str | None:
    """The function that an operator applies to operands of equal shape in their order; None for others."""
    inputs = ("a", "b")[:arity]
    type_ = TensorType(dtype, (Index.of(2),))
    node = Node(op, inputs, ("o",))
    if ROWS.find(node, _PROBE_OPSET) is None:
        return None
    made = define(ROWS, View(node, dict.fromkeys(inputs, type_), {}, {}, _PROBE_OPSET))
    if isinstance(made, Decision) or len(made) != 1:
        return None
    value = made[0].value
    if not isinstance(value, Apply) or value.fn == "cast" or len(value.args) != arity:
        return None
    axes = tuple(map(Index.of, made[0].axes))  # an operand that is not elementwise would be read at another index
    direct = [a == Load(i, axes, a.dtype) for a, i in zip(value.args, inputs, strict=True)]
    return value.fn if all(direct) and FUNCTIONS[value.fn].arity == arity else None


@lru_cache(maxsize=1)
def operator_of() -> dict[str, str]:
    """The first operator that applies each scalar function."""
    found: dict[str, str] = {}
    for op, fn in functions().items():
        found.setdefault(fn.name, op)
    return found


def commutes(op: str) -> bool:
    """Whether an operator is commutative."""
    fn = functions().get(op)
    return fn is not None and "c" in fn.laws
