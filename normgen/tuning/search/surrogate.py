"""A Gaussian process over legal points: what each will cost, and how unsure that is, from few measured ones.

The modelled value is the log of the cost. Every feature has a weight of its own, the most likely one (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2.2, 5.1 and 5.4.1), so a knob that does not matter costs no
measurements. The kernel adds a part in which features contribute one by one and a part in which they interact:

    k(a, b) = s [ A mean_j exp(-w_j |a_j - b_j|) + (1 - A) exp(-sum_j w_j |a_j - b_j|) ]

Its mean is a constant, or that and the log of a model's cost c, which then also has a slope that is not known exactly,
k += P^2 c(a) c(b): whichever is more likely, so that a wrong model is not followed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SLOWEST = 0.4  # log cost above the best of a point that gave none
SOFT = 0.2  # log cost above the best from which on it counts by its logarithm: how bad a bad point is says little
ADDITIVE = 0.35  # A
WEIGHT, SPREAD = 0.25, 1.0  # w before anything is measured: median and standard deviation of its log
NOISE, NOISE_SPREAD = 0.01, 0.5  # relative, of one screened time; and the standard deviation of its log
CONSTANT = 0.3  # standard deviation of the constant
SLOPE = 0.3  # P
DOUBT = 2.0  # deviations are so many times the posterior's: with few points the most likely weights are too sure
FITTED = 72  # observations that the weights are fitted to: a few more than a tune has
STEPS = 25  # of the ascent to the most likely weights
_FIRST, _LEAST, _MOST = 0.2, 1e-3, 0.5  # its steps in the logarithm


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A posterior: call `over` for points [n, features] with their log cost [n]."""

    points: Array
    log_cost: Array  # of the observed points, less the mean of the set
    trusts: bool  # whether the mean has the model's cost
    weights: Array
    signal: float
    noise: float
    offset: float
    factor: Array  # Cholesky factor of the covariance of the observations
    solved: Array  # that covariance's inverse times the residuals

    def over(self, points: Array, log_cost: Array) -> Belief:
        """What is believed of these points [n, features]."""
        cross = self.covariance(self.points, points, self.log_cost, log_cost)
        mean = self.offset + cross.T @ self.solved + (log_cost if self.trusts else 0.0)
        half = np.asarray(np.linalg.solve(self.factor, cross), dtype=np.float64)
        own = self.signal + CONSTANT**2 + (SLOPE**2 * log_cost**2 if self.trusts else 0.0)
        variance = np.maximum(own - (half**2).sum(axis=0), 1e-10)
        return Belief(fit=self, points=points, log_cost=log_cost, mean=mean, variance=variance, half=half)

    def covariance(self, a: Array, b: Array, cost_a: Array, cost_b: Array) -> Array:
        """[len(a), len(b)]"""
        total, additive = np.zeros((len(a), len(b))), np.zeros((len(a), len(b)))
        for column, weight in enumerate(self.weights):
            apart = weight * np.abs(a[:, column, None] - b[None, :, column])
            total += apart
            additive += np.exp(-apart)
        mixed = ADDITIVE * additive / len(self.weights) + (1 - ADDITIVE) * np.exp(-total)
        return self.signal * mixed + _means(cost_a, cost_b, trusts=self.trusts)


@dataclass(kw_only=True)
class Belief:
    """Mean and variance of the log cost at a pool of points: [pool] each."""

    fit: Fit
    points: Array
    log_cost: Array
    mean: Array
    variance: Array
    half: Array  # [observations, pool]: what the covariance of two pool points is reduced by

    @property
    def deviation(self) -> Array:
        return DOUBT * np.sqrt(self.variance)

    def believe(self, at: int) -> None:
        """Condition on pool point `at` having its mean: means stay, variances around it fall (a rank-1 update)."""
        one = [at]
        prior = self.fit.covariance(self.points, self.points[one], self.log_cost, self.log_cost[one])[:, 0]
        row = (prior - self.half.T @ self.half[:, at]) / math.sqrt(self.variance[at] + self.fit.noise**2)
        self.half = np.vstack([self.half, row])
        self.variance = np.maximum(self.variance - row**2, 1e-10)


def fit(points: Array, log_value: Array, log_cost: Array) -> Fit:
    """The most likely posterior given observations [n], those far above the best softened.

    Weights, signal and noise are those of FITTED observations, the best of them and some of the others: the ascent
    takes n^2 features a step. The posterior is that of all.
    """
    observed = softened(log_value)
    chosen = _some(observed)
    found = [_fit_one(points[chosen], observed[chosen], log_cost[chosen], trusts=trusts) for trusts in (True, False)]
    likely = max(found, key=lambda one: one[0])[1]
    return likely if len(chosen) == len(observed) else _conditioned(likely, points, observed, log_cost)


def _some(observed: Array) -> NDArray[np.intp]:
    order = np.argsort(observed, kind="stable")
    if len(order) <= FITTED:
        return np.arange(len(order))
    best, others = order[: FITTED // 2], order[FITTED // 2 :]
    spread = np.linspace(0, len(others) - 1, FITTED - FITTED // 2).round().astype(np.intp)
    return np.concatenate([best, others[spread]])


def _conditioned(likely: Fit, points: Array, observed: Array, log_cost: Array) -> Fit:
    """The posterior given all observations, with weights, signal, noise and mean of another."""
    covariance = likely.covariance(points, points, log_cost, log_cost) + likely.noise**2 * np.eye(len(points))
    factor = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    residual = observed - likely.offset - (log_cost if likely.trusts else 0.0)
    solved = np.linalg.solve(factor.T, np.linalg.solve(factor, residual))
    return replace(likely, points=points, log_cost=log_cost, factor=factor, solved=solved)


def softened(log_value: Array) -> Array:
    """What lies more than SOFT above the least, brought nearer."""
    above = log_value - log_value.min()
    far = SOFT * (1 + np.log(np.maximum(above, SOFT) / SOFT))
    softer: Array = log_value.min() + np.where(above > SOFT, far, above)
    return softer


def _fit_one(points: Array, observed: Array, log_cost: Array, *, trusts: bool) -> tuple[float, Fit]:
    """(log posterior density, posterior) with the most likely weights, signal and noise, for one mean.

    The ascent follows the sign of the gradient, each step by its own history (Rprop: Riedmiller and Braun 1993).
    """
    offset = float(np.median(observed))
    residual = observed - offset - (log_cost if trusts else 0.0)
    apart = np.abs(points[:, None, :] - points[None, :, :]).transpose(2, 0, 1).copy()
    means = _means(log_cost, log_cost, trusts=trusts)
    count = len(apart)
    signal = max(float(np.mean(residual**2)), 1e-3)
    first = np.log(np.array([*[WEIGHT] * count, signal, NOISE]))
    spread = np.array([*[SPREAD] * count, 1.0, NOISE_SPREAD])
    place, step, before = first.copy(), np.full(count + 2, _FIRST), np.zeros(count + 2)
    best: tuple[float, Array, Array, Array] | None = None
    for _ in range(STEPS):
        density, slope, factor, solved = _density(place, apart, residual, means)
        away = (place - first) / spread
        density -= 0.5 * float(away @ away)
        if best is None or density > best[0]:
            best = density, place, factor, solved
        slope = slope - away / spread
        same = np.sign(slope) * np.sign(before)
        step = np.clip(np.where(same > 0, 1.2 * step, np.where(same < 0, 0.5 * step, step)), _LEAST, _MOST)
        place, before = place + np.sign(slope) * step, slope
    assert best is not None
    density, place, factor, solved = best
    return density, Fit(
        points=points,
        log_cost=log_cost,
        trusts=trusts,
        weights=np.exp(place[:-2]),
        signal=math.exp(place[-2]),
        noise=math.exp(place[-1]),
        offset=offset,
        factor=factor,
        solved=solved,
    )


def _density(place: Array, apart: Array, residual: Array, means: Array) -> tuple[float, Array, Array, Array]:
    """(log marginal likelihood, its gradient, Cholesky factor, solved residuals) at the logs of weights, signal, noise.

    apart  [features, n, n]: distances of the observations
    """
    weights, signal, noise = np.exp(place[:-2]), math.exp(place[-2]), math.exp(2 * place[-1])
    count, size = len(weights), len(residual)
    alone = np.exp(-weights[:, None, None] * apart)
    together = np.exp(-np.tensordot(weights, apart, 1))
    mixed = ADDITIVE * alone.mean(axis=0) + (1 - ADDITIVE) * together
    covariance = signal * mixed + noise * np.eye(size) + means
    factor = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    inverse = np.linalg.inv(covariance)
    solved = inverse @ residual
    likelihood = -0.5 * float(residual @ solved) - float(np.log(np.diag(factor)).sum())
    pull = 0.5 * (np.outer(solved, solved) - inverse)  # d likelihood / d covariance
    by_feature = ADDITIVE / count * np.einsum("fij,fij,ij->f", apart, alone, pull)
    by_feature += (1 - ADDITIVE) * np.einsum("fij,ij->f", apart, together * pull)
    slope = [*(-signal * weights * by_feature), signal * float((pull * mixed).sum()), 2 * noise * float(np.trace(pull))]
    return likelihood, np.array(slope), factor, solved


def _means(cost_a: Array, cost_b: Array, *, trusts: bool) -> Array:
    """Covariance of two means: [len(a), len(b)]."""
    slopes = SLOPE**2 * np.outer(cost_a, cost_b) if trusts else np.zeros((len(cost_a), len(cost_b)))
    return slopes + CONSTANT**2


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """E[max(0, best - y)] of a normal y (Jones et al. 1998, eq. 15)."""
    z = (best - mean) / deviation
    cdf = 0.5 * (1 + _erf(z / math.sqrt(2)))
    pdf = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    improvement: Array = deviation * (z * cdf + pdf)
    return np.maximum(improvement, 0.0)


def _erf(x: Array) -> Array:
    """Error function within 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    result: Array = np.sign(x) * (1 - poly * np.exp(-x * x))
    return result
