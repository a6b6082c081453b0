"""A Gaussian process over schedules: what a kernel will take, and how unsure that is, from few measured ones.

The modelled value is log µs. Its mean is b log(cost model), b in {0, 0.5, 1} chosen with the length scale by the
marginal likelihood (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2.2 and 5.4.1); a wrong cost
model is thus believed less, not followed. The kernel adds a part in which knobs contribute one by one and a part
in which they interact:

    k(a, b) = s [ w mean_j exp(-|a_j - b_j| / l) + (1 - w) exp(-sum_j |a_j - b_j| / (L l)) ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SLOWEST = 0.4  # log time above the best, beyond which a point is only "slow"
NOISE = 0.008  # of one screened time, relative
SCALES = (1.0, 2.0, 4.0)
TRUSTS = (0.0, 0.5, 1.0)
ADDITIVE = 0.35
REACH = 3.0  # length scale of the interacting part, in units of the additive part's


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A posterior: call `predict` for points [n, features] with their log cost [n]."""

    points: Array
    trust: float
    scale: float
    signal: float
    offset: float
    factor: Array  # Cholesky factor of the covariance of the observations
    weights: Array

    def over(self, points: Array, log_cost: Array) -> Belief:
        """What is believed of these points [n, features]."""
        cross = self.signal * _kernel(points, self.points, self.scale)
        mean = self.offset + self.trust * log_cost + cross @ self.weights
        half = np.asarray(np.linalg.solve(self.factor, cross.T), dtype=np.float64)
        variance = np.maximum(self.signal - (half**2).sum(axis=0), 1e-10)
        return Belief(fit=self, points=points, mean=mean, variance=variance, half=half)


@dataclass(kw_only=True)
class Belief:
    """Mean and variance of log µs at a pool of points: [pool] each."""

    fit: Fit
    points: Array
    mean: Array
    variance: Array
    half: Array  # [observations, pool]: what the covariance of two pool points is reduced by

    @property
    def deviation(self) -> Array:
        return np.sqrt(self.variance)

    def believe(self, at: int) -> None:
        """Condition on pool point `at` having its mean: means stay, variances around it fall (a rank-1 update)."""
        prior = self.fit.signal * _kernel(self.points, self.points[[at]], self.fit.scale)[:, 0]
        covariance = prior - self.half.T @ self.half[:, at]
        row = covariance / math.sqrt(self.variance[at] + NOISE**2)
        self.half = np.vstack([self.half, row])
        self.variance = np.maximum(self.variance - row**2, 1e-10)


def fit(points: Array, log_us: Array, log_cost: Array) -> Fit:
    """The most likely posterior given observations [n]; far slower ones are clipped to SLOWEST above the best."""
    observed = np.minimum(log_us, log_us.min() + SLOWEST)
    best: tuple[float, Fit] | None = None
    for scale in SCALES:
        kernel = _kernel(points, points, scale)
        for trust in TRUSTS:
            found = _fit_one(points, observed - trust * log_cost, kernel, scale, trust)
            if best is None or found[0] > best[0]:
                best = found
    assert best is not None
    return best[1]


def _fit_one(points: Array, residual: Array, kernel: Array, scale: float, trust: float) -> tuple[float, Fit]:
    """(log marginal likelihood, posterior) for one choice; the signal's variance follows from the residuals."""
    offset = float(np.median(residual))
    centred = residual - offset
    signal = max(float(np.mean(centred**2)), 1e-4)
    empty = np.zeros(0)
    choice = Fit(points=points, trust=trust, scale=scale, signal=signal, offset=offset, factor=empty, weights=empty)
    posterior = _posterior(points, centred, choice, kernel)
    likelihood = -0.5 * float(centred @ posterior.weights) - float(np.log(np.diag(posterior.factor)).sum())
    return likelihood, posterior


def _posterior(points: Array, centred: Array, choice: Fit, kernel: Array | None = None) -> Fit:
    """`choice` conditioned on centred residuals at `points`."""
    known = _kernel(points, points, choice.scale) if kernel is None else kernel
    covariance = choice.signal * known + NOISE**2 * np.eye(len(centred))
    factor = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, centred))
    return replace(choice, points=points, factor=factor, weights=weights)


def _kernel(a: Array, b: Array, scale: float) -> Array:
    """[len(a), len(b)], 1 on equal points."""
    total = np.zeros((len(a), len(b)))
    additive = np.zeros((len(a), len(b)))
    for column in range(a.shape[1]):
        apart = np.abs(a[:, column, None] - b[None, :, column])
        total += apart
        additive += np.exp(-apart / scale)
    mixed: Array = ADDITIVE * additive / a.shape[1] + (1 - ADDITIVE) * np.exp(-total / (REACH * scale))
    return mixed


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
