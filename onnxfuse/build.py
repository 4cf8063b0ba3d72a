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
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from onnxfuse import process
from onnxfuse.cache import Cache, file_digest, key_of
from onnxfuse.config import machine
from onnxfuse.errors import BudgetError, OutputError, ToolchainError
from onnxfuse.folders import work_folder
from onnxfuse.render.source import Source

TILES = Path(__file__).resolve().parent / "render" / "tiles"
EXPORTED = "RegisterCustomOps"

_FAMILIES = {"gcc": ("g++", "c++"), "clang": ("clang++", "c++"), "zig": ()}
_AUTO = ("c++", "g++", "clang++")
_OLDEST = {"gcc": 11, "clang": 12, "zig": 0}  # the first that know -march=x86-64-v4
_PATIENCE = 20.0  # seconds for which a compiler may think about its version; zig unpacks itself first
_ZIG = (sys.executable, "-P", "-m", "ziglang", "c++")

# Not -ffast-math: NaN, infinities and signed zeros keep their meaning, and sums keep their order.
_MEANING = ("-std=c++17", "-fno-math-errno", "-fno-trapping-math")
_SHAPE = ("-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden")
_FAST = ("-O3", "-g0")
_SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")

# Multiply-adds: clang's "on" joins what stands in one expression, wherever that is inlined; its "fast" joins more in
# one copy of a loop than in another, and a row would depend on its company. gcc knows "fast" alone.
# What a family wants besides: (compile, before the objects, after the objects).
_PLACES = {
    "gcc": (("-ffp-contract=fast",), ("-nodefaultlibs",), ("-lm", "-lc", "-lgcc")),
    "clang": (("-ffp-contract=on",), ("-nostdlib++", "-static-libgcc"), ("-lm",)),
    "zig": (("-ffp-contract=on", "-fno-sanitize=undefined"), ("-nostdlib++",), ("-lm",)),
}
# Zig gives its own meaning to -march, and compiles for this very machine unless a target is named.
_ZIG_SPELLING = {
    "-march=x86-64-v3": "-mcpu=x86_64_v3",
    "-march=x86-64-v4": "-mcpu=x86_64_v4",
    "-march=armv8-a": "-mcpu=generic",
}
_ZIG_GLIBC = "2.28"  # as old as what ONNX Runtime's own wheels ask for

_FIRST_ERROR = re.compile(r"(?:fatal )?error: .*|.*undefined (?:reference|symbol).*|.*cannot find .*", re.IGNORECASE)


class CompileError(ToolchainError):
    """The compiler or linker failed; `log` holds the command and all that it said.

    `unit` is the symbol of a source that is at fault: others compile.
    """

    def __init__(self, message: str, *, hint: str, log: str) -> None:
        super().__init__(message, hint=hint)
        self.log = log
        self.unit = ""
        self.add_note(log)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C++ compiler that answers: `family` is gcc, clang or zig; `identity` differs where builds may differ.

    `machine` is the architecture that it compiles for, as `uname -m` spells it.
    """

    name: str
    version: str
    command: tuple[str, ...]
    family: str
    identity: str
    machine: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Library:
    """A built library: objects `compiled` now and `cached` from before, wall time in seconds, the compiler's name."""

    path: Path
    sha256: str
    compiled: int
    cached: int
    seconds: float
    compiler: str


def find_toolchain(name: str = "auto", target: str = "") -> Toolchain:
    """The compiler that `--toolchain` names; auto is $CXX, else the first of c++, g++, clang++ and the ziglang wheel.

    For another `target` architecture than this machine's it is $CXX, a g++ that has it in its name, or the wheel. $CXX
    counts for a named family too when it is of that family. Raises ToolchainError when nothing usable is found.
    """
    wanted_machine = target or machine()
    foreign = wanted_machine != machine()
    refused = []
    for command, required in _candidates(name, wanted_machine if foreign else ""):
        found, reason = _identify(command, wanted_machine)
        if found is None:
            refused.append(reason)
        elif name not in ("auto", found.family):
            refused.append(f"{command[0]} is {found.family}")
        else:
            return found
        if required and name == "auto":
            break
    wanted = "C++" if name == "auto" else f"{name} C++"
    wanted = f"{wanted} compiler for {wanted_machine}" if foreign else f"{wanted} compiler"
    raise ToolchainError(
        f"build: no usable {wanted}: {'; '.join(refused)}",
        hint="pip install 'onnxfuse[zig]'"
        if foreign
        else "install g++ 11 or clang++ 12 or newer, or pip install 'onnxfuse[zig]'",
    )


def _candidates(name: str, foreign: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Commands to try in order, for a `foreign` architecture if one is named; True marks the user's own, from $CXX."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        yield tuple(named), True
    programs = _AUTO if name == "auto" else _FAMILIES[name]
    for program in programs if not foreign else (f"{foreign}-linux-gnu-g++",) if "g++" in programs else ():
        yield (program,), False
    if name in ("auto", "zig"):
        yield _ZIG, False


def _identify(command: tuple[str, ...], target: str) -> tuple[Toolchain | None, str]:
    """The toolchain behind a command, which compiles for `target`, or None and why not."""
    if command == _ZIG and find_spec("ziglang") is None:
        return None, "the ziglang wheel is not installed"
    if shutil.which(command[0]) is None:
        return None, f"{command[0]} not found"
    is_zig = command == _ZIG or Path(command[0]).name == "zig"
    name = "zig" if is_zig else Path(command[-1]).name
    ask = (*command[:-1], "version") if is_zig else (*command, "--version")
    try:
        said = process.run(ask, stage="build", env={"LC_ALL": "C"}, time_limit=_PATIENCE)
    except BudgetError:
        return None, f"{name} does not tell its version within {_PATIENCE:.0f} s"
    title = (said.out.splitlines() or [""])[0]
    # "g++ (Debian 12.2.0-14) 12.2.0", "Debian clang version 16.0.6 (1)", "0.17.0"
    version = re.search(r"\d+\.\d+(\.\d+)?", re.sub(r"\(.*?\)", "", title))
    if said.code != 0 or version is None:
        return None, f"{name} does not tell its version: {(said.err.strip().splitlines() or [title])[-1]}"
    family = "zig" if is_zig else "clang" if "clang" in title else "gcc"
    if int(version[0].split(".")[0]) < _OLDEST[family]:
        return None, f"{name} {version[0]} is older than {_OLDEST[family]}"
    if target != machine() and not is_zig and not _compiles_for(command, target):
        return None, f"{name} does not compile for {target}"
    return Toolchain(name, version[0], command, family, f"{family} {title} {target}", target), ""


def _compiles_for(command: tuple[str, ...], target: str) -> bool:
    """Whether a compiler says that its output is of this architecture."""
    said = process.run((*command, "-dumpmachine"), stage="build", time_limit=_PATIENCE)
    return said.out.split("-")[0].strip() == target


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
    glue: Source,
    toolchain: Toolchain,
    cache: Cache | None,
    jobs: int,
    out: Path,
    time_limit: float | None = None,
    *,
    sanitize: bool = False,
) -> Library:
    """Compile `sources` and `glue` (which defines `RegisterCustomOps`) into `out`, `jobs` at once (0: one per core).

    Each source brings the flags of its target; the glue has none, since it runs on any machine to find out what that
    can do. `out` is replaced in one step. `sanitize` builds for AddressSanitizer and UBSan, to be loaded with
    `sanitizer_env`.

    Raises CompileError, BudgetError after `time_limit` seconds, OutputError when `out` cannot be written.
    """
    start = time.monotonic()
    units = (*sources, glue)
    names = [unit.symbol for unit in units]
    if len(set(names)) != len(names) or not all(name.isidentifier() and name.isascii() for name in names):
        raise ValueError(f"source symbols must be distinct C identifiers: {names}")
    recipe = _recipe(toolchain, cache, sanitize)
    with work_folder() as folder:
        site = _Site(Path(folder), recipe, cache, start, time_limit, threading.Event())
        compiled = _compile_all(site, units, jobs or len(os.sched_getaffinity(0)))
        library = _link(site, names)
        digest = file_digest(library)
        _install(library, out)
    return Library(out, digest, compiled, len(units) - compiled, time.monotonic() - start, str(toolchain))


def sanitizer_env(toolchain: Toolchain) -> dict[str, str]:
    """Environment in which a program that is not sanitized itself (Python) can load a library built with `sanitize`."""
    if toolchain.family != "gcc":
        raise ToolchainError(f"build: sanitized kernels need gcc, not {toolchain}", hint="use --toolchain gcc")
    found = [
        process.run((*toolchain.command, f"-print-file-name={name}"), stage="build").out.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def _recipe(toolchain: Toolchain, cache: Cache | None, sanitize: bool) -> _Recipe:
    if sanitize and toolchain.family != "gcc":
        raise ToolchainError(f"build: sanitized kernels need gcc, not {toolchain}", hint="use --toolchain gcc")
    _, before, after = _PLACES[toolchain.family]
    shape = ("-shared", *spelled((), toolchain), "-Wl,--build-id=none", "-Wl,--version-script=exports.map")
    # A sanitized library leaves symbols to the preloaded run-time libraries; every other one must be complete.
    link = ((*shape, *_SANITIZED), ("-lm",)) if sanitize else ((*shape, "-Wl,-z,defs", *before), after)
    env = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    if toolchain.family == "zig" and cache is not None and "ZIG_GLOBAL_CACHE_DIR" not in os.environ:
        env["ZIG_GLOBAL_CACHE_DIR"] = str(cache.root.absolute() / "zig")
    headers = key_of(*(text for path in sorted(TILES.glob("*.h")) for text in (path.name, path.read_bytes())))
    return _Recipe(toolchain, sanitize, link, env, key_of("1", toolchain.identity, headers))


def compile_flags(toolchain: Toolchain, flags: Sequence[str], *, sanitize: bool = False) -> tuple[str, ...]:
    """Everything that decides what code a kernel becomes; `flags` are the target's own part (none: the baseline)."""
    way = _SANITIZED if sanitize else _FAST
    return (*meaning(toolchain.family), *_SHAPE, *way, *spelled(flags, toolchain))


def meaning(family: str) -> tuple[str, ...]:
    """The flags of a family of compilers that decide what code says."""
    return (*_MEANING, *_PLACES[family][0])


def spelled(flags: Sequence[str], toolchain: Toolchain) -> tuple[str, ...]:
    """A target's flags, which rows of `TARGETS` spell as gcc does, as another family spells them."""
    if toolchain.family != "zig":
        return tuple(flags)
    where = ("-target", f"{toolchain.machine}-linux-gnu.{_ZIG_GLIBC}") if sys.platform == "linux" else ()
    return (*where, *(_ZIG_SPELLING.get(flag, flag) for flag in flags))


def _compile_all(site: _Site, units: Sequence[Source], jobs: int) -> int:
    """Make `SYMBOL.o` of every unit; the number that had to be compiled. The first failure ends the others."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting = [pool.submit(_object, site, unit) for unit in units]
        try:
            done = wait(waiting, return_when=FIRST_EXCEPTION).done
            return sum(future.result() for future in waiting if future in done)
        except BaseException as problem:
            site.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(problem, CompileError):
                problem.unit = _at_fault(site, units, problem)
            raise


def _at_fault(site: _Site, units: Sequence[Source], problem: CompileError) -> str:
    """The symbol of the kernel that does not compile, where the last unit, the glue, does: else it is the compiler."""
    found = next((u.symbol for u in units[:-1] if f"build: {u.symbol}.cpp " in problem.message), "")
    try:
        _object(replace(site, stop=threading.Event()), units[-1])
    except CompileError:
        return ""
    return found


def _object(site: _Site, unit: Source) -> bool:
    """Make the object of one unit; True when it was compiled, False when the cache had it."""
    flags = compile_flags(site.recipe.toolchain, unit.flags, sanitize=site.recipe.sanitize)
    key = key_of("object", site.recipe.identity, *flags, unit.symbol, unit.text)
    made = site.folder / f"{unit.symbol}.o"
    if _from_cache(site.cache, key, made):
        return False
    source = f"{unit.symbol}.cpp"
    (site.folder / source).write_text(unit.text, encoding="utf-8")
    # Names are relative and the headers' folder is hidden, so no path of this machine gets into the object.
    # -iquote: our math.h is not found by <math.h>.
    where = (f"-iquote{TILES}", f"-ffile-prefix-map={TILES}=tiles", f"-frandom-seed={key[:16]}")
    _call(site, (*flags, *where, "-c", source, "-o", made.name), made, f"{source} does not compile")
    if site.cache is not None:
        site.cache.put(key, made)
    return True


def _link(site: _Site, names: Sequence[str]) -> Path:
    """Link the objects, in the order of `names`, into one library below the site's folder."""
    objects = [f"{name}.o" for name in names]
    before, after = site.recipe.link
    digests = [file_digest(site.folder / name) for name in objects]
    key = key_of("library", site.recipe.identity, *before, *after, *names, *digests)
    made = site.folder / "library.so"
    if not _from_cache(site.cache, key, made):
        (site.folder / "exports.map").write_text(f"{{ global: {EXPORTED}; local: *; }};\n", encoding="ascii")
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
