"""C++ compilers: which one is usable on this machine, and the flags that determine the generated code."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from onnxfuse.errors import BudgetError, ToolchainError
from onnxfuse.runtime import process
from onnxfuse.target import machine

_FAMILIES = {"gcc": ("g++", "c++"), "clang": ("clang++", "c++"), "zig": ()}
_AUTO = ("c++", "g++", "clang++")
_OLDEST = {"gcc": 11, "clang": 12, "zig": 0}  # the first versions with -march=x86-64-v4
_TIMEOUT = 20.0  # seconds for a compiler to print its version; zig unpacks itself first
_ZIG = (sys.executable, "-P", "-m", "ziglang", "c++")

# Not -ffast-math: NaN, infinities and signed zeros keep their meaning, and sums keep their order.
_SEMANTICS = ("-std=c++17", "-fno-math-errno", "-fno-trapping-math")
_SHAPE = ("-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden")
_FAST = ("-O3", "-g0")
_SANITIZED = (
    "-O0",
    "-g1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
)

# Contraction to fused multiply-adds: clang's "on" contracts within one expression, wherever that is inlined; its "fast"
# contracts more in one copy of a loop than in another, so a row's result would depend on the copy that computes it. gcc
# has only "fast".
# Further flags of a family: (for compiling, for linking before the objects, and after the objects).
_FAMILY_FLAGS = {
    "gcc": (("-ffp-contract=fast",), ("-nodefaultlibs",), ("-lm", "-lc", "-lgcc")),
    "clang": (("-ffp-contract=on",), ("-nostdlib++", "-static-libgcc"), ("-lm",)),
    "zig": (("-ffp-contract=on", "-fno-sanitize=undefined"), ("-nostdlib++",), ("-lm",)),
}
# Zig interprets -march differently, and compiles for the native processor unless a target is named.
_ZIG_SPELLING = {
    "-march=x86-64-v3": "-mcpu=x86_64_v3",
    "-march=x86-64-v4": "-mcpu=x86_64_v4",
    "-march=armv8-a": "-mcpu=generic",
}
PRECOMPILING = ("gcc",)  # families that use NAME.gch for a header NAME, if made with the same flags
_ZIG_GLIBC = "2.28"  # the version that ONNX Runtime's own wheels require


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A usable C++ compiler: `family` is gcc, clang or zig; compilers with equal `identity` give equal objects.

    `machine` is the architecture that it compiles for, as `uname -m` prints it.
    """

    name: str
    version: str
    command: tuple[str, ...]
    family: str
    identity: str
    machine: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def find_toolchain(name: str = "auto", target: str = "") -> Toolchain:
    """The compiler that `--toolchain` names; auto is $CXX, else the first of c++, g++, clang++ and the ziglang wheel.

    For a `target` architecture other than this machine's, it is $CXX, the cross compiler TARGET-linux-gnu-g++, or the
    wheel. A named family takes $CXX too if it is of that family. Raises ToolchainError if none is usable.
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
    """Commands to try in order, for a `foreign` architecture if one is named; True marks the one from $CXX."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        yield tuple(named), True
    programs = _AUTO if name == "auto" else _FAMILIES[name]
    for program in programs if not foreign else (f"{foreign}-linux-gnu-g++",) if "g++" in programs else ():
        yield (program,), False
    if name in ("auto", "zig"):
        yield _ZIG, False


def _identify(command: tuple[str, ...], target: str) -> tuple[Toolchain | None, str]:
    """The toolchain of a command, for `target`; or None and why it is not usable."""
    if command == _ZIG and find_spec("ziglang") is None:
        return None, "the ziglang wheel is not installed"
    if shutil.which(command[0]) is None:
        return None, f"{command[0]} not found"
    is_zig = command == _ZIG or Path(command[0]).name == "zig"
    name = "zig" if is_zig else Path(command[-1]).name
    ask = (*command[:-1], "version") if is_zig else (*command, "--version")
    try:
        said = process.run(ask, stage="build", env={"LC_ALL": "C"}, time_limit=_TIMEOUT)
    except BudgetError:
        return None, f"{name} does not report its version within {_TIMEOUT:.0f} s"
    title = (said.out.splitlines() or [""])[0]
    # "g++ (Debian 12.2.0-14) 12.2.0", "Debian clang version 16.0.6 (1)", "0.17.0"
    version = re.search(r"\d+\.\d+(\.\d+)?", re.sub(r"\(.*?\)", "", title))
    if said.code != 0 or version is None:
        return None, f"{name} does not report its version: {(said.err.strip().splitlines() or [title])[-1]}"
    family = "zig" if is_zig else "clang" if "clang" in title else "gcc"
    if int(version[0].split(".")[0]) < _OLDEST[family]:
        return None, f"{name} {version[0]} is older than {_OLDEST[family]}"
    if target != machine() and not is_zig and not _compiles_for(command, target):
        return None, f"{name} does not compile for {target}"
    return Toolchain(name, version[0], command, family, f"{family} {title} {target}", target), ""


def _compiles_for(command: tuple[str, ...], target: str) -> bool:
    """Whether a compiler reports this architecture as its target."""
    said = process.run((*command, "-dumpmachine"), stage="build", time_limit=_TIMEOUT)
    return said.out.split("-")[0].strip() == target


def compile_flags(toolchain: Toolchain, flags: Sequence[str], *, sanitize: bool = False) -> tuple[str, ...]:
    """All compiler flags that affect the code; `flags` are those of the target (none: the baseline)."""
    optimization = _SANITIZED if sanitize else _FAST
    return (*meaning(toolchain.family), *_SHAPE, *optimization, *spelled(flags, toolchain))


def meaning(family: str) -> tuple[str, ...]:
    """The flags of a family of compilers that affect language and floating-point semantics."""
    return (*_SEMANTICS, *_FAMILY_FLAGS[family][0])


def spelled(flags: Sequence[str], toolchain: Toolchain) -> tuple[str, ...]:
    """A target's flags, given in gcc's spelling, in the spelling of the compiler's family."""
    if toolchain.family != "zig":
        return tuple(flags)
    where = ("-target", f"{toolchain.machine}-linux-gnu.{_ZIG_GLIBC}") if sys.platform == "linux" else ()
    return (*where, *(_ZIG_SPELLING.get(flag, flag) for flag in flags))


def link_flags(
    toolchain: Toolchain, exports: str, *, sanitize: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Linker flags before and after the objects of a library that exports what the version script `exports` names."""
    _, before, after = _FAMILY_FLAGS[toolchain.family]
    shape = ("-shared", *spelled((), toolchain), "-Wl,--build-id=none", f"-Wl,--version-script={exports}")
    # A sanitized library has undefined symbols of the preloaded run-time libraries; all others must have none.
    return ((*shape, *_SANITIZED), ("-lm",)) if sanitize else ((*shape, "-Wl,-z,defs", *before), after)
