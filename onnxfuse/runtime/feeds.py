"""Inputs for a model: random ones that it can take, ones read from files, and the same ones moved by one rounding."""

from __future__ import annotations

import ast
import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zipfile import BadZipFile

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.errors import DeviceError, UsageError
from onnxfuse.runtime.feed_limits import Use, rank_of, uses, words_of

Array: TypeAlias = npt.NDArray[Any]
Extent: TypeAlias = int | str  # a number, or a symbol such as "batch" or "past + 1"

_FOREIGN: dict[int, Any] = {TensorProto.BFLOAT16: ml_dtypes.bfloat16, TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn}
_MOST_ELEMENTS = 1 << 27  # of a random input, at most
_MOST_SUMMED = 6  # symbols, at most, among which one is tried as the sum of two others
_PRIMES = ((2, 5, 7, 11, 13, 17, 19, 23, 29, 31), (3, 37, 41, 43, 47, 53, 59, 61, 67, 71))


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model: type, shape, role, and the range of its values."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Extent, ...]
    role: Literal["float", "mask", "int", "index", "size", "choice", "length", "word"]
    limit: Extent = 1  # of an index: its values stay below
    values: tuple[int, ...] = ()  # of a choice: what the model compares it with
    words: tuple[str, ...] = ()  # of a word: what may be fed


@dataclass(frozen=True, slots=True)
class Recipe:
    """A strategy for sizes and values that the model does not determine; `RECIPES` are tried in order."""

    name: str
    sizes: tuple[tuple[int, ...], ...] = _PRIMES  # of symbols in order of appearance, for each set
    spatial: tuple[int, ...] = (37, 67)  # symbolic height and width, for each set
    short: int = 17  # those of the second set where the first ran long; 0: as they are
    shared: bool = False  # anonymous extents of the same axis are equal
    equal: bool = False  # all symbols are equal
    batch: bool = False  # the first symbol of a first axis has the first of `sizes`, all others the second
    ones: bool = False  # integers of unknown use are 0 or 1
    positive: bool = False  # floats are between 0.1 and 1
    bounds: bool = False  # scalar floats whose names say minimum or maximum are far apart

    @property
    def shortened(self) -> Recipe:
        """The same with a second set that runs no longer than the first one."""
        return replace(self, spatial=(self.spatial[0], self.short)) if self.short else self


RECIPES = (
    Recipe("distinct primes"),
    Recipe("axes of one size", spatial=(64, 96), short=32, shared=True, ones=True),
    Recipe("images of 224", spatial=(224, 256), short=0, shared=True, ones=True),
    Recipe("one size for all", spatial=(64, 64), short=0, shared=True, equal=True, ones=True),
    Recipe("two, then three, for all", ((2,) * 10, (3,) * 10), (2, 3), 0, shared=True, equal=True, ones=True),
    Recipe("positive", shared=True, ones=True, positive=True),
    Recipe("bounds", shared=True, ones=True, bounds=True),
)
ALONE = Recipe("a single sample", ((1, 5), (1, 7)), batch=True)
TYPICAL = Recipe("typical", ((1, 128),), (224,), batch=True)  # sizes worth measuring


def inputs_of(skeleton: onnx.ModelProto) -> tuple[Input, ...]:
    """The required inputs of a model. Raises DeviceError for inputs that are no tensors.

    `skeleton` is the model, possibly without the payloads of weights (`feed_limits.skeleton`).
    """
    given = {each.name for each in skeleton.graph.initializer}
    found = uses(skeleton)
    wanted = [each for each in skeleton.graph.input if each.name not in given]
    ranks = {v.name: rank_of(v.name, skeleton.graph) for v in wanted if not v.type.tensor_type.HasField("shape")}
    made = (_input(each, found.get(each.name), ranks.get(each.name, 0)) for each in wanted)
    return tuple(replace(each, words=words_of(skeleton.graph)) if each.role == "word" else each for each in made)


def _input(value: onnx.ValueInfoProto, use: Use | None, rank: int) -> Input:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise DeviceError(f"inputs: input {value.name} is no tensor but a {str(kind).removesuffix('_type')}")
    tensor = value.type.tensor_type
    dtype: np.dtype[Any] = np.dtype(_FOREIGN.get(tensor.elem_type) or helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    dims = enumerate(tensor.shape.dim)
    shape: tuple[Extent, ...] = tuple(_extent(dim, value.name, axis) for axis, dim in dims)
    shape = shape or tuple(f"{value.name}.{axis}" for axis in range(rank))
    if dtype.kind == "O":
        return Input(value.name, dtype, shape, "word")
    if use is not None:
        return Input(value.name, dtype, shape, use.kind, use.limit, use.values)
    if dtype.kind == "b" or re.search("mask", value.name, re.IGNORECASE):
        return Input(value.name, dtype, shape, "mask")
    if dtype.kind in "iu" and len(shape) < 2 and re.search("len", value.name, re.IGNORECASE):
        return Input(value.name, dtype, shape, "length")
    return Input(value.name, dtype, shape, "int" if dtype.kind in "iu" else "float")


def _extent(dim: onnx.TensorShapeProto.Dimension, name: str, axis: int) -> Extent:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or f"{name}.{axis}"


def random_sets(
    inputs: Sequence[Input], *, seed: int, recipe: Recipe, dims: Mapping[str, int]
) -> list[dict[str, Array]]:
    """Random values for `inputs`, one set for each of the recipe's choices of sizes; `dims` fixes some symbols.

    From the second set on, an integer input holds two distinct values only, as padded sequences do: sums over them may
    cancel, which shows rounding errors at their largest.

    Raises DeviceError for sizes that come out far too large.
    """
    every = range(len(recipe.sizes))
    return [drawn(inputs, sizes_of(inputs, recipe, i, dims), recipe, seed=seed, variant=i) for i in every]


def digest_of_sets(inputs: Sequence[Input], *, seed: int, recipe: Recipe, dims: Mapping[str, int]) -> bytes:
    """A hash of names, types, shapes and bits of the sets that `random_sets` draws; of the recipe, if it draws none."""
    made = hashlib.sha256()
    try:
        sets = random_sets(inputs, seed=seed, recipe=recipe, dims=dims)
    except DeviceError:
        made.update(f"{recipe} {sorted(dims.items())}".encode())
        return made.digest()
    for name, value in (pair for values in sets for pair in values.items()):
        bits = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        made.update(f"{name} {value.dtype} {value.shape} ".encode() + bits)
    return made.digest()


def drawn(
    inputs: Sequence[Input], sizes: Mapping[str, int], recipe: Recipe, *, seed: int, variant: int = 0
) -> dict[str, Array]:
    """Random values for `inputs` at these sizes; see `random_sets`."""
    random = np.random.default_rng((seed, variant))
    longest = max((size_of(extent, sizes) for each in inputs for extent in each.shape[1:]), default=1)
    values = {each.name: _values(each, sizes, recipe, random, longest) for each in inputs}
    few = {each.name for each in inputs if variant and each.role in ("int", "index")}
    return {name: _repeated(v, random) if name in few else v for name, v in values.items()}


def decided(inputs: Sequence[Input], number: int) -> tuple[Input, ...]:
    """The inputs with those of role "choice" fixed to their value of this number; the last is one not compared with."""

    def one(each: Input) -> Input:
        ways = (*each.values, max(each.values, default=0) + 1)
        return replace(each, values=(ways[number % len(ways)],)) if each.role == "choice" else each

    return tuple(map(one, inputs))


def with_sums(inputs: Sequence[Input], fixed: Collection[str]) -> Iterator[tuple[Input, ...]]:
    """The inputs with one symbol replaced by the sum of two others, in every way: total = past + new, in a KV cache.

    Then by one more than another, where a third is 1: some models take one new word at a time, whatever they declare.
    Symbols that are `fixed` are not replaced, nor those of first axes (batch sizes), nor those that are no identifiers.
    """
    extents = dict.fromkeys(extent for each in inputs for extent in each.shape[1:] if isinstance(extent, str))
    settled = {*fixed, *(each.shape[0] for each in inputs if each.shape)}
    free = [each for each in extents if each.isidentifier() and each not in settled][:_MOST_SUMMED]
    for whole in free:
        for one, other in itertools.combinations([each for each in free if each != whole], 2):
            yield _replaced(inputs, {whole: f"{one} + {other}"})
    for whole, new, past in itertools.permutations(free, 3):
        yield _replaced(inputs, {whole: f"{past} + 1", new: 1})


def _replaced(inputs: Sequence[Input], extents: Mapping[Extent, Extent]) -> tuple[Input, ...]:
    return tuple(replace(i, shape=tuple(extents.get(e, e) for e in i.shape)) for i in inputs)


def sizes_of(inputs: Sequence[Input], recipe: Recipe, variant: int, dims: Mapping[str, int]) -> dict[str, int]:
    """A size for each symbol, in order of appearance."""
    sizes: dict[str, int] = dict(dims)
    free = iter(recipe.sizes[variant] * 10)
    by_axis: dict[str, int] = {}
    batch = next((s for each in inputs for s in symbols(each.shape[0] if each.shape else 1)), None)
    for each in inputs:
        channels = _channels(each)
        for axis, extent in enumerate(each.shape):
            for symbol in symbols(extent):
                if symbol in sizes:
                    continue
                key = f"axis {axis}" if recipe.shared and symbol == f"{each.name}.{axis}" else symbol
                if axis and axis == channels:
                    value = 3
                elif axis and channels:
                    value = recipe.spatial[variant]
                elif recipe.equal or recipe.batch:
                    value = recipe.sizes[variant][0 if recipe.batch and symbol == batch else 1]
                else:
                    value = by_axis[key] if key in by_axis else next(free)
                by_axis[key] = sizes[symbol] = value
    return sizes


def _channels(each: Input) -> int | None:
    """The axis of an input's channels, if that may be a batch of images; None where it is none.

    The last axis where its extent is known and that behind the batch is not, as exporters of TensorFlow leave them.
    """
    if len(each.shape) not in (4, 5) or each.role != "float":
        return None
    return len(each.shape) - 1 if isinstance(each.shape[-1], int) and not isinstance(each.shape[1], int) else 1


def symbols(extent: Extent) -> Iterator[str]:
    """The symbols of an extent: the names in an arithmetic expression, else the text itself."""
    if isinstance(extent, str):
        tree = _arithmetic(extent)
        yield from [extent] if tree is None else (n.id for n in ast.walk(tree) if isinstance(n, ast.Name))


def _arithmetic(text: str) -> ast.expr | None:
    """`text` as sums, products and quotients of names and integers, or None when it is anything else."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    allowed = (ast.BinOp, ast.Name, ast.Constant, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)
    return tree if all(isinstance(node, allowed) for node in ast.walk(tree)) else None


def size_of(extent: Extent, sizes: Mapping[str, int]) -> int:
    """The value of an extent for these sizes; other symbols are 1.

    >>> size_of("past + 1", {"past": 5})
    6
    """
    if isinstance(extent, int):
        return extent
    tree = _arithmetic(extent)
    return max(0, _evaluate(tree, sizes)) if tree is not None else sizes.get(extent, 1)


def _evaluate(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return sizes.get(name, 1)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluate(left, sizes), _evaluate(right, sizes)
            table = {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b, ast.FloorDiv: a // b if b else 0}
            return table[type(op)]
    return 1


def _values(each: Input, sizes: Mapping[str, int], recipe: Recipe, random: np.random.Generator, longest: int) -> Array:
    shape = tuple(size_of(extent, sizes) for extent in each.shape)
    if math.prod(shape) > _MOST_ELEMENTS:
        raise DeviceError(f"inputs: {each.name} of {list(shape)} is too large", hint="give the symbols sizes")
    if each.role == "mask":
        return _mask(shape, random).astype(each.dtype)
    if each.role == "word":
        return random.choice(np.array(each.words), shape)
    if each.role in ("size", "choice", "length"):
        value = {"size": 1, "choice": each.values[0] if each.values else 1, "length": longest}[each.role]
        return np.full(shape, value).astype(each.dtype)
    if each.role == "index":
        high = max(1, size_of(each.limit, sizes))
        return random.integers(0, min(high, np.iinfo(each.dtype).max), shape).astype(each.dtype)
    if each.role == "int":
        return _integers(each.dtype, shape, recipe, random)
    if recipe.bounds and math.prod(shape) == 1 and re.search("min|max", each.name, re.IGNORECASE):
        return np.full(shape, 0.1 if re.search("min", each.name, re.IGNORECASE) else 1000.0).astype(each.dtype)
    drawn = random.uniform(0.1, 1.0, shape) if recipe.positive else random.standard_normal(shape)
    made: Array = drawn.astype(each.dtype)
    return made


def _integers(dtype: np.dtype[Any], shape: tuple[int, ...], recipe: Recipe, random: np.random.Generator) -> Array:
    """Integers over the whole range of 8-bit types, small ones for wider types."""
    facts = np.iinfo(dtype)
    low, high = (facts.min, facts.max + 1) if dtype.itemsize == 1 else (0, 2 if recipe.ones else 10)
    return random.integers(low, high, shape).astype(dtype)


def _repeated(values: Array, random: np.random.Generator) -> Array:
    """Only two of the values, in random order; 8-bit ones are kept, since they are images rather than ids."""
    if values.dtype.itemsize == 1 or not values.size:
        return values
    return random.choice(random.choice(values.ravel(), 2), values.shape)


def _mask(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Zeros and ones. No row is all zero; rows of a matrix are ones followed by zeros, like padding masks."""
    if len(shape) == 2:
        lengths = random.integers((shape[1] + 1) // 2, shape[1] + 1, (shape[0], 1))
        return np.arange(shape[1])[None, :] < lengths
    mask = np.asarray(random.random(shape) < 0.75)
    if mask.ndim and mask.size:
        mask[..., :1] = True
    return mask


def read_feeds(path: Path, inputs: Sequence[Input]) -> list[dict[str, Array]]:
    """Sets of inputs from an .npz file, an ONNX `test_data_set_0` folder, or a folder of such folders.

    Raises UsageError when something is missing or cannot be read.
    """
    try:
        if path.is_dir():
            folders = sorted(path.glob("test_data_set_*")) or [path]
            sets = [_read_folder(folder, inputs) for folder in folders]
        else:
            with path.open("rb") as stream, np.load(stream) as archive:  # a lone array is no context: TypeError
                sets = [dict(archive)]
    except (OSError, ValueError, TypeError, BadZipFile, DecodeError) as problem:
        hint = "give an .npz file or a test_data_set folder"
        reason = getattr(problem, "strerror", None) or problem
        raise UsageError(f"inputs: {path} cannot be read: {reason}", hint=hint) from None
    return [_matched(values, inputs, path) for values in sets]


def _read_folder(folder: Path, inputs: Sequence[Input]) -> dict[str, Array]:
    """Tensors `input_0.pb`, `input_1.pb`, ... by their own names where these are all known, else by position."""
    names = [each.name for each in inputs]
    files = sorted(folder.glob("input_*.pb"), key=lambda p: int(re.sub(r"\D", "", p.stem) or 0))
    tensors = []
    for file in files:
        tensor = TensorProto()
        tensor.ParseFromString(file.read_bytes())
        tensors.append(tensor)
    own = [tensor.name for tensor in tensors]
    keys = own if set(own) == set(names) else names
    return {key: numpy_helper.to_array(tensor) for key, tensor in zip(keys, tensors, strict=False)}


def _matched(values: Mapping[str, Array], inputs: Sequence[Input], path: Path) -> dict[str, Array]:
    if missing := [each.name for each in inputs if each.name not in values]:
        raise UsageError(f"inputs: {path} has no {', '.join(missing)}", hint=f"it has {', '.join(values) or 'nothing'}")
    return {each.name: _as_type(values[each.name], each.dtype) for each in inputs}


def _as_type(value: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers of another width of the same kind are converted; anything else is left to the runtime to reject."""
    return value.astype(dtype) if value.dtype != dtype and value.dtype.kind == dtype.kind != "V" else value


def nudged(feeds: Mapping[str, Array], seed: int, share: float = 0.0) -> dict[str, Array]:
    """The same inputs with each float moved to a neighbour, up or down at random; masks of 0 and 1 stay.

    With a `share`, they are moved by this part of themselves instead.

    >>> 0 < abs(float(nudged({"x": np.full(1, 3.0, np.float32)}, 0)["x"][0]) - 3.0) < 1e-6
    True
    """
    random = np.random.default_rng(seed)
    return {name: _nudge(value, random, share) for name, value in feeds.items()}


def _nudge(value: Array, random: np.random.Generator, share: float) -> Array:
    floats = value.dtype.kind == "f" or value.dtype in tuple(np.dtype(t) for t in _FOREIGN.values())
    if not floats or not value.size or np.isin(value, (0, 1)).all():
        return value
    bits = np.ascontiguousarray(value).view(f"i{value.dtype.itemsize}").reshape(value.shape)
    step = random.integers(0, 2, value.shape).astype(bits.dtype) * 2 - 1
    if share:
        return np.asarray(value * (1.0 + share * step), value.dtype)  # of a scalar NumPy makes none
    movable = np.isfinite(value) & (value != 0)
    moved: Array = np.where(movable, bits + step, bits).astype(bits.dtype).view(value.dtype).reshape(value.shape)
    return np.where(np.isfinite(moved), moved, value)
