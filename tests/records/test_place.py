"""Where a record was timed is in its line; older lines, which say only whether data was in DRAM or L2, are alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from normgen.errors import UsageError
from normgen.records.place import DEFAULT_PLACE, Context, Place, Setting, place_named
from normgen.records.record import Outcome, Record, from_dict, is_better, parse_line
from normgen.records.statistics import Price, Times
from tests.records.test_record import record

T = Times(n=40, median=20.0, p05=19.8, p95=20.4, low=19.9, high=20.1)
T0 = Times(n=80, median=6.0, p05=5.9, p95=6.2, low=5.95, high=6.05)
PRICE = Price(median=14.0, low=13.9, high=14.1)


def priced(**changes: Any) -> Record:
    values = {"times_us": T, "chain_us": T0, "price_us": PRICE, "alone_us": 15.0, "roof_us": 10.0, "default_us": 26.0}
    return record(**(values | changes))


def test_a_record_in_place_reads_back_as_it_was() -> None:
    for place in (DEFAULT_PLACE, Place(setting=Setting.HOT, context=Context.CHAIN)):
        original = priced(place=place)
        assert parse_line(original.line()) == original
        assert {name: json.loads(original.line())[name] for name in ("context", "setting")} == place.as_dict()


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_an_older_line_is_one_that_was_timed_alone(cache: str) -> None:
    plain = record().as_dict()
    del plain["context"], plain["setting"]
    found = from_dict({**plain, "cache": cache})
    assert found.place == Place(context=Context.ALONE, setting=Setting(cache))
    assert (found.is_alone, found.cost_us, found.price_us) == (True, found.us, None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cache": "cold"}, "which stood for both"),
        ({"context": None}, "context must be one of between, chain, matmul, alone"),
        ({"setting": "warm"}, "setting must be one of fresh, cold, hot"),
        ({"context": "alone"}, "alone has no chain and no price"),
        ({"price_us": {"median": 14.0, "low": 14.5, "high": 15.0}}, "price_us.median must lie from low to high"),
        ({"price_us": {"median": 14.0}}, "missing keys"),
        ({"chain_us": {**vars(T0), "low": 6.5}}, "chain_us.median must lie"),
        ({"chain_us": None}, "chain_us must be an object"),
        ({"alone_us": 0}, "alone_us must be above 0"),
    ],
)
def test_a_line_at_odds_with_itself_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_dict({**priced().as_dict(), **changes})
    without = priced().as_dict()
    del without["chain_us"]
    with pytest.raises(ValueError, match="a price comes with the times of the chain"):
        from_dict(without)


def test_what_a_kernel_costs_is_its_price_and_alone_its_time() -> None:
    found = priced()
    assert (found.us, found.cost_us, found.default_cost_us) == (20.0, 14.0, 20.0)
    assert found.percent_of_roof == pytest.approx(100 * 10 / 14)
    assert found.gb_per_s == pytest.approx(found.bytes / 14.0 / 1e3)
    searched = priced(price_us=None)  # a search goes no further than to rank by T
    assert searched.cost_us == pytest.approx(14.0)
    alone = record(place=Place(context=Context.ALONE), times_us=T, default_us=26.0)
    assert (alone.cost_us, alone.default_cost_us) == (20.0, 26.0)
    free = priced(price_us=Price(median=-0.1, low=-0.3, high=0.1))
    assert (free.cost_us, free.gb_per_s, free.percent_of_roof) == (None, None, None)
    predicted = record(outcome=Outcome.PREDICTED, measured=False, times_us=None, predicted_us=13.0)
    assert (predicted.cost_us, predicted.is_alone) == (13.0, False)


def test_times_of_different_places_are_never_compared() -> None:
    with pytest.raises(ValueError, match="not comparable"):
        is_better(priced(), record(place=Place(context=Context.ALONE)))
    assert is_better(priced(times_us=replace(T, median=19.0, low=18.9)), replace(priced(), schedule=record().schedule))


def test_a_place_is_said_in_words_and_in_options_and_only_where_it_is_not_the_default() -> None:
    assert (str(DEFAULT_PLACE), DEFAULT_PLACE.options()) == ("fresh", [])
    chained = Place(context=Context.CHAIN, setting=Setting.HOT)
    assert (str(chained), chained.is_hot) == ("hot chain", True)
    assert chained.options() == ["--setting", "hot", "--context", "chain"]
    assert place_named("hot", "chain") == chained


@pytest.mark.parametrize("words", [("warm", "between"), ("hot", "betwen")])
def test_an_unknown_word_is_refused_with_the_known_ones(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="is one of") as caught:
        place_named(*words)
    assert "betwen" not in words or "did you mean 'between'" in str(caught.value)
