"""Small networks give equal results in all four modes, with no more kernels than when this was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.errors import ToolchainError
from onnxfuse.verify.compare import FLOORS
from tests.models.fused import built, errors

# Kernels, and nodes that stay with the runtime: fewer are better, more need a reason.
MOST = {
    "tiny-bert": (13, 0),
    "tiny-bert.decomposed": (13, 0),
    "tiny-bert.dynamic": (13, 0),
    "tiny-bert.dynamic.decomposed": (13, 0),
    "tiny-resnet": (12, 0),
    "tiny-resnet.decomposed": (11, 1),
    "tiny-resnet.dynamic": (12, 0),
    "tiny-resnet.dynamic.decomposed": (11, 1),
    "tiny-mobilenet": (15, 0),
    "tiny-mobilenet.decomposed": (14, 1),
    "tiny-gpt2": (12, 0),
    "tiny-gpt2.decomposed": (12, 0),
    "tiny-gpt2.dynamic": (11, 0),
    "tiny-gpt2.dynamic.decomposed": (12, 0),
    "tiny-mobilebert": (22, 2),
    "tiny-mobilebert.decomposed": (22, 2),
    "tiny-vit": (13, 1),  # the classifier of one token: 2 KB of weights
    "tiny-vit.decomposed": (13, 1),
    "tiny-vit.dynamic": (13, 0),
    "tiny-swin": (22, 1),
    "tiny-swin.decomposed": (23, 1),
    "tiny-swin.dynamic": (22, 7),
    "tiny-convnext": (11, 1),
    "tiny-convnext.decomposed": (11, 1),
    "tiny-convnext.dynamic": (11, 1),
    "tiny-segformer": (24, 2),
    "tiny-segformer.decomposed": (24, 2),
    "tiny-segformer.dynamic": (24, 6),
}
GROWN, IN_MODEL, IN_LIBRARY = 1.1, 4096, 32768  # weights may grow by so much; a kernel may take so many bytes beside
LONG = {name for name in MOST if ".dynamic" in name} - {"tiny-bert.dynamic", "tiny-gpt2.dynamic"}
BUILT = {f"tiny-{name}.decomposed" for name in ("bert", "resnet", "mobilenet")}
# Rules, which tests/rules and tests/exports have each, make of the other decomposed ones what the modern ones are.
LONG |= {name for name in MOST if ".decomposed" in name} - BUILT
ALL = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in MOST]


def has_compiler() -> bool:
    try:
        find_toolchain()
    except ToolchainError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
pytestmark = needs_compiler


@pytest.mark.parametrize("name", ALL)
def test_a_network_is_right_with_and_without_library_and_optimizations(name: str, tmp_path: Path) -> None:
    made = built(name, tmp_path)
    found = errors(made)
    assert len(found) == 4
    assert max(found.values()) <= FLOORS["float32"], found
    kernels, left = MOST[name]
    assert 0 < made.result.kernels <= kernels
    assert made.result.nodes_left <= left
    assert made.result.nodes_after == made.result.kernels + made.result.nodes_left
    sizes = {way: each.bytes for way, each in made.result.loading.items()}
    assert sizes["without_library"] <= GROWN * sizes["original"] + IN_MODEL * kernels, sizes
    assert sizes["with_library"] - sizes["without_library"] <= IN_LIBRARY * made.result.distinct_kernels, sizes
