"""The tables of the README that need no device: boundaries and predicted times of all networks.

`python -m benchmarks.gpu.tables MODELS` writes them, from MODELS/NAME.onnx of the nine networks and of `llama.dynamic`
(`python -m models`), of which the table has one step of decoding. Lines that it has made are kept in a file, so that it
goes on where it ended; `--again` forgets them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx

from benchmarks.gpu import boundaries, predicted
from benchmarks.gpu.networks.full import fixed

HERE = Path(__file__).parent
LINES, PAGE = HERE / "tables.json", HERE / "README.md"
NAMES = (
    "bert-base", "gpt2", "mobilebert", "vit-b-16", "swin-t", "convnext-t", "segformer-b0", "resnet-50", "mobilenet-v2",
)  # fmt: skip
DECODING, STEP = "llama.dynamic", {"batch": 1, "sequence": 1, "past": 127}
TABLES = {"boundaries": boundaries, "predicted": predicted}


def files(models: Path, place: Path) -> list[Path]:
    """The networks, all sizes known."""
    onnx.save(fixed(onnx.load(models / f"{DECODING}.onnx"), STEP), place / "llama-decode.onnx")
    return [*(models / f"{name}.onnx" for name in NAMES), place / "llama-decode.onnx"]


def replaced(text: str, name: str, table: str) -> str:
    """A page with another table between the marks of its name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}{table}{end}{rest.partition(end)[2]}"


def main(given: Sequence[str] | None = None) -> None:
    """The tables, in the README."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args(given)
    known = json.loads(LINES.read_text()) if LINES.exists() and not options.again else {}
    with tempfile.TemporaryDirectory() as folder:
        paths = files(options.models, Path(folder))
        for path in paths:
            for name, module in TABLES.items():
                if path.stem not in known.setdefault(name, {}):
                    known[name][path.stem] = module.row(path)
                    LINES.write_text(json.dumps(known, indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    for name, module in TABLES.items():
        text = replaced(text, name, module.HEAD + "".join(known[name][path.stem] for path in paths))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
