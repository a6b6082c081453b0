"""Places that cannot be written: one error of three parts and exit code 2, before a search where that can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from normgen.cli import main as cli
from normgen.records.winners import shipped_folder
from normgen.tuning import tuner

TUNE = ("tune", "--shape", "8x96", "--device", "cpu", "--trials", "2")
RECORDS = str(shipped_folder() / "h200.jsonl")


def below_a_file(tmp_path: Path) -> Path:
    """Not even root can make a folder there."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "folder"


def ended(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return caught.value.code


def is_one_error(text: str, *, about: Path) -> bool:
    first, *rest = text.splitlines()
    parts = [line.strip().partition(":")[0] for line in rest]
    return first.startswith("error: ") and parts == ["received", "hint"] and str(about) in text


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("the search began")

    monkeypatch.setattr(tuner, "predict_without_gpu", searched)


@pytest.mark.usefixtures("no_search")
def test_an_output_that_cannot_be_written_is_found_out_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = below_a_file(tmp_path)
    assert ended(*TUNE, "--output", str(place)) == 2
    assert is_one_error(capsys.readouterr().err, about=place)


@pytest.mark.usefixtures("no_search")
def test_a_damaged_record_beside_the_header_is_found_out_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "out" / "records" / "h200.jsonl"
    records.parent.mkdir(parents=True)
    records.write_text("{\n")
    assert ended(*TUNE, "--output", str(tmp_path / "out")) == 2
    assert f"{records}:1: set aside: not JSON" in capsys.readouterr().err


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("named_by", ["NORMGEN_STATE_DIR", "HOME"])
def test_a_state_folder_that_cannot_be_written_is_found_out_before_the_search(
    named_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NORMGEN_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    place = below_a_file(tmp_path)
    monkeypatch.setenv(named_by, str(place))
    assert ended(*TUNE) == 2
    text = capsys.readouterr().err
    assert is_one_error(text, about=tmp_path / "file")
    assert "NORMGEN_STATE_DIR" in text


@pytest.mark.parametrize(
    "command",
    [
        ("report", RECORDS, "--out", "{place}/page.html"),
        ("export", RECORDS, "--output", "{place}"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_whose_output_cannot_be_written_says_so(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = below_a_file(tmp_path)
    assert ended(*(part.format(place=place) for part in command)) == 2
    assert is_one_error(capsys.readouterr().err, about=place)


@pytest.mark.parametrize("kind", ["file", "proc", "dangling link"])
def test_a_cache_folder_that_cannot_be_made_costs_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path("/proc/normgen-cache") if kind == "proc" else tmp_path / "cache"
    if kind == "file":
        place.write_text("")
    elif kind == "dangling link":
        place.symlink_to(tmp_path / "nowhere" / "else")
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(place))
    assert ended(*TUNE, "--json") == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["paths"]["header"]
    assert output.err.count(str(place)) == 1
    assert "takes its place" in output.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [("list",), ("show", "--shape", "8x96"), ("--help",)], ids=" ".join)
def test_a_stdout_that_takes_nothing_costs_one_line_and_ends_with_2(command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "normgen", *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 3


def test_a_page_goes_through_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    page, link, pipe = tmp_path / "page.html", tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(page)
    assert ended("report", RECORDS, "--out", str(link)) == 0
    assert link.is_symlink()
    assert page.read_text().endswith("</html>")
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        assert ended("report", RECORDS, "--out", str(pipe)) == 0
        assert reader.communicate()[0] == page.read_text()
    assert pipe.is_fifo()
