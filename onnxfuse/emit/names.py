"""Names of fused operators: readable, short, and unique for each kernel, body and signature."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import groupby

from onnxfuse.emit.body import Body
from onnxfuse.ir.dtype import BF16, F32

LENGTH = 40  # characters before the digest
_DIGITS = 8
# Operators that say little about a kernel: omitted from its name unless there are no others.
_PLUMBING = frozenset(
    {"Cast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)


def identity(kernel_text: str, body: Body) -> str:
    """The operator type of a kernel with this text and body, a content address: equal kernels share one."""
    digest = hashlib.sha256(f"{kernel_text}\0{body.text}".encode()).hexdigest()[:_DIGITS]
    return f"{readable(body)}_{digest}"


def readable(body: Body) -> str:
    """The operators of a group, and its element type when that is not float32, in at most LENGTH characters."""
    telling = [op for op in body.ops if op not in _PLUMBING] or list(body.ops)
    words = [op for op, _ in groupby(telling)]
    dtype = body.dtypes[len(body.inputs)]
    tag = "" if dtype == F32 else f"_{'bf' if dtype == BF16 else dtype.kind}{dtype.bits}"
    return _fitting(words, LENGTH - len(tag)) + tag


def _fitting(words: list[str], room: int) -> str:
    text = "_".join(words)
    keep = len(words)
    while len(text) > room and keep > 1:
        keep -= 1
        text = f"{'_'.join(words[:keep])}_x{len(words) - keep}"
    return text[:room]


def unique(wanted: str, taken: set[str]) -> str:
    """`wanted`, with a number where it is in use; the result is added to `taken`."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


def domain(texts: Iterable[str]) -> str:
    """The domain of a build, with a digest of all its sources and compiler settings."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return f"onnxfuse.{digest[:12]}"
