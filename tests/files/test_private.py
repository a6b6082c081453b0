"""Caches are kept where this user alone can write, and files appear in them whole."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from normgen.files.private import distrust, keep, make_private, private_folder, read_trusted, write_atomically


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("umask", [0, 0o002, 0o077], indirect=True)
def test_folders_are_made_for_this_user_alone_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "above" / "cache" / "cpu")
    assert folder == tmp_path / "above" / "cache" / "cpu"
    for made in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700, umask


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
@pytest.mark.parametrize("open_one", ["cache", "cache/cpu"])
def test_a_temporary_folder_replaces_one_that_others_may_write(open_one: str, mode: int, tmp_path: Path) -> None:
    wanted = tmp_path / "cache" / "cpu"
    make_private(wanted)
    (tmp_path / open_one).chmod(mode)
    messages: list[str] = []
    found = [private_folder(wanted, report=messages.append) for _ in range(3)]
    assert found[0] != wanted
    assert found == [found[0]] * 3
    assert distrust(found[0]) is None
    assert stat.S_IMODE(found[0].stat().st_mode) == 0o700
    (message,) = messages
    assert f"other users may write {tmp_path / open_one}" in message
    assert "\n" not in message


def test_a_temporary_folder_replaces_one_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(tmp_path / "cpu")
    owner = os.geteuid()
    messages: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: owner + 1)
        assert private_folder(tmp_path / "cpu", report=messages.append) != tmp_path / "cpu"
    assert f"belongs to user {owner}" in messages[0]


@pytest.mark.parametrize("place", ["/proc/normgen/cpu", "{tmp}/file/cpu", "{tmp}/nowhere/cpu"])
def test_a_temporary_folder_replaces_one_that_cannot_be_made(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "folder")
    messages: list[str] = []
    assert private_folder(Path(place.format(tmp=tmp_path)), report=messages.append).is_dir()
    assert "cannot be written" in messages[0]


def test_one_line_tells_that_no_kind_of_file_is_kept(tmp_path: Path) -> None:
    make_private(tmp_path / "cpu")
    tmp_path.chmod(0o777)
    messages: list[str] = []
    folders = [private_folder(tmp_path / kind, report=messages.append) for kind in ("cpu", "cubin", "results")]
    assert [folder.name for folder in folders] == ["cpu", "cubin", "results"]
    assert len({folder.parent for folder in folders}) == 1
    assert len(messages) == 1


def test_what_does_not_fit_into_a_full_cache_goes_to_a_temporary_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Path] = []

    def write(folder: Path) -> None:
        if folder == tmp_path / "cpu":
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(folder)

    for _ in range(2):
        keep(tmp_path / "cpu", write)
    assert written == [private_folder(tmp_path / "cpu")] * 2
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_a_file_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert read_trusted(path) == b"content"
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to user"):
        read_trusted(path)


def test_a_file_is_on_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    steps: list[str] = []
    fsync, rename = os.fsync, os.replace

    def watched_fsync(file: int) -> None:
        assert os.fstat(file).st_size == 3
        steps.append(f"fsync, {path.read_text()}")
        fsync(file)

    def watched_rename(source: str, target: Path) -> None:
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_rename)
    write_atomically(path, b"new")
    assert steps == ["fsync, old", "rename"]
    assert path.read_text() == "new"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"
