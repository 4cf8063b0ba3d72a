"""Declared types, and the sizes that the user gives with `--dim batch=8` and `--input-shape x:1,3,224,224`."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from onnxfuse.config import Options
from onnxfuse.errors import UsageError, counted
from onnxfuse.ir.dtype import dtype_of
from onnxfuse.ir.extents import anonymous, expanded, named
from onnxfuse.ir.graph import TensorType
from onnxfuse.ir.index import Index, Symbol, floor_div, symbols_of
from onnxfuse.ir.indexing import transform

MOST = (1 << 31) - 1  # largest extent that users can give, so that products of a few fit 64 bits
_UNNAMED = {"", "?", "-1", "None", "none", "null", "unknown"}  # names that exporters give to unrelated dimensions
_AT = "@"  # between the name of a dimension and its place, where others have the name too
Dim = int | str | None


@dataclass(slots=True)
class Names:
    """The values of named dimensions: `values` and `renamed` from the user, `same` inferred by propagation."""

    values: dict[str, int] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)  # of inputs for which the model declares none
    same: dict[Symbol, Index] = field(default_factory=dict)
    firsts: dict[str, str] = field(default_factory=dict)  # of each name, the input dimension that has it first
    apart: dict[Symbol, str] = field(default_factory=dict)  # symbols of the other dimensions that have it, and the name
    literal: bool = False  # whether names that are expressions are names as any other, since they contradict each other
    computed: bool = False  # whether one was read as an expression

    def symbol(self, name: str) -> Index:
        """The extent of a named dimension."""
        name = self.renamed.get(name, name)
        if name in self.values:
            return Index.of(self.values[name])
        found = self.same.get(Symbol(name))
        if found is None:
            return Index.of(Symbol(name))
        return transform(found, lambda a: self.symbol(a.name) if isinstance(a, Symbol) else None)

    def extent(self, dim: Dim, fresh: str) -> Index:
        """A declared dimension as an extent; `fresh` is the name of an unnamed one."""
        if isinstance(dim, int):
            return Index.of(dim)
        if dim is None:
            return self.symbol(fresh)
        return self._expression(dim) or self.symbol(dim)

    def of_input(self, dim: Dim, value: str, axis: int) -> Index:
        """The extent of a dimension of an input; equal names are equal extents once `unite` said so."""
        place = f"{value}_{axis}"
        if not isinstance(dim, str) or self._expression(dim) is not None or self.symbol(dim).constant is not None:
            return self.extent(dim, anonymous(value, axis))
        name = self.renamed.get(dim, dim)
        if self.firsts.setdefault(name, place) == place:
            return self.symbol(name)
        self.apart[Symbol(f"{name}{_AT}{place}")] = name
        return self.symbol(f"{name}{_AT}{place}")

    def unite(self, meetings: Iterable[Iterable[Index]]) -> bool:
        """Let the dimensions of equal names that meet be equal; whether any were not before."""
        return max(map(self._unite, meetings), default=False)

    def _unite(self, extents: Iterable[Index]) -> bool:
        found: dict[str, dict[Symbol, None]] = {}
        for s in (s for e in extents for s in symbols_of(expanded(e))):
            name = self.apart.get(s, s.name)
            if name in self.firsts:
                found.setdefault(name, {}).update(dict.fromkeys(symbols_of(self.symbol(s.name))))
        several = {name: each for name, each in found.items() if len(each) > 1}
        for name, each in several.items():
            kept = Symbol(name) if Symbol(name) in each else min(each, key=lambda s: s.name)
            self.same.update((s, Index.of(kept)) for s in each if s != kept)
        return bool(several)

    @property
    def separate(self) -> bool:
        """Whether dimensions of one name are not known to be equal."""
        return not self.apart.keys() <= self.same.keys()

    @property
    def united(self) -> dict[Symbol, Index]:
        """The extents of the dimensions that are not the first of their names."""
        return {s: self.symbol(s.name) for s in self.apart}

    def _expression(self, text: str) -> Index | None:
        """The value of a name that is an expression, such as "2*batch + 1" (as torch exports); None for others."""
        if self.literal or text in self.values or text in self.renamed or text.isidentifier():
            return None
        try:
            found = self._value(ast.parse(text, mode="eval").body)
            self.computed |= found.constant is None
            return found if found.constant is None else None  # to the runtime a number is a name as any other
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None

    def _value(self, e: ast.expr) -> Index:
        if isinstance(e, ast.Name):
            return self.symbol(e.id)
        if isinstance(e, ast.Constant) and type(e.value) is int:
            return Index.of(e.value)
        if isinstance(e, ast.BinOp):
            a, b = self._value(e.left), self._value(e.right)
            if isinstance(e.op, ast.Add):
                return a + b
            if isinstance(e.op, ast.Sub):
                return a - b
            if isinstance(e.op, ast.Mult):
                return a * b
            if isinstance(e.op, ast.FloorDiv) and (b.constant or 0) > 0:
                return floor_div(a, b)
        raise ValueError(ast.dump(e))


def declared_dims(t: onnx.TypeProto) -> tuple[int, tuple[Dim, ...] | None]:
    """(element type number, dimensions) of a tensor type: 0 for other types, None for an unknown rank."""
    if not t.HasField("tensor_type"):
        return 0, None
    tensor = t.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(_dim(d) for d in tensor.shape.dim)


def _dim(d: onnx.TensorShapeProto.Dimension) -> Dim:
    if d.HasField("dim_value"):
        return d.dim_value if d.dim_value >= 0 else None
    return d.dim_param if d.HasField("dim_param") and d.dim_param not in _UNNAMED else None


def declared_type(name: str, t: onnx.TypeProto, names: Names) -> TensorType | None:
    """The type that the model declares for an input; None if its element type is unsupported or its rank unknown."""
    number, dims = declared_dims(t)
    dtype = dtype_of(number)
    if dims is None and name in names.ranks:
        dims = (None,) * names.ranks[name]
    if dtype is None or dims is None:
        return None
    return TensorType(dtype, tuple(named(names.of_input(d, name, i)) for i, d in enumerate(dims)))


def plain_name(symbol: str) -> str:
    """The name that the model gives to the dimension of a symbol."""
    return symbol.partition(_AT)[0]


# Sizes given by the user ----------------------------------------------------------------------------------------------


def names_of(
    options: Options, inputs: Mapping[str, onnx.ValueInfoProto], others: Iterable[onnx.ValueInfoProto]
) -> Names:
    """The values that `--dim` and `--input-shape` give to named dimensions. Raises UsageError."""
    shapes = {name: declared_dims(info.type)[1] for name, info in inputs.items()}
    known = {d for dims in shapes.values() for d in dims or () if isinstance(d, str)}
    known |= {d for info in others for d in declared_dims(info.type)[1] or () if isinstance(d, str)}
    names = Names()
    for text in options.input_shape:
        _input_shape(names, text, shapes)
    known |= set(names.renamed.values())
    for text in options.dim:
        name, _, value = text.rpartition("=")
        if not name or not is_extent(value):
            raise UsageError(
                f"load: --dim {text} is not NAME=N", hint=f"for example --dim batch=8; N is {MOST} at most"
            )
        if name not in known:
            raise UsageError(
                f"load: no dimension is named {name}", hint=_near(name, known, "the model names no dimension")
            )
        _give(names, name, int(value), f"--dim {text}")
    return names


def _input_shape(names: Names, text: str, shapes: Mapping[str, tuple[Dim, ...] | None]) -> None:
    """Parse NAME:D,D,... with extents or dimension names, also in the forms NAME:DxDxD and NAME:[D,D]."""
    name, _, listed = text.rpartition(":")
    listed = listed.strip("[]() ")
    if re.fullmatch(r"\d+(x\d+)+", listed):
        listed = listed.replace("x", ",")
    wanted = [d.strip() for d in listed.split(",")] if listed else []
    if not name or not all(is_extent(d) or d.isidentifier() for d in wanted):
        raise UsageError(
            f"load: --input-shape {text} is not NAME:D,D,...",
            hint=f"for example --input-shape x:1,3,224,224; an extent is {MOST} at most",
        )
    if name not in shapes:
        raise UsageError(f"load: no input is named {name}", hint=_near(name, shapes, "the model has no inputs"))
    declared = shapes[name]
    if declared is None:
        names.ranks[name] = len(wanted)
        declared = (None,) * len(wanted)
    if len(declared) != len(wanted):
        raise UsageError(
            f"load: --input-shape {text} has {counted(len(wanted), 'dimension')}, the input has {len(declared)}",
            hint=f"the model declares {_shape_text(declared)}",
        )
    for i, (have, want) in enumerate(zip(declared, wanted, strict=True)):
        if isinstance(have, int) and str(have) != want:
            raise UsageError(
                f"load: --input-shape {text} gives dimension {i} the extent {want}, the model fixes it at {have}",
                hint="export the model with another shape",
            )
        if not isinstance(have, int):
            _give(names, have if have is not None else anonymous(name, i), want, f"--input-shape {text}")


def is_extent(text: str) -> bool:
    """Whether a text is an integer between 0 and MOST."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) and int(text) <= MOST


def _give(names: Names, name: str, value: str | int, flag: str) -> None:
    """Set the value of a named dimension, or rename it. Raises UsageError where flags contradict each other."""
    old: str | int | None = names.values.get(name, names.renamed.get(name))
    new: str | int = int(value) if str(value).isdigit() else str(value)
    if old is not None and old != new:
        raise UsageError(
            f"load: {flag} sets {name} to {new}, another flag sets it to {old}",
            hint="a named dimension has one value in the whole model",
        )
    if isinstance(new, int):
        names.values[name] = new
    elif new != name:
        names.renamed[name] = new


def _near(name: str, known: Iterable[str], none: str) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 3) or known[:5]
    return f"there is: {', '.join(near)}" if near else none


def _shape_text(dims: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"
