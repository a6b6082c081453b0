"""M9: places that cannot be written: one error of three parts and exit code 2, before a search where that can be."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from normgen.export import Header
from normgen.records.winners import shipped_folder
from normgen.tuning import tuner
from tests.reproductions.commands import ON_CPU, normgen, spec_file, tune_few

RECORDS = str(shipped_folder() / "h200.jsonl")


def below_a_file(tmp_path: Path) -> Path:
    """Not even root can make a folder there."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "folder"


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("the search began")

    monkeypatch.setattr(tuner, "predict_without_gpu", searched)


@pytest.mark.usefixtures("no_search")
def test_m9_an_output_that_cannot_be_written_is_found_out_before_the_search(tmp_path: Path) -> None:
    place = below_a_file(tmp_path)
    found = normgen(*tune_few(tmp_path), "--output", str(place))
    assert (found.code, found.is_one_error) == (2, True)
    assert str(place) in found.err


@pytest.mark.usefixtures("no_search")
def test_m9_a_damaged_record_beside_the_header_is_found_out_before_the_search(tmp_path: Path) -> None:
    records = tmp_path / "out" / "records" / "h200.jsonl"
    records.parent.mkdir(parents=True)
    records.write_text("{\n")
    found = normgen(*tune_few(tmp_path), "--output", str(tmp_path / "out"))
    assert found.code == 2
    assert f"{records}:1: set aside: not JSON" in found.err


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("named_by", ["NORMGEN_STATE_DIR", "HOME"])
def test_m9_a_state_folder_that_cannot_be_written_is_found_out_before_the_search(
    named_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NORMGEN_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(named_by, str(below_a_file(tmp_path)))
    found = normgen(*tune_few(tmp_path))
    assert (found.code, found.is_one_error) == (2, True)
    assert str(tmp_path / "file") in found.err
    assert "NORMGEN_STATE_DIR" in found.err


@pytest.mark.parametrize(
    "command",
    [("report", RECORDS, "--out", "{place}/page.html"), ("export", RECORDS, "--output", "{place}")],
    ids=lambda command: command[0],
)
def test_m9_a_command_whose_output_cannot_be_written_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    place = below_a_file(tmp_path)
    found = normgen(*(part.format(place=place) for part in command))
    assert (found.code, found.is_one_error) == (2, True)
    assert str(place) in found.err


@pytest.mark.parametrize("option", ["--output", "--cubin", "--flashinfer", "--hf-kernels"])
def test_m9_an_export_asks_for_its_place_before_it_proves_a_record(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def proven(*_: object, **__: object) -> None:
        raise AssertionError("records are proven")

    monkeypatch.setattr("normgen.cli.export.sorted_out", proven)
    monkeypatch.setattr("normgen.engines.source.ExportSource.records", proven)
    found = normgen("export", RECORDS, option, str(below_a_file(tmp_path)))
    assert (found.code, found.is_one_error) == (2, True)
    assert str(tmp_path / "file") in found.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("command", "kind"), [("verify", "file"), ("verify", "dangling link"), ("tune", "proc")])
def test_m9_a_cache_folder_that_cannot_be_made_costs_one_line(
    command: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(f"/proc/normgen-{command}") if kind == "proc" else tmp_path / "cache"
    if kind == "file":
        place.write_text("")
    elif kind == "dangling link":
        place.symlink_to(tmp_path / "nowhere" / "else")
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(place))
    verify = ("verify", *ON_CPU, "--op", spec_file(tmp_path), "--json")
    found = normgen(*(verify if command == "verify" else tune_few(tmp_path, "--json")))
    assert found.code == 0
    assert json.loads(found.out)
    (line,) = [line for line in found.err.splitlines() if str(place) in line]
    assert "takes its place" in line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["list", "show --shape 8x96", "--help", "spec check {spec}"])
def test_m9_a_stdout_that_takes_nothing_costs_one_error(command: str, tmp_path: Path) -> None:
    arguments = command.format(spec=spec_file(tmp_path)).split()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "normgen", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert (
        done.stderr == "error: the system refused a file, a folder or a process\n  received: No space left on device\n"
        "  hint: name another place, or look at its owner, mode and free space\n"
    )


def test_m9_a_page_goes_through_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    page, link, pipe = tmp_path / "page.html", tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(page)
    assert normgen("report", RECORDS, "--out", str(link)).code == 0
    assert link.is_symlink()
    assert page.read_text().endswith("</html>")
    os.mkfifo(pipe)
    read = tmp_path / "read.html"  # a pipe to this process would fill up before the page has gone through
    with read.open("w") as file, subprocess.Popen(["cat", str(pipe)], stdout=file) as reader:
        assert normgen("report", RECORDS, "--out", str(pipe)).code == 0
        assert reader.wait(timeout=60) == 0
    assert _timeless(read.read_text()) == _timeless(page.read_text())
    assert pipe.is_fifo()


def _timeless(page: str) -> str:
    """The page without the minute it was made in: the two of a test may lie on either side of one."""
    timeless, found = re.subn(r'"generated":"[^"]*"', "", page)
    assert found == 1
    return timeless


def test_m9_a_header_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.cu"
    path.write_text("the old header")

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr("normgen.export.check_compiles", lambda *_, **__: None)
    with pytest.raises(OSError, match="No space left on device"):
        Header(file_name="k.cu", text="the new one", arch=90, kernels=()).write(tmp_path)
    assert path.read_text() == "the old header"
    assert [p.name for p in tmp_path.iterdir()] == ["k.cu"]
