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
from normgen.records.place import Context, Place, Setting
from normgen.records.record import ProblemKey, Record, parse_line
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
NO_VERIFICATION: tuple[tuple[str, Any, str], ...] = (
    ("executor", "trust me", "verified.executor must be one of gpu, cpu"),
    ("device", "", "verified.device must be not empty"),
    ("device", 5, "verified.device must be a text"),
    ("version", None, "verified.version must be a text"),
    ("calls", 0, "verified.calls must be at least 1"),
    ("calls", 2.5, "verified.calls must be a whole number"),
    ("rows", [-1], "verified.rows must be at least 0"),
    ("rows", 8, "verified.rows must be a list"),
    ("families", ["normal", 3], "verified.families must be a text"),
    ("families", [""], "verified.families must be not empty"),
    ("unbounded", 1.5, "verified.unbounded must be at most 1"),
    ("unbounded", -0.1, "verified.unbounded must be at least 0"),
    ("orders", True, "verified.orders must be a whole number"),
    ("nulls", {"mean": 1}, "verified.nulls must be a list"),
    ("surprise", 1, "verified has unknown keys"),
)


def verified_with(**changes: Any) -> str:
    return json.dumps(VERIFIED.as_dict() | changes)


# The lines of the review that ended in a traceback or in a header, and what must be said of each.
REFUSED = (
    ("rows", '"8"', "rows must be a whole number"),
    ("rows", "true", "rows must be a whole number"),
    ("rows", "1" + "0" * 30, "does not fit 64 bits"),
    ("rows", "1" + "0" * 5000, "limit"),
    ("predicted_us", '"fast"', "predicted_us must be a number or null"),
    ("predicted_us", "NaN", "predicted_us is not finite"),
    ("roof_us", "1e400", "roof_us is not finite"),
    ("default_us", "-1", "default_us must be above 0"),
    ("op", "5", "op must be a text"),
    ("pitch", "null", "pitch must be a whole number"),
    ("versions", "[]", "versions must be an object"),
    ("error", "500", "error must be an object"),
    ("search", '{"noise_floor": "low"}', "search.noise_floor must be a number or null"),
    ("search", '{"policy": 5}', "search.policy must be an object or null"),
    ("search", DEEP, "nested deeper than"),
    ("search", DEEPER, "nested too deeply"),
    ("reason", r'"\ud800"', "reason is no text"),
    ("device", '{"name": "NVIDIA H200", "sm_count": "many"}', "device.sm_count must be a whole number"),
    ("resources", '[{"registers": "few"}]', "resources has missing keys"),
    ("times_us", "null", "outcome ok must come with a time"),
    ("verified", "null", "verified must be an object"),
    ("verified", "{}", "verified has missing keys"),
    *(("verified", verified_with(**{name: value}), says) for name, value, says in NO_VERIFICATION),
)


def line_with(name: str, value: str, good: Record | None = None) -> str:
    data = json.loads((good or served()).line())
    parts = [f"{json.dumps(key)}: {value if key == name else json.dumps(part)}" for key, part in data.items()]
    return "{" + ", ".join(parts) + "}\n"


def layernorm() -> Problem:
    return problem()


def served(**changes: Any) -> Record:
    return record(**({"problem": ProblemKey.of(layernorm()), "verified": VERIFIED} | changes))


def all_lines() -> Iterator[str]:
    good = json.loads(served().line())
    for name, field in good.items():
        yield from (line_with(name, value) for value in VALUES)
        for inner in field if isinstance(field, dict) else ():
            for value in VALUES:
                whole = {**field, inner: "@"}
                yield line_with(name, json.dumps(whole).replace('"@"', value))


@pytest.mark.parametrize(("name", "value", "complaint"), REFUSED, ids=lambda part: str(part)[:30])
def test_a_field_that_no_run_writes_is_refused_with_its_name(name: str, value: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_line(line_with(name, value))


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


BAD_FILES = {
    "binary": b"\x00\xff\xfe\x80" * 100,
    "deep": DEEPER.encode() + b"\n",
    "a list": b"[]\n",
    "a number": b"NaN\n",
    "ill-typed": line_with("rows", '"8"').encode(),
    "lone surrogate": line_with("reason", r'"\ud800"').encode(),
}


@pytest.mark.parametrize("command", ["export", "export --format t4", "compare", "report"])
@pytest.mark.parametrize("bad", BAD_FILES)
def test_a_command_says_in_one_line_that_a_file_holds_no_record(
    bad: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(BAD_FILES[bad])
    name, *options = command.split()
    files = [str(file)] * (2 if name == "compare" else 1)
    options += {"export": ["--output", str(tmp_path / "out")], "report": ["--out", str(tmp_path / "x.html")]}.get(
        name, []
    )
    with pytest.raises(SystemExit) as ended:
        cli.main([name, *files, *options])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert len(said.splitlines()) <= 3


def test_a_folder_in_the_place_of_the_winners_is_one_damaged_line(tmp_path: Path) -> None:
    (tmp_path / "h200.jsonl").mkdir()
    (damaged,) = read(tmp_path / "h200.jsonl").damaged
    assert str(damaged) == f"{tmp_path / 'h200.jsonl'} cannot be read: Is a directory"
    assert lookup(layernorm(), H200, folders=[tmp_path]).record is None


def test_a_bad_line_among_the_winners_costs_no_other_line(tmp_path: Path) -> None:
    file, bad = tmp_path / "h200.jsonl", line_with("rows", '"8"')
    file.write_text(bad + served(place=Place(context=Context.ALONE, setting=Setting.HOT)).line())
    found = lookup(layernorm(), H200, folders=[tmp_path])
    assert found.exact
    assert adopt(served(place=Place(setting=Setting.HOT)), tmp_path, H200)
    assert len(read(file).records) == 2
    assert file.with_name("h200.jsonl.damaged").read_text() == bad


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
