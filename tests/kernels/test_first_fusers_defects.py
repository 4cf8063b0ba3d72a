"""What the first fuser of elementwise CUDA kernels (NNVM-Fusion, 2016) got wrong, and ours must not.

It read inputs before its test of bounds, loaded a tensor twice that is used twice, gave equal kernels different names,
fused outputs of the graph away, and compiled again whenever a shape changed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnxfuse.ir.graph import Graph
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.kernel import Kernel, Loop, Stmt, When
from onnxfuse.ir.launch import MOST_BLOCKS
from onnxfuse.ir.verify import verify
from onnxfuse.render.cuda import device_text
from onnxfuse.render.cuda_launch import kernel_text
from onnxfuse.target import GPUS
from tests.kernels.compiled import Case
from tests.rules.build import Build
from tests.threads.scheduled import scheduled

UNEVEN = 1027  # elements: the last block of threads is not full


def kernel_of(graph: Graph) -> Kernel:
    made = scheduled(Case("elementwise", graph))
    assert isinstance(made, Kernel)
    return made


def twice(x: str = "x", extent: int | str = UNEVEN) -> Graph:
    """x * x + x."""
    b = Build()
    a = b.input(x, extent)
    return b.graph(b.node("Add", b.node("Mul", a, a), a))


def test_nothing_past_the_last_element_is_read() -> None:
    kernel = kernel_of(twice())
    assert verify(kernel) == ()
    x = np.linspace(-1, 1, UNEVEN, dtype=np.float32)
    (got,) = interpret(kernel, [x], 1)
    np.testing.assert_allclose(got, x * x + x, rtol=1e-6)
    (phase,) = kernel.phases
    longer = replace(kernel, phases=(replace(phase, body=tuple(map(without_bounds, phase.body))),))
    assert any("elements" in fault for fault in verify(longer)), "a missing test of bounds is found"


def without_bounds(s: Stmt) -> Stmt:
    """A statement in whose body nothing is asked before it is read."""
    if isinstance(s, When):
        return replace(s, guards=(replace(s.guards[0], extent=s.guards[0].extent + 4096),), body=s.body)
    if isinstance(s, Loop):
        return replace(s, body=tuple(map(without_bounds, s.body)))
    return s


def test_a_tensor_that_is_used_twice_is_one_argument_and_one_load() -> None:
    kernel = kernel_of(twice())
    assert len(kernel.inputs) == 1
    assert device_text(kernel, "k").count("get(in0 +") + device_text(kernel, "k").count(">(in0 +") == 1


def test_equal_kernels_are_one_whatever_their_values_are_called() -> None:
    one, two = (kernel_text(kernel_of(twice(name))) for name in ("x", "hidden_state"))
    assert one == two


def test_an_output_of_the_graph_with_a_reader_is_stored() -> None:
    b = Build()
    y = b.node("Relu", b.input("x", UNEVEN))
    graph = b.graph(y, b.node("Exp", y))
    kernel = kernel_of(graph)
    assert {p.value for p in kernel.outputs} == {*graph.outputs}
    x = np.linspace(-1, 1, UNEVEN, dtype=np.float32)
    found = dict(zip((p.value for p in kernel.outputs), interpret(kernel, [x], 1), strict=True))
    np.testing.assert_allclose(found[graph.outputs[0]], np.maximum(x, 0))
    np.testing.assert_allclose(found[graph.outputs[1]], np.exp(np.maximum(x, 0)), rtol=1e-6)


@pytest.mark.parametrize("extent", [1, 255, UNEVEN, 4096])
def test_one_kernel_serves_every_size(extent: int) -> None:
    x = np.linspace(-1, 1, extent, dtype=np.float32)
    (got,) = interpret(kernel_of(twice(extent="n")), [x], 1)
    np.testing.assert_allclose(got, x * x + x, rtol=1e-6)


def test_the_number_of_blocks_is_bounded_for_any_size() -> None:
    kernel = kernel_of(twice(extent="n"))
    (phase,), (bind,) = kernel.phases, kernel.binds
    assert phase.launch is not None
    many = Iterations((), np.zeros(1, np.int64), {bind.symbol.name: 1 << 33}, {})
    assert many.index(phase.launch.grid) == GPUS["sm_90"].blocks <= min(MOST_BLOCKS, 65535)
