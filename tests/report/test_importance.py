"""Shares of variance against least squares, against hand-made extremes and against chance."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from normgen.report.importance import knob_shares
from normgen.schedule.schedule import Schedule
from tests.report.made import SCHEDULES, us_of


def r_squared(values: list[object], us: list[float]) -> float:
    """R^2 of log µs on one column a value: the same number by least squares."""
    levels = sorted(set(values), key=str)
    design = np.array([[float(v == level) for level in levels] for v in values])
    y = np.log(us)
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return float(1 - ((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def test_a_share_is_the_r_squared_of_a_regression_on_the_knob_alone() -> None:
    draw = random.Random(3)
    schedules = [draw.choice(SCHEDULES) for _ in range(60)]
    us = [us_of(s) * math.exp(draw.gauss(0, 0.1)) for s in schedules]
    shares = knob_shares(list(zip(schedules, us, strict=True)))
    assert [s.knob for s in shares] == ["vector", "threads_per_row", "load"]
    for share in shares:
        expected = r_squared([getattr(s, share.knob) for s in schedules], us)
        assert share.share == pytest.approx(expected, abs=1e-9)


def test_shares_of_a_full_grid_without_interaction_add_up_to_one() -> None:
    shares = {s.knob: s for s in knob_shares([(s, us_of(s)) for s in SCHEDULES])}
    assert sum(s.share for s in shares.values()) == pytest.approx(1)
    assert shares["load"].share == pytest.approx(0, abs=1e-12)
    by_hand = math.log(2) ** 2 / 4  # two levels, log 2 apart
    assert shares["vector"].share == pytest.approx(by_hand / (by_hand + float(np.var(np.log([1.0, 1.1, 1.4])))))


def test_levels_state_what_was_measured_there() -> None:
    shares = {s.knob: s for s in knob_shares([(s, us_of(s)) for s in SCHEDULES])}
    levels = [(v.value, v.count, v.best_us, v.median_us) for v in shares["vector"].levels]
    assert levels == [(1, 6, 20.0, pytest.approx(22.0)), (4, 6, 10.0, pytest.approx(11.0))]


def test_a_knob_without_effect_explains_on_average_what_chance_says() -> None:
    draw = random.Random(0)
    grid = list(itertools.product((32, 64, 128, 256), (1, 4)))
    found = []
    for _ in range(400):
        timed = [(Schedule(threads_per_row=t, vector=v), math.exp(draw.gauss(0, 1))) for t, v in grid * 2]
        found.append({s.knob: s for s in knob_shares(timed)})
    for knob, levels in (("threads_per_row", 4), ("vector", 2)):
        assert found[0][knob].chance == pytest.approx((levels - 1) / 15)
        assert np.mean([f[knob].share for f in found]) == pytest.approx((levels - 1) / 15, abs=0.02)


def test_equal_times_and_too_few_times_have_no_shares_to_tell() -> None:
    assert knob_shares([(SCHEDULES[0], 3.0)]) == ()
    assert {s.share for s in knob_shares([(s, 3.0) for s in SCHEDULES])} == {0.0}
