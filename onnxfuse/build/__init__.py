"""Compiles kernel sources into one shared library; builds are reproducible, independent of the folder.

Each source is compiled to an object, in parallel, and cached under a hash of its inputs. The objects are linked into a
library that exports only `RegisterCustomOps` and depends only on libc and libm. No C++ run-time library is linked
(kernels are C++17 without exceptions, RTTI, new or thread-safe statics), so none has to be shipped, and the compiler
wheel does not have to build one first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from onnxfuse.build.cache import Cache, file_digest, key_of
from onnxfuse.build.resources import Resources
from onnxfuse.build.toolchain import PRECOMPILING, Toolchain, compile_flags, link_flags
from onnxfuse.errors import BudgetError, OutputError, ToolchainError
from onnxfuse.render.source import PRELUDE, Source
from onnxfuse.runtime import process
from onnxfuse.runtime.folders import work_folder

TILES = Path(__file__).resolve().parents[1] / "render" / "tiles"
SUPPORT = TILES.with_name("support")
EXPORTED = "RegisterCustomOps"

_EXPORTS = "exports.map"
_WORTH_PRECOMPILING = 4  # units to compile from which on precompiling the header pays, if none is cached

_LOOK = 0.05  # polling interval in seconds
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))  # as compilers say it, too
_FIRST_ERROR = re.compile(r"(?:fatal )?error: .*|.*undefined (?:reference|symbol).*|.*cannot find .*", re.IGNORECASE)


Progress = Callable[[int, int], None]  # called with the number of compiled sources and their total


def no_progress(done: int, of: int) -> None:
    """Ignore progress."""


class CompileError(ToolchainError):
    """The compiler or linker failed; `log` has the command and its output.

    `units` has the symbols of the sources at fault, each with the compiler's message: all others compile.
    """

    def __init__(self, message: str, *, hint: str, log: str) -> None:
        super().__init__(message, hint=hint)
        self.log = log
        self.units: dict[str, str] = {}
        self.add_note(log)


@dataclass(frozen=True, slots=True)
class Library:
    """A built library: how many objects were `compiled` or `cached`, wall time in seconds, the compiler's name."""

    path: Path
    sha256: str
    compiled: int
    cached: int
    seconds: float
    compiler: str
    functions: tuple[Resources, ...] = ()  # of GPU kernels, for each architecture


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A library to be built at `out` from `sources` and `glue`, which defines `RegisterCustomOps`.

    Each source has the flags of its target; the glue has none, since it runs on any machine to detect its features.
    `progress` is called with the number of compiled sources and their total.
    """

    sources: Sequence[Source]
    glue: Sequence[Source]
    toolchain: Toolchain
    cache: Cache | None
    jobs: int  # that run at once; 0: one per core
    out: Path
    time_limit: float | None = None  # seconds
    sanitize: bool = False  # for AddressSanitizer and UBSan
    links: tuple[str, ...] = ()  # linker flags after the objects
    progress: Progress = no_progress

    @property
    def workers(self) -> int:
        """How many jobs run at once."""
        return self.jobs or len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class _Recipe:
    """All inputs of a build but the sources: with equal `identity`, equal sources give equal objects."""

    toolchain: Toolchain
    sanitize: bool
    link: tuple[tuple[str, ...], tuple[str, ...]]  # before and after the objects
    env: dict[str, str]
    identity: str


@dataclass(frozen=True, slots=True)
class _Site:
    """A build in progress: its folder, and what ends it early (`time_limit` seconds after `start`, or `stop`)."""

    folder: Path
    recipe: _Recipe
    cache: Cache | None
    start: float
    time_limit: float | None
    stop: threading.Event


def build_library(request: BuildRequest) -> Library:
    """Compile and link a library. `request.out` is replaced atomically.

    Raises CompileError, BudgetError after the time limit, OutputError when a file cannot be written.
    """
    start = time.monotonic()
    units = (*request.sources, *request.glue)
    names = [unit.symbol for unit in units]
    if len(set(names)) != len(names) or not all(name.isidentifier() and name.isascii() for name in names):
        raise ValueError(f"source symbols must be distinct C identifiers: {names}")
    recipe = _recipe(request)
    with work_folder() as folder:
        site = _Site(Path(folder), recipe, request.cache, start, request.time_limit, threading.Event())
        compiled = _compile_all(site, request)
        library = _link(site, names)
        digest = file_digest(library)
        _install(library, request.out)
    seconds = time.monotonic() - start
    return Library(request.out, digest, compiled, len(units) - compiled, seconds, str(request.toolchain))


def _recipe(request: BuildRequest) -> _Recipe:
    toolchain, cache, sanitize = request.toolchain, request.cache, request.sanitize
    if sanitize and toolchain.family != "gcc":
        raise ToolchainError(f"build: sanitized kernels need gcc, not {toolchain}", hint="use --toolchain gcc")
    before, after = link_flags(toolchain, _EXPORTS, sanitize=sanitize)
    env = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    if toolchain.family == "zig" and cache is not None and "ZIG_GLOBAL_CACHE_DIR" not in os.environ:
        env["ZIG_GLOBAL_CACHE_DIR"] = str(cache.root.absolute() / "zig")
    found = (*sorted(TILES.glob("*.h")), *sorted(SUPPORT.glob("*.h")))
    headers = key_of(*(text for path in found for text in (path.name, path.read_bytes())))
    link = (before, (*request.links, *after))
    return _Recipe(toolchain, sanitize, link, env, key_of("1", toolchain.identity, headers))


def _compile_all(site: _Site, request: BuildRequest) -> int:
    """Make `SYMBOL.o` of every unit; returns how many were compiled.

    Kernels that fail are reported together, once all are compiled; if the glue fails too, the first failure ends the
    other jobs.
    """
    units = (*request.sources, *request.glue)
    missing = [u for u in units if not _from_cache(site.cache, _key(site, u), site.folder / f"{u.symbol}.o")]
    with ThreadPoolExecutor(max_workers=request.workers) as pool:
        try:
            ready = _preludes(site, missing, pool)
            waiting = {
                pool.submit(_object, site, u, ready.get(_prelude_of(u))): u for u in _without_prelude_first(missing)
            }
            failed: dict[str, CompileError] = {}
            for done, future in enumerate(_as_completed(waiting), 1):
                problem = future.exception()
                if isinstance(problem, CompileError) and (failed or _compiles(site, request.glue)):
                    failed[waiting[future].symbol] = problem
                else:
                    future.result()
                request.progress(done, len(missing))
        except BaseException:
            site.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    ordered = {u.symbol: failed[u.symbol] for u in request.sources if u.symbol in failed}
    for problem in ordered.values():
        problem.units = {symbol: each.message for symbol, each in ordered.items()}
        raise problem
    return len(missing)


def _as_completed(futures: Iterable[Future[None]]) -> Iterator[Future[None]]:
    """Futures as they complete. The wait returns to Python often, since a budget raises between two lines of it."""
    left = set(futures)
    while left:
        done, left = wait(left, _LOOK, FIRST_COMPLETED)
        yield from done


def _prelude_of(unit: Source) -> tuple[str, ...] | None:
    """The flags that select a unit's precompiled header; None if its first include is another one."""
    return unit.flags if unit.text.startswith(PRELUDE) else None


def _without_prelude_first(units: Sequence[Source]) -> list[Source]:
    """The units, those first that do not wait for a precompiled header; otherwise in their order."""
    return sorted(units, key=lambda u: _prelude_of(u) is not None)


def _preludes(
    site: _Site, units: Sequence[Source], pool: ThreadPoolExecutor
) -> dict[tuple[str, ...] | None, Future[str]]:
    """The precompiled headers by flags, if cached or worth making for the number of units with these flags."""
    if site.recipe.toolchain.family not in PRECOMPILING:
        return {}
    ready: dict[tuple[str, ...] | None, Future[str]] = {}
    for flags, count in Counter(flags for u in units if (flags := _prelude_of(u)) is not None).items():
        name = f"prelude{len(ready)}.h"
        kept = _from_cache(site.cache, _prelude_key(site, flags), site.folder / f"{name}.gch")
        if kept or count >= _WORTH_PRECOMPILING:
            ready[flags] = pool.submit(_prelude, site, name, flags)
    return ready


def _prelude_key(site: _Site, flags: Sequence[str]) -> str:
    """The cache key of the precompiled header for these flags."""
    all_flags = compile_flags(site.recipe.toolchain, flags, sanitize=site.recipe.sanitize)
    return key_of("header", site.recipe.identity, *all_flags, PRELUDE)


def _prelude(site: _Site, name: str, flags: Sequence[str]) -> str:
    """Precompile the header `name`, which is also written as text in case the compiler cannot use the result."""
    (site.folder / name).write_text(PRELUDE, encoding="utf-8")
    made = site.folder / f"{name}.gch"
    if not made.exists():
        with contextlib.suppress(CompileError):
            _call(site, (*_flags(site, flags, name), "-x", "c++-header", name, "-o", made.name), made, "no header")
            if site.cache is not None:
                site.cache.put(_prelude_key(site, flags), made)
    return name


def _compiles(site: _Site, glue: Sequence[Source]) -> bool:
    """Whether the glue compiles: if not, the compiler is at fault, and no kernel."""
    try:
        for unit in glue:
            _object(replace(site, stop=threading.Event()), unit)
    except CompileError:
        return False
    return True


def _key(site: _Site, unit: Source) -> str:
    """The cache key of the object of a unit."""
    flags = compile_flags(site.recipe.toolchain, unit.flags, sanitize=site.recipe.sanitize)
    return key_of("object", site.recipe.identity, *flags, unit.symbol, unit.text)


def _flags(site: _Site, flags: Sequence[str], seed: str) -> tuple[str, ...]:
    """All flags of one call of the compiler.

    Paths are relative and the headers' folder is mapped, so the object contains no path of this machine. -iquote: the
    header math.h of onnxfuse must not be found by `#include <math.h>`.
    """
    own = compile_flags(site.recipe.toolchain, flags, sanitize=site.recipe.sanitize)
    folders = [flag for f in (TILES, SUPPORT) for flag in (f"-iquote{f}", f"-ffile-prefix-map={f}={f.name}")]
    return (*own, *folders, f"-frandom-seed={seed}")


def _object(site: _Site, unit: Source, prelude: Future[str] | None = None) -> None:
    """Compile one unit, with the precompiled header that `prelude` gives."""
    key, made, source = _key(site, unit), site.folder / f"{unit.symbol}.o", f"{unit.symbol}.cpp"
    (site.folder / source).write_text(unit.file, encoding="utf-8")
    first = ("-include", prelude.result()) if prelude is not None else ()
    arguments = (*_flags(site, unit.flags, key[:16]), *first, "-c", source, "-o", made.name)
    _call(site, arguments, made, f"{source} does not compile")
    if site.cache is not None:
        site.cache.put(key, made)


def _link(site: _Site, names: Sequence[str]) -> Path:
    """Link the objects, in the order of `names`, into one library in the build's folder."""
    objects = [f"{name}.o" for name in names]
    before, after = site.recipe.link
    digests = [file_digest(site.folder / name) for name in objects]
    key = key_of("library", site.recipe.identity, *before, *after, *names, *digests)
    made = site.folder / "library.so"
    if not _from_cache(site.cache, key, made):
        (site.folder / _EXPORTS).write_text(f"{{ global: {EXPORTED}; local: *; }};\n", encoding="ascii")
        _call(site, (*before, *objects, "-o", made.name, *after), made, "the library does not link")
        if site.cache is not None:
            site.cache.put(key, made)
    return made


def _call(site: _Site, arguments: Sequence[str], made: Path, what: str) -> None:
    """Run the compiler in the build's folder; raises CompileError with `what` failed and the first error message.

    It is also an error if the compiler reports success without the file `made`. A full disk is no fault of a kernel.
    """
    command = (*site.recipe.toolchain.command, *arguments)
    left = None if site.time_limit is None else max(0.0, site.start + site.time_limit - time.monotonic())
    env = {**site.recipe.env, "ZIG_LOCAL_CACHE_DIR": str(site.folder / "zig")}
    try:
        done = process.run(command, stage="build", cwd=site.folder, env=env, time_limit=left, stop=site.stop)
    except BudgetError:
        late = f"build: compiling takes longer than the {site.time_limit:.3g} s allowed"
        raise BudgetError(late, hint="raise --time-budget") from None
    if done.code == 0 and made.is_file():
        return
    said = done.err + done.out
    if full := next((text for text in _FULL if text in said), ""):
        free = "free some, or name another folder with the environment variable TMPDIR"
        raise OutputError(f"build: {site.folder.parent} cannot be written: {full}", hint=free)
    first = _FIRST_ERROR.search(said)
    reason = first[0].strip() if first else (said.strip().splitlines() or [f"exit code {done.code}"])[0]
    if done.code == 0:
        reason = f"the compiler reports success and has written no {made.name}"
    raise CompileError(
        f"build: {what}: {reason}",
        hint="a bug of onnxfuse or the compiler; --toolchain takes another one, --skip-node leaves nodes out",
        log=f"{shlex.join(command)}\n{said}",
    )


def _from_cache(cache: Cache | None, key: str, to: Path) -> bool:
    """Copy the cache entry of `key`; False if there is none, or if another process deletes it meanwhile."""
    kept = cache.get(key) if cache is not None else None
    if kept is None:
        return False
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(kept, to)
        return True
    return False


def _install(library: Path, out: Path) -> None:
    """Copy to a file beside `out`, then rename: who loaded the old file keeps it, nobody sees a partial one."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.new")
    try:
        shutil.copyfile(library, partial)
        partial.replace(out)
    except OSError as problem:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        reason = problem.strerror or str(problem)
        raise OutputError(f"build: {out} cannot be written: {reason}", hint="name another with --lib") from problem
