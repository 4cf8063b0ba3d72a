"""The library's products in the shapes of the probe, as lines of JSON: `python -m benchmarks.gpu.wgmma.library`."""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.gpu.jobs.with_torch import microseconds
from benchmarks.gpu.wgmma.times import MORE, SHAPES


def main() -> None:
    """A product, one with a bias, and one with bias and GELU by tanh, of each shape."""
    for rows, depth, columns in (*SHAPES, *MORE):
        sizes = (rows, depth), (depth, columns), (columns,)
        x, w, bias = (torch.randn(s, device="cuda", dtype=torch.float16) for s in sizes)

        def plain() -> torch.Tensor:
            return x @ w  # noqa: B023  called before the next turn

        def biased() -> torch.Tensor:
            return torch.addmm(bias, x, w)  # noqa: B023

        def gelu() -> torch.Tensor:
            return torch._addmm_activation(bias, x, w, use_gelu=True)  # noqa: B023

        found = {call.__name__: microseconds([call]) for call in (plain, biased, gelu)}
        sys.stdout.write(json.dumps([f"{rows} x {depth} x {columns}", found]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
