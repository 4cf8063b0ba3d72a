"""The verifier of kernels, without a compiler and without data."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify.accesses import access_faults
from onnxfuse.ir.verify.closed import unknown
from onnxfuse.ir.verify.launches import launch_faults
from onnxfuse.ir.verify.legal import illegal
from onnxfuse.ir.verify.order import disorder
from onnxfuse.ir.verify.types import type_faults


def verify(kernel: Kernel) -> tuple[str, ...]:
    """The errors in a kernel, without duplicates; memoized, since networks have equal kernels."""
    inputs, outputs = (tuple(replace(p, value="") for p in each) for each in (kernel.inputs, kernel.outputs))
    return _verified(replace(kernel, inputs=inputs, outputs=outputs, choices=()))


@lru_cache(256)
def _verified(kernel: Kernel) -> tuple[str, ...]:
    """The findings of the first check that has any: each may rely on what the ones before it have found to hold."""
    with np.errstate(all="ignore"):
        for check in (unknown, disorder, type_faults, access_faults, illegal, launch_faults):
            if found := dict.fromkeys(check(kernel)):
                return tuple(found)
    return ()
