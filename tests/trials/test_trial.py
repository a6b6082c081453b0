"""Trials: what is kept of a record, what a line says, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from normgen.files.plain import made, plain
from normgen.records.place import Place, Setting
from normgen.records.record import Outcome
from normgen.records.statistics import Price, summarise
from normgen.schedule.schedule import Schedule
from normgen.trials.trial import Trial, trial_of
from tests.report.made import candidates, key, predicted

SCHEDULE = Schedule(threads_per_row=64, vector=4, hold="registers")


def test_a_line_has_what_is_not_at_its_default_and_is_read_back() -> None:
    question, place = key().as_dict(), Place(setting=Setting.HOT)
    full = Trial(
        schedule=SCHEDULE, chosen="random", outcome=Outcome.OK, us=7.5, base_us=4.0, price_us=3.4, low=3.3, high=3.5,
        registers=40, spill_bytes=8, error=0.25, reason="why", twin=Schedule(), question=question, place=place,
    )  # fmt: skip
    line = json.loads(json.dumps(plain(full)))
    assert made(Trial, line) == full
    assert (line["schedule"], line["twin"]) == (str(SCHEDULE), "default")
    assert (line["place"], line["question"]["op"]) == ({"context": "between", "setting": "hot"}, "layernorm")
    assert plain(Trial(schedule=SCHEDULE, us=1.0)) == {"schedule": str(SCHEDULE), "us": 1.0}
    assert made(Trial, {"schedule": "default"}) == Trial(schedule=Schedule())


def test_the_cost_is_the_price_or_what_stands_in_its_place() -> None:
    timed = Trial(schedule=SCHEDULE, us=7.5, base_us=4.0, price_us=3.4)
    assert [t.cost_us for t in (timed, replace(timed, price_us=None), replace(timed, price_us=None, base_us=0.0))] == [
        3.4,
        3.5,
        7.5,
    ]
    assert replace(timed, us=4.0, price_us=None).cost_us is None
    assert Trial(schedule=SCHEDULE, outcome=Outcome.WRONG_RESULT).cost_us is None


def test_a_record_becomes_a_trial_with_its_evidence() -> None:
    record = replace(
        candidates(key())[0],
        times_us=summarise([14.0] * 8),
        chain_us=summarise([4.0] * 8),
        price_us=Price(median=10.0, low=9.9, high=10.1),
        resources=({"registers": 40, "spill_bytes": 8}, {"registers": 50, "spill_bytes": 4}),
        error={"y": 0.5, "mean": 0.25},
    )
    trial = trial_of(record, chosen="search")
    assert (trial.schedule, trial.outcome, trial.chosen) == (record.schedule, Outcome.OK, "search")
    assert (trial.us, trial.base_us, trial.cost_us, trial.low, trial.high) == (14.0, 4.0, 10.0, 9.9, 10.1)
    assert (trial.registers, trial.spill_bytes, trial.error, trial.measured) == (50, 12, 0.5, True)
    told = trial_of(predicted(key(), 12.0))
    assert (told.us, told.cost_us, told.low, told.measured) == (12.0, 12.0, None, False)


@pytest.mark.parametrize(
    "damage",
    [
        {"us": -1.0},
        {"us": 0.0},
        {"us": "1"},
        {"registers": -1},
        {"registers": 1.5},
        {"schedule": "vector=3"},
        {"twin": 3},
    ],
)
def test_a_line_that_is_no_trial_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(damage))):
        made(Trial, {"schedule": "default", **damage})
