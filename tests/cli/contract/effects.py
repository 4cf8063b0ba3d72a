"""What each flag of each verb changes: a command line, and a sign that is seen only with the flag, or only without."""

from __future__ import annotations

from dataclasses import dataclass

_M, _D, _F = "m.onnx", "d.onnx", "f.onnx"  # four nodes, any batch, what became of the first
_DRY, _BUILD = f"{_M} --dry-run", f"{_M} o.onnx --no-verify --no-gain"
_DIFFER = "relu.onnx abs.onnx"
_SHORT = "--duration 0.05s"


_OFF = ("--no-verify", "--no-winograd")


@dataclass(frozen=True, slots=True)
class Effect:
    """A flag of a verb: `line` are the other words of a command line, `words` the flag with its value.

    `sign` is a pattern: what is printed, written and ended with has it only with the flag, or, if `gone`, only without
    it. A pattern with a group tells instead by what the group matches, which must be the same in two runs without it.
    `together` are the words of all flags that are given in the same run, where their signs have nothing to do with each
    other.
    """

    verb: str
    words: str
    line: str
    sign: str
    gone: bool = False
    together: str = ""

    @property
    def flag(self) -> str:
        """The flag itself, where the words have its `--no-` form."""
        word = self.words.split()[0]
        return word.replace("--no-", "--", 1) if word in _OFF else word


# For each verb, a command line that ends well, and one that does not.
USUAL: dict[str, tuple[str, str]] = {
    "optimize": (_DRY, "missing.onnx"),
    "profile": (f"{_M} {_SHORT}", "missing.onnx"),
    "verify": (f"{_M} {_F}", f"{_M} missing.onnx"),
    "inspect": (_M, "missing.onnx"),
    "explain": (_M, "missing.onnx"),
    "tune": (f"{_M} --budget 0.001s --cache-dir ready", "missing.onnx"),
    "diff": (f"{_M} {_M}", f"{_M} missing.onnx"),
    "bisect": (f"{_M} {_F}", f"{_M} missing.onnx"),
    "report": ("result.json", "missing.json"),
    "package": ("folder", "missing"),
    "doctor": ("", "--json-file -"),
    "config": ("", "--json-file -"),
    "cache": ("info", "import missing.tar"),
}

# Flags that all verbs have which take them. Each run has a variable in its environment that sets no flag.
_EVERYWHERE = (
    ("--json", r"^\{$"),
    ("--json-file new.json", r"^files .*\bnew\.json\b"),
    ("--report new.md", r"^files .*\bnew\.md\b"),
    ("--verbose", r"^(took|seconds) "),
    ("--progress plain", r"^\w.*\.\.\.$"),
)


def of_all_verbs(verb: str, flags: set[str]) -> list[Effect]:
    """The rows of the flags that most verbs have."""
    good, bad = USUAL[verb]
    taken = [(words, sign) for words, sign in _EVERYWHERE if words.split()[0] in flags]
    together = " ".join(words for words, _ in taken)
    rows = [Effect(verb, words, good, sign, together=together) for words, sign in taken]
    rows.append(Effect(verb, "--quiet", good, "sets no flag", gone=True))
    rows.append(Effect(verb, "--debug", bad, "^Traceback"))
    if "--overwrite" in flags and "--json-file" in flags and verb not in ("optimize", "tune"):
        rows.append(Effect(verb, "--overwrite", f"{good} --json-file old.json", "^exit 0$"))
    return rows


OWN = (
    Effect("optimize", "--output o.onnx", f"{_M} --no-verify --no-gain", r"^files .*\bo\.onnx"),
    Effect("optimize", "--lib other.so", _BUILD, r"^files .*\bother\.so"),
    Effect("optimize", "--manifest other.json", _BUILD, r"^files .*\bother\.json"),
    Effect("optimize", "--overwrite", f"{_M} {_F} --no-verify --no-gain", "^exit 0$"),
    Effect("optimize", "--save-as-external-data", "p.onnx o.onnx --no-verify --no-gain", r"^files .*\bo\.data"),
    Effect("optimize", "--target cuda", f"{_DRY} --print render", "__global__"),
    Effect("optimize", "--arch aarch64", f"{_DRY} --print render", r"^// \w+ for aarch64"),
    Effect("optimize", "--cuda-graph", f"{_DRY} --target cuda --json", r'"predicted_ms": (\S+)'),
    Effect("optimize", "--toolchain clang", _BUILD, "clang"),
    Effect("optimize", "--nvcc ./no-such", f"{_M} o.onnx --target cuda --toolchain nvcc", "no-such"),
    Effect("optimize", "--dim batch=3", f"{_D} --dry-run --print load", r"input x: float32\[3, 64\]"),
    Effect("optimize", "--input-shape x:3,64", f"{_D} --dry-run --print load", r"input x: float32\[3, 64\]"),
    Effect("optimize", "--constant-initializers", "i.onnx --dry-run --print load", "constant scale"),
    Effect("optimize", "--inputs ones.npz", f"{_D} o.onnx --no-gain --verify", r"^verify +1 input,"),
    Effect("optimize", "--seed 7", "m.onnx o.onnx --no-gain --verify --json", r'"max_error": (\S+)'),
    Effect("optimize", "--custom-ops-library no-such.so", f"{_M} o.onnx --no-gain --verify", r"no-such\.so"),
    Effect("optimize", "--strategy none", _DRY, "-> 0 kernels"),
    Effect("optimize", "--plan-budget 0", f"{_DRY} --strategy exhaustive --json", '"by": ', gone=True),
    Effect("optimize", "--min-group 5", _DRY, "-> 0 kernels"),
    Effect("optimize", "--enable exp-log", "r.onnx --dry-run", "exp-log 1"),
    Effect("optimize", "--disable twice-neg", "n.onnx --dry-run", "twice-neg 1", gone=True),
    Effect("optimize", "--skip-node Relu", _DRY, "2 nodes left"),
    Effect("optimize", "--fast-math", "r.onnx --dry-run", "exp-log 1"),
    Effect("optimize", "--precision bf16", "p.onnx --dry-run --print schedule", "bfloat16"),
    Effect("optimize", "--no-winograd", "c.onnx --dry-run --json", r'"predicted_ms": (\S+)'),
    Effect("optimize", "--no-verify", f"{_M} o.onnx --no-gain", "^verify ", gone=True),
    Effect("optimize", "--rtol 0.25", f"{_M} o.onnx --no-gain --verify", "limit 2.5e-01"),
    Effect("optimize", "--atol 0.25", f"{_M} o.onnx --no-gain --verify", r"(limit \S+)"),
    Effect("optimize", "--require-fusion 9", _DRY, "^exit 1$"),
    Effect("optimize", "--lock other.lock", f"{_BUILD} --profile-guided", r"^files .*\bother\.lock"),
    Effect("optimize", "--check", f"{_D} o.onnx --no-verify --no-gain --lock m.lock", "^exit 1$"),
    Effect("optimize", "--gain", f"{_M} o.onnx --no-verify", "^gain "),
    Effect("optimize", "--dim-hint batch=8", f"{_D} --dry-run --json", r'"counted_at": \{\s+"batch": 8'),
    Effect("optimize", "--profile-guided", _BUILD, r"^files .*\bo\.fuse\.lock"),
    Effect("optimize", "--cache-dir own", _BUILD, r"^files .*\bown\b"),
    Effect("optimize", "--no-cache", _BUILD, "from cache", gone=True),
    Effect("optimize", "--jobs 1", "two.onnx o.onnx --no-verify --no-gain --cache-dir own", "begin begin", gone=True),
    Effect("optimize", "--time-budget 0.001", _DRY, "^exit 6$"),
    Effect("optimize", "--memory-budget 1MB", _DRY, "^exit 6$"),
    Effect("optimize", "--dry-run", f"{_M} --no-verify --no-gain", r"^files .*\bm\.fused\.onnx", gone=True),
    Effect("optimize", "--stop-after plan", f"{_M} --no-verify --no-gain", r"^files .*\bm\.fused\.onnx", gone=True),
    Effect("optimize", "--print load", _DRY, "^graph of 4 nodes"),
    Effect("optimize", "--list-passes", _DRY, "^identity +exact"),
    Effect("profile", "--level kernel", f"{_F} {_SHORT}", "^at best"),
    Effect("profile", "--trace t.json", f"{_M} {_SHORT}", r"^files .*\bt\.json"),
    Effect("profile", "--library libf.so", f"alone/f.onnx {_SHORT} --level kernel", "Mul_0, Add_1"),
    Effect("profile", "--without-library", f"{_F} {_SHORT} --level kernel", "Mul_0, Add_1", gone=True),
    Effect("profile", "--threads 1", f"{_M} {_SHORT}", "^1 thread;"),
    Effect("profile", "--warmup 100000000", f"{_M} {_SHORT} --threads 1 --time-budget 6s", "^exit 6$"),
    Effect("profile", "--duration 1h", f"{_M} --duration 0.05s --threads 1 --time-budget 6s", "^exit 6$"),
    Effect("profile", "--baseline fast.json", f"{_M} {_SHORT} --fail-if-slower 3%", "^verdict"),
    Effect("profile", "--fail-if-slower 3%", f"{_M} {_SHORT} --baseline fast.json", "^exit 1$"),
    Effect("profile", "--strict", f"{_M} {_SHORT} --baseline busy.json --fail-if-slower 3%", "^exit 1$"),
    Effect("profile", "--target cuda", f"{_M} {_SHORT}", "^exit 5$"),
    Effect("profile", "--dim batch=3", f"{_D} {_SHORT}", "x 3x64"),
    Effect("profile", "--inputs ones.npz", f"{_D} {_SHORT}", "x 5x64"),
    Effect("profile", "--custom-ops-library no-such.so", f"{_M} {_SHORT}", r"no-such\.so"),
    Effect("profile", "--time-budget 0.001", f"{_M} {_SHORT}", "^exit 6$"),
    Effect("verify", "--library libf.so", f"{_M} alone/f.onnx", "^with library"),
    Effect("verify", "--groups", f"{_M} {_F}", "^fused node"),
    Effect("verify", "--target cuda", f"{_M} {_F}", "^exit 5$"),
    Effect("verify", "--dim batch=3", f"{_D} {_D} --inputs ones.npz", "^exit 2$"),
    Effect("verify", "--rtol 10", _DIFFER, "^exit 0$"),
    Effect("verify", "--atol 10", _DIFFER, "^exit 0$"),
    Effect("verify", "--inputs positive.npz", _DIFFER, "^exit 0$"),
    Effect("verify", "--seed 7", _DIFFER, r"^tolerance (\S+)"),
    Effect("verify", "--custom-ops-library no-such.so", f"{_M} {_F}", r"no-such\.so"),
    Effect("verify", "--time-budget 0.001", f"{_M} {_F}", "^exit 6$"),
    Effect("verify", "--memory-budget 1MB", f"{_M} {_F}", "^exit 6$"),
    Effect("explain", "--node nobody", _M, "^exit 2$"),
    Effect("explain", "--target cuda", f"{_M} --json", r'"predicted_ms": (\S+)'),
    Effect("explain", "--arch x86-64-v3", f"{_M} --json", r'"predicted_ms": (\S+)'),
    Effect("explain", "--dim batch=3", _D, "symbolic sizes", gone=True),
    Effect("explain", "--input-shape x:3,64", _D, "symbolic sizes", gone=True),
    Effect("explain", "--strategy none", _M, "-> 0 kernels"),
    Effect("explain", "--plan-budget 0", f"{_M} --strategy exhaustive", "^candidates$", gone=True),
    Effect("explain", "--min-group 5", _M, "-> 0 kernels"),
    Effect("explain", "--enable exp-log", "r.onnx", "exp-log +1"),
    Effect("explain", "--disable twice-neg", "n.onnx", "twice-neg +1", gone=True),
    Effect("explain", "--skip-node Relu", _M, "E-KEEP"),
    Effect("explain", "--fast-math", "r.onnx", "exp-log +1"),
    Effect("explain", "--precision bf16", "p.onnx --json", r'"kernel": (\S+)'),
    Effect("explain", "--no-winograd", "c.onnx --json", r'"predicted_ms": (\S+)'),
    Effect("explain", "--dim-hint batch=8", _D, "counted at batch=8"),
    Effect("explain", "--lock no-such.lock", _M, r"no-such\.lock"),
    Effect("tune", "--budget 0.001s", f"{_M} --cache-dir ready", "^measured  0 kernels, 0 nodes"),
    Effect("tune", "--threads 1", f"{_M} --cache-dir ready", ", 2 threads,", gone=True),
    Effect("tune", "--target cuda", f"{_M} --budget 0.001s --cache-dir ready", "^exit 5$"),
    Effect("tune", "--overwrite", f"{_M} --budget 0.001s --cache-dir ready --lock m.lock", "^exit 0$"),
    Effect("tune", "--lock new.lock", f"{_M} --budget 0.001s --cache-dir ready", r"^files .*\bnew\.lock"),
    Effect("tune", "--cache-dir other", f"{_M} --budget 0.001s --cache-dir ready", r"^files .*\bother\b"),
    Effect("tune", "--time-budget 0.001", f"{_M} --budget 0.001s --cache-dir ready", "^exit 6$"),
    Effect("tune", "--memory-budget 1MB", f"{_M} --budget 0.001s --cache-dir ready", "^exit 6$"),
    Effect("bisect", "--metric latency", f"{_M} {_F} {_SHORT}", "slow"),
    Effect("bisect", "--output other", _DIFFER, r"^files .*\bother\.a\.onnx"),
    Effect("bisect", "--library libwrong.so", f"{_M} {_F}", "libwrong"),
    Effect("bisect", "--dim batch=3", f"{_D} {_D} --inputs ones.npz", "^exit 2$"),
    Effect("bisect", "--rtol 10", _DIFFER, "^exit 0$"),
    Effect("bisect", "--inputs positive.npz", _DIFFER, "^exit 0$"),
    Effect("bisect", "--seed 7", f"{_DIFFER} --json", r'"error": (\S+)'),
    Effect("bisect", "--custom-ops-library no-such.so", f"{_M} {_F}", r"no-such\.so"),
    Effect("bisect", "--time-budget 0.001", f"{_M} {_F}", "^exit 6$"),
    Effect("report", "--format html", "result.json", "<!doctype html>"),
    Effect("report", "--overwrite", "result.json old.md", "^exit 0$"),
    Effect("doctor", "--cache-dir own", "", "^cache +own: 0 entries"),
    Effect("cache", "--max-size 1", "gc --cache-dir kept", "[1-9] removed"),
    Effect("cache", "--cache-dir kept", "info", "^kept: "),
)

# Options of `optimize` with a value each, for the verbs that only pass them on.
WORDS = {effect.flag: effect.words for effect in OWN if effect.verb == "optimize"} | {"--min-gain": "--min-gain 10%"}

# Flags whose effect takes more than two command lines to see: the test that does.
ELSEWHERE = {
    ("optimize", "--min-gain"): "tests/cli/test_guided.py::test_a_least_gain_is_asked_for",
    ("optimize", "--strict"): "tests/cli/contract/test_effects.py::test_strict_makes_a_bug_an_error",
    ("explain", "--strict"): "tests/cli/contract/test_effects.py::test_strict_makes_a_bug_an_error",
    (
        "bisect",
        "--threads",
    ): "tests/cli/contract/test_effects.py::test_bisect_measures_as_long_and_on_as_many_threads_as_asked",
    (
        "bisect",
        "--duration",
    ): "tests/cli/contract/test_effects.py::test_bisect_measures_as_long_and_on_as_many_threads_as_asked",
    ("doctor", "--calibrate"): "tests/cli/contract/test_effects.py::test_a_calibration_is_kept_in_the_cache",
    ("profile", "--cache-dir"): "tests/cli/contract/test_effects.py::test_a_calibration_is_kept_in_the_cache",
    ("profile", "--seed"): "tests/cli/contract/test_effects.py::test_profile_draws_inputs_by_its_seed",
    ("profile", "--cuda-graph"): "tests/cli/contract/test_effects.py::test_runs_are_replayed_as_cuda_graphs",
    ("verify", "--cuda-graph"): "tests/cli/contract/test_effects.py::test_runs_are_replayed_as_cuda_graphs",
    ("tune", "--cluster"): "tests/cli/test_cluster.py::test_workers_measure",
}
