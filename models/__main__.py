"""`python -m models [NAME ...] [--out DIR]` writes networks as ONNX files; without names, the full-size ones."""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnx

from models.alive import dead, gflop
from models.networks import NETWORKS, Network

HERE = Path(__file__).parent
MAKERS = (
    "onnx",
    "numpy",
    "onnxruntime",
    "torch",
    "transformers",
    "onnxscript",
)  # packages whose version may change a model


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the requested networks; exit code 1 if one is degenerate, 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks (default: all full-size ones)")
    parser.add_argument("--out", type=Path, default=HERE / "build", help="folder to write to (default: models/build)")
    parser.add_argument("--list", action="store_true", help="list the networks")
    parser.add_argument("--no-check", action="store_true", help="do not measure the activations of what is built")
    options = parser.parse_args(arguments)
    if options.list:
        with suppress(BrokenPipeError):  # of `| head`
            sys.stdout.writelines(f"{row.name:28} {row.what}{' [models]' if row.extra else ''}\n" for row in NETWORKS)
            sys.stdout.flush()
            return 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not written at the end either
        return 0
    rows = {row.name: row for row in NETWORKS}
    unknown = [name for name in options.names if name not in rows]
    if unknown:
        parser.error(f"no network is called {', '.join(unknown)} (--list names them all)")
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [rows[name] for name in options.names] or [row for row in NETWORKS if row.full]
    return max([_write(row, options.out, check=not options.no_check) for row in wanted])


def _write(row: Network, folder: Path, *, check: bool) -> int:
    """`folder/NAME.onnx` and NAME.json, which holds the builder's digest; nothing if that digest is already there."""
    path, facts_path = folder / f"{row.name}.onnx", folder / f"{row.name}.json"
    digest = _builder_digest(row)
    if path.exists() and facts_path.exists() and json.loads(facts_path.read_text())["builder"] == digest:
        sys.stdout.write(f"{row.name}: already there\n")
        return 0
    try:
        model = row.build()
    except ModuleNotFoundError as missing:
        sys.stderr.write(f"{row.name}: needs {missing.name} (pip install 'onnxfuse[models]')\n")
        return 1
    feed = row.sample()
    lines = dead(model, feed, row.high) if check else []
    sys.stderr.writelines(f"{row.name}: not alive: {line}\n" for line in lines)
    if lines:
        return 1
    onnx.checker.check_model(model)
    _replace(path, model.SerializeToString(deterministic=True))
    operators = dict(Counter(node.op_type for node in model.graph.node).most_common())
    facts = {"builder": digest, "gflop": round(gflop(model, feed), 3), "nodes": len(model.graph.node)}
    _replace(facts_path, (json.dumps(facts | {"operators": operators}, indent=1) + "\n").encode())
    sys.stdout.write(f"{row.name}: {facts['nodes']} nodes, {facts['gflop']} GFLOP, {path}\n")
    return 0


def _builder_digest(row: Network) -> str:
    """A digest of the row, the text of its builder, and the versions of packages that it uses."""
    content = hashlib.sha256(repr(row).encode())
    for file in sorted(_read_by(row.module)):
        content.update(file.read_bytes())
    for package in MAKERS:
        content.update(f"{package} {_version(package)}".encode())
    return content.hexdigest()[:16]


def _read_by(module: str) -> set[Path]:
    """The files of this folder that a module is made of: its own, and those of what it imports from here."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        path = HERE.parent.joinpath(*waiting.pop().split(".")).with_suffix(".py")
        if path in found or not path.is_file():
            continue
        found.add(path)
        imports = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)]
        waiting += [node.module for node in imports if node.module and node.module.startswith("models.")]
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


if __name__ == "__main__":
    raise SystemExit(main())
