"""Calibration of a machine: what is measured, and that it is cached. No test depends on a figure."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from onnxfuse.build.cache import Cache
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.errors import OutputError
from onnxfuse.measure.machine import Machine, cache_sizes, calibrate, calibrated
from onnxfuse.target import CPUS, targets_of

NATIVE = targets_of(())[0]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cache, Machine]:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    assert calibrated(NATIVE, cache) is None
    return cache, calibrate(NATIVE, find_toolchain(), cache, seconds=0.01, time_limit=120)


def test_every_number_is_measured(kept: tuple[Cache, Machine]):
    values = asdict(kept[1])
    assert all(value > 0 for name, value in values.items() if name != "dispatch_us"), values
    assert values["l1_bytes"] < values["l2_bytes"] < values["l3_bytes"]
    # what a computer of any speed has, in units as they are named
    assert 0.1 < values["gflops"] < 5000 and 0.1 < values["memory_gbps"] < 5000 and values["barrier_us"] < 1e5


def test_what_was_measured_last_is_found_again(kept: tuple[Cache, Machine]):
    cache, first = kept
    assert calibrated(NATIVE, cache) == first
    again = calibrate(NATIVE, find_toolchain(), cache, seconds=0.001)
    assert calibrated(NATIVE, cache) == again
    assert cache.info().entries > 0 and cache.gc(0).entries == 0
    assert calibrated(NATIVE, cache) == again, "what was measured is no entry of the cache of kernels"


def test_a_busy_machine_does_not_lower_what_was_measured(kept: tuple[Cache, Machine]):
    """Nor does one that is faster now than ever keep an old figure."""
    cache, first = kept
    (path,) = (cache.root / "machines").iterdir()
    path.write_text(json.dumps(asdict(replace(first, gflops=1e6, memory_gbps=1e-3, barrier_us=1e6))))
    again = calibrate(NATIVE, find_toolchain(), cache, seconds=0.001)
    assert again.gflops == 1e6 and again.memory_gbps > 1e-3 and again.barrier_us < 1e6
    path.write_text(json.dumps(asdict(first)))


def test_another_machine_class_is_another_machine(kept: tuple[Cache, Machine]):
    other = next(t for t in CPUS.values() if t.name != NATIVE.name)
    assert calibrated(other, kept[0]) is None
    assert calibrated(NATIVE, None) is None


def test_a_damaged_file_counts_as_none(kept: tuple[Cache, Machine], tmp_path: Path):
    (found,) = (kept[0].root / "machines").iterdir()
    place = tmp_path / "machines" / found.name
    place.parent.mkdir()
    for text in ("", "{}", '{"cores": 2}', found.read_text()[:-9]):
        place.write_text(text)
        assert calibrated(NATIVE, Cache(tmp_path)) is None
    place.write_text(found.read_text())
    assert calibrated(NATIVE, Cache(tmp_path)) is not None


def test_numbers_go_into_the_row_and_nothing_else(kept: tuple[Cache, Machine]):
    machine = replace(kept[1], gflops=17.0, cores=3)
    row = machine.target(NATIVE)
    assert (row.gflops, row.cores) == (17.0, 3)
    assert (row.name, row.lanes, row.flags, row.rows) == (NATIVE.name, NATIVE.lanes, NATIVE.flags, NATIVE.rows)


def test_sizes_are_those_of_the_class_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("onnxfuse.measure.machine._CPUS", tmp_path)
    assert cache_sizes(NATIVE) == {
        "l1_bytes": NATIVE.l1_bytes, "l2_bytes": NATIVE.l2_bytes, "l3_bytes": NATIVE.l3_bytes
    }  # fmt: skip


def test_a_folder_without_write_permission_is_reported(tmp_path: Path):
    (tmp_path / "machines").write_text("a file")
    with pytest.raises(OutputError, match="cannot be written"):
        calibrate(NATIVE, find_toolchain(), Cache(tmp_path), seconds=0.001)
