"""The exports of torch, at sizes that build in seconds: forms agree and are alive. Slow: needs the extra `[models]`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

from models import alive, full  # noqa: E402 - after the check that torch is there

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
AGREE = 1e-4  # of the output's size


def _feed(row: full.Architecture, batch: int, padding: int = 0) -> dict[str, Any]:
    feed = {name: value.numpy() for name, value in zip(row.inputs, row.sample(batch), strict=True)}
    if padding:
        feed["attention_mask"][:, -padding:] = 0
    return feed


def _small(name: str) -> full.Architecture:
    """The row with a smaller module."""
    row = full.ARCHITECTURES[name]

    def bert() -> Any:
        config = row.make().config
        config.update({"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256})
        return transformers.BertModel(config)

    if name == "bert-base":
        return replace(row, make=bert, sample=full.tokens(30522, 24))
    return replace(row, sample=full.images(96), calibration=4)


@pytest.mark.parametrize("name", ["bert-base", "resnet-50", "mobilenet-v2"])
def test_forms_agree_and_are_alive(name: str) -> None:
    row = _small(name)
    modern, decomposed = full.exported(row, "modern"), full.exported(row, "decomposed")
    feed = _feed(row, 1)
    assert alive.dead(modern, feed) == []
    assert alive.dead(decomposed, feed) == []
    assert alive.difference(modern, decomposed, feed) < AGREE
    found = Counter(node.op_type for node in decomposed.graph.node)
    assert found["BatchNormalization"] == found["Conv"]
    assert not {"Softmax", "LayerNormalization", "Gelu"} & set(found)


def test_symbolic_bert() -> None:
    row = _small("bert-base")
    modern, dynamic = full.exported(row, "modern"), full.exported(row, "dynamic")
    assert alive.difference(modern, dynamic, _feed(row, 1, padding=5)) < AGREE
    longer = {name: np.tile(value, (3, 2)) for name, value in _feed(row, 1).items()}
    output = alive.run(dynamic, longer, ["last_hidden_state"])[0]
    assert output.shape == (3, 48, 128)
    assert np.allclose(output[0], output[2], atol=1e-5)
