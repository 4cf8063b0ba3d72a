"""Hand-written GPU kernels: verified, and the interpreter computes what their graphs define."""

from __future__ import annotations

import pytest

from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.verify import verify
from tests.kernels.compiled import check, expected, fed
from tests.threads.written import COOPERATIVE, WRITTEN, Written, layer_norm

OTHERS = WRITTEN | {"of_blocks": layer_norm(spelled=False), "cooperative": COOPERATIVE}


@pytest.mark.parametrize("written", OTHERS.values(), ids=OTHERS)
def test_a_kernel_computes_what_its_graph_means(written: Written) -> None:
    assert verify(written.kernel) == ()
    for number in range(len(written.case.sizes)):
        (got,) = interpret(written.kernel, fed(written.kernel, written.case, number), 1)
        (out,) = written.kernel.outputs
        check(got, out.dtype, *expected(written.case, number)[out.value])
