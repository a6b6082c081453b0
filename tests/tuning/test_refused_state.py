"""A search that has ended loses nothing to its state folder: the header stands, and one line says what does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from normgen.errors import FileError
from normgen.tuning import run as runs
from normgen.tuning import tuner
from normgen.tuning.result import Result
from normgen.tuning.tuner import tune
from tests.killing.harness import FEW


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def tuned(output: Path | None = None) -> Result:
    return tune(FEW, shape="8x96", device="cpu", trials=2, output=output)


def lost(result: Result) -> list[str]:
    return [note for note in result.notes if note.startswith("not kept: ")]


def filled(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first candidate on the disk of the state folder takes nothing."""
    fsync, write = os.fsync, os.write

    def is_there(file: int) -> bool:
        return Path(os.readlink(f"/proc/self/fd/{file}")).is_relative_to(state)

    def full_fsync(file: int) -> None:
        if is_there(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    def full_write(file: int, data: Any) -> int:
        if is_there(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    begin = runs._begin

    def begin_then_full(run: runs.TuningRun) -> int:
        lock = begin(run)
        monkeypatch.setattr(os, "fsync", full_fsync)
        monkeypatch.setattr(os, "write", full_write)
        return lock

    monkeypatch.setattr(runs, "_begin", begin_then_full)


def test_a_disk_that_fills_during_the_search_costs_the_state_but_no_header(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(state, monkeypatch)
    result = tuned(tmp_path / "out")
    assert result.header_path is not None
    assert result.header_path.read_text().count("few_fwd_f32")
    assert (result.record_path, result.adopted) == (None, False)
    said = [note.removeprefix("not kept: ").partition(" (")[0] for note in lost(result)]
    assert said == [
        "candidates", "the record of the winner", "the winner among this user's records", "that the run is finished",
    ]  # fmt: skip
    assert all("No space left on device" in note for note in lost(result))


def test_without_a_folder_of_its_own_the_header_is_lost_with_the_state_and_it_is_said(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(state, monkeypatch)
    result = tuned()
    assert result.header_path is None
    assert any(note.startswith("not kept: the header (") for note in lost(result))
    assert result.as_dict()["best"]["outcome"] == "predicted"


def test_the_record_and_the_header_are_written_before_the_winner_is_adopted(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def adopt_after_both(*_: object, **__: object) -> bool:
        (folder,) = (state / "runs").iterdir()
        found.append((folder / "winner.jsonl").exists() and bool(list(folder.glob("*.cu"))))
        raise PermissionError(errno.EACCES, "Permission denied", str(state))

    monkeypatch.setattr(tuner, "adopt", adopt_after_both)
    result = tuned()
    assert found == [True]
    assert lost(result) == [f"not kept: the winner among this user's records ({state}: Permission denied)"]


def test_python_gets_an_error_of_ours_too(state: Path) -> None:
    state.write_text("a file")
    with pytest.raises(FileError, match="the state folder must be writable"):
        tuned()


@pytest.mark.usefixtures("state")
def test_a_folder_may_be_named_by_a_text(tmp_path: Path) -> None:
    found = tune(FEW, shape="8x96", device="cpu", trials=2, output=str(tmp_path / "headers"))
    assert found.header_path is not None
    assert found.header_path.parent == tmp_path / "headers"
