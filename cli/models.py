"""Arguments of verbs that run models: files, and values of symbolic dimensions."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from onnxfuse.config import Options
from onnxfuse.errors import OnnxFuseError, UsageError
from onnxfuse.load import files_of, load
from onnxfuse.load.dims import MOST, is_extent
from onnxfuse.pipeline.outputs import STREAM
from onnxfuse.plan.sizes import signal_dims
from onnxfuse.runtime import feed_limits, feeds
from onnxfuse.runtime.session import library_of, metadata

from . import show

MOST_SETS = 12  # of sizes that are measured in one run
_NAME = re.compile(r"[^\W\d][\w.]*")  # of a dimension


def files(verb: str, names: Sequence[str], folder: Path) -> list[Path]:
    """The models as files; `-` is standard input, kept in `folder`. Raises UsageError for one that is not there."""
    if list(names).count(STREAM) > 1:
        raise UsageError(f"{verb}: standard input is one model only", hint="give a file for the other one")
    paths = [Path(folder, "stdin.onnx") if name == STREAM else Path(name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if name == STREAM:
            path.write_bytes(show.given())
            if missing := [each.name for each in _data_of(path) if not each.exists()]:
                said = f"the model on standard input has external data, in {missing[0]}"
                raise UsageError(f"{verb}: {said}", hint="name the model's file, beside which its data is")
        elif path.exists() and not path.is_file():
            raise UsageError(f"{verb}: {name} is not a regular file", hint="name a .onnx file; - is standard input")
        elif not path.is_file():
            raise UsageError(f"{verb}: there is no file {name}", hint="check the spelling")
    return paths


def _data_of(path: Path) -> Iterator[Path]:
    """The files of a model's external data."""
    named = set(metadata(path).values())
    return (each for each in files_of(path) if each != path and each.name not in named)


def library_for(verb: str, path: Path, name: str, library: str | None) -> Path | None:
    """The kernel library of a model that `files` gave, or the one that is named. Raises UsageError and ModelError."""
    named = metadata(path).get("onnxfuse.library")
    if name == STREAM and named and library is None:
        said = f"the model on standard input has kernels, in {named}"
        raise UsageError(f"{verb}: {said}", hint="--library names their file")
    return library_of(path, library)


def sets_of(texts: Sequence[str]) -> list[dict[str, int]]:
    """Values of symbolic dimensions from `batch=8` or `batch=1,8`: every combination. Raises UsageError.

    >>> sets_of(["batch=1,8", "sequence=128"])
    [{'batch': 1, 'sequence': 128}, {'batch': 8, 'sequence': 128}]
    """
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, values = text.rpartition("=")
        if not name or not all(map(is_extent, values.split(","))):
            hint = f"for example --dim batch=8; N is {MOST} at most"
            raise UsageError(f"usage: --dim {text} is not NAME=N", hint=hint)
        found[name] = [int(value) for value in values.split(",")]
    made = [dict(zip(found, each, strict=True)) for each in itertools.product(*found.values())]
    if len(made) > MOST_SETS:
        raise UsageError(
            f"usage: --dim asks for {len(made)} sets of sizes", hint=f"{MOST_SETS} are measured in one run"
        )
    return made


def dims_of(texts: Sequence[str]) -> dict[str, int]:
    """Values of symbolic dimensions from `batch=8`, one for each. Raises UsageError."""
    found = sets_of(texts)
    if len(found) > 1:
        raise UsageError(f"usage: --dim {' '.join(texts)} is more than one size", hint="profile takes several")
    return found[0]


def refuse_dims(verb: str, path: Path, name: str, dims: Mapping[str, int], inputs: str | None) -> None:
    """Raise UsageError for dimensions that the inputs of a model do not have, or if `--inputs` is given."""
    if not dims:
        return
    first = next(iter(dims))
    if inputs is not None:
        raise UsageError(f"{verb}: --dim {first} cannot be used with --inputs, which has sizes", hint="use one of them")
    texts = {str(d) for each in _inputs(path) for d in each.shape or ()}
    known = sorted({word for text in texts for word in _NAME.findall(text)} | texts)
    for each in dims:
        if each not in known:
            near = difflib.get_close_matches(each, known, 1)
            symbols = [d for d in known if not d.isdigit()]
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(symbols) or 'no symbolic dimension'}"
            raise UsageError(f"{verb}: --dim {each} has no effect: no input of {name} has such a dimension", hint=hint)


def chosen_sizes(
    path: Path, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int], inputs: str | None
) -> dict[str, int]:
    """The extents of symbolic dimensions in the `shapes` of a run that the user gave neither in `dims` nor `inputs`."""
    if inputs is not None:
        return {}
    pairs = ((d, n) for each in _inputs(path) for d, n in zip(each.shape, shapes.get(each.name, ()), strict=False))
    return {str(d): int(n) for d, n in pairs if isinstance(d, str) and _NAME.fullmatch(d) and d not in dims}


def refuse_unequal_inputs(verb: str, paths: Sequence[Path], names: Sequence[str]) -> None:
    """Raise UsageError unless the models have inputs of the same names and element types as the first."""
    for path, name in zip(paths[1:], names[1:], strict=True):
        first, other = ({x.name: x.dtype for x in _inputs(each)} for each in (paths[0], path))
        if other != first:
            told = " and ".join(", ".join(f"{k} ({v})" for k, v in sorted(x.items())) for x in (first, other))
            raise UsageError(f"{verb}: {names[0]} and {name} have different inputs: {told}", hint="name a build of it")


def signals_of(path: Path, inputs: str | None) -> Mapping[str, int]:
    """Usual numbers of samples, by open dimension that counts them; none with `--inputs`, or where it is not known."""
    open_floats = [x for x in _inputs(path) if x.dtype.kind == "f" and any(isinstance(d, str) for d in x.shape)]
    if inputs is not None or not open_floats:  # the model need not be loaded for it
        return {}
    with suppress(OnnxFuseError):
        return signal_dims(load(path, Options()))
    return {}


def _inputs(path: Path) -> Sequence[feeds.Input]:
    return feeds.inputs_of(feed_limits.skeleton(path))
