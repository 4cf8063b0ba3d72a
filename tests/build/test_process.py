"""Commands end within their limits, take their descendants with them, and their failures are values."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from onnxfuse.errors import BudgetError, DeviceError, ModelError, OnnxFuseError
from onnxfuse.runtime.process import Companion, Finished, python_child, run

CHILD = "tests.build.child"


def python(program: str, **limits: object) -> Finished:
    return run((sys.executable, "-c", program), **limits)  # type: ignore[arg-type]


def gone(pid: int) -> bool:
    """True once `pid` has ended, waiting at most 5 s; a zombie that nobody reaped yet has ended."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_output_input_and_exit_code_are_captured():
    program = "import sys; print(sys.stdin.read().upper()); print('bad', file=sys.stderr); sys.exit(3)"
    done = python(program, stdin="grüße")
    assert (done.code, done.out, done.err) == (3, "GRÜSSE\n", "bad\n")
    assert 0 < done.seconds < 30


def test_env_adds_and_cwd_moves(tmp_path: Path):
    done = python(
        "import os; print(os.environ['ADDED'], 'PATH' in os.environ, os.getcwd())", env={"ADDED": "1"}, cwd=tmp_path
    )
    assert done.out.split() == ["1", "True", str(tmp_path)]


def test_output_larger_than_a_pipe_does_not_block():
    assert len(python("print('x' * 1_000_000)", time_limit=30).out) == 1_000_001


def test_a_missing_command_is_a_value():
    done = run(("no-such-command-anywhere",))
    assert done.code == 127
    assert "no-such-command-anywhere" in done.err


def test_a_signal_is_a_negative_code():
    assert python("import os; os.kill(os.getpid(), 15)").code == -15


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep({})
"""


@pytest.mark.parametrize("sleep", [60, 0], ids=["at the limit", "after a normal end"])
def test_descendants_are_killed(tmp_path: Path, sleep: int):
    note = tmp_path / "pid"
    command = (sys.executable, "-c", FAMILY.format(sleep), str(note))
    if sleep:
        with pytest.raises(BudgetError, match=r"^test: python\S* ran longer than the 1 s allowed"):
            run(command, stage="test", time_limit=1.0)
    else:
        assert run(command).code == 0
    assert gone(int(note.read_text()))


def test_memory_over_the_limit_ends_the_whole_tree():
    hungry = "import time; held = bytearray(300 << 20); time.sleep(60)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hungry!r}])"
    start = time.monotonic()
    with pytest.raises(BudgetError, match=r"MB, more than the 105 MB allowed"):
        python(nested, memory_limit=100 << 20)
    assert time.monotonic() - start < 30


def test_peak_counts_touched_memory_but_not_mapped_files(tmp_path: Path):
    big = tmp_path / "weights"
    with big.open("wb") as file:
        file.truncate(200 << 20)
    mapped = (
        f"import mmap, time; m = mmap.mmap(open({str(big)!r}, 'rb').fileno(), 0, prot=mmap.PROT_READ); sum(m[::4096])"
    )
    touched = "held = bytearray(b'x') * (200 << 20)"
    rest = "; import time; time.sleep(0.3)"
    assert python(mapped + rest).peak_bytes < 100 << 20
    assert 200 << 20 <= python(touched + rest).peak_bytes < 300 << 20


def test_stop_ends_the_command():
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    done = python("import time; time.sleep(60)", stop=stop)
    assert done.code == -9
    assert done.seconds < 30


def test_a_child_answers_its_payload():
    payload = {"do": "echo", "numbers": [1, 2.5, None], "text": "ä"}
    assert python_child(CHILD, payload, stage="test", time_limit=60) == payload


def test_output_of_libraries_is_not_taken_for_the_answer():
    assert python_child(CHILD, {"do": "noise"}, stage="test") == "quiet"


def test_an_error_of_the_child_is_raised_here():
    with pytest.raises(ModelError) as caught:
        python_child(CHILD, {"do": "refuse"}, stage="test")
    assert (caught.value.message, caught.value.hint) == ("load: m.onnx: not a model", "give a model")


def test_a_crash_is_a_device_error_and_a_bug_is_internal():
    with pytest.raises(DeviceError, match=r"^test: the child process tests.build.child died of SIGSEGV"):
        python_child(CHILD, {"do": "crash"}, stage="test")
    with pytest.raises(
        OnnxFuseError, match="ended with code 1 and without an answer: RuntimeError: the reason"
    ) as caught:
        python_child(CHILD, {"do": "bug"}, stage="test")
    assert caught.value.exit_code == 70
    assert "Traceback" in "".join(caught.value.__notes__)


def test_a_child_ignores_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')", encoding="ascii")
    monkeypatch.chdir(tmp_path)
    assert os.getcwd() == str(tmp_path)
    assert python_child(CHILD, {"do": "echo"}, stage="test") == {"do": "echo"}


ECHO = """
import sys, time
def take(n):
    return sys.stdin.buffer.read(n)
while head := take(8):
    data = take(int.from_bytes(head, "little"))
    if data == b"die":
        sys.exit(3)
    if data == b"sleep":
        time.sleep(60)
    kept = b"x" * 300_000_000 if data == b"grow" else b""
    time.sleep(1 if kept else 0)
    sys.stdout.buffer.write(head + data[::-1])
    sys.stdout.buffer.flush()
"""
ROOM = {"time_limit": 30.0, "memory_limit": 200_000_000}


def companion() -> Companion:
    return Companion((sys.executable, "-c", ECHO), stage="test")


def test_a_companion_answers_one_request_after_the_other():
    other = companion()
    for request in (b"", b"abc", bytes(range(256)) * 10_000):
        assert other.ask(request, **ROOM) == request[::-1]
    assert not other.ended
    other.end()
    other.end()


@pytest.mark.parametrize(
    ("request_", "limits", "kind", "said"),
    [
        (b"die", ROOM, DeviceError, "ended with code 3"),
        (b"sleep", ROOM | {"time_limit": 0.5}, BudgetError, "longer than the 0.5 s"),
        (b"grow", ROOM, BudgetError, "more than the 200 MB"),
    ],
)
def test_a_companion_that_fails_has_ended(request_: bytes, limits: dict, kind: type, said: str):
    other, start = companion(), time.monotonic()
    with pytest.raises(kind, match=said):
        other.ask(request_, **limits)
    assert other.ended
    assert time.monotonic() - start < 20
    assert gone(other._child.pid)


def test_a_companion_that_does_not_start_says_so():
    with pytest.raises(DeviceError, match="no-such-command"):
        Companion(("no-such-command-anywhere",), stage="test")
