"""Networks as ONNX files in fp32 and fp16 at several batches, with inputs and expected outputs, and their weights.

    python -m benchmarks.gpu.build_networks FOLDER NAME [--batches 1 8]

Writes NAME.f32.b1.onnx and so on, NAME.b1.npz (inputs, and the outputs of the fp32 module), and NAME.pt (weights).
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from models.full import image, text
from models.full.exporting import OPSET, Architecture
from models.full.weights import calibrate

ARCHITECTURES = text.ARCHITECTURES | image.ARCHITECTURES
PRECISIONS = {"f32": torch.float32, "f16": torch.float16}


def as_kind(values: tuple[torch.Tensor, ...], kind: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Floating-point inputs in another precision."""
    return tuple(each.to(kind) if each.is_floating_point() else each for each in values)


def write(folder: Path, name: str, row: Architecture, batches: list[int]) -> None:
    """All files of one network."""
    module = row.make().eval()
    calibrate(module, row.sample(row.calibration), row.gains)
    torch.save(module.state_dict(), folder / f"{name}.pt")
    for batch in batches:
        feed = row.sample(batch)
        with torch.no_grad():
            outputs: Any = module(*feed)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        given = {f"in.{key}": value.numpy() for key, value in zip(row.inputs, feed, strict=True)}
        wanted = {f"out.{key}": value.numpy() for key, value in zip(row.outputs, outputs, strict=False)}
        np.savez(folder / f"{name}.b{batch}.npz", **given, **wanted)
    for precision, kind in PRECISIONS.items():
        module.to(kind)
        for batch in batches:
            begin = time.monotonic()
            program = torch.onnx.export(
                module, as_kind(row.sample(batch), kind), dynamo=True, opset_version=OPSET, verbose=False,
                input_names=list(row.inputs), output_names=list(row.outputs),
            )  # fmt: skip
            assert program is not None
            onnx.save(program.model_proto, folder / f"{name}.{precision}.b{batch}.onnx")
            sys.stderr.write(f"{name} {precision} batch {batch}: {time.monotonic() - begin:.1f} s\n")


def main() -> None:
    """Build what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    asked.folder.mkdir(parents=True, exist_ok=True)
    write(asked.folder, asked.name, ARCHITECTURES[asked.name], asked.batches)


if __name__ == "__main__":
    main()
