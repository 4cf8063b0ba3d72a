"""The verb `package`: models with their libraries, manifests, licences, checksums and loaders as one archive."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxfuse.build.cache import file_digest
from onnxfuse.emit.staged import Staged, refuse_existing, refuse_inputs
from onnxfuse.errors import AnsweredNo, OutputError, UsageError
from onnxfuse.report.document import parsed, version
from onnxfuse.report.programs import programs
from onnxfuse.runtime import feed_limits
from onnxfuse.runtime.entries import RUNTIME

from . import show
from .results import Answer, document
from .show import bytes_text

_MANIFEST = ".fuse.json"
BILL = "sbom.cdx.json"


def package(place: str, out: str | None, others: Iterable[Path], *, overwrite: bool) -> Answer:
    """Archive everything that is needed to run the models of a folder, or one model, elsewhere.

    `others` are files that are written besides the archive.
    """
    folder, manifests = _manifests(Path(place))
    name = folder.resolve().name if Path(place).is_dir() else Path(place).name.removesuffix(".onnx")
    path = Path(out) if out is not None else Path(f"{name}.tar.gz")
    refuse_existing([path], overwrite=overwrite)
    members: dict[str, bytes | Path] = {}
    for each in manifests:
        members |= _members(folder, each)
    refuse_inputs([path, *others], [each for each in members.values() if isinstance(each, Path)])
    members |= {name: text.encode() for name, text in _licences()}
    sums = {name: _digest(content) for name, content in sorted(members.items())}
    bill = bill_of(name, sums, [_read(each) for each in manifests])
    members[BILL] = show.json_text(bill).encode()
    sums[BILL] = _digest(members[BILL])
    members["SHA256SUMS"] = "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
    _write(path, name, members, overwrite=overwrite)
    facts = {"path": path, "bytes": path.stat().st_size, "sha256": file_digest(path), "files": sums}
    lines = [f"{digest[:12]}  {name}" for name, digest in sums.items()]
    lines.append(f"wrote     {path}  {bytes_text(path.stat().st_size)}, sha256 {facts['sha256']}")
    return Answer(document("package", **facts), tuple(lines))


def _manifests(place: Path) -> tuple[Path, list[Path]]:
    """The folder, and its manifests, or that of one model. Raises UsageError."""
    if place.is_dir():
        folder, found = place, sorted(place.glob(f"*{_MANIFEST}"))
    else:
        folder, found = place.parent, [place.with_name(place.name.removesuffix(".onnx") + _MANIFEST)]
        if not place.is_file():
            raise UsageError(f"package: there is no file or folder {place}", hint="check the spelling")
    found = [each for each in found if each.is_file()]
    if not found:
        raise UsageError(f"package: {place} has no manifest (NAME{_MANIFEST})", hint="onnxfuse optimize makes one")
    return folder, found


def _members(folder: Path, path: Path) -> dict[str, bytes | Path]:
    """The files of one manifest by their names in the archive, with loaders. Raises UsageError and AnsweredNo."""
    said = _read(path)
    model, library = folder / str(said["model"]), said.get("library")
    found: dict[str, bytes | Path] = {path.name: path, model.name: model}
    for name in _data_of(model):
        found[name] = folder / name
    if library is not None:
        found[Path(str(library)).name] = folder / str(library)
    for name, each in found.items():
        if isinstance(each, Path) and not each.is_file():
            raise UsageError(
                f"package: {each}, which {path} names, is missing", hint="put all files of a build into one folder"
            )
        if (
            library is not None
            and name == Path(str(library)).name
            and file_digest(folder / str(library)) != said["library_sha256"]
        ):
            raise AnsweredNo(f"package: {library} is not the library that {path} names", hint="optimize again")
    stem = path.name.removesuffix(_MANIFEST)
    for name, text in programs(model.name, None if library is None else Path(str(library)).name).items():
        found[f"load/{stem}/{name}"] = text.encode()
    return found


def _read(path: Path) -> Mapping[str, Any]:
    try:
        said = parsed(path.read_text(encoding="utf-8"))
        if isinstance(said, dict) and isinstance(said["model"], str) and "library_sha256" in said:
            return said
    except (OSError, ValueError, KeyError):
        pass
    raise UsageError(f"package: {path} is not a manifest", hint="onnxfuse optimize makes one")


def _data_of(model: Path) -> list[str]:
    """Names of the external data files of a model; none if the model is missing."""
    if not model.is_file():
        return []
    tensors = feed_limits.load_proto(model).graph.initializer
    return sorted({e.value for t in tensors for e in t.external_data if e.key == "location"})


def _licences() -> Iterator[tuple[str, str]]:
    """The licence and notice of generated code."""
    about = importlib.metadata.distribution("onnxfuse")
    for name in ("LICENSE", "NOTICE"):
        text = about.read_text(f"licenses/{name}") or about.read_text(name)
        beside = Path(__file__).resolve().parents[1] / name
        if text is None and beside.is_file():  # an editable install
            text = beside.read_text(encoding="utf-8")
        if text is not None:
            yield f"licenses/onnxfuse/{name}", text


def bill_of(name: str, sums: Mapping[str, str], manifests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The bill of materials of an archive in CycloneDX, without date and serial number, so that it is reproducible."""
    libraries = {Path(str(m["library"])).name: m for m in manifests if m.get("library")}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": name},
            "tools": {
                "components": [{"type": "application", "name": "onnxfuse", "version": version("onnxfuse") or "0"}]
            },
        },
        "components": [_component(file, digest, libraries.get(file)) for file, digest in sorted(sums.items())],
    }


def _component(file: str, digest: str, manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    """A file of an archive; for a library with its licence, compiler and requirements."""
    kind = "library" if manifest else "machine-learning-model" if file.endswith(".onnx") else "file"
    found: dict[str, Any] = {"type": kind, "name": file, "hashes": [{"alg": "SHA-256", "content": digest}]}
    if manifest is not None:
        build = manifest.get("build", {})
        said = {
            "onnxfuse:version": manifest.get("onnxfuse_version"),
            "onnxfuse:compiler": build.get("compiler"),
            "onnxfuse:target": build.get("target"),
            "onnxfuse:source-model-sha256": manifest.get("source", {}).get("sha256"),
            "onnxfuse:needs": RUNTIME,
        }
        found["licenses"] = [{"license": {"id": "Apache-2.0"}}]
        found["properties"] = [{"name": key, "value": str(value)} for key, value in said.items() if value]
    return found


def _digest(content: bytes | Path) -> str:
    return file_digest(content) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()


def _write(path: Path, name: str, members: Mapping[str, bytes | Path], *, overwrite: bool) -> None:
    """Write the archive without times and owners and in a fixed order, so that it is reproducible."""
    with Staged(overwrite=overwrite) as staged:
        temporary = staged.stage(path)
        try:
            with (
                temporary.open("wb") as stream,
                gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for member, content in sorted(members.items()):
                    _add(archive, f"{name}/{member}", content)
        except OSError as problem:
            raise OutputError(f"write: {path} cannot be written: {problem.strerror or problem}") from None
        staged.commit()


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    about = tarfile.TarInfo(name)
    about.mode = 0o755 if name.endswith(".so") else 0o644
    about.size = content.stat().st_size if isinstance(content, Path) else len(content)
    if isinstance(content, Path):
        with content.open("rb") as stream:
            archive.addfile(about, stream)
    else:
        archive.addfile(about, io.BytesIO(content))
