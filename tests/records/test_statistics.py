"""Order statistics against textbook figures and against brute force."""

from __future__ import annotations

import random

import numpy as np
import pytest

from normgen.records import statistics
from normgen.records.statistics import Price, price_of, price_ratio


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


def chains(seed: int, *, base: float, price: float, rounds: int = 40, noise: float = 0.01) -> tuple[list[float], ...]:
    """T of a kernel, and two samples of T0, of rounds whose clock drifts."""
    rng = np.random.default_rng(seed)
    drift = 1 + 0.03 * np.sin(np.arange(rounds) / 7)

    def sampled(us: float) -> list[float]:
        return list(us * drift + noise * rng.standard_normal(rounds))

    return sampled(base + price), sampled(base), sampled(base)


def test_a_price_is_the_difference_round_by_round_and_drift_costs_little() -> None:
    chain, *bases = chains(0, base=5.0, price=2.0, noise=0.0)
    found = price_of(chain, bases)
    assert found.median == pytest.approx(2.0, rel=0.02)
    assert found.low <= found.median <= found.high
    assert found.spread == pytest.approx((found.high - found.low) / found.median)


def test_95_of_100_intervals_hold_the_price_and_the_ratio_of_two() -> None:
    prices = ratios = 0
    for seed in range(200):
        ours, first, second = chains(seed, base=5.0, price=2.0, noise=0.2)
        theirs = chains(seed + 1000, base=5.0, price=2.5, noise=0.2)[0]
        price = price_of(ours, [first, second])
        prices += price.low <= 2.0 <= price.high
        ratio = price_ratio(theirs, ours, a_base=first, b_base=second)
        assert ratio is not None
        ratios += ratio.low <= 1.25 <= ratio.high
    assert 180 <= prices <= 200
    assert 176 <= ratios <= 200


def test_an_interval_is_the_same_each_time_it_is_asked_for() -> None:
    chain, *bases = chains(3, base=5.0, price=2.0)
    assert price_of(chain, bases) == price_of(chain, bases)


def test_prices_that_cannot_be_told_from_nothing_have_no_ratio() -> None:
    ours, first, second = chains(1, base=5.0, price=0.0, noise=0.5)
    assert price_ratio(ours, ours, a_base=first, b_base=second) is None
    assert price_of(ours, [first, second]).low < 0
    assert Price(median=-1.0, low=-2.0, high=0.0).spread == float("inf")


def test_a_price_without_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        price_of([], [[], []])
