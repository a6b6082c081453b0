"""The loop over cases and the file it leaves: limits, interrupts, lost devices, what a later run goes on with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.measure.protocol import DeviceLostError
from normgen.trials.file import growing_of, of_text, peeked, read, resumed, text_of, write
from normgen.trials.head import Run, opening
from normgen.trials.run import run


@dataclass(frozen=True, kw_only=True)
class Number:
    value: int

    @property
    def label(self) -> str:
        return f"number {self.value}"

    key = label


@dataclass(frozen=True, kw_only=True)
class Square:
    value: int
    square: float

    @property
    def key(self) -> str:
        return f"number {self.value}"


@dataclass(frozen=True, kw_only=True)
class Squares(Run):
    TRIALS = "squares"
    WRITER = "`squares`"

    name: str
    squares: tuple[Square, ...] = ()


class Told:
    def __init__(self) -> None:
        self.phases, self.notes = list[str](), list[str]()

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def note(self, text: str) -> None:
        self.notes.append(text)


CASES = [Number(value=n) for n in (1, 2, 3)]


def opened(**options: object) -> Squares:
    return Squares(**opening(TARGETS["h200"], {"b": "2", "a": "1"}, options), name="few")


def square(case: Number) -> list[Square]:
    return [Square(value=case.value, square=case.value**2)]


def squares(
    measure: Callable[[Number], Sequence[Square]] = square, path: Path | None = None, **more: object
) -> Squares:
    said = lambda found: f"{found[0].square:g}"  # noqa: E731
    start, progress = more.pop("start", opened()), more.pop("progress", Told())
    return run(start, CASES, measure, progress=progress, words=said, path=path, **more)  # type: ignore[arg-type]


def failing(at: int, error: BaseException) -> Callable[[Number], list[Square]]:
    def measure(case: Number) -> list[Square]:
        if case.value == at:
            raise error
        return square(case)

    return measure


def test_every_case_is_said_measured_and_written(tmp_path: Path) -> None:
    told, growing = Told(), list[Squares]()
    path = tmp_path / "squares.jsonl"
    found = squares(path=path, progress=told, on_results=lambda _: growing.append(read(Squares, path)))
    assert (found.finished, found.note, [s.square for s in found.squares]) == (True, "", [1, 4, 9])
    assert told.phases == ["[1/3] number 1", "[2/3] number 2", "[3/3] number 3"]
    assert [note.rpartition(" (")[0] for note in told.notes] == [
        "[1/3] number 1: 1",
        "[2/3] number 2: 4",
        "[3/3] number 3: 9",
    ]
    assert [(len(g.squares), g.finished, g.note) for g in growing] == [(n, False, "still running") for n in (1, 2, 3)]
    head, *lines = map(json.loads, path.read_text().splitlines())
    assert list(head)[:3] == ["schema", "name", "device"]
    assert (head["finished"], list(head["versions"])) == (True, ["a", "b"])
    assert lines[1] == {"value": 2, "square": 4}
    assert read(Squares, path).squares == found.squares


@pytest.mark.parametrize(
    ("error", "note", "code"),
    [
        (KeyboardInterrupt(), "interrupted", 130),
        (DeviceLostError("a kernel ended the device's context"), "device lost: a kernel ended the device's context", 6),
    ],
)
def test_an_early_end_keeps_what_there_is_and_says_why(
    tmp_path: Path, error: BaseException, note: str, code: int
) -> None:
    path = tmp_path / "squares.jsonl"
    found = squares(failing(3, error), path)
    assert (found.finished, found.note, found.exit_code, len(found.squares)) == (False, note, code, 2)
    assert read(Squares, path).note == note


def test_a_time_limit_begins_no_other_case() -> None:
    found = squares(limit_s=0.0)
    assert (found.finished, found.note, found.squares, found.exit_code) == (False, "time limit reached", (), 0)
    assert squares(limit_s=100.0).finished


def test_an_error_of_another_kind_passes_and_leaves_the_file_that_grew(tmp_path: Path) -> None:
    path = tmp_path / "squares.jsonl"
    with pytest.raises(UsageError):
        squares(failing(2, UsageError("no square")), path)
    assert (read(Squares, path).note, len(read(Squares, path).squares)) == ("still running", 1)


def test_a_run_goes_on_with_what_was_found_and_only_with_its_own(tmp_path: Path) -> None:
    path = tmp_path / "squares.jsonl"
    squares(failing(2, KeyboardInterrupt()), path)
    with path.open("ab") as file:
        file.write(b'{"value": 2, "sq')  # a line that a killed process left
    before = read(Squares, path)
    assert [s.value for s in before.squares] == [1]
    with path.open("ab") as file:
        file.write(b'\n{"value": 2, "root": 4}\n')
    told = Told()
    again = opened(limit_s=3).going_on(resumed(Squares, path))
    assert (again.started, again.squares) == (before.started, before.squares)
    found = squares(failing(1, AssertionError("again")), path, start=again, progress=told)
    assert [s.value for s in read(Squares, path).squares] == [s.value for s in found.squares] == [1, 2, 3]
    assert told.phases == ["[2/3] number 2", "[3/3] number 3"]
    kept = path.with_name("squares.jsonl.damaged").read_bytes()
    assert kept == b'{"value": 2, "sq\n{"value": 2, "root": 4}\n', "the new file has no place for damaged lines"
    assert opened().going_on(None).squares == ()
    with pytest.raises(UsageError, match="of the same question") as refused:
        opened(samples=3).going_on(before)
    assert "now {'samples': 3}" in str(refused.value.received)


def test_cases_may_be_measured_side_by_side_in_any_order() -> None:
    def spread(cases: Sequence[Number]) -> Iterator[tuple[Number, list[Square]]]:
        return ((case, square(case)) for case in reversed(cases))

    told = Told()
    found = squares(spread=spread, start=opened().with_trials([Square(value=2, square=4)]), progress=told)
    assert [s.value for s in found.squares] == [2, 3, 1]
    assert [note.partition(":")[0] for note in told.notes] == ["[2/3] number 3", "[3/3] number 1"]


def test_a_packed_file_grows_plain_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "squares.jsonl.xz"
    squares(path=path, on_results=lambda _: read(Squares, growing_of(path)))
    assert path.read_bytes().startswith(b"\xfd7zXZ")
    assert not growing_of(path).exists()
    assert len(read(Squares, path).squares) == 3
    assert peeked(path)["name"] == "few"


def test_what_is_no_file_gets_the_whole_run_at_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(pipe.read_text)
        found = squares(path=pipe)
    assert text.result() == text_of(found)
    assert squares(path=Path("/dev/null")).finished


def test_one_printed_object_is_read_as_its_lines_are(tmp_path: Path) -> None:
    found = squares()
    for indent in (None, 1):
        assert of_text(Squares, json.dumps(found.as_dict(), indent=indent).encode()).squares == found.squares
    write(tmp_path / "a.jsonl", found)
    assert (tmp_path / "a.jsonl").read_text() == text_of(found)
    (tmp_path / "b").write_text(json.dumps(found.as_dict(), indent=1))
    assert peeked(tmp_path / "b")["name"] == "few"
    assert peeked(tmp_path / "c") == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 3}', '{"schema": 9, "squares": []}'])
def test_another_file_is_refused_with_what_is_wrong(text: str) -> None:
    with pytest.raises(UsageError, match="a results file is what `squares` wrote"):
        of_text(Squares, text.encode())


def test_a_damaged_line_is_left_out_or_refused_by_a_strict_reader() -> None:
    head, *lines = text_of(squares()).splitlines(keepends=True)
    data = "".join([head, lines[0], "{}\n", lines[2]]).encode()
    assert [s.value for s in of_text(Squares, data).squares] == [1, 3]
    with pytest.raises(UsageError, match="wrote") as refused:
        of_text(Squares, data, is_strict=True)
    assert "line 3: needs 'value'" in str(refused.value.received)
    assert len(of_text(Squares, data.replace(b"{}\n", lines[1].encode())[:-3], is_strict=True).squares) == 2
