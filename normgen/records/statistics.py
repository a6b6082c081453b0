"""Medians, their intervals, and what counts as a difference. No device; what is random has a fixed seed.

Times of replays are skewed and drift, so everything here is order statistics: medians, and for a median of samples an
interval whose ends are samples themselves (David and Nagaraja, Order Statistics, 3rd ed., 7.1). A price is a
difference of samples of two chains: its interval, and that of a ratio of two prices, is bootstrapped over the rounds
(Efron and Tibshirani, An Introduction to the Bootstrap, 13.3: percentiles).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
BOOTSTRAP_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Times:
    """Samples of one kernel in µs a link of its chain, alone a launch.

    `low`..`high` holds the median with 95 % confidence.
    """

    n: int
    median: float
    p05: float
    p95: float
    low: float
    high: float

    @property
    def rounded(self) -> float:
        """The median as a record keeps it: a search told so goes the same way when it is told again."""
        return float(f"{self.median:.5g}")

    def scaled(self, factor: float) -> Times:
        """Every figure times `factor`."""
        return Times(
            n=self.n,
            median=self.median * factor,
            p05=self.p05 * factor,
            p95=self.p95 * factor,
            low=self.low * factor,
            high=self.high * factor,
        )


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a kernel adds to a chain, in µs: the median over rounds, and its bootstrapped 95 % interval."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The width of the interval as a share of the median; infinite where that is not above 0."""
        return (self.high - self.low) / self.median if self.median > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median of paired ratios, and the 95 % interval of that median."""

    median: float
    low: float
    high: float


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile by linear interpolation between order statistics (Hyndman and Fan's type 7)."""
    if not samples:
        raise ValueError("a quantile needs at least one sample")
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(samples: Sequence[float]) -> float:
    return quantile(samples, 0.5)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """[x_(k), x_(n+1-k)] with the largest k for which P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2.

    Holds the true median with at least `confidence` whatever the distribution. Below six samples no such k
    exists at 95 % and the range is returned: the widest honest answer.
    """
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        raise ValueError("an interval needs at least one sample")
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
        if tail > (1 - confidence) / 2:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


def summarise(samples: Sequence[float]) -> Times:
    """Median, 5 % and 95 % quantiles, and the median's interval."""
    low, high = median_interval(samples)
    return Times(
        n=len(samples),
        median=median(samples),
        p05=quantile(samples, 0.05),
        p95=quantile(samples, 0.95),
        low=low,
        high=high,
    )


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """a against b, replay by replay: drift that hits both cancels. Extra samples of the longer one are ignored."""
    ratios = [x / y for x, y in zip(a, b, strict=False)]
    low, high = median_interval(ratios)
    return Ratio(median=median(ratios), low=low, high=high)


def price_of(chain: Sequence[float], bases: Sequence[Sequence[float]]) -> Price:
    """T - T0 over the rounds; `bases` are the samples of the chain without the kernel, of which a round has several."""
    base = np.mean([list(b) for b in bases], axis=0)
    n = min(len(chain), len(base))
    found = _bootstrapped(np.asarray(chain, dtype=np.float64)[:n] - base[:n])
    assert found is not None, "differences of times are finite"
    return Price(median=found[0], low=found[1], high=found[2])


def price_ratio(
    a: Sequence[float], b: Sequence[float], *, a_base: Sequence[float], b_base: Sequence[float]
) -> Ratio | None:
    """The price of a over that of b, round by round; None where the prices are too small to be told from 0.

    Each has a sample of the chain without a kernel of its own: with one for both, its noise would move the two prices
    of a round in the same direction, and the interval would be narrower than it is.
    """
    n = min(map(len, (a, b, a_base, b_base)))
    tops = np.asarray(a[:n], dtype=np.float64) - np.asarray(a_base[:n])
    bottoms = np.asarray(b[:n], dtype=np.float64) - np.asarray(b_base[:n])
    ratios = np.divide(tops, bottoms, out=np.full(n, np.inf), where=bottoms > 0)
    found = _bootstrapped(ratios)
    return Ratio(median=found[0], low=found[1], high=found[2]) if found is not None and found[1] > 0 else None


def _bootstrapped(values: NDArray[np.float64]) -> tuple[float, float, float] | None:
    """The median, and the 2.5 % and 97.5 % percentiles of medians of resampled rounds; None if one is not finite."""
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one round")
    chosen = np.random.default_rng(BOOTSTRAP_SEED).integers(0, n, size=(RESAMPLES, n))
    # Percentiles that are medians themselves: interpolation between a number and infinity is none.
    low, high = np.quantile(np.median(values[chosen], axis=1), (0.025, 0.975), method="inverted_cdf")
    middle = float(np.median(values))
    found = middle, min(float(low), middle), max(float(high), middle)
    return found if all(math.isfinite(value) for value in found) else None


def noise_floor(first: Sequence[float], second: Sequence[float]) -> float:
    """How far the same cubin is from itself: the farthest end of the A/A ratio's interval from 1.

    A relative difference below it is a tie.
    """
    ratio = paired_ratio(first, second)
    return max(abs(ratio.low - 1), abs(ratio.high - 1))


def clearly_behind(samples: Sequence[float], best: Sequence[float], margin: float) -> bool:
    """The whole interval of `samples` lies more than `margin` above the interval of `best`."""
    return median_interval(samples)[0] > median_interval(best)[1] * (1 + margin)
