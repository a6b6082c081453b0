"""Results against each other, in other formats, and against the schema of records."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from normgen.cli import main as cli
from normgen.errors import UsageError
from normgen.problem.question import PROMISES
from normgen.records.compare import compare_files, judge
from normgen.records.place import Context, Place, Setting
from normgen.records.record import SCHEMA, Outcome, Record, from_dict
from normgen.records.statistics import Price, Times
from normgen.studies.t4 import t4_results
from tests.records.test_record import record
from tests.records.test_verified import VERIFIED

SCHEMA_FILE = resources.files("normgen.records") / "schema.json"
RECORD_SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(RECORD_SCHEMA)


def timed(low: float, median: float, high: float, **changes: Any) -> Record:
    times = Times(n=40, median=median, p05=low, p95=high, low=low, high=high)
    return dataclasses.replace(record(), times_us=times, outcome=Outcome.OK, measured=True, **changes)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [((9.0, 9.2, 9.5), "FASTER"), ((9.5, 9.9, 10.0), "SAME"), ((10.3, 10.5, 11.0), "SAME"), ((10.6, 11, 12), "SLOWER")],
)
def test_only_intervals_apart_are_a_difference(after: tuple[float, float, float], verdict: str) -> None:
    pair = judge("p", timed(9.9, 10.0, 10.5), timed(*after))
    assert pair.verdict == verdict
    assert pair.ratio == pytest.approx(after[1] / 10.0)


def test_a_prediction_is_no_measurement() -> None:
    guess = dataclasses.replace(record(), times_us=None, predicted_us=5.0, outcome=Outcome.PREDICTED, measured=False)
    assert judge("p", timed(9.9, 10.0, 10.5), guess).verdict == "UNMEASURED"


def write(path: Path, *records: Record) -> Path:
    path.write_text("".join(r.line() for r in records))
    return path


def test_compare_ends_with_5_when_slower_and_0_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = dataclasses.replace(record().problem, cols=1024, pitch=1024)
    before = write(tmp_path / "a.jsonl", timed(9.9, 10.0, 10.1), timed(5, 5, 5, problem=wide))
    after = tmp_path / "b.json"  # as `tune --json` prints it
    after.write_text(json.dumps({"best": timed(10.5, 10.6, 10.7).as_dict()}))
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", str(before), str(after), "--json"])
    assert ended.value.code == 5
    found = json.loads(capsys.readouterr().out)
    assert (found["slower"], found["faster"], found["same"]) == (1, 0, 0)
    assert len(found["only_before"]) == 1
    assert found["problems"][0]["ratio"] == pytest.approx(1.06)
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", str(after), str(before)])
    assert ended.value.code == 0
    assert "FASTER" in capsys.readouterr().out


def test_files_without_a_problem_in_common_are_refused(tmp_path: Path) -> None:
    other = dataclasses.replace(record().problem, rows=3)
    first, second = write(tmp_path / "a", timed(1, 1, 1)), write(tmp_path / "b", timed(1, 1, 1, problem=other))
    with pytest.raises(UsageError, match="share no problem"):
        compare_files(first, second)


def test_t4_says_for_every_outcome_whether_and_why_it_is_invalid() -> None:
    outcomes = [dataclasses.replace(timed(9.0, 10.0, 11.0), outcome=outcome) for outcome in Outcome]
    exported = t4_results(outcomes)
    assert exported["schema_version"] == "1.0.0"
    words = {
        "ok": "correct", "predicted": "correct", "illegal": "constraints", "compile_error": "compile",
        "launch_error": "runtime", "worker_died": "runtime", "timeout": "timeout", "wrong_result": "correctness",
    }  # fmt: skip
    assert [r["invalidity"] for r in exported["results"]] == [words[outcome.value] for outcome in Outcome]
    first = exported["results"][0]
    assert {"configuration", "times", "invalidity", "correctness"} <= set(first)  # what T4 requires
    assert first["configuration"] == outcomes[0].schedule.as_dict()
    assert first["times"]["runtimes"] == [0.01]  # ms
    assert {"name": "time", "value": 0.01, "unit": "ms"} in first["measurements"]
    assert first["objectives"] == ["time"]


def test_every_record_fits_the_schema_and_what_is_none_does_not() -> None:
    jsonschema.Draft202012Validator.check_schema(RECORD_SCHEMA)
    for outcome in Outcome:
        VALIDATOR.validate(dataclasses.replace(timed(9, 10, 11), outcome=outcome).as_dict())
    good = record().as_dict()
    VALIDATOR.validate(good)
    assert RECORD_SCHEMA["properties"]["schema"]["const"] == SCHEMA
    where = {"context", "setting"}  # which older lines have `cache` for
    assert set(RECORD_SCHEMA["required"]) == set(good) - where
    stable = dataclasses.replace(record().problem, **dict.fromkeys(PROMISES, True))
    stable = dataclasses.replace(stable, in_place=(("y", "x"),), layout=(("scale", "packed"),), batches=2, inner=8)
    stable = dataclasses.replace(stable, col_stride=4)
    priced = {
        "chain_us": record().times_us,
        "price_us": Price(median=0.5, low=0.4, high=0.6),
        "alone_us": 1.5,
        "flops": 8,
    }
    roofs_us = {"copy": 14.5, "elementwise": 13.7}
    whole = record(problem=stable, roofs_us=roofs_us, text="ab", spec="name", verified=VERIFIED, **priced).as_dict()
    VALIDATOR.validate(whole)
    assert set(whole) == set(RECORD_SCHEMA["properties"]) - {"cache"}
    for wrong in ({"outcome": "fine"}, {"rows": -1}, {"schedule": {}}, {"times_us": {"n": 3}}, {"more": 1}):
        assert not VALIDATOR.is_valid({**good, **wrong})
    for name in good:
        part = {key: value for key, value in good.items() if key != name}
        assert name in where or not VALIDATOR.is_valid(part)
        with pytest.raises(ValueError, match=name):
            from_dict(part)


def test_what_was_timed_in_place_is_judged_by_its_price_and_shows_the_chains_beside_it() -> None:
    base = timed(6.0, 6.0, 6.0).times_us

    def priced(t: float, low: float, price: float, high: float) -> Record:
        return timed(t, t, t, chain_us=base, price_us=Price(median=price, low=low, high=high))

    before = priced(10.0, 3.9, 4.0, 4.1)
    assert judge("p", before, priced(9.7, 3.6, 3.7, 3.85)).verdict == "FASTER"
    assert judge("p", before, priced(9.7, 3.6, 3.7, 3.95)).verdict == "SAME"
    pair = judge("p", before, priced(11.0, 4.9, 5.0, 5.1))
    assert (pair.verdict, pair.before_us, pair.after_us) == ("SLOWER", 4.0, 5.0)
    assert (pair.ratio, pair.chain_ratio) == (1.25, 1.1)
    assert judge("p", timed(9.0, 9.1, 9.2), timed(9.0, 9.1, 9.2)).chain_ratio is None


def test_results_of_different_places_are_of_different_problems(tmp_path: Path) -> None:
    alone = timed(1.0, 1.0, 1.0, place=Place(context=Context.ALONE, setting=Setting.COLD))
    with pytest.raises(UsageError, match="share no problem") as caught:
        compare_files(write(tmp_path / "a.jsonl", timed(9.0, 9.1, 9.2)), write(tmp_path / "b.jsonl", alone))
    assert "place" in str(caught.value)
