"""H2, M3: a line of a file of records is a record or is set aside, and names nothing outside of its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from normgen.device import TARGETS
from normgen.records.record import parse_line
from normgen.records.winners import adopt, lookup, read
from normgen.tuning.result import Result
from normgen.tuning.tuner import tune
from tests.export.cases import record
from tests.records.test_hostile_lines import DEEP, DEEPER, layernorm, line_with, served
from tests.records.test_verified import VERIFIED
from tests.reproductions.commands import normgen, spec_file

H200 = TARGETS["h200"]


def test_h2_no_field_of_a_record_is_a_path_out_of_the_output_folder(tmp_path: Path) -> None:
    data = json.loads(record(shape="8x96", measured=True).line())
    data["device"]["arch"] = "0/../../../evil"
    output = tmp_path / "tr" / "out"
    (output / "layernorm_fwd_f32_sm0").mkdir(parents=True)
    records = tmp_path / "record.jsonl"
    records.write_text(json.dumps(data) + "\n")
    ended = normgen("export", str(records), "--output", str(output))
    assert ended.code == 2
    assert "device.arch" in ended.err
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [records]


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


# Field, what stands there as JSON, and what must be said.
ILL_TYPED = (
    ("rows", '"8"', "rows must be a whole number"),
    ("rows", "true", "rows must be a whole number"),
    ("rows", "1" + "0" * 30, "does not fit 64 bits"),
    ("rows", "1" + "0" * 5000, "a whole number of 5001 digits"),
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
    ("search", "[" * 50 + "]" * 50, "nested deeper than"),
    ("search", DEEP, "nested too deeply"),
    ("search", DEEPER, "nested too deeply"),
    ("reason", r'"\ud800"', "half a surrogate pair"),
    ("device", '{"name": "NVIDIA H200", "sm_count": "many"}', "device.sm_count must be a whole number"),
    ("resources", '[{"registers": "few"}]', "resources has missing keys"),
    ("times_us", "null", "outcome ok must come with a time"),
    ("times_us", '{"n": 9, "median": -1.0, "p05": 1.0, "p95": 1.0, "low": 1.0, "high": 1.0}', "times_us"),
    ("times_us", '{"n": 9, "median": NaN, "p05": 1.0, "p95": 1.0, "low": 1.0, "high": 1.0}', "median is not finite"),
    ("times_us", '{"n": 9, "median": 1e400, "p05": 1.0, "p95": 1.0, "low": 1.0, "high": 1.0}', "median is not finite"),
    ("verified", "null", "verified must be an object"),
    ("verified", "{}", "verified has missing keys"),
    *(("verified", verified_with(**{name: value}), says) for name, value, says in NO_VERIFICATION),
)


@pytest.mark.parametrize(("name", "value", "complaint"), ILL_TYPED, ids=lambda part: str(part)[:30])
def test_m3_an_ill_typed_line_is_refused_with_its_field(name: str, value: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_line(line_with(name, value))


BAD_FILES = {
    "binary": b"\x00\xff\xfe\x80" * 100,
    "deep": DEEPER.encode() + b"\n",
    "a list": b"[]\n",
    "a number": b"NaN\n",
    "infinity": b"-Infinity\n",
    "ill-typed": line_with("rows", '"8"').encode(),
    "lone surrogate": line_with("reason", r'"\ud800"').encode(),
}


@pytest.mark.parametrize("command", ["export", "export --format t4", "compare", "report"])
@pytest.mark.parametrize("bad", BAD_FILES)
def test_m3_a_command_says_in_one_line_that_a_file_holds_no_record(bad: str, command: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(BAD_FILES[bad])
    name, *options = command.split()
    files = [str(file)] * (2 if name == "compare" else 1)
    places = {"export": ["--output", str(tmp_path / "out")], "report": ["--out", str(tmp_path / "x.html")]}
    ended = normgen(name, *files, *options, *places.get(name, []))
    assert (ended.code, ended.is_one_error) == (2, True)


def tuned(folder: Path) -> Result:
    return tune(spec_file(folder), shape="8x96", device="cpu", trials=2, output=folder)


AMONG_WINNERS = {"rows": "8", "predicted_us": "fast", "op": 5, "pitch": None, "versions": [], "error": 500}


def test_m3_ill_typed_lines_among_the_winners_cost_a_tune_only_themselves(state: Path, tmp_path: Path) -> None:
    good = json.loads(record(shape="8x96").line())
    bad = "".join(json.dumps({**good, name: value}) + "\n" for name, value in AMONG_WINNERS.items()) + DEEPER + "\n"
    file = state / "records" / "h200.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(bad)
    result = tuned(tmp_path / "out")
    assert result.adopted
    assert result.header_path is not None
    assert not [note for note in result.notes if note.startswith("not kept: ")]
    assert parse_line(file.read_text()).schedule == result.record.schedule
    assert file.with_name("h200.jsonl.damaged").read_text() == bad


def test_m3_an_ill_typed_line_among_the_winners_costs_no_other_line(tmp_path: Path) -> None:
    file, bad = tmp_path / "h200.jsonl", line_with("rows", '"8"')
    good = served()
    file.write_text(bad + good.line())
    assert lookup(layernorm(), H200, folders=[tmp_path]).exact
    assert adopt(served(us=1.0), tmp_path, H200)
    assert [found.us for found in read(file).records] == [1.0]
    assert file.with_name("h200.jsonl.damaged").read_text() == bad


def test_m3_a_folder_in_the_place_of_the_winners_costs_the_adoption_alone(state: Path, tmp_path: Path) -> None:
    (state / "records" / "h200.jsonl").mkdir(parents=True)
    assert lookup(layernorm(), H200, folders=[state / "records"]).record is None
    result = tuned(tmp_path / "out")
    assert not result.adopted
    assert result.header_path is not None
    assert result.record_path is not None
    assert parse_line(result.record_path.read_text()).schedule == result.record.schedule
    (note,) = [note for note in result.notes if note.startswith("not kept: ")]
    assert note.startswith("not kept: the winner among this user's records (")
    assert "h200.jsonl: Is a directory" in note
