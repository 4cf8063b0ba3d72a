"""Kernel sources to one shared library: the same input, options and compiler give the same bytes, whatever the folder.

Each source becomes an object of its own, compiled in parallel and kept in the cache under everything that went into
it; the objects are linked into a library that exports `RegisterCustomOps` alone and needs libc and libm alone. No C++
run-time library is linked (kernels are C++17 without exceptions, run-time types, new or locks in statics), so none has
to be shipped or matched, and the compiler wheel need not build one first.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from onnxfuse.build.cache import Cache, file_digest, key_of
from onnxfuse.build.resources import Resources
from onnxfuse.build.toolchain import PRECOMPILING, Toolchain, compile_flags, link_flags
from onnxfuse.errors import BudgetError, OutputError, ToolchainError
from onnxfuse.render.source import Source
from onnxfuse.runtime import process
from onnxfuse.runtime.folders import work_folder

TILES = Path(__file__).resolve().parents[1] / "render" / "tiles"
SUPPORT = TILES.with_name("support")
EXPORTED = "RegisterCustomOps"

_PRELUDE = '#include "loops.h"\n'  # the first line of every kernel; to read what it includes takes as long as the rest
_EXPORTS = "exports.map"
_ENOUGH = 4  # kernels to compile for which a precompiled header is worth the time that it takes, where none is kept

_FIRST_ERROR = re.compile(r"(?:fatal )?error: .*|.*undefined (?:reference|symbol).*|.*cannot find .*", re.IGNORECASE)


Told = Callable[[int, int], None]  # hears how much is done, and of how much


def untold(done: int, of: int) -> None:
    """Nobody hears it."""


class CompileError(ToolchainError):
    """The compiler or linker failed; `log` holds the command and all that it said.

    `units` are the symbols of the sources that are at fault, each with what the compiler said: all others compile.
    """

    def __init__(self, message: str, *, hint: str, log: str) -> None:
        super().__init__(message, hint=hint)
        self.log = log
        self.units: dict[str, str] = {}
        self.add_note(log)


@dataclass(frozen=True, slots=True)
class Library:
    """A built library: objects `compiled` now and `cached` from before, wall time in seconds, the compiler's name."""

    path: Path
    sha256: str
    compiled: int
    cached: int
    seconds: float
    compiler: str
    functions: tuple[Resources, ...] = ()  # of GPUs, for each architecture


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Everything but the sources: recipes with equal `identity` turn equal sources into equal objects."""

    toolchain: Toolchain
    sanitize: bool
    link: tuple[tuple[str, ...], tuple[str, ...]]  # before and after the objects
    env: dict[str, str]
    identity: str


@dataclass(frozen=True, slots=True)
class _Site:
    """One build under way: its folder, and what ends it early (`time_limit` seconds from `start`, or `stop`)."""

    folder: Path
    recipe: _Recipe
    cache: Cache | None
    start: float
    time_limit: float | None
    stop: threading.Event


def build_library(
    sources: Sequence[Source],
    glue: Sequence[Source],
    toolchain: Toolchain,
    cache: Cache | None,
    jobs: int,
    out: Path,
    time_limit: float | None = None,
    *,
    sanitize: bool = False,
    links: tuple[str, ...] = (),
    told: Told = untold,
) -> Library:
    """Compile `sources` and `glue` (which defines `RegisterCustomOps`) into `out`, `jobs` at once (0: one per core).

    Each source brings the flags of its target; the glue has none, since it runs on any machine to find out what that
    can do. `out` is replaced in one step. `links` are flags behind the objects. `sanitize` builds for AddressSanitizer
    and UBSan, to be loaded with `sanitizer_env`. `told` hears how many are compiled, and of how many.

    Raises CompileError, BudgetError after `time_limit` seconds, OutputError when `out` cannot be written.
    """
    start = time.monotonic()
    units = (*sources, *glue)
    names = [unit.symbol for unit in units]
    if len(set(names)) != len(names) or not all(name.isidentifier() and name.isascii() for name in names):
        raise ValueError(f"source symbols must be distinct C identifiers: {names}")
    recipe = _recipe(toolchain, cache, links, sanitize=sanitize)
    with work_folder() as folder:
        site = _Site(Path(folder), recipe, cache, start, time_limit, threading.Event())
        compiled = _compile_all(site, sources, glue, jobs or len(os.sched_getaffinity(0)), told)
        library = _link(site, names)
        digest = file_digest(library)
        _install(library, out)
    return Library(out, digest, compiled, len(units) - compiled, time.monotonic() - start, str(toolchain))


def _recipe(toolchain: Toolchain, cache: Cache | None, links: tuple[str, ...], *, sanitize: bool) -> _Recipe:
    if sanitize and toolchain.family != "gcc":
        raise ToolchainError(f"build: sanitized kernels need gcc, not {toolchain}", hint="use --toolchain gcc")
    before, after = link_flags(toolchain, _EXPORTS, sanitize=sanitize)
    env = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    if toolchain.family == "zig" and cache is not None and "ZIG_GLOBAL_CACHE_DIR" not in os.environ:
        env["ZIG_GLOBAL_CACHE_DIR"] = str(cache.root.absolute() / "zig")
    found = (*sorted(TILES.glob("*.h")), *sorted(SUPPORT.glob("*.h")))
    headers = key_of(*(text for path in found for text in (path.name, path.read_bytes())))
    return _Recipe(toolchain, sanitize, (before, (*links, *after)), env, key_of("1", toolchain.identity, headers))


def _compile_all(site: _Site, sources: Sequence[Source], glue: Sequence[Source], jobs: int, told: Told) -> int:
    """Make `SYMBOL.o` of every unit; the number that had to be compiled.

    Kernels that fail are told together, once all are compiled; where the glue fails too, the first ends the others.
    """
    units = (*sources, *glue)
    missing = [u for u in units if not _from_cache(site.cache, _key(site, u), site.folder / f"{u.symbol}.o")]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            ready = _preludes(site, missing, pool)
            waiting = {pool.submit(_object, site, u, ready.get(_prelude_of(u))): u for u in _alone_first(missing)}
            failed: dict[str, CompileError] = {}
            for done, future in enumerate(as_completed(waiting), 1):
                problem = future.exception()
                if isinstance(problem, CompileError) and (failed or _compiles(site, glue)):
                    failed[waiting[future].symbol] = problem
                else:
                    future.result()
                told(done, len(missing))
        except BaseException:
            site.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    ordered = {u.symbol: failed[u.symbol] for u in sources if u.symbol in failed}
    for problem in ordered.values():
        problem.units = {symbol: each.message for symbol, each in ordered.items()}
        raise problem
    return len(missing)


def _prelude_of(unit: Source) -> tuple[str, ...] | None:
    """The flags that a unit shares a precompiled header with; None where it includes another first."""
    return unit.flags if unit.text.startswith(_PRELUDE) else None


def _alone_first(units: Sequence[Source]) -> list[Source]:
    """Those first that need not wait for a precompiled header, in their order."""
    return sorted(units, key=lambda u: _prelude_of(u) is not None)


def _preludes(
    site: _Site, units: Sequence[Source], pool: ThreadPoolExecutor
) -> dict[tuple[str, ...] | None, Future[str]]:
    """By flags, the precompiled header for the units with them, where one is kept or they are enough to make it."""
    if site.recipe.toolchain.family not in PRECOMPILING:
        return {}
    ready: dict[tuple[str, ...] | None, Future[str]] = {}
    for flags, count in Counter(flags for u in units if (flags := _prelude_of(u)) is not None).items():
        name = f"prelude{len(ready)}.h"
        kept = _from_cache(site.cache, _prelude_key(site, flags), site.folder / f"{name}.gch")
        if kept or count >= _ENOUGH:
            ready[flags] = pool.submit(_prelude, site, name, flags)
    return ready


def _prelude_key(site: _Site, flags: Sequence[str]) -> str:
    """What the cache keeps the precompiled header for these flags under."""
    all_flags = compile_flags(site.recipe.toolchain, flags, sanitize=site.recipe.sanitize)
    return key_of("header", site.recipe.identity, *all_flags, _PRELUDE)


def _prelude(site: _Site, name: str, flags: Sequence[str]) -> str:
    """Precompile the header `name`; it is there as text too, for a compiler that cannot use what was made of it."""
    (site.folder / name).write_text(_PRELUDE, encoding="utf-8")
    made = site.folder / f"{name}.gch"
    if not made.exists():
        with contextlib.suppress(CompileError):
            _call(site, (*_flags(site, flags, name), "-x", "c++-header", name, "-o", made.name), made, "no header")
            if site.cache is not None:
                site.cache.put(_prelude_key(site, flags), made)
    return name


def _compiles(site: _Site, glue: Sequence[Source]) -> bool:
    """Whether the glue compiles: else it is the compiler that is at fault, and no kernel."""
    try:
        for unit in glue:
            _object(replace(site, stop=threading.Event()), unit)
    except CompileError:
        return False
    return True


def _key(site: _Site, unit: Source) -> str:
    """What the cache keeps the object of a unit under."""
    flags = compile_flags(site.recipe.toolchain, unit.flags, sanitize=site.recipe.sanitize)
    return key_of("object", site.recipe.identity, *flags, unit.symbol, unit.text)


def _flags(site: _Site, flags: Sequence[str], seed: str) -> tuple[str, ...]:
    """All flags of one call of the compiler.

    Names are relative and the headers' folder is hidden, so no path of this machine gets into the object. -iquote: our
    math.h is not found by <math.h>.
    """
    own = compile_flags(site.recipe.toolchain, flags, sanitize=site.recipe.sanitize)
    folders = [flag for f in (TILES, SUPPORT) for flag in (f"-iquote{f}", f"-ffile-prefix-map={f}={f.name}")]
    return (*own, *folders, f"-frandom-seed={seed}")


def _object(site: _Site, unit: Source, prelude: Future[str] | None = None) -> None:
    """Compile one unit, with the header that is ready once `prelude` is."""
    key, made, source = _key(site, unit), site.folder / f"{unit.symbol}.o", f"{unit.symbol}.cpp"
    (site.folder / source).write_text(unit.file, encoding="utf-8")
    first = ("-include", prelude.result()) if prelude is not None else ()
    arguments = (*_flags(site, unit.flags, key[:16]), *first, "-c", source, "-o", made.name)
    _call(site, arguments, made, f"{source} does not compile")
    if site.cache is not None:
        site.cache.put(key, made)


def _link(site: _Site, names: Sequence[str]) -> Path:
    """Link the objects, in the order of `names`, into one library below the site's folder."""
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
    """Run the compiler in the site's folder; raises CompileError with `what` went wrong and its first complaint.

    A compiler that reports success has to have `made` its file.
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
    """Copy what the cache has under `key`; False when there is none, or another process deletes it meanwhile."""
    kept = cache.get(key) if cache is not None else None
    if kept is None:
        return False
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(kept, to)
        return True
    return False


def _install(library: Path, out: Path) -> None:
    """Copy to a neighbour of `out`, then rename: whoever has the old file loaded keeps it, nobody sees half of one."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.new")
    try:
        shutil.copyfile(library, partial)
        partial.replace(out)
    except OSError as problem:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        reason = problem.strerror or str(problem)
        raise OutputError(f"build: {out} cannot be written: {reason}", hint="name another with --lib") from problem
