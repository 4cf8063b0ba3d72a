"""The pack of ONNX Runtime for a machine without network: code of one architecture is left of a made-up wheel."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu.pack import FATBIN, only, packed
from tests.craft.sources import ROOT

pytestmark = pytest.mark.skipif(shutil.which("xz") is None, reason="xz is not installed")
PROVIDER = "onnxruntime/capi/libonnxruntime_providers_cuda.so"


def container(*entries: tuple[int, bytes]) -> bytes:
    """A container of code for several architectures."""
    body = b"".join(
        struct.pack("<HHIQ12xI", 2, 0x101, 64, len(code), arch).ljust(64, b"\0") + code for arch, code in entries
    )
    return struct.pack("<IHHQ", FATBIN, 1, 16, len(body)) + body


def library(*containers: bytes) -> bytes:
    """A 64-bit ELF file with them in a section."""
    names = b"\0.nv_fatbin\0.names\0"
    code = b"".join(c + bytes(-len(c) % 8) for c in containers)
    rows = [(0, 0, 0), (1, 64, len(code)), (12, 64 + len(code), len(names))]
    table = b"".join(struct.pack("<IIQQQQ", name, 1, 0, 0, at, size).ljust(64, b"\0") for name, at, size in rows)
    head = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q", 64 + len(code) + len(names)).ljust(18, b"\0")
    return head + struct.pack("<HHH", 64, len(rows), 2) + code + names + table


def test_code_for_others_is_overwritten_and_nothing_moves() -> None:
    before = library(
        container((80, b"a" * 24), (90, b"b" * 40)), container((120, b"c" * 16)), container((90, b"d" * 8))
    )
    data = bytearray(before)
    assert only(data, 90) == (2, 40)
    assert bytes(data) == before.replace(b"a" * 24, bytes(24)).replace(b"c" * 16, bytes(16))


def test_a_check_runs_with_what_was_packed(tmp_path: Path) -> None:
    """`scripts/gpu_check.sh` puts the pack before what is installed; its own interpreter is a mock that shows it."""
    with zipfile.ZipFile(tmp_path / "made.whl", "w") as wheel:
        wheel.writestr(PROVIDER, library(container((80, b"a" * 24), (90, b"b" * 40))))
        wheel.writestr("onnxruntime/__init__.py", "packed = True\n")
        wheel.writestr("onnxruntime/tools/large.py", "")
        wheel.writestr("onnxruntime/capi/libonnxruntime_providers_tensorrt.so", "")
    packed(tmp_path / "made.whl", 90, tmp_path / "pack.tar.xz")
    with tarfile.open(tmp_path / "pack.tar.xz") as pack:
        assert sorted(pack.getnames()) == ["onnxruntime/__init__.py", PROVIDER]
        member = pack.extractfile(PROVIDER)
        assert isinstance(member, io.BufferedReader)
        code = member.read()
    assert b"b" * 40 in code and b"a" * 8 not in code
    shown = tmp_path / "python"
    shown.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import onnxruntime; print(onnxruntime.packed)"\n')
    shown.chmod(0o755)
    env = {
        **os.environ,
        "PACK": str(tmp_path / "pack.tar.xz"),
        "PYTHON": str(shown),
        "RESULT": str(tmp_path / "r.json"),
    }
    command = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), "--emulated", "facts"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("True"), done.stderr
