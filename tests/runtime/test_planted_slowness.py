"""A kernel of a network that is really slow is dropped by `--profile-guided`; a lock file says so without measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxfuse.measure.profile import Profile
from tests.calls import on_cpu, planted
from tests.models.fused import built
from tests.models.planted import Slow
from tests.models.test_networks import needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]
TURNS = 20_000_000  # of the loop, some milliseconds


def never(*args: Any, **rest: Any) -> Profile:
    raise AssertionError("nothing is to be measured")


@pytest.mark.parametrize("name", ["demo-mobilenet", "demo-bert"])
def test_a_slow_kernel_among_those_of_a_network_is_dropped(name: str, tmp_path: Path) -> None:
    right = built(name, tmp_path).result
    kernels = [group.kernel for group in right.groups]
    slow = next(kernel for kernel in kernels[len(kernels) // 2 :] if kernels.count(kernel) == 1)
    options = {"profile_guided": True, "verify": True, "overwrite": True}
    made = built(name, tmp_path, calls=on_cpu(render=Slow(slow, turns=TURNS)), **options).result
    lost = {kernel for choice in made.choices if not choice.kept for kernel in choice.kernels}
    assert lost == {slow} and made.verify is not None and made.verify.ok
    assert made.kernels == right.kernels - 1
    lock = str(tmp_path / "fused.fuse.lock")
    again = built(name, tmp_path, calls=planted("profile_models", never), lock=lock, check=True, overwrite=True).result
    assert (again.domain, again.choices) == (made.domain, made.choices)
