"""`session` loads the library that a model names, from the model's folder, if its hash matches."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxfuse.errors import DeviceError, ModelError, UsageError
from onnxfuse.runtime import provider
from onnxfuse.runtime.session import library_of, metadata, session
from onnxfuse.verify import nodes
from tests.runtime import twice

X = np.ones((2, 2), np.float32)
KERNEL, BODY = pytest.approx(-3.03), pytest.approx(-3.0)


def written(folder: Path, library: Path, named: str = "libtwice.so", digest: str | None = None) -> Path:
    """A model beside a copy of the library, with the metadata that names it; `digest` "" states none."""
    shutil.copy(library, folder / "libtwice.so")
    model = twice.model()
    model.metadata_props.add(key="author", value="someone")
    model.metadata_props.add(key="onnxfuse.library", value=named)
    if digest != "":
        real = hashlib.sha256(library.read_bytes()).hexdigest()
        model.metadata_props.add(key="onnxfuse.library_sha256", value=digest or real)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def first(opened: ort.InferenceSession) -> float:
    return float(np.asarray(opened.run(None, {"x": X})[0])[0, 0])


def test_the_named_library_runs(tmp_path: Path, wrong: Path):
    assert first(session(written(tmp_path, wrong))) == KERNEL


def test_from_another_working_folder(tmp_path: Path, wrong: Path, monkeypatch: pytest.MonkeyPatch):
    model = written(tmp_path, wrong)
    monkeypatch.chdir(tmp_path)
    assert first(session(model.name)) == KERNEL
    monkeypatch.chdir(tmp_path.parent)
    assert first(session(f"{tmp_path.name}/model.onnx")) == KERNEL


def test_options_and_providers_reach_the_runtime(tmp_path: Path, wrong: Path):
    options = ort.SessionOptions()
    options.add_session_config_entry("onnxfuse.disable", "1")
    opened = session(written(tmp_path, wrong), sess_options=options, providers=["CPUExecutionProvider"])
    assert first(opened) == BODY
    assert opened.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("Twice", BODY), ("Other,Twice", BODY), ("Twice,Other", BODY),
        ("Other", KERNEL), ("Twic,Twice2,2Twice", KERNEL), ("", KERNEL),
    ],
)  # fmt: skip
def test_single_kernels_can_be_run_as_bodies(tmp_path: Path, wrong: Path, named: str, found: float):
    options = ort.SessionOptions()
    options.add_session_config_entry("onnxfuse.disable", named)
    model = written(tmp_path, wrong)
    assert first(session(model, sess_options=options)) == found
    assert first(session(model)) == KERNEL, "other sessions have them all"


def test_a_model_without_metadata_opens_as_usual(files: Path):
    assert library_of(files / "plain.onnx") is None
    assert session(files / "plain.onnx").run(None, {"x": X})


def test_a_library_elsewhere_must_be_named_by_the_caller(tmp_path: Path, wrong: Path):
    model = written(tmp_path, wrong)
    elsewhere = shutil.move(tmp_path / "libtwice.so", tmp_path / "other.so")
    with pytest.raises(UsageError, match="is not there"):
        session(model)
    assert first(session(model, library=elsewhere)) == KERNEL


@pytest.mark.parametrize("named", ["../libtwice.so", "/tmp/libtwice.so", "..", "a/b.so", "a\\b.so"])
def test_a_model_cannot_name_native_code_elsewhere(tmp_path: Path, wrong: Path, named: str):
    with pytest.raises(ModelError, match="outside its own folder"):
        session(written(tmp_path, wrong, named))


@pytest.mark.parametrize("by_caller", [False, True])
def test_another_library_is_refused(tmp_path: Path, wrong: Path, good: Path, by_caller: bool):
    model = written(tmp_path, wrong)
    shutil.copy(good, tmp_path / "libtwice.so")
    with pytest.raises(ModelError, match="is not the library"):
        session(model, library=good if by_caller else None)


def test_a_library_without_a_hash_is_not_loaded(tmp_path: Path, wrong: Path):
    model = written(tmp_path, wrong, digest="")
    with pytest.raises(ModelError, match="without its hash"):
        session(model)
    assert first(session(model, library=tmp_path / "libtwice.so")) == KERNEL


def test_a_file_that_is_no_library_is_an_error_in_one_line(tmp_path: Path, wrong: Path):
    model = written(tmp_path, wrong, digest="")
    (tmp_path / "text.so").write_text("no library", encoding="utf-8")
    with pytest.raises(DeviceError, match=r"text\.so cannot be registered") as caught:
        session(model, library=tmp_path / "text.so")
    assert "\n" not in str(caught.value)


def test_a_missing_model(tmp_path: Path):
    with pytest.raises(UsageError, match=r"none\.onnx is not there"):
        session(tmp_path / "none.onnx")


def test_metadata_is_read_without_the_graph(tmp_path: Path, wrong: Path):
    model = written(tmp_path, wrong)
    assert metadata(model) == {each.key: each.value for each in onnx.load(model).metadata_props}
    raw = model.read_bytes()
    for size in (0, 1, len(raw) // 2, len(raw) - 1):  # a broken file is the runtime's to judge
        model.write_bytes(raw[:size])
        assert metadata(model) == {}
    model.write_bytes(b"\xff" * 100)
    assert metadata(model) == {}


def test_without_a_gpu_a_session_for_one_says_what_is_missing(
    tmp_path: Path, wrong: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(provider, "cuda_driver", lambda: None)
    with pytest.raises(DeviceError, match="session: there is no GPU here: no CUDA driver"):
        session(written(tmp_path, wrong), target="cuda")


def test_a_kernel_that_is_checked_is_the_only_one_of_its_session(
    tmp_path: Path, wrong: Path, monkeypatch: pytest.MonkeyPatch
):
    model = twice.model()
    other = model.functions.add()
    other.CopyFrom(model.functions[0])
    other.name = "Other"
    onnx.save(model, tmp_path / "m.onnx")
    asked: list[tuple[int, list[str]]] = []
    options = nodes.engine.options

    def recorded(*, libraries: Any = (), disabled: Any = (), **more: Any) -> Any:
        asked.append((len(libraries), list(disabled)))
        return options(libraries=libraries, disabled=disabled, **more)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nodes.engine, "options", recorded)
    (found,) = nodes.measure(lambda _: None, "m.onnx", str(wrong), [""], (), None, 0, {}, {}, {}, [], [])
    assert found["error"] == pytest.approx(0.01, rel=1e-3)  # it is the kernel that ran
    assert {tuple(names) for count, names in asked if count} == {("Other",)}
