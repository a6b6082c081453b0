"""Whatever stands in a file of records: a bad line is named and left out, and no command that reads it breaks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from normgen.bench.ablation import tuned_entries
from normgen.bench.runner import record_places
from normgen.cli import main as cli
from normgen.cli.bench_command import known_records
from normgen.device import TARGETS
from normgen.errors import NormgenError
from normgen.export import folder_records, headers_of
from normgen.problem.problem import Problem
from normgen.records.compare import compare_files
from normgen.records.place import Place, Setting
from normgen.records.record import Record, parse_line
from normgen.records.winners import adopt, lookup, read, shipped_folder
from normgen.report.evidence import gather
from normgen.report.page import render
from normgen.report.readme import results_part
from normgen.spec.reader import load
from normgen.studies.fit import read_measured
from tests.measure.simulated import problem
from tests.records.test_record import record
from tests.records.test_verified import VERIFIED

H200 = TARGETS["h200"]
DEEP = "[" * 400 + "]" * 400
DEEPER = "[" * 100_000 + "]" * 100_000
# What a field may be made of instead, as JSON.
VALUES = (
    *("null", "true", "5", "-1", "0", "1e400", "NaN", "Infinity", "-Infinity", '"8"', '"fast"', '""', "[]", "{}"),
    *('"../../../evil"', r'"\ud800"', r'"\u0000\n\u2028"', "[1]", '{"a": 1}', "1" + "0" * 30, "1" + "0" * 5000, DEEP),
)


def line_with(name: str, value: str, good: Record | None = None) -> str:
    data = json.loads((good or served()).line())
    parts = [f"{json.dumps(key)}: {value if key == name else json.dumps(part)}" for key, part in data.items()]
    return "{" + ", ".join(parts) + "}\n"


def layernorm() -> Problem:
    return problem()


def served(**changes: Any) -> Record:
    return record(**({"problem": layernorm().question, "verified": VERIFIED} | changes))


def all_lines() -> Iterator[str]:
    good = json.loads(served().line())
    for name, field in good.items():
        yield from (line_with(name, value) for value in VALUES)
        for inner in field if isinstance(field, dict) else ():
            for value in VALUES:
                whole = {**field, inner: "@"}
                yield line_with(name, json.dumps(whole).replace('"@"', value))


@pytest.mark.parametrize("times", [{"median": -1.0}, {"median": 0}, {"low": 20.0}, {"p05": None}, {"n": 0}, {"n": 1.5}])
def test_times_are_positive_and_in_order(times: dict[str, Any]) -> None:
    data = json.loads(record().line())
    data["times_us"] |= times
    with pytest.raises(ValueError, match="times_us"):
        parse_line(json.dumps(data))


def record_or_reason(line: str) -> Record | str:
    try:
        return parse_line(line)
    except ValueError as error:
        return str(error)


def test_a_line_that_is_a_record_in_every_field_but_one_breaks_no_reader(tmp_path: Path) -> None:
    found = [record_or_reason(line) for line in all_lines()]
    reasons = [part for part in found if isinstance(part, str)]
    assert len(found) > 1500
    assert len(reasons) > 0.8 * len(found)
    assert all(0 < len(reason) < 1000 for reason in reasons)  # a line for a person
    for odd in found:
        if isinstance(odd, Record):
            assert parse_line(odd.line()) == odd
            read_everywhere(odd, tmp_path)


def read_everywhere(odd: Record, folder: Path) -> None:
    """Each reader takes the record or says in an error of ours why not."""
    file = folder / "h200.jsonl"
    file.write_text(odd.line() + served(place=Place(setting=Setting.HOT)).line())
    readers = (
        lambda: lookup(layernorm(), H200, folders=[folder]),
        lambda: adopt(served(us=13.0), folder, H200),
        lambda: compare_files(file, file),
        lambda: headers_of([odd], spec=load("layernorm")),
    )
    for reader in readers:
        with contextlib.suppress(NormgenError):
            reader()


def test_a_page_shows_every_record_that_is_one(tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    file.write_text("".join(all_lines()))
    evidence = gather([file])
    (source,) = evidence.sources
    assert source.found + len(source.damaged) == len(list(all_lines()))
    assert "</html>" in render(evidence)


def mixed_file(folder: Path) -> Path:
    """Two records that ship, and two bad lines around them."""
    good = "".join((shipped_folder() / "h200.jsonl").read_text().splitlines(keepends=True)[:2])
    file = folder / "mixed.jsonl"
    file.write_text("{broken\n" + good + line_with("rows", '"8"'))
    return file


def said_once(file: Path, err: str) -> bool:
    told = [line for line in err.splitlines() if str(file) in line]
    return len(told) == 1 and ":1: set aside: not JSON" in told[0] and "2 lines in all" in told[0]


@pytest.mark.parametrize(
    "command", ["export {} --output {out}", "export --format t4 {}", "compare {} {}", "report {} --out {out}/x.html"]
)
def test_a_command_takes_the_records_between_bad_lines_and_says_so_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = mixed_file(tmp_path)
    (tmp_path / "out").mkdir()
    arguments = [part.format(*[file] * 2, out=tmp_path / "out") for part in command.split()]
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    output = capsys.readouterr()
    assert ended.value.code == 0, output.err
    assert said_once(file, output.err)
    if command.startswith("export {}"):
        assert len(read(tmp_path / "out" / "records" / "h200.jsonl").records) == 2


@pytest.mark.parametrize(
    "reader",
    [
        lambda file: known_records((file,), H200),
        lambda file: tuned_entries(str(file), H200, ()),
        lambda file: lookup(layernorm(), H200, folders=[file.parent]),
        lambda file: folder_records(file.parent.parent),
        lambda file: adopt(served(us=13.0), file.parent, H200),
        lambda file: gather([file]),
        lambda file: results_part(file.parent.parent.parent),
        lambda file: read_measured([file]),
        lambda file: record_places((file,), H200).__enter__(),
    ],
    ids=["bench", "ablation", "lookup", "export folder", "adopt", "report", "readme", "fit", "bench --records"],
)
def test_a_reader_keeps_the_records_between_bad_lines_and_says_so_once(
    reader: Callable[[Path], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "generated" / "records" / "h200.jsonl"
    file.parent.mkdir(parents=True)
    mixed_file(file.parent).rename(file)
    found = reader(file)
    reader(file)
    assert found
    assert said_once(file, capsys.readouterr().err)


def test_what_tune_printed_is_compared_without_its_bad_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "suite.json"
    good = {"best": json.loads(served().line())}
    file.write_text(json.dumps({"jobs": [{"best": {**good["best"], "rows": "8"}}, good, 5, {"best": 5}]}))
    assert len(compare_files(file, file).pairs) == 1
    assert "suite.json:1: set aside: rows must be a whole number" in capsys.readouterr().err
