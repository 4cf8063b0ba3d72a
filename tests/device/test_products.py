"""The benchmark of products against predictions, as far as it goes without a device: jobs, answers, tables."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from benchmarks.gpu.jobs import prepare
from benchmarks.gpu.jobs.cases import kinds
from benchmarks.gpu.jobs.times import DRAWN, few, pieces, unpacked
from benchmarks.gpu.products import measured, tables
from onnxfuse.build.nvrtc import libraries

pytestmark = pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
SOME = ("128x128x128 gelu", "bert: 1x12x128x128x64 keys", "layernorm 49x768")


def test_jobs_are_made_ready_and_their_times_are_told(tmp_path: Path) -> None:
    pack, result = tmp_path / "jobs.xz", tmp_path / "result.json"
    with patch.object(prepare, "kinds", lambda: (k for k in kinds() if k.label in SOME)):
        count, problems = prepare.prepared(pack, tmp_path / "images")
    assert not problems
    jobs, code = unpacked(pack)
    assert len(jobs) == count
    assert {job["label"] for job in jobs} == {*SOME, "empty kernel"}
    for job in jobs:
        begin, size = job["image"]
        assert code[begin : begin + size].startswith(b"\x7fELF")
        assert all(job["launches"]) and (job["what"] == "boundary" or job["functions"])
    tiles = [job["tile"] for job in jobs if job["what"] == "product" and job["dtype"] == "float16"]
    assert len({*tiles}) == len(tiles) > 3
    said = tables(measured(result, pack, 10.0, 5.0, dry=True))
    assert all(label.removesuffix(" gelu") in said for label in SOME[:2])
    assert len(json.loads(result.read_text())["rows"]) == count


def test_inputs_are_cut_from_all_numbers_in_turn() -> None:
    found = [*pieces(17, DRAWN + 5)]
    assert sum(end - begin for _, begin, end in found) == DRAWN + 5
    assert [to for to, *_ in found] == list(np.cumsum([0, *(end - begin for _, begin, end in found)])[:-1])
    assert few(1) == (0,)
    assert few(128) == (0, 64, 127)
