"""Networks with symbolic sizes become kernels for all machine classes: no group is lost to a bug."""

import pytest

from models.networks import NETWORKS
from onnxfuse.pipeline import optimize
from onnxfuse.target import ARCHS

OPEN = {row.name: row for row in NETWORKS if row.name.startswith("tiny") and ".dynamic" in row.name}
OTHERS = [arch for arch in ARCHS if arch != "native"]
USUAL = [(OPEN[f"tiny-{name}.dynamic"].name, "x86-64-v4") for name in ("pyramid", "ocr-recognizer")]
REST = [(name, arch) for name in OPEN for arch in OTHERS if (name, arch) not in USUAL]


@pytest.mark.parametrize(("name", "arch"), [*USUAL, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)])
def test_every_group_is_scheduled(name: str, arch: str):
    result = optimize(OPEN[name].build().SerializeToString(), stop_after="render", arch=arch, strict=True)
    assert result.kernels and not [r for r in result.refusals if r.code == "E-INTERNAL"]
