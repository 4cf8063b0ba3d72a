"""No verb replaces a file that it reads, whatever it is called: models, their data and library, inputs, results."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfuse import errors, optimize
from tests.cli.conftest import Onnxfuse, chain

REFUSED = """
optimize m.onnx m.onnx
optimize m.onnx ./m.onnx
optimize m.onnx link.onnx
optimize link.onnx m.onnx
optimize m.onnx hard.onnx
optimize m.onnx w.onnx
optimize m.onnx --lib w.data
optimize m.onnx --manifest w.data
optimize m.onnx --manifest x.npz --inputs x.npz
optimize m.onnx --json-file w.data
optimize m.onnx --report page.html
profile m.onnx --json-file x.npz --inputs x.npz
profile m.onnx --json-file r.json --baseline r.json
profile m.onnx o.onnx --trace libo.so
verify m.onnx o.onnx --json-file o.fuse.json
verify m.onnx o.onnx --json-file libo.so --library libo.so
inspect m.onnx --json-file w.data
inspect libo.so --json-file libo.so
explain m.onnx --json-file w.data
diff m.onnx o.onnx --json-file hard.onnx
tune m.onnx --lock m.onnx
tune m.onnx --lock w.data
tune m.onnx --json-file w.data
bisect m.onnx o.onnx -o chosen
package . o.onnx
package . --json-file o.fuse.json
package . archive.tgz --json-file libo.so
report r.json r.json --format html
cache import r.json --json-file r.json
config --json-file onnxfuse.toml
"""


@pytest.fixture
def there(here: Path, onnxfuse: Onnxfuse) -> dict[str, bytes]:
    """Files that verbs read, with a model whose weights are external, and links to them."""
    onnx.save(chain(), "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    assert onnxfuse("optimize", "m.onnx", "o.onnx", "--no-verify").code == 0
    np.savez("x.npz", x=np.zeros((4, 32), np.float32))
    assert onnxfuse("inspect", "m.onnx", "--json-file", "r.json").code == 0
    Path("onnxfuse.toml").write_text("seed = 0\n")
    Path("link.onnx").symlink_to("m.onnx")
    os.link("m.onnx", "hard.onnx")
    Path("page.html").symlink_to("w.data")
    Path("chosen.inputs.npz").symlink_to("m.onnx")
    return {path.name: path.read_bytes() for path in here.iterdir()}


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_is_read_is_not_replaced(
    line: str, there: dict[str, bytes], here: Path, onnxfuse: Onnxfuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = onnxfuse(*line.split(), "--overwrite")
    assert said.code == 2 and len(said.err.splitlines()) == 1 and "Traceback" not in said.err, said.err
    words = ("is read by this command", "is also another file of this command", "and the model to read are both")
    assert any(each in said.err for each in words), said.err
    assert {path.name: path.read_bytes() for path in here.iterdir()} == there


def test_other_files_are_replaced(there: dict[str, bytes], onnxfuse: Onnxfuse) -> None:
    """What one run read is an output of the next."""
    assert onnxfuse("optimize", "m.onnx", "o.onnx", "--no-verify", "--overwrite", "--json-file", "r.json").code == 0
    assert Path("r.json").read_bytes() != there["r.json"]
    assert onnxfuse("package", ".", "--json-file", "r.json", "--overwrite").code == 0


def test_from_python_too(there: dict[str, bytes]) -> None:
    for place in ("m.onnx", "link.onnx", "hard.onnx", "w.onnx"):
        with pytest.raises(errors.UsageError):
            optimize("m.onnx", place, overwrite=True)
    assert Path("m.onnx").read_bytes() == there["m.onnx"] and Path("w.data").read_bytes() == there["w.data"]
