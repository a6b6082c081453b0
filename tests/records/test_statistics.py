"""Order statistics against textbook figures and against brute force."""

from __future__ import annotations

import random

import pytest

from normgen.records import statistics


def test_quantiles_interpolate_between_order_statistics() -> None:
    assert statistics.median([3.0, 1.0, 2.0]) == 2.0
    assert statistics.median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert statistics.quantile([0.0, 10.0], 0.05) == pytest.approx(0.5)


# Ranks of the 95 % interval of a median: Conover, Practical Nonparametric Statistics, table A3 (sign test).
@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (10, 2, 9), (20, 6, 15), (30, 10, 21), (40, 14, 27)])
def test_the_interval_of_a_median_has_the_ranks_of_the_sign_test(n: int, low: int, high: int) -> None:
    assert statistics.median_interval([float(i) for i in range(1, n + 1)]) == (low, high)


def test_the_interval_covers_the_median_of_a_skewed_distribution_at_least_95_times_in_100() -> None:
    chance = random.Random(7)
    covered = 0
    for _ in range(2000):
        low, high = statistics.median_interval([chance.expovariate(1.0) for _ in range(30)])
        covered += low <= 0.693147 <= high
    assert covered >= 0.945 * 2000


def test_paired_ratios_cancel_a_drift_that_plain_medians_keep() -> None:
    drift = [1 + 0.002 * i for i in range(40)]
    a, b = [10 * d for d in drift], [11 * d for d in drift]
    ratio = statistics.paired_ratio(b, a)
    assert ratio.low == pytest.approx(1.1)
    assert ratio.high == pytest.approx(1.1)


def test_the_noise_floor_is_the_farthest_end_of_the_interval_from_one() -> None:
    ones = [1.0] * 6
    assert statistics.noise_floor([1.0, 1.01, 0.98, 1.0, 1.0, 1.0], ones) == pytest.approx(0.02)
    assert statistics.noise_floor(ones, ones) == 0.0


def test_a_candidate_is_behind_only_when_the_intervals_are_apart_by_the_margin() -> None:
    best = [1.00, 1.01, 1.02, 1.00, 1.01, 1.02]
    assert statistics.clearly_behind([1.10] * 6, best, margin=0.02)
    assert not statistics.clearly_behind([1.03] * 6, best, margin=0.02)
    assert not statistics.clearly_behind([1.00, *[1.2] * 5], best, margin=0.02)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        statistics.median([])
    with pytest.raises(ValueError, match="at least one sample"):
        statistics.median_interval([])
