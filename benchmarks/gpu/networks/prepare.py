"""Packs of networks before and after `optimize --target cuda`, which `full` measures on a machine with a GPU.

    python -m benchmarks.gpu.networks.prepare FOLDER [NAME ...] [--models models/build] [--batches 1 8]
        [--precisions f16 f32] [--arch sm_90]

Needs no GPU, but the networks of `models/` (`python -m models NAME NAME.dynamic`; those of batch 8 come from the
symbolic ones). Each pack is FOLDER/NAME.PRECISION.bBATCH.tar.xz with before.onnx, after.onnx, its library, and in
float16 reference.onnx, the network in float32.

Weights are replaced by the same few random numbers over and over, as large on average as they were: a pack then has
one or two MiB instead of hundreds, and a folder of all fits what a machine is sent. Each row of a matrix begins at
another number, so that outputs are as sensitive to errors as with weights of their own. Constants that scale others,
and normalizations of batches, become one number, as their products with weights would not compress.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.gpu.networks.full import NAMES, fixed, halved
from onnxfuse.pipeline.run import optimize

PERIOD = 4099  # a prime: rows of any length begin at all of the numbers
FEW, MOST_SCALES = 2048, 8192  # elements of a weight, and of what scales one
BATCHES, PRECISIONS = (1, 8), ("f16", "f32")
_BATCH_NORM = {1: 1.0, 2: 0.0, 3: 0.0, 4: 1.0}  # scale, bias, mean and variance
REFERENCE = "reference.onnx"
DECODING = "llama-decode"  # a step after 127 tokens


def compressible(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with weights that compress; in place."""
    readers: dict[str, list[tuple[str, int]]] = {}
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            readers.setdefault(name, []).append((node.op_type, at))
    numbers = np.random.default_rng(5).standard_normal(PERIOD).astype(np.float32)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            made = _replaced(numpy_helper.to_array(tensor), readers.get(tensor.name, []), numbers)
            if made is not None:
                tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))
    return model


def _replaced(value: np.ndarray, readers: Sequence[tuple[str, int]], numbers: np.ndarray) -> np.ndarray | None:
    """What takes the place of a constant; None where it stays."""
    batch_norm = next((at for op, at in readers if op == "BatchNormalization"), None)
    if batch_norm in _BATCH_NORM:
        return np.full(value.shape, _BATCH_NORM[batch_norm], np.float32)
    size = float(np.abs(value).mean() if value.size <= MOST_SCALES else value.std())
    if not size or not np.isfinite(size):
        return None
    scale = np.float32(2.0 ** np.floor(np.log2(size)))
    if any(op == "Mul" for op, _ in readers) and 16 <= value.size <= MOST_SCALES:
        return np.full(value.shape, scale, np.float32)
    return (np.resize(numbers, value.shape) * scale).astype(np.float32) if value.size >= FEW else None


def resized(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A network of images of fixed sizes for another batch; in place. Raises where its shapes do not allow it."""
    targets = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.name in targets:
            shape = numpy_helper.to_array(tensor).copy()
            shape[:1] = batch
            tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.shape.dim[0].dim_value = batch
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def network(models: Path, name: str, batch: int) -> onnx.ModelProto:
    """A network in float32, all sizes fixed."""
    symbolic, own = models / f"{name}.dynamic.onnx", models / f"{name}.onnx"
    if name == DECODING:
        return fixed(onnx.load(models / "llama.dynamic.onnx"), {"batch": batch, "sequence": 1, "past": 127})
    sizes: Mapping[str, int] = {"batch": batch, "sequence": 128}
    if batch == 1 or not symbolic.exists():
        found = fixed(onnx.load(own), sizes)
        return found if batch == 1 else resized(found, batch)
    return fixed(onnx.load(symbolic), sizes)


def pack(reference: Path, precision: str, out: Path, arch: Sequence[str]) -> None:
    """The pack of one network in one precision."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        before = halved(reference, place) if precision == "f16" else reference
        options: dict[str, Any] = {"target": "cuda", "arch": tuple(arch), "cuda_graph": True, "overwrite": True}
        made = optimize(before, place / "after.onnx", **options, verify=False, gain=False)  # compared on the device
        assert made.output.library is not None, f"{out.name}: no kernel was made"
        begin = time.monotonic()
        files = [(before, "before.onnx"), *((p, p.name) for p in sorted(place.glob("*after*")))]
        files += [(reference, REFERENCE)] if before != reference else []
        with tarfile.open(out, "w:xz", preset=3) as packed:
            for path, name in files:
                member = tarfile.TarInfo(name)
                member.size = path.stat().st_size
                packed.addfile(member, io.BytesIO(path.read_bytes()))
        kernels = sum(g.phases for g in made.groups)
        size, spent = out.stat().st_size / 2**20, time.monotonic() - begin
        sys.stdout.write(f"{out.name}: {kernels} kernels, {size:.1f} MiB, packed in {spent:.0f} s\n")
        sys.stdout.flush()


def main(given: Sequence[str] | None = None) -> None:
    """Packs of all networks that have none yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[*NAMES, DECODING])
    parser.add_argument("--models", type=Path, default=Path("models/build"))
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS)
    parser.add_argument("--arch", nargs="+", default=["sm_90"])
    options = parser.parse_args(given)
    options.folder.mkdir(parents=True, exist_ok=True)
    for batch in options.batches:
        for name in options.names:
            outs = {p: options.folder / f"{name}.{p}.b{batch}.tar.xz" for p in options.precisions}
            left = {p: out for p, out in outs.items() if not out.exists()}
            if not left:
                continue
            with tempfile.TemporaryDirectory() as place:
                reference = Path(place) / "reference.onnx"
                onnx.save(compressible(network(options.models, name, batch)), reference)
                for precision, out in left.items():
                    pack(reference, precision, out, options.arch)


if __name__ == "__main__":
    main()
