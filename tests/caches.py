"""Caches for tests that look at what is in one, or keep their measurements from other tests.

They begin with what the compiler makes for any model: the registration of kernels, the precompiled header, functions of
register tiles. Only tests of the cache itself and of the compiler's calls begin with an empty one.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import numpy as np
from onnx import numpy_helper, parser

from onnxfuse.pipeline import optimize
from onnxfuse.runtime.folders import work_folder
from tests.kernels.pool_host import alone
from tests.models.fused import CACHE

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
common (float[120, 256] x, float[64, 3] a, float[5, 7] b, float[9, 2] c)
  => (float[120, 192] y, float[64, 3] u, float[5, 7] v, float[9, 2] w)
{
    p = MatMul (x, weights)  y = Relu (p)  d = Abs (a)  u = Neg (d)
    e = Neg (b)  v = Abs (e)  f = Exp (c)  w = Abs (f)
}"""


def own_cache(folder: Path, common: Path | None = None) -> str:
    """A new cache at this path, without any measurement or verdict, or with what a `common` one has."""
    shutil.copytree(common or _common(), folder, copy_function=os.symlink, ignore=shutil.ignore_patterns("*.lock"))
    return str(folder)


@cache
def _common() -> Path:
    """The cache of a small model that is only compiled."""
    model, folder = parser.parse_model(MODEL), CACHE / "common"
    weights = np.random.default_rng(0).standard_normal((256, 192)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    with alone(CACHE / "common.lock"), work_folder() as out:
        settings = {"verify": False, "gain": False, "min_group": 1, "strict": True, "cache_dir": str(folder)}
        optimize(model.SerializeToString(), Path(out) / "common.onnx", **settings)
    return folder
