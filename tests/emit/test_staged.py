"""Outputs appear together or not at all, and nothing is left behind."""

import os
import stat
from pathlib import Path

import pytest

from onnxfuse.emit import staged as staging
from onnxfuse.emit.staged import Staged, refuse_existing
from onnxfuse.errors import OutputError, UsageError

NAMES = ("m.data", "libm.so", "m.fuse.json", "m.onnx")


def stage_all(staged: Staged, folder: Path) -> None:
    for name in NAMES:
        staged.stage(folder / name).write_text(f"new {name}")


def contents(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir()}


def test_all_outputs_appear_with_the_commit(tmp_path):
    with Staged() as staged:
        stage_all(staged, tmp_path)
        assert not [p for p in tmp_path.iterdir() if p.name in NAMES]
        staged.commit()
    assert contents(tmp_path) == {name: f"new {name}" for name in NAMES}


def test_nothing_is_left_without_a_commit(tmp_path):
    with pytest.raises(KeyboardInterrupt), Staged() as staged:
        stage_all(staged, tmp_path)
        raise KeyboardInterrupt
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("old", [NAMES, NAMES[:2], ()])
@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_rename_takes_the_others_back(problem, old, links, tmp_path, monkeypatch):
    """The third of four renames fails: old files are as they were, also on file systems without hard links."""
    for name in old:
        (tmp_path / name).write_text(f"old {name}")
    before = contents(tmp_path)
    replace, done = os.replace, []

    def failing(a, b):
        done.append(b)
        if len(done) == 3:
            raise problem
        replace(a, b)

    def no_links(a, b):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(staging.os, "replace", failing)
    if not links:
        monkeypatch.setattr(staging.os, "link", no_links)
    with pytest.raises((OutputError, KeyboardInterrupt)), Staged(overwrite=True) as staged:
        stage_all(staged, tmp_path)
        staged.commit()
    assert contents(tmp_path) == before


def test_replacing_keeps_nothing_of_the_old(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_text("old")
    with Staged(overwrite=True) as staged:
        stage_all(staged, tmp_path)
        assert set(contents(tmp_path)) >= set(NAMES) and contents(tmp_path)["m.onnx"] == "old"
        staged.commit()
    assert contents(tmp_path) == {name: f"new {name}" for name in NAMES}


def test_existing_outputs_are_refused(tmp_path):
    (tmp_path / "libm.so").write_text("old")
    with pytest.raises(UsageError, match=r"libm\.so exists \(--overwrite"), Staged() as staged:
        stage_all(staged, tmp_path)
    assert contents(tmp_path) == {"libm.so": "old"}


def test_a_file_that_appears_in_the_meantime_is_not_replaced(tmp_path):
    with pytest.raises(UsageError, match="exists"), Staged() as staged:
        stage_all(staged, tmp_path)
        (tmp_path / "m.onnx").write_text("somebody else's")
        staged.commit()
    assert contents(tmp_path) == {"m.onnx": "somebody else's"}


def test_only_files_are_replaced(tmp_path):
    """A folder, a device or a pipe is never renamed away, not even with --overwrite."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "folder", tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(UsageError, match="not an ordinary file"):
            Staged(overwrite=True).stage(path)
    with pytest.raises(OutputError, match="does not exist"):
        refuse_existing([tmp_path / "no" / "m.onnx"], overwrite=False)


def test_a_link_keeps_pointing_where_it_did(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "m.onnx").write_text("old")
    (tmp_path / "m.onnx").symlink_to("real/m.onnx")
    with Staged(overwrite=True) as staged:
        staged.stage(tmp_path / "m.onnx").write_text("new")
        staged.commit()
    assert (tmp_path / "m.onnx").is_symlink() and (tmp_path / "real" / "m.onnx").read_text() == "new"


def test_files_have_the_mode_that_the_user_wants(tmp_path):
    before = os.umask(0o027)
    try:
        with Staged() as staged:
            staged.stage(tmp_path / "m.onnx").write_text("new")
            staged.commit()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m.onnx").stat().st_mode) == 0o640


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(staging.os, "open", denied)
    with pytest.raises(OutputError, match=r"m\.onnx cannot be written: Permission denied"):
        Staged().stage(tmp_path / "m.onnx")
