"""Kernels run in the stock runtime through the glue; what cannot run is left to the bodies, and nothing crashes."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from onnxfuse.errors import DeviceError, OnnxFuseError
from onnxfuse.render import ort_glue
from onnxfuse.render.source import Source
from onnxfuse.runtime import engine, process
from onnxfuse.runtime.engine import Array
from onnxfuse.target import cpu_flags, has_features
from tests.runtime import twice

NEVER = (0x7FFFFFFF, 0, 0, 0, 0)  # a feature that no processor has
LEVELS = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
SECONDS, PATIENCE = 1.2, 60.0  # of calls, in which threads are counted often enough, alone and on a busy machine
SHAPES = ((3, 5), (0, 5), (1, 1), (300, 301))


def opened(
    library: Path | None,
    *,
    level: ort.GraphOptimizationLevel = LEVELS[1],
    rank: int = 2,
    threads: int = 2,
    **config: str,
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.graph_optimization_level = level
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    if library is not None:
        options.register_custom_ops_library(str(library))
    model = twice.model(rank=rank).SerializeToString()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def answer(session: ort.InferenceSession, x: Array) -> Array:
    return np.asarray(session.run(None, {"x": x})[0])


def kernel_runs(library: Path, **config: str) -> bool:
    """Whether the (wrong) kernel answers, or the function body."""
    x = np.ones((2, 2), np.float32)
    found = float(answer(opened(library, **config), x)[0, 0])
    assert found in (pytest.approx(-3.0), pytest.approx(-3.03))
    return found != pytest.approx(-3.0, rel=1e-4)


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("registered", [True, False])
def test_right_with_and_without_the_library(
    good: Path, level: ort.GraphOptimizationLevel, shape: tuple[int, ...], registered: bool
):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = answer(opened(good if registered else None, level=level), x)
    np.testing.assert_allclose(found, -(2 * x + 1), rtol=1e-6)


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_the_kernel_runs_not_the_body(wrong: Path, level: ort.GraphOptimizationLevel):
    x = np.ones((4, 4), np.float32)
    np.testing.assert_allclose(answer(opened(wrong, level=level), x), -3.03, rtol=1e-6)


def test_the_config_entry_switches_it_off(wrong: Path):
    assert kernel_runs(wrong)
    assert kernel_runs(wrong, onnxfuse__disable="0")
    assert not kernel_runs(wrong, onnxfuse__disable="1")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a process of one core has nothing to divide")
def test_threads_of_a_session_are_counted(tmp_path: Path):
    """Two sessions of one library: each kernel divides its work among the threads that its own session has."""
    library = twice.built(tmp_path, twice.glue(), defines="#define GAIN float(w->tasks / 2)")
    x = np.zeros((2, 2), np.float32)
    cores = len(os.sched_getaffinity(0))
    alone, two = (opened(library, threads=threads) for threads in (1, 2))
    assert float(answer(alone, x)[0, 0]) == -cores  # after one run nobody can be sure
    for session, threads in ((alone, 1), (two, 2)):
        begin, found = time.monotonic(), 0.0
        while (past := time.monotonic() - begin) < SECONDS or (found != -threads and past < PATIENCE):
            found = float(answer(session, x)[0, 0])
        assert found == -threads
    del alone
    third = opened(library, threads=2)  # of a logger that may be where the first one was
    assert [float(answer(third, x)[0, 0]) for _ in range(2)] == [-cores] * 2


STATUS = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
print(options.get_session_config_entry(sys.argv[2]))
"""


def said(library: Path, **environment: str) -> tuple[str, str]:
    """What a library says of itself as a config entry, and what the runtime logs, in a process of its own."""
    done = process.run(
        [sys.executable, "-c", STATUS, str(library), f"{twice.DOMAIN}.status"], env={"ONNXFUSE_ISA": ""} | environment
    )
    assert done.code == 0, done.err
    return done.out.strip(), done.err.strip()


def test_a_library_says_that_it_is_used(good: Path):
    assert said(good) == ("kernels for any", "")


def test_a_library_that_steps_aside_says_so_in_the_log(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    status, log = said(good, ONNXFUSE_ISA="none")
    assert (
        status == "function bodies run instead of the kernels: the environment variable ONNXFUSE_ISA allows none alone"
    )
    assert status in log and len(log.splitlines()) == 1
    monkeypatch.setitem(ort_glue.FEATURES, "never", NEVER)
    status, log = said(twice.built(tmp_path, twice.glue("never")))
    assert status == "function bodies run instead of the kernels: this processor lacks never"
    assert status in log


def test_what_a_kernel_refuses_is_the_runtimes_error(good: Path):
    session = opened(good, rank=3)
    with pytest.raises(Exception, match="twice: x must be a matrix"):
        answer(session, np.ones((2, 2, 2), np.float32))


def test_one_session_in_several_threads(good: Path):
    session = opened(good)
    wrong_answers: list[int] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(50):
            x = random.standard_normal((random.integers(1, 200), 67)).astype(np.float32)
            if not np.allclose(answer(session, x), -(2 * x + 1), rtol=1e-5, atol=1e-5):
                wrong_answers.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong_answers


def test_first_registered_by_several_threads_at_once(wrong: Path, tmp_path: Path):
    library = Path(shutil.copy(wrong, tmp_path / "libfresh.so"))  # loaded for the first time
    start = threading.Barrier(6)
    ran: list[bool] = []

    def work() -> None:
        start.wait()
        ran.append(kernel_runs(library))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == [True] * 6


def test_scratch_is_given_back(good: Path):
    session = opened(good)
    x = np.ones((1024, 1024), np.float32)
    answer(session, x)
    before = _resident_bytes()
    for _ in range(50):
        answer(session, x)
    assert _resident_bytes() - before < 5 * x.nbytes  # 50 runs that leak would take ten times as much


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def test_loaded_again_after_the_last_session(wrong: Path, tmp_path: Path):
    library = Path(shutil.copy(wrong, tmp_path / "libagain.so"))
    assert [kernel_runs(library) for _ in range(3)] == [True] * 3


# ---- what the machine and the runtime must have ----


def test_a_missing_cpu_feature_leaves_the_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ort_glue.FEATURES, "none-such", NEVER)
    assert not kernel_runs(twice.built(tmp_path, twice.glue("none-such"), defines="#define GAIN 1.01f"))


def test_missing_saved_state_leaves_the_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    leaf, subleaf, register, bit, _ = ort_glue.FEATURES["sse4.2"]
    monkeypatch.setitem(ort_glue.FEATURES, "unsaved", (leaf, subleaf, register, bit, 1 << 40))
    assert not kernel_runs(twice.built(tmp_path, twice.glue("unsaved"), defines="#define GAIN 1.01f"))


@pytest.mark.skipif("sse2" not in cpu_flags(), reason="the rows are of x86")
def test_features_are_those_the_system_names(tmp_path: Path):
    rows = "\n".join(f'{{"{name}", {", ".join(map(str, row))}}},' for name, row in ort_glue.FEATURES.items())
    asks = Source("asks", f"""#include "ort_glue.h"
        namespace {{ const onnxfuse::Feature rows[] = {{ {rows} }}; }}
        extern "C" __attribute__((visibility("default"))) int RegisterCustomOps(int i) {{
          return onnxfuse::cpu_has(rows[i]);
        }}""")  # fmt: skip
    library = ctypes.CDLL(str(twice.built(tmp_path, [asks])))
    found = {name for i, name in enumerate(ort_glue.FEATURES) if library.RegisterCustomOps(i)}
    named = {name for name in ort_glue.FEATURES if has_features([name])}
    assert found == named


def gain(library: Path) -> int:
    """By how many percent the kernel is wrong: that of which instruction set it is; 0 for the function body."""
    found = float(answer(opened(library), np.ones((2, 2), np.float32))[0, 0])
    return round(100 * (found / -3.0 - 1.0))


def test_of_several_the_first_that_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ort_glue.FEATURES, "none-such", NEVER)
    monkeypatch.delenv("ONNXFUSE_ISA", raising=False)
    library = twice.several(tmp_path, best=("none-such",), good=(), plain=())
    assert gain(library) == 2
    for name, percent in {"plain": 3, "good": 2, "best": 0, "other": 0, "": 2}.items():
        monkeypatch.setenv("ONNXFUSE_ISA", name)  # read whenever a session's options take the library
        assert gain(library) == percent, name
    monkeypatch.delenv("ONNXFUSE_ISA")
    assert gain(twice.several(tmp_path, best=("none-such",), good=("none-such",))) == 0


def test_library_settings_end_with_the_session_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONNXFUSE_ISA", "theirs")
    engine.options(libraries=[str(twice.several(tmp_path, good=()))], isa="good")
    assert os.environ["ONNXFUSE_ISA"] == "theirs"
    monkeypatch.delenv("ONNXFUSE_ISA")
    with pytest.raises(DeviceError):
        engine.options(libraries=[str(tmp_path / "none.so")], isa="good")
    assert "ONNXFUSE_ISA" not in os.environ


def in_disguise(version: str, api: str = "real->get_api(version)") -> list[Source]:
    """The registration, told that the runtime is another one."""
    listed, *others = twice.glue()
    text = listed.text.replace("RegisterCustomOps", "genuine")
    text = text.replace('extern "C" __attribute__((visibility("default")))', "static")
    disguised = Source("disguise", text + f"""
        namespace {{
        const onnxfuse::ort::Base* real;
        onnxfuse::ort::Api get_api(uint32_t version) {{ return {api}; }}
        const char* get_version() {{ return "{version}"; }}
        const onnxfuse::ort::Base disguise = {{get_api, get_version}};
        }}
        extern "C" __attribute__((visibility("default"))) onnxfuse::ort::Status* RegisterCustomOps(
            onnxfuse::ort::SessionOptions* options, const onnxfuse::ort::Base* base) {{
          real = base;
          return genuine(options, &disguise);
        }}""")  # fmt: skip
    return [disguised, *others]


@pytest.mark.parametrize(
    ("version", "api", "runs"),
    [
        ("1.18.0", "real->get_api(version)", True),  # shapes are read the old way
        ("1.17.3", "real->get_api(version)", False),
        ("1.9.0", "real->get_api(version)", False),
        ("2.0.0", "nullptr", False),
        ("1.30.1", "version > 18 ? nullptr : real->get_api(version)", True),
        ("nonsense", "real->get_api(version)", False),
    ],
)
def test_kernels_run_from_a_minimum_version_of_the_runtime_on(tmp_path: Path, version: str, api: str, runs: bool):
    library = twice.built(tmp_path, in_disguise(version, api), defines="#define GAIN 1.01f")
    assert kernel_runs(library) == runs


# ---- the text ----


def test_the_text_is_a_function_of_its_arguments():
    assert twice.glue("avx2", "fma") == twice.glue("avx2", "fma")
    assert "extern const onnxfuse::Kernel onnxfuse_twice;" in twice.glue()[0].text


@pytest.mark.parametrize(
    ("domain", "symbols", "features"),
    [("onnxfuse.x", ["a b"], ()), ("onnxfuse.x", [], ()), ('a"b', ["a"], ()), ("onnxfuse.x", ["a"], ("avx1024",))],
)
def test_library_names_that_cannot_be_quoted_are_refused(domain: str, symbols: list[str], features: tuple[str, ...]):
    with pytest.raises(OnnxFuseError, match="render: "):
        ort_glue.registration(domain, [ort_glue.Variant("any", tuple(symbols), features)])


@pytest.mark.parametrize("family", ["gcc", "clang"])
def test_every_compiler_takes_it(tmp_path: Path, family: str):
    if not shutil.which({"gcc": "g++", "clang": "clang++"}[family]):
        pytest.skip(f"no {family} here")
    assert kernel_runs(twice.built(tmp_path, twice.glue(), defines="#define GAIN 1.01f", family=family))


def test_two_libraries_of_equal_kernels_in_one_session(good: Path, tmp_path: Path):
    """Two models with equal kernels have equal domains: the first library's serve both, and options take both."""
    other = tmp_path / "libother.so"
    shutil.copyfile(good, other)
    options = ort.SessionOptions()
    for library in (good, other, good):
        options.register_custom_ops_library(str(library))
    x = np.ones((2, 2), np.float32)
    for rank in (2, 2):
        model = twice.model(rank=rank).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        assert np.array_equal(answer(session, x), answer(opened(good), x))
