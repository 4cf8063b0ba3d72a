"""ONNX Runtime with its CUDA provider in one small file, for a machine with a GPU and without network.

    python -m benchmarks.gpu.pack OUT.tar.xz [--arch 90] [--wheel FILE | --python 312 --version 1.31.1] [--room MIB]

The wheel, which pip downloads unless it is given, has code for all architectures. Of the provider's library that for
others than `--arch` is overwritten with zeros, so that the file keeps its size and its layout and the zeros compress to
nothing; what a session with the CUDA provider does not need is left out. `PACK=OUT.tar.xz scripts/gpu_check.sh` unpacks
it. The driver, and the libraries of CUDA 13 (those of the extra `gpu`, or of PyTorch), are the machine's.
"""

from __future__ import annotations

import argparse
import io
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

FATBIN = 0xBA55ED50  # begins a container of code for several architectures
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
LEFT_OUT = ("transformers/", "quantization/", "tools/", "backend/", "datasets/")  # of the package onnxruntime
UNUSED = ("libonnxruntime_providers_tensorrt.so", "libonnxruntime.so")  # the Python module has the runtime in it
MIB = 1 << 20
DICTIONARY = 64 * MIB  # containers of one kernel for several element types are alike


def sections(data: bytes | bytearray) -> Iterator[tuple[bytes, int, int]]:
    """Name, begin and end of each section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, table + at * size) for at in range(count)]
    for name, _, _, _, offset, length in rows:
        begin = rows[names][4] + name
        yield bytes(data[begin : data.index(0, begin)]), offset, offset + length


def entries(data: bytes | bytearray, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Architecture, begin and end of the code of each entry in the containers of a section."""
    while begin + 16 <= end:
        if struct.unpack_from("<I", data, begin)[0] != FATBIN:
            begin += 8
            continue
        header, body = struct.unpack_from("<HQ", data, begin + 6)
        at, begin = begin + header, begin + header + body
        while at < begin:
            head, length = struct.unpack_from("<IQ", data, at + 4)
            yield struct.unpack_from("<I", data, at + 28)[0], at + head, at + head + length
            at += head + length


def only(data: bytearray, arch: int) -> tuple[int, int]:
    """Overwrites code for other architectures; how many entries were kept, and how many bytes are zeros now."""
    kept = zeros = 0
    for name, begin, end in sections(data):
        if name not in SECTIONS:
            continue
        for made, first, last in entries(data, begin, end):
            kept += made == arch
            if made != arch:
                data[first:last] = bytes(last - first)
                zeros += last - first
    return kept, zeros


def members(wheel: Path, arch: int) -> Iterator[tuple[str, bytes]]:
    """Files of the pack."""
    with zipfile.ZipFile(wheel) as package:
        for name in package.namelist():
            inside = name.removeprefix("onnxruntime/")
            file = name.rpartition("/")[2]
            if name.endswith("/") or inside.startswith(LEFT_OUT) or file.startswith(UNUSED):
                continue
            data = package.read(name)
            if file == "libonnxruntime_providers_cuda.so":
                code = bytearray(data)
                kept, zeros = only(code, arch)
                assert kept, f"{file} has no code for sm_{arch}"
                sys.stdout.write(f"{file}: {kept} entries for sm_{arch} kept, {zeros / MIB:.0f} MiB overwritten\n")
                data = bytes(code)
            yield name, data


def packed(wheel: Path, arch: int, out: Path) -> None:
    """Writes the pack."""
    xz = ["xz", "-T0", "--x86", f"--lzma2=preset=6,dict={DICTIONARY}", "-c"]
    with out.open("wb") as file, subprocess.Popen(xz, stdin=subprocess.PIPE, stdout=file) as process:
        with tarfile.open(fileobj=process.stdin, mode="w|") as pack:
            for name, data in members(wheel, arch):
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o755
                pack.addfile(member, io.BytesIO(data))
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0, f"xz ended with {process.returncode}"


def downloaded(python: str, version: str, place: Path) -> Path:
    """The wheel, by pip."""
    platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in (28, 27, 17)]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--implementation=cp"]
    major = f"--python-version={python[0]}.{python[1:]}"
    subprocess.run([*pip, major, *platforms, f"-d{place}", f"onnxruntime-gpu=={version}"], check=True)
    return next(place.glob("*.whl"))


def main(given: Sequence[str] | None = None) -> int:
    """The pack; 1 where it is larger than there is room for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--python", default="312")
    parser.add_argument("--version", default="1.31.1")
    parser.add_argument("--room", type=float, default=64.0, help="MiB for the pack and the files of this repository")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as place:
        wheel = options.wheel or downloaded(options.python, options.version, Path(place))
        packed(wheel, options.arch, options.out)
    files = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True).stdout.split(b"\0")
    beside = sum(Path(f.decode()).stat().st_size for f in files if f and Path(f.decode()).is_file()) / MIB
    size = options.out.stat().st_size / MIB
    sys.stdout.write(f"{options.out}: {size:.1f} MiB, the repository {beside:.1f}, of {options.room:.0f}\n")
    return int(size + beside > options.room)


if __name__ == "__main__":
    sys.exit(main())
