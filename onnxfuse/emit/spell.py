"""Builds function bodies: layouts, extents and constants as standard operators of one opset, over the body's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import F64, I64, DType
from onnxfuse.ir.extents import follows, solved
from onnxfuse.ir.graph import LIMIT, Attribute, Constant, Decision, Node, Refused
from onnxfuse.ir.index import ONE, Atom, Common, Div, Index, Least, Mod, Symbol, nonnegative
from onnxfuse.ir.layout import Layout, PadHigh, Permute, Reshape, Shape, Take


def refused(reason: str, *nodes: str, unlock: str = "") -> Refused:
    """An exception, to be raised, for a body that has no form in the opset (E-OPSET)."""
    return Refused(Decision("E-OPSET", nodes, reason, unlock))


class Spelling:
    """Builder of a body's nodes. Values are named t0, t1, ...; extents are int64 vectors of one element.

    `inputs` are the body's inputs with their storage shapes, which symbols are read from.
    """

    def __init__(self, opset: int, inputs: Mapping[str, Shape]) -> None:
        self.opset = opset
        self.nodes: list[Node] = []
        self._count = 0
        self._made: dict[object, str] = {}
        self._dims = _read_from(inputs)
        self._symbols = solved(self._dims)

    def name(self) -> str:
        """A fresh value name."""
        self._count += 1
        return f"t{self._count - 1}"

    def add(self, op: str, *inputs: str, **attrs: Attribute) -> str:
        """A node of one output, by the key of its operator; equal nodes are shared (common subexpressions)."""
        key = (op, inputs, tuple(sorted((k, repr(v)) for k, v in attrs.items())))
        if key not in self._made:
            self._made[key] = self.name()
            domain, _, name = op.rpartition("::")
            self.nodes.append(Node(name, inputs, (self._made[key],), attrs, domain=domain))
        return self._made[key]

    def constant(self, constant: Constant) -> str:
        """A constant of at most LIMIT bytes."""
        if constant.bytes > LIMIT:
            raise refused(f"a constant of {constant.bytes} bytes is too large for a function body")
        array = np.asarray(constant.load(), order="C")  # ascontiguousarray would make a scalar a vector
        key = ("Constant", constant.dtype, array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = self._spelled(array, constant.dtype)
        return self._made[key]

    def _spelled(self, array: np.ndarray[Any, Any], dtype: DType) -> str:
        if self.opset < 9 and not dtype.floating:  # Constant holds floating numbers only
            if np.abs(array.astype(object)).max(initial=0) >= 1 << 53:
                raise refused("an integer that float64 cannot hold", unlock="an opset of 9 or newer")
            return self.add("Cast", self.constant(Constant.of(array.astype(np.float64), F64)), to=dtype.onnx)
        made = self.name()
        self.nodes.append(Node("Constant", (), (made,), {"value": Constant.of(array, dtype)}))
        return made

    def ints(self, values: tuple[int, ...] | int) -> str:
        """An int64 vector, or an int64 scalar."""
        return self.constant(Constant.of(np.asarray(values, np.int64), I64))

    # Extents ----------------------------------------------------------------------------------------------------------

    def extent(self, e: Index) -> str:
        """The value of e as a vector of one element. Raises Refused where the inputs' shapes do not determine it."""
        if e.constant is not None:
            return self.ints((e.constant,))
        if e in self._dims:
            source, axis = self._dims[e]
            return self.add("Gather", self.add("Shape", source), self.ints((axis,)), axis=0)
        total = ""
        for mono, c in e.terms:
            parts = [self._atom(a) for a in mono]
            if c != 1 or not parts:
                parts.append(self.ints((c,)))
            term = parts[0]
            for part in parts[1:]:
                term = self.add("Mul", term, part)
            total = self.add("Add", total, term) if total else term
        return total

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return self._symbol(atom)
        if isinstance(atom, Div):
            return self._floor_div(atom.num, atom.den)
        if isinstance(atom, Mod):
            if self.opset >= 10:
                return self.add("Mod", self.extent(atom.num), self.extent(atom.den))
            whole = self.add("Mul", self._floor_div(atom.num, atom.den), self.extent(atom.den))
            return self.add("Sub", self.extent(atom.num), whole)
        if isinstance(atom, (Least, Common)):
            one, two = self.extent(atom.one), self.extent(atom.two)
            first = self.add("Equal", two, self.ints((1,))) if isinstance(atom, Common) else self.add("Less", one, two)
            return self.add("Where", first, one, two)
        raise refused(f"{atom!r} is not known from the shapes of the group's inputs")

    def _symbol(self, symbol: Symbol) -> str:
        if symbol in self._symbols:
            dim, rest, factor = self._symbols[symbol]
            value = self.extent(dim)
            if rest.terms:
                value = self.add("Sub", value, self.extent(rest))
            return value if factor == ONE else self.add("Div", value, self.extent(factor))
        made = follows(symbol, self._symbols.keys())
        if made is None:
            raise refused(f"no input of the group has {symbol.name} as an extent")
        return self.extent(made)

    def _floor_div(self, num: Index, den: Index) -> str:
        above, below = self.extent(num), self.extent(den)
        if not nonnegative(num):  # Div truncates, `//` rounds down
            if self.opset < 10:
                raise refused(f"({num!r}) // ({den!r}) needs Mod", unlock="an opset of 10 or newer")
            above = self.add("Sub", above, self.add("Mod", above, below))
        return self.add("Div", above, below)

    def vector(self, entries: Shape, dtype: DType = I64, *, scalar: bool = False) -> str:
        """Integers as a tensor: a Constant where all are static, else a Concat of pieces; `scalar`: of rank 0."""
        plain = [e.constant for e in entries]
        if all(v is not None for v in plain):
            array = np.asarray(plain, dtype.numpy)
            return self.constant(Constant.of(array.reshape(()) if scalar else array, dtype))
        pieces: list[str] = []
        run: list[int] = []
        for e, value in zip(entries, plain, strict=True):
            if value is not None:
                run.append(value)
                continue
            if run:
                pieces.append(self.ints(tuple(run)))
                run = []
            pieces.append(self.extent(e))
        if run:
            pieces.append(self.ints(tuple(run)))
        made = pieces[0] if len(pieces) == 1 else self.add("Concat", *pieces, axis=0)
        if scalar:
            made = self.add("Gather", made, self.ints(0), axis=0)
        return made if dtype == I64 else self.add("Cast", made, to=dtype.onnx)

    # Movement ---------------------------------------------------------------------------------------------------------

    def reshape(self, x: str, have: Shape, want: Shape) -> str:
        """x reshaped from `have` to `want`; correct for extents of zero too from opset 14 (allowzero) on."""
        if have == want:
            return x
        shape, attrs = self.reshape_target(have, want)
        return self.add("Reshape", x, shape, **attrs)

    def reshape_target(self, have: Shape, want: Shape) -> tuple[str, dict[str, Attribute]]:
        """The shape input and the attributes of a Reshape from `have` to `want`."""
        copied = tuple(
            Index.of(0) if e.constant in (None, 0) and have[i : i + 1] == (e,) else e for i, e in enumerate(want)
        )
        # 0 means "copy the input's extent"; -1 infers one extent, unless the product of the others may be zero.
        open_ = [i for i, e in enumerate(copied) if e.constant is None]
        zero_stays = all(e != 0 or have[i : i + 1] == (e,) for i, e in enumerate(want))
        if zero_stays and not open_:
            return self.vector(copied), {}
        if len(open_) == 1 and all(e.constant for i, e in enumerate(copied) if i not in open_):
            return self.vector(tuple(Index.of(-1) if i in open_ else e for i, e in enumerate(copied))), {}
        if self.opset >= 14:
            return self.vector(want), {"allowzero": 1}
        if not zero_stays:
            raise refused(f"an empty tensor {have!r} reshaped to {want!r}", unlock="an opset of 14 or newer")
        return self.vector(copied), {}

    def undo(self, x: str, layout: Layout, logical: Shape) -> str:
        """The logical tensor of x, which is in storage order."""
        have = layout.shape(logical)
        for step, after in layout.undone(logical):
            if isinstance(step, Permute):
                x = self.add("Transpose", x, perm=step.perm)
            elif isinstance(step, Reshape):
                x = self.reshape(x, have, after)
            elif isinstance(step, PadHigh):
                x = self._cut(x, step.extra)
            elif isinstance(step, Take):
                x = self.add("Gather", x, self.ints(step.order), axis=0)
            have = after
        return x

    def apply(self, x: str, layout: Layout, logical: Shape, dtype: DType) -> str:
        """The logical tensor x in storage order."""
        have = logical
        for step in layout.steps:
            if isinstance(step, Permute):
                x = self.add("Transpose", x, perm=step.perm)
            elif isinstance(step, Reshape):
                x = self.reshape(x, have, step.shape)
            elif isinstance(step, PadHigh):
                x = self._pad(x, step.extra, dtype)
            elif isinstance(step, Take):
                x = self.add("Gather", x, self.ints(step.order), axis=0)
            else:
                raise refused("sums of codes are packed when a model is written, not when it runs")
            have = Layout((step,)).shape(have)
        return x

    def _cut(self, x: str, extra: tuple[int, ...]) -> str:
        axes = tuple(i for i, e in enumerate(extra) if e)
        starts, ends = (0,) * len(axes), tuple(-extra[i] for i in axes)  # counted from the end: no shape is needed
        if self.opset < 10:
            return self.add("Slice", x, axes=axes, starts=starts, ends=ends)
        return self.add("Slice", x, self.ints(starts), self.ints(ends), self.ints(axes))

    def _pad(self, x: str, extra: tuple[int, ...], dtype: DType) -> str:
        pads = (*(0,) * len(extra), *extra)
        if self.opset < 11:
            if not dtype.floating:
                raise refused(f"Pad of {dtype.name}", unlock="an opset of 11 or newer")
            return self.add("Pad", x, pads=pads)
        return self.add("Pad", x, self.ints(pads))


Dims = dict[Index, tuple[str, int]]


def _read_from(inputs: Mapping[str, Shape]) -> Dims:
    """The first (input, axis) that has each extent."""
    dims: Dims = {}
    for source, shape in inputs.items():
        for axis, e in enumerate(shape):
            if e.constant is None:
                dims.setdefault(e, (source, axis))
    return dims


def stored(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """A contiguous array of the element type's bits; bfloat16, which NumPy lacks, as uint16."""
    array = np.asarray(array, order="C")
    if dtype.name != "bfloat16":
        return array.astype(dtype.numpy, copy=False)
    bits = array.astype(np.float32, copy=False).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)) >> 16  # to nearest, ties to even
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)
