"""Element types: one row each, with the ONNX number, the NumPy type and the C++ spelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `kind` is f (floating), i (signed), u (unsigned) or b (bool); `bits` its storage."""

    name: str
    onnx: int
    kind: str
    bits: int
    c: str

    def __repr__(self) -> str:
        return self.name

    @property
    def bytes(self) -> int:
        """Storage of one element."""
        return self.bits // 8

    @property
    def floating(self) -> bool:
        """Whether it holds real numbers."""
        return self.kind == "f"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of the same values; bfloat16 is computed with as float32."""
        return np.dtype("float32" if self.name == "bfloat16" else self.name)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next number (0 for integers)."""
        if not self.floating:
            return 0.0
        return 2.0**-7 if self.name == "bfloat16" else float(np.finfo(self.numpy).eps)

    @property
    def accumulator(self) -> DType:
        """The accumulator type of sums: 16-bit floats are summed in float32."""
        return F32 if self.floating and self.bits < 32 else self


F32 = DType("float32", 1, "f", 32, "float")
U8 = DType("uint8", 2, "u", 8, "uint8_t")
I8 = DType("int8", 3, "i", 8, "int8_t")
U16 = DType("uint16", 4, "u", 16, "uint16_t")
I16 = DType("int16", 5, "i", 16, "int16_t")
I32 = DType("int32", 6, "i", 32, "int32_t")
I64 = DType("int64", 7, "i", 64, "int64_t")
BOOL = DType("bool", 9, "b", 8, "bool_t")
F16 = DType("float16", 10, "f", 16, "half_t")
F64 = DType("float64", 11, "f", 64, "double")
U32 = DType("uint32", 12, "u", 32, "uint32_t")
U64 = DType("uint64", 13, "u", 64, "uint64_t")
BF16 = DType("bfloat16", 16, "f", 16, "bf16_t")

DTYPES: dict[int, DType] = {t.onnx: t for t in (F32, U8, I8, U16, I16, I32, I64, BOOL, F16, F64, U32, U64, BF16)}


def dtype_of(number: int) -> DType | None:
    """The row of an ONNX element type number, None for types without kernels (strings, 4-bit, fp8)."""
    return DTYPES.get(number)
