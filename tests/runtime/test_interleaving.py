"""Interleaved measurement: random order, fixed cores, and a slower model is found by the real clock."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import onnxruntime as ort
import pytest

from benchmarks import gate
from benchmarks.gate import Row
from onnxfuse.measure import interleaving, ratios
from onnxfuse.measure.profile import profile_models

ROUNDS = 3000


def test_processor_time_is_without_waiting_and_never_nothing(monkeypatch: pytest.MonkeyPatch):
    """Hosts take what they gave to others off processor time, at times all of a short call."""

    def waits() -> None:
        time.sleep(0.02)

    assert max(interleaving.times(waits, 3, own=True)) < 20 <= min(interleaving.times(waits, 3))
    monkeypatch.setattr(interleaving.time, "thread_time_ns", lambda: 7)
    assert min(interleaving.times(waits, 3, own=True)) >= 20


def test_every_model_runs_in_every_position():
    """Of A B C C B A the one in the middle never follows itself, and always waits for two turns."""
    order = [side for number in range(ROUNDS) for side in interleaving.order_of_round(3, number)]
    assert all(sorted(order[at : at + 3]) == [0, 1, 2] for at in range(0, len(order), 3))
    after = Counter(pairwise(order))
    for side in range(3):
        assert after[side, side] == pytest.approx(ROUNDS / 9, rel=0.15)
        waits = Counter(b - a for a, b in pairwise([at for at, each in enumerate(order) if each == side]))
        shares = [waits[gap] / ROUNDS for gap in range(1, 6)]
        assert shares == pytest.approx([each / 9 for each in (1, 2, 3, 2, 1)], abs=0.04)
    assert interleaving.order_of_round(9, 5) == interleaving.order_of_round(9, 5) != interleaving.order_of_round(9, 6)


def test_measurements_follow_the_drawn_order(files: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    times = interleaving._Running.times

    def noted(engine: interleaving._Running, runs: int) -> list[float]:
        asked.append(engine.pid)
        return times(engine, runs)

    monkeypatch.setattr(interleaving._Running, "times", noted)
    found = profile_models([files / "plain.onnx", files / "plain.onnx"], duration=0.1, threads=1)
    engines, order = asked[:3], asked[3:]  # each is asked once before
    assert len(set(engines)) == 3 and found.models[0].turns
    drawn = [side for number in range(len(found.models[0].turns)) for side in interleaving.order_of_round(3, number)]
    assert [engines.index(pid) for pid in order] == drawn


def test_threads_have_cores_of_their_own():
    """As far as they go round; other ones in the next turn; all of them at the end."""
    whole, stop = os.sched_getaffinity(0), threading.Event()
    if len(whole) < 2:
        pytest.skip("one core")
    threads = [threading.Thread(target=stop.wait) for _ in range(2)]
    try:
        _, workers = interleaving.workers_of(lambda: [each.start() for each in threads])
        assert sorted(workers) == sorted(each.native_id or 0 for each in threads)
        used: list[set[int]] = []
        with interleaving.CorePlacement() as placement:
            for turn in range(4):
                placement.take(workers[:1], turn)
                mine, other = os.sched_getaffinity(0), os.sched_getaffinity(workers[0])
                assert mine and other and not mine & other and mine | other == whole
                used.append(mine)
            assert used[0] != used[1] and set().union(*used) == whole
            placement.take(workers, 0)
            assert all(os.sched_getaffinity(each) < whole for each in workers)
        assert [os.sched_getaffinity(each) for each in (0, *workers)] == [whole] * 3
        with interleaving.CorePlacement() as placement:
            placement.take((), 1)
            assert os.sched_getaffinity(0) == whole, "who works alone goes where there is room"
            stop.set()
            [each.join() for each in threads]
            placement.take(workers, 0)  # they have ended
    finally:
        stop.set()


def test_workers_of_a_session_are_found(files: Path):
    """All but the thread that calls."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 3
    _, workers = interleaving.workers_of(lambda: ort.InferenceSession(str(files / "plain.onnx"), options))
    assert len(workers) == 2


def test_a_model_twice_as_slow_is_found_by_the_clock(tmp_path: Path):
    """On whatever machine, with other work beside it: a verdict may be left open, but is never wrong."""
    once, twice = (gate.chain(tmp_path / f"{layers}.onnx", layers, 128, 32) for layers in (10, 20))
    for pair, limit, right, wrong in (
        ((once, twice), 0.1, ratios.SLOWER, ratios.NOT_SLOWER),
        ((twice, once), 0.1, ratios.NOT_SLOWER, ratios.SLOWER),
        ((once, once), 0.5, ratios.NOT_SLOWER, ratios.SLOWER),
    ):
        found = profile_models(pair, threads=2, duration=0.3, limit=limit).slower
        assert found is not None
        said = ratios.verdict(found, limit)
        assert said != wrong and (said == right or found.busy), (said, found)


def test_runs_of_the_gate_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Row by row in a file, which is gone on with."""
    path = tmp_path / "rows.csv"
    row = Row(2, 5, "8x4", 1, 0.03, ratios.SLOWER, 1.051, 1.04, 1.06, 90, 0.1, 3.5, 2.0)
    for each in (row, Row(2, 5, "8x4", 1, 0.03, "DeviceError", *[float("nan")] * 3, 0, 0.0, 1.0, 2.0)):
        gate.add(path, each)
    assert gate.read(path)[0] == row and len(gate.read(path)) == 2
    command = ["--rows", str(path), "--busy", "0", "--slower", "0", "--size", "8", "4", "--threads", "1"]
    for runs in (1, 2, 2):
        assert gate.main([*command, "--runs", str(runs), "--duration", "0.05"]) == 0
    assert len(gate.read(path)) == 4
    told = gate.table(gate.read(path))
    assert "| 2 | 5 % | 2 | 1 | 0 | 0 | 1 | 1 |" in told and "| 0 | 0 % | 2 |" in told
    assert told in capsys.readouterr().out
