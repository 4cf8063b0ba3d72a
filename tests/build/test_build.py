"""A built library is a function of its sources, its options and its compiler; what fails says so in one line."""

import ctypes
import math
import os
import platform
import re
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from onnxfuse import build
from onnxfuse.build import BuildRequest, CompileError, Library, build_library
from onnxfuse.build import toolchain as compilers
from onnxfuse.build.cache import Cache, default_cache_dir
from onnxfuse.build.toolchain import Toolchain, compile_flags, find_toolchain
from onnxfuse.errors import BudgetError, OutputError, ToolchainError
from onnxfuse.render.source import Source
from onnxfuse.runtime import process
from onnxfuse.target import CPUS
from tests.sanitizers import sanitizer_env

HEAD = '#include "host.h"\n#include <cmath>\n'
EXPORT = 'extern "C" __attribute__((visibility("default")))'
GLUE = Source(
    "glue",
    HEAD
    + 'extern "C" int add(int, int);\nextern "C" int twice(int);\n'
    + f"{EXPORT} int RegisterCustomOps(int x) {{ return add(twice(x), 1); }}\n",
)
KERNELS = (
    Source("add", HEAD + 'extern "C" int add(int a, int b) { return a + b; }\n'),
    Source("twice", HEAD + 'extern "C" int twice(int a) { return 2 * a; }\nconst char* file() { return __FILE__; }\n'),
)


needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86 instruction sets")


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain("auto")


@pytest.fixture(autouse=True)
def zig_keeps_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zig builds its own run-time code once (20 s) and keeps it in the project's cache, not in each test's."""
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(default_cache_dir().absolute() / "zig"))


def make(toolchain: Toolchain, out: Path, *sources: Source, glue: Source = GLUE, **options: Any) -> Library:
    return build_library(replace(BuildRequest(sources or KERNELS, [glue], toolchain, None, 2, out), **options))


def only_glue(body: str) -> Source:
    return Source("glue", f"{HEAD}{EXPORT} {body}\n")


# ---- the library ----


def test_the_library_runs_and_exports_one_symbol(toolchain: Toolchain, tmp_path: Path):
    built = make(toolchain, tmp_path / "lib.so")
    library = ctypes.CDLL(str(built.path))
    assert library.RegisterCustomOps(20) == 41
    for hidden in ("add", "twice"):
        with pytest.raises(AttributeError):
            getattr(library, hidden)
    assert (built.compiled, built.cached, built.compiler) == (3, 0, str(toolchain))


def test_equal_inputs_give_equal_bytes(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = make(toolchain, tmp_path / "one.so", jobs=1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    second = make(toolchain, tmp_path / "two.so", jobs=3, cache=Cache(tmp_path / "cache"))
    raw = first.path.read_bytes()
    assert raw == second.path.read_bytes()
    assert first.sha256 == second.sha256
    for path in (build.TILES, tmp_path, Path.home()):
        assert str(path).encode() not in raw


def test_nothing_but_libc_and_libm_is_needed(toolchain: Toolchain, tmp_path: Path):
    raw = make(toolchain, tmp_path / "lib.so").path.read_bytes()
    assert set(re.findall(rb"\0(lib[\w+-]+\.so[.\d]*)(?=\0)", raw)) <= {b"libc.so.6", b"libm.so.6"}
    heap = only_glue("int* RegisterCustomOps() { return new int(1); }")
    with pytest.raises(CompileError, match="the library does not link: .*operator new"):
        make(toolchain, tmp_path / "lib.so", glue=heap)


def test_special_values_keep_their_meaning(toolchain: Toolchain, tmp_path: Path):
    glue = only_glue(
        "int RegisterCustomOps(float x, float y) {"
        " return std::isnan(x) | (x != x) << 1 | std::isinf(y) << 2 | (std::signbit(x * 0.0f + -0.0f)) << 3; }"
    )
    call = ctypes.CDLL(str(make(toolchain, tmp_path / "lib.so", glue=glue).path)).RegisterCustomOps
    call.argtypes = (ctypes.c_float, ctypes.c_float)
    assert call(math.nan, math.inf) & 7 == 7
    assert call(1.0, 1.0) & 7 == 0
    assert (call(1.0, 0.0), call(-1.0, 0.0)) == (0, 8)


@needs_x86
@pytest.mark.parametrize("family", ["gcc", "clang", "zig"])
@pytest.mark.parametrize(("arch", "register", "other"), [("x86-64-v4", "zmm", "ymm"), ("x86-64-v3", "ymm", "zmm")])
def test_vectors_are_as_wide_as_the_target_says(family: str, arch: str, register: str, other: str, tmp_path: Path):
    """Clang splits 64-byte vectors in two unless told otherwise, so the assembly is read."""
    toolchain = available(family)
    lanes = CPUS[arch].lanes
    text = (
        f"typedef float V __attribute__((vector_size({4 * lanes})));\n"
        f"{EXPORT} void fma(const V* a, const V* b, V* c, long n)"
        " { for (long i = 0; i < n; ++i) c[i] += a[i] * b[i]; }\n"
    )
    (tmp_path / "v.cpp").write_text(text, encoding="ascii")
    command = (*toolchain.command, *compile_flags(toolchain, CPUS[arch].flags), "-S", "v.cpp", "-o", "v.s")
    assert process.run(command, cwd=tmp_path, time_limit=300).code == 0
    multiply_adds = re.findall(r"vfmadd\d+ps.*", (tmp_path / "v.s").read_text(encoding="utf-8"))
    assert multiply_adds
    assert all(register in line and other not in line for line in multiply_adds)


@pytest.mark.skipif(find_spec("ziglang") is None, reason="needs the [zig] extra")
def test_zig_names_of_every_machine():
    zig = find_toolchain("zig")
    for target in CPUS.values():
        assert not [flag for flag in compilers.spelled(target.flags, zig) if flag.startswith("-march")]


def available(family: str) -> Toolchain:
    try:
        return find_toolchain(family)
    except ToolchainError as error:
        pytest.skip(str(error))


# ---- the cache ----


def test_a_second_build_compiles_nothing(toolchain: Toolchain, tmp_path: Path):
    cache = Cache(tmp_path / "cache")
    first = make(toolchain, tmp_path / "one.so", cache=cache)
    second = make(toolchain, tmp_path / "two.so", cache=cache)
    assert (first.compiled, first.cached) == (3, 0)
    assert (second.compiled, second.cached) == (0, 3)
    assert first.sha256 == second.sha256
    changed = make(toolchain, tmp_path / "two.so", Source("add", KERNELS[0].text + "// new\n"), KERNELS[1], cache=cache)
    assert (changed.compiled, changed.cached) == (1, 2)


@needs_x86
def test_the_glue_is_the_same_on_every_machine(toolchain: Toolchain, tmp_path: Path):
    """It runs on any, to find out what this one can do; so a wider target compiles only the kernels anew."""
    cache = Cache(tmp_path / "cache")
    make(toolchain, tmp_path / "lib.so", cache=cache)
    wider = [replace(source, flags=CPUS["x86-64-v4"].compiled) for source in KERNELS]
    wide = make(toolchain, tmp_path / "lib.so", *wider, cache=cache)
    assert (wide.compiled, wide.cached) == (2, 1)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The compiler's command lines, as they come."""
    commands: list[tuple[str, ...]] = []
    run = process.run

    def listening(command: tuple[str, ...], **rest: object) -> object:
        commands.append(tuple(command))
        return run(command, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "run", listening)
    return commands


def of_loops(count: int) -> tuple[Source, ...]:
    """Kernels that begin as all do."""
    text = '#include "loops.h"\nextern "C" float k{0}(float x) {{ return x * {0}.5f; }}\n'
    return tuple(Source(f"k{n}", text.format(n)) for n in range(count))


def test_a_header_is_compiled_once_and_changes_no_byte(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[tuple[str, ...]]
):
    raw = make(toolchain, tmp_path / "lib.so", *KERNELS, *of_loops(5)).path.read_bytes()
    if toolchain.family in compilers.PRECOMPILING:
        assert sum("-include" in c for c in said) == 5
        assert sum("c++-header" in c for c in said) == 1
    monkeypatch.setattr(build, "_WORTH_PRECOMPILING", 6)
    said.clear()
    assert make(toolchain, tmp_path / "lib.so", *KERNELS, *of_loops(5)).path.read_bytes() == raw
    assert not any("-include" in c for c in said)


def test_a_header_is_kept_and_serves_a_lone_kernel(toolchain: Toolchain, tmp_path: Path, said: list[tuple[str, ...]]):
    cache = Cache(tmp_path / "cache")
    lone = Source("lone", of_loops(1)[0].text)
    raw = make(toolchain, tmp_path / "lib.so", *KERNELS, lone).path.read_bytes()
    make(toolchain, tmp_path / "many.so", *KERNELS, *of_loops(4), cache=cache)
    said.clear()
    assert make(toolchain, tmp_path / "lib.so", *KERNELS, lone, cache=cache).path.read_bytes() == raw
    assert sum("-include" in c for c in said) == (toolchain.family in compilers.PRECOMPILING)
    assert not any("c++-header" in c for c in said)
    said.clear()
    other = replace(lone, flags=("-DOTHER",))
    make(toolchain, tmp_path / "lib.so", *KERNELS, other, cache=cache)
    assert not any("-include" in c for c in said), "it is of other flags"


def test_a_compiler_that_makes_no_precompiled_header_compiles_all_the_same(tmp_path: Path):
    own = find_toolchain("auto")
    script = tmp_path / "cc"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *c++-header*) echo "error: no headers" >&2; exit 1;; esac\n'
        f'exec {own.command[0]} "$@"\n'
    )
    script.chmod(0o755)
    many = tuple(Source(f"k{n}", f'#include "loops.h"\nint k{n}() {{ return {n}; }}\n') for n in range(5))
    assert make(replace(own, command=(str(script),)), tmp_path / "lib.so", *KERNELS, *many).compiled == 8


def test_headers_are_part_of_the_key(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache = Cache(tmp_path / "cache")
    make(toolchain, tmp_path / "lib.so", cache=cache)
    tiles = tmp_path / "tiles"
    shutil.copytree(build.TILES, tiles)
    monkeypatch.setattr(build, "TILES", tiles)
    assert make(toolchain, tmp_path / "lib.so", cache=cache).compiled == 0
    with (tiles / "host.h").open("a", encoding="utf-8") as header:
        header.write("// new\n")
    assert make(toolchain, tmp_path / "lib.so", cache=cache).compiled == 3


def test_a_damaged_object_is_compiled_again(toolchain: Toolchain, tmp_path: Path):
    cache = Cache(tmp_path / "cache")
    whole = make(toolchain, tmp_path / "lib.so", cache=cache)
    for entry in cache.root.glob("??/*.*"):
        entry.write_bytes(b"not an object")
    again = make(toolchain, tmp_path / "lib.so", cache=cache)
    assert (again.compiled, again.sha256) == (3, whole.sha256)


# ---- failures ----


def test_a_compiler_error_names_source_and_reason(toolchain: Toolchain, tmp_path: Path):
    bad = Source("bad", HEAD + "int f() {\n  return undeclared_thing;\n}\n")
    line = next(at for at, text in enumerate(bad.file.splitlines(), 1) if "undeclared" in text)
    with pytest.raises(CompileError) as caught:
        make(toolchain, tmp_path / "lib.so", bad)
    assert "build: bad.cpp does not compile: error: " in caught.value.message
    assert "undeclared_thing" in caught.value.message
    assert "\n" not in str(caught.value)
    assert "-c bad.cpp" in caught.value.log
    assert f"bad.cpp:{line}" in caught.value.log
    assert caught.value.exit_code == 4
    assert not list(tmp_path.iterdir())


def test_all_kernels_that_do_not_compile_are_reported_at_once(toolchain: Toolchain, tmp_path: Path):
    bad = [Source(name, HEAD + f"int f() {{ return no_{name}; }}\n") for name in ("one", "two")]
    cache = Cache(tmp_path / "cache")
    with pytest.raises(CompileError) as caught:
        make(toolchain, tmp_path / "lib.so", *bad, *KERNELS, cache=cache)
    assert list(caught.value.units) == ["one", "two"]
    assert all(f"no_{name}" in said for name, said in caught.value.units.items())
    assert make(toolchain, tmp_path / "lib.so", cache=cache).compiled == 0  # the others were not lost


def test_an_output_that_cannot_be_written_leaves_nothing(toolchain: Toolchain, tmp_path: Path):
    with pytest.raises(OutputError, match="missing/lib.so cannot be written: No such file"):
        make(toolchain, tmp_path / "missing" / "lib.so")
    (tmp_path / "folder.so").mkdir()
    with pytest.raises(OutputError):
        make(toolchain, tmp_path / "folder.so")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.so"]


@pytest.mark.parametrize("symbols", [("add", "add"), ("a/b", "c"), ("é", "c")])
def test_symbols_are_distinct_identifiers(toolchain: Toolchain, tmp_path: Path, symbols: tuple[str, str]):
    with pytest.raises(ValueError, match="distinct C identifiers"):
        make(toolchain, tmp_path / "lib.so", *(Source(symbol, "") for symbol in symbols))


# ---- compilers that are not what they seem ----


def fake_compiler(folder: Path, name: str, title: str, body: str = "") -> Path:
    """A program that tells `title` as its version and otherwise runs `body` (Python)."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    text = f"#!{sys.executable}\nimport sys, time\nif '--version' in sys.argv: print({title!r}); sys.exit()\n{body}\n"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as PATH, no $CXX and no ziglang wheel."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)
    return folder


GCC = "g++ (Debian 12.2.0-14+deb12u1) 12.2.0"
CLANG = "Debian clang version 16.0.6 (15~deb12u1)"


def test_no_compiler_says_what_to_install(bare: Path):
    for name in ("auto", "gcc", "clang", "zig"):
        with pytest.raises(ToolchainError, match=r"pip install 'onnxfuse\[zig\]'") as caught:
            find_toolchain(name)
        assert caught.value.exit_code == 4


def test_the_first_usable_compiler_is_taken(bare: Path):
    fake_compiler(bare, "c++", "c++ (GCC) 9.4.0")
    fake_compiler(bare, "g++", "no version here")
    with pytest.raises(ToolchainError, match=r"c\+\+ 9.4.0 is older than 11; g\+\+ does not report its version"):
        find_toolchain("auto")
    fake_compiler(bare, "clang++", CLANG)
    found = find_toolchain("auto")
    assert (found.name, found.version, found.family) == ("clang++", "16.0.6", "clang")
    assert find_toolchain("clang") == found
    fake_compiler(bare, "g++", GCC)
    assert str(find_toolchain("auto")) == "g++ 12.2.0"


def test_cxx_comes_first_and_is_never_replaced(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_compiler(bare, "c++", GCC)
    mine = fake_compiler(tmp_path / "other", "my-cc", CLANG)
    monkeypatch.setenv("CXX", f"{mine} -m64")
    assert find_toolchain("auto").command == (str(mine), "-m64")
    assert find_toolchain("clang").command == (str(mine), "-m64")
    assert find_toolchain("gcc").command == ("c++",)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match="no-such-compiler not found"):
        find_toolchain("auto")


def test_versions_are_distinguished(bare: Path):
    fake_compiler(bare, "g++", GCC)
    before = find_toolchain("gcc")
    fake_compiler(bare, "g++", GCC.replace("u1", "u2"))
    assert find_toolchain("gcc").identity != before.identity


def test_the_time_limit_and_the_first_failure_end_every_compiler(bare: Path, tmp_path: Path):
    slow = """
if 'bad.cpp' in sys.argv:
    time.sleep(0.3)
    sys.exit('bad.cpp:1:1: error: no good')
if 'slow.cpp' in sys.argv:
    time.sleep(60)
time.sleep(1)
sys.exit('no glue either')
"""
    fake_compiler(bare, "g++", GCC, slow)
    toolchain = find_toolchain("gcc")
    with pytest.raises(BudgetError, match=r"compiling takes longer than the 0\.5 s allowed \(raise --time-budget\)"):
        make(toolchain, tmp_path / "lib.so", Source("slow", ""), time_limit=0.5)
    with pytest.raises(CompileError, match="bad.cpp does not compile: error: no good"):
        make(toolchain, tmp_path / "lib.so", Source("slow", ""), Source("bad", ""), Source("waits", ""))


# ---- sanitizers ----


def test_the_sanitized_build_finds_a_write_past_the_end(tmp_path: Path):
    toolchain = available("gcc")
    glue = only_glue("int RegisterCustomOps(int n) { volatile int x[4] = {}; x[n] = 1; return x[0]; }")
    built = make(toolchain, tmp_path / "lib.so", glue=glue, sanitize=True)
    program = f"import ctypes, sys; ctypes.CDLL({str(built.path)!r}).RegisterCustomOps(int(sys.argv[1]))"
    runs = [process.run((sys.executable, "-c", program, n), env=sanitizer_env(toolchain), time_limit=60) for n in "14"]
    assert (runs[0].code, runs[0].err) == (0, "")
    assert runs[1].code != 0
    assert "RegisterCustomOps" in runs[1].err
    assert "out of bounds" in runs[1].err or "stack-buffer-overflow" in runs[1].err


def test_only_gcc_sanitizes(bare: Path, tmp_path: Path):
    fake_compiler(bare, "clang++", CLANG)
    toolchain = find_toolchain("clang")
    with pytest.raises(ToolchainError, match="sanitized kernels need gcc"):
        make(toolchain, tmp_path / "lib.so", sanitize=True)
    with pytest.raises(ToolchainError, match="sanitized kernels need gcc"):
        sanitizer_env(toolchain)
    assert os.listdir(tmp_path) == ["bin"]
