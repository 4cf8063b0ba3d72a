"""Cached verdicts on builds that were verified before: the same bytes in the same runtime give the same numbers.

Only verdicts that pass are cached. The key covers everything that a verdict depends on: the bytes of both models, their
data and libraries, the inputs, limits, runtime, machine, and the comparing program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from onnxfuse.build.cache import Cache, file_digest, key_of
from onnxfuse.errors import OutputError
from onnxfuse.pipeline.state import Build, Context, place_of, tried_here
from onnxfuse.report.document import envelope
from onnxfuse.runtime.memory import LoadCost
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.target import cuda_driver
from onnxfuse.verify.verdicts import ModeVerdict, Verdict

T = TypeVar("T")

_PROGRAM = (
    "runtime/binding",
    "runtime/engine",
    "runtime/feed_limits",
    "runtime/feed_sizes",
    "runtime/feeds",
    "runtime/graphs",
    "runtime/provider",
    "verify/__init__",
    "verify/child",
    "verify/compare",
    "verify/culprits",
    "verify/nodes",
    "verify/original",
    "verify/places",
    "verify/trial",
    "verify/truth",
    "verify/verdicts",
    "verify/run_modes",
)  # modules that decide what is compared, and how


@dataclass(frozen=True, slots=True)
class VerdictCache:
    """The place of one verdict in a cache; where there is none, nothing is kept."""

    cache: Cache | None
    key: str = ""
    model: str = ""  # the key of the fact that there is a verdict on this original
    file: str = ""  # the key of the fact that there is one on the file as it is

    def recall(self) -> Verdict | None:
        """The verdict on the same bytes; one that cannot be read counts as absent."""
        return recalled(self.cache, self.key, _verdict)

    def keep(self, verdict: Verdict) -> None:
        """Keep a verdict that says yes; a cache that cannot be written keeps nothing."""
        if verdict.ok and not verdict.cached:
            keep(self.cache, self.key, asdict(verdict))
            keep(self.cache, self.model, True)
            keep(self.cache, self.file, True)


def _verdict(held: Any) -> Verdict:
    runs = tuple(ModeVerdict(**each) for each in held["runs"])
    loads = tuple(LoadCost(**each) for each in held["loads"])
    return Verdict(**held | {"runs": runs, "unsteady": tuple(held["unsteady"]), "loads": loads, "cached": True})


def recalled(cache: Cache | None, key: str, make: Callable[[Any], T]) -> T | None:
    """The cached JSON value of a key, passed through `make`; None if it is absent or cannot be read."""
    path = cache.get(key) if cache is not None else None
    if path is None:
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        return make(json.loads(path.read_text(encoding="utf-8")))
    return None


def keep(cache: Cache | None, key: str, values: object) -> None:
    """Cache a JSON value under a key; a cache that cannot be written is ignored."""
    if cache is not None:
        with suppress(OutputError):
            cache.put(key, json.dumps(values).encode())


def memory_of(cache: Cache | None, context: Context, b: Build) -> VerdictCache:
    """Where the verdict on what the build has written belongs. Reads each file once: 2 s for a gigabyte."""
    if cache is None:
        return VerdictCache(None)
    options = context.options
    limits = {"rtol": options.rtol, "atol": options.atol, "precision": options.precision}
    key = key_of_bytes("verdict", context, b, _PROGRAM, limits)
    return VerdictCache(cache, key, _key_of_model(b), _key_of_file(context.original))


def known_model(cache: Cache | None, b: Build) -> bool:
    """Whether some build of the same original was verified: then the verdict on this one may be known too."""
    return recalled(cache, _key_of_model(b), bool) is True


def known_file(cache: Cache | None, original: Path) -> bool:
    """The same of a file that was not changed since, without reading it."""
    return recalled(cache, _key_of_file(original), bool) is True


def _key_of_file(original: Path) -> str:
    status = original.stat()
    return key_of("verified file", str(original.resolve()), str(status.st_size), str(status.st_mtime_ns))


def _key_of_model(b: Build) -> str:
    return key_of("verified", b.source.sha256)


def key_of_bytes(what: str, context: Context, b: Build, program: Sequence[str], more: Mapping[str, Any]) -> str:
    """The key of a result about the files of a build that these modules of the program computed."""
    source = b.source
    values = {
        **envelope(what),
        "seed": context.options.seed,
        "dims": dict(source.dims),
        "targets": tried_here(context, b),
        "provider": place_of(context, b).words,
        "device": _device(place_of(context, b)),
        **more,
    }
    return key_of(json.dumps(values, sort_keys=True), source.sha256, *_digests(context, b, program))


def _device(place: Provider) -> list[str | int]:
    """What runs in a provider other than the CPU's depends on: the first GPU, which sessions use, and its driver."""
    driver = None if place == CPU else cuda_driver()
    return [] if driver is None else [driver.version, *(each.name for each in driver.devices[:1])]


def _digests(context: Context, b: Build, program: Sequence[str]) -> Iterator[str]:
    """Of each file, by the part that it plays; the names of files do not count."""
    room = Path(__file__).resolve().parents[1]
    parts = {
        "data": b.source.external,
        "made": b.files,
        "library": () if b.library is None or b.copy else (b.library.path,),
        "custom": [Path(each) for each in context.options.custom_ops_library],
        "inputs": _given(context.options.inputs),
        "program": [room / f"{name}.py" for name in program],
    }
    for part, paths in parts.items():
        yield part
        yield from map(digest_of, paths)


def digest_of(path: Path) -> str:
    """The digest of a file, which is read again only after it was changed."""
    status = path.stat()
    return _digest_of(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _digest_of(path: Path, inode: int, size: int, changed: int) -> str:
    return file_digest(path)


def _given(inputs: str | None) -> list[Path]:
    """The files that hold the inputs that the user gave."""
    path = Path(inputs) if inputs is not None else None
    if path is None or not path.is_dir():
        return [] if path is None else [path]
    return sorted(each for each in path.rglob("*") if each.is_file())
