"""The pool host runs kernels as host.h promises: shapes, scratch, barriers between loops, messages, types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.isa import CACHE
from tests.kernels.pool_host import LoadedKernel, Pool, aligned, compile_library, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
PROBE = Path(__file__).resolve().with_name("pool_probe.cpp")


@pytest.fixture(params=[1, 2, 5])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(threads=request.param) as made:
        yield made


@pytest.fixture
def spread(pool: Pool) -> LoadedKernel:
    return pool.load(compile_library([PROBE], CACHE), "probe_spread")


@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 5), (3, 1, 211)])
def test_outputs_follow_the_kernel(spread: LoadedKernel, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    flat = x.ravel() + (np.arange(x.size) // 3).astype(np.float32)
    for _ in range(50):
        y, dims = spread.run(x)
        assert (y == flat[::-1].reshape(shape)).all()
        assert dims.tolist() == list(shape)


def test_a_message_becomes_an_error_that_names_the_kernel(spread: LoadedKernel) -> None:
    with pytest.raises(RuntimeError, match="probe_spread: the input is empty"):
        spread.run(np.empty((0, 3), np.float32))


def test_types_and_counts_are_checked(spread: LoadedKernel) -> None:
    with pytest.raises(TypeError, match="float64"):
        spread.run(np.zeros(3))
    with pytest.raises(TypeError):
        spread.run()
    with pytest.raises(TypeError, match="contiguous"):
        spread.run(np.zeros((4, 4), np.float32).T[:, ::2])


def test_a_missing_symbol_is_named(pool: Pool) -> None:
    with pytest.raises(RuntimeError, match="no_such_kernel"):
        pool.load(compile_library([PROBE], CACHE), "no_such_kernel")


def test_a_race_takes_turns_and_times_each(pool: Pool, spread: LoadedKernel) -> None:
    other = pool.load(compile_library([PROBE], CACHE), "probe_spread")
    sets = [[np.full(9, v, np.float32)] for v in (1, 2, 3)]
    seconds = pool.race([spread, other], sets, 8)
    assert seconds.shape == (2, 8)
    assert (seconds > 0).all()
    last = sets[7 % 3][0] + (np.arange(9) // 3).astype(np.float32)
    assert (spread.outputs()[0] == last[::-1]).all()
    assert (other.outputs()[0] == last[::-1]).all()


def test_a_source_that_does_not_compile_gives_the_compilers_words(tmp_path: Path) -> None:
    source = tmp_path / "broken.cpp"
    source.write_text("int x = nonsense;")
    with pytest.raises(RuntimeError, match="nonsense"):
        compile_library([source], tmp_path)


def test_aligned_copies_start_at_a_cache_line() -> None:
    x = np.arange(30, dtype=np.int16).reshape(5, 6)
    assert aligned(x).ctypes.data % 64 == 0
    assert (aligned(x) == x).all()
