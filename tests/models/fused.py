"""Small networks through the whole compiler, and the four ways to run what comes out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from models.networks import Network, network
from onnxfuse.build import BuildRequest, Library, build_library
from onnxfuse.pipeline import optimize
from onnxfuse.render.source import Source
from onnxfuse.report.result import Result
from onnxfuse.runtime.engine import open_session, options, output_names, run
from onnxfuse.verify.compare import distance
from tests.kernels.compiled import own_names

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("ONNXFUSE_CACHE_DIR", ROOT / ".cache")).absolute()


def in_one_unit(request: BuildRequest) -> Library:
    """A library whose kernels are compiled together, as a build compiles each, which is much quicker."""
    kernels = [s for s in request.sources if f"onnxfuse_{s.symbol}" in s.text]
    tiles = [s for s in request.sources if s not in kernels]
    together = Source("kernels", "\n".join(own_names(s.text, s.symbol) for s in kernels), kernels[0].flags)
    return build_library(replace(request, sources=(together, *tiles)))


@dataclass(frozen=True)
class Built:
    """A network before and after; `library` is None where nothing was fused."""

    row: Network
    original: Path
    fused: Path
    library: Path
    result: Result


@cache
def model_bytes(name: str) -> bytes:
    """A network as a file has it."""
    return network(name).build().SerializeToString()


def built(name: str, folder: Path, **changes: Any) -> Built:
    """A network optimized in a folder; kernels compiled before are taken from the cache."""
    original = folder / "m.onnx"
    original.write_bytes(model_bytes(name))
    changes = {"verify": False, "gain": False, "strict": True, "cache_dir": str(CACHE), "jobs": 1} | changes
    result = optimize(original, folder / "fused.onnx", **changes)
    library = result.output.library
    assert library is not None
    return Built(network(name), original, folder / "fused.onnx", Path(library), result)


def ways(made: Built) -> Iterator[tuple[str, ort.InferenceSession]]:
    """With and without the library, with all optimizations and with none."""
    for libraries in ((str(made.library),), ()):
        for optimized in (True, False):
            how = f"{'with' if libraries else 'without'} library, {'all' if optimized else 'no'} optimizations"
            given = options(libraries=libraries, optimize=optimized, threads=2)
            yield how, open_session(str(made.fused), given)


def sizes_of(row: Network) -> tuple[dict[str, int], ...]:
    """Values of a network's symbols to try."""
    if "sequence" in {e for entry in row.inputs for e in entry.shape}:
        return ({"batch": 1, "sequence": 8}, {"batch": 2, "sequence": 31}, {"batch": 3, "sequence": 1})
    if "batch" in {e for entry in row.inputs for e in entry.shape}:
        return ({"batch": 1}, {"batch": 3})
    return ({},)


def feeds_of(row: Network) -> list[Feeds]:
    """Inputs for each of the sizes; where there is a mask, it hides something in all but the first."""
    out = []
    for number, sizes in enumerate(sizes_of(row)):
        length = sizes.get("sequence", 32)
        out.append(row.sample(seed=number + 1, padding=min(3, length - 1) if number else 0, **sizes))
    return out


def errors(made: Built) -> dict[str, float]:
    """By way, the largest relative L2 distance of an output from what the original computes without optimizations."""
    plain = open_session(str(made.original), options(optimize=False, threads=2))
    names = output_names(plain)
    sets = feeds_of(made.row)
    wanted = [run(plain, feeds, names) for feeds in sets]
    found: dict[str, float] = {}
    for how, session in ways(made):
        got = [run(session, feeds, names) for feeds in sets]
        pairs = [(a, b) for xs, ys in zip(wanted, got, strict=True) for a, b in zip(xs, ys, strict=True)]
        found[how] = max(distance(a, b).error for a, b in pairs)
    return found
