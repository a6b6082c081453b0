"""Strategies on a landscape whose optimum is known: ours against exact random search and plain TPE."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.records.place import Place, Setting
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.studies.replay import (
    EVALUATIONS,
    TRIALS,
    Landscape,
    exact_random,
    expected_best,
    follow,
    fractions,
    landscape_of,
    replay,
    sampler_on,
    score,
    swept_problem,
)
from normgen.studies.sweep_file import Sweep, read_sweep
from normgen.trials.file import write
from normgen.trials.head import opening
from normgen.trials.trial import Trial
from normgen.tuning.search import surrogate
from normgen.tuning.search.features import schedule_features
from tests.samples import sized
from tests.tuning.test_search import DEFAULT, LEGAL, OPTIMUM, PREDICTED, truth


def landscape(noise: float = 0.005) -> Landscape:
    """The hand-made set: welford is wrong, eight rows of 512 threads do not launch, times carry noise."""
    rng = random.Random(7)
    us = [truth(s) * (1 + noise * rng.random()) for s in LEGAL]
    wrong = tuple(s.variance == "welford" for s in LEGAL)
    lost = tuple(w or (s.rows_per_block == 8 and s.threads_per_row >= 64) for s, w in zip(LEGAL, wrong, strict=True))
    return Landscape(
        legal=tuple(LEGAL),
        us=tuple(None if gone else t for gone, t in zip(lost, us, strict=True)),
        wrong=wrong,
        predicted_us=tuple(PREDICTED),
        default=DEFAULT,
    )


LAND = landscape()


def test_ours_is_near_the_optimum_after_fifty_evaluations_in_the_worst_seed_and_ahead_of_the_others() -> None:
    ours, chance = (replay(LAND, name, seeds=3, workers=1) for name in ("normgen", "random"))
    tpe = replay(LAND, "tpe", seeds=sized(1, 3), workers=1)  # seven eighths of the time
    assert ours.worst[50] >= 0.98
    for n in (25, 50, 100):
        assert ours.median[n] > chance.median[n]
        assert ours.median[n] > tpe.median[n] or ours.median[n] == 1  # Optuna 5's arrives at the optimum too, after 100
        assert ours.worst[n] >= tpe.worst[n]
    assert ours.median[50] > tpe.median[50]


def test_a_replay_of_the_same_seeds_says_the_same() -> None:
    assert follow(LAND, sampler_on(LAND, "normgen", 3)) == follow(LAND, sampler_on(LAND, "normgen", 3))


def test_the_expected_best_of_random_search_agrees_with_a_simulation_of_it() -> None:
    slowest = max(us for us in LAND.us if us is not None)
    us = np.array([slowest if t is None else t for t in LAND.us])
    rng = np.random.default_rng(0)
    drawn = np.array([np.minimum.accumulate(us[rng.permutation(len(us))[:TRIALS]]) for _ in range(4000)])
    assert expected_best(LAND)[1:] == pytest.approx(drawn.mean(axis=0), rel=0.015)


def test_the_score_is_0_for_random_search_1_for_the_optimum_at_once_and_between_for_what_lies_between() -> None:
    rng = np.random.default_rng(1)
    chance = [[LAND.us[i] for i in rng.permutation(len(LAND.us))[:TRIALS]] for _ in range(2000)]
    assert score(LAND, chance) == pytest.approx(0, abs=0.02)
    assert score(LAND, [[LAND.optimum_us] * TRIALS]) == pytest.approx(1)
    late = [[None] * 8 + [LAND.optimum_us] * (TRIALS - 8)]
    assert 0 < score(LAND, late) < 1
    assert score(LAND, [[None] * TRIALS]) < 0
    assert replay(LAND, "random", seeds=2).score == 0


def test_exact_random_search_agrees_with_a_simulation_of_it() -> None:
    us = np.array([np.inf if t is None else t for t in LAND.us])
    rng = np.random.default_rng(0)
    drawn = np.array([us[rng.permutation(len(us))[: EVALUATIONS[-1]]] for _ in range(3000)])
    exact = exact_random(LAND, seeds=20)
    for n in EVALUATIONS:
        found = LAND.optimum_us / drawn[:, :n].min(axis=1)
        assert exact.median[n] == pytest.approx(float(np.median(found)), abs=0.01)
        assert exact.worst[n] == pytest.approx(float(np.quantile(found, 1 - 0.5 ** (1 / 20))), abs=0.02)


def test_random_search_of_a_whole_small_set_finds_the_optimum() -> None:
    small = Landscape(
        legal=tuple(LEGAL[:8]), us=(*(float(i + 1) for i in range(7)), None), wrong=(False,) * 8,
        predicted_us=(1.0,) * 8, default=LEGAL[0],
    )  # fmt: skip
    report = exact_random(small, seeds=50)
    assert report.median == dict.fromkeys(EVALUATIONS, 1.0)
    assert report.worst == dict.fromkeys(EVALUATIONS, 1.0)


@pytest.mark.parametrize("strategy", ["normgen", "misled", "tpe"])
def test_every_strategy_asks_for_each_point_once_and_then_for_none(strategy: str) -> None:
    few = replace(LAND, legal=LAND.legal[:60], us=tuple(map(truth, LEGAL[:60])), wrong=(False,) * 60,
                  predicted_us=LAND.predicted_us[:60])  # fmt: skip
    assert sorted(follow(few, sampler_on(few, strategy, 0), batch=7)) == list(range(60))


def test_a_wrong_rewrite_is_probed_and_then_left_alone() -> None:
    asked = follow(LAND, sampler_on(LAND, "normgen", 0))
    assert 1 <= sum(LAND.wrong[i] for i in asked) <= 4


def test_a_good_cost_model_is_believed_and_a_reversed_one_is_not_followed() -> None:
    good = replace(LAND, legal=tuple(LEGAL), us=tuple(map(truth, LEGAL)), wrong=(False,) * len(LEGAL))
    good = replace(good, predicted_us=tuple(map(truth, LEGAL)))
    reversed_ = replace(good, predicted_us=tuple(1 / truth(s) for s in LEGAL))
    for land, at, least in ((good, 0, 0.98), (reversed_, 2, 0.9)):
        told = [land.us[i] for i in follow(land, sampler_on(land, "normgen", 0))]
        assert fractions(told, OPTIMUM)[at] >= least


def test_the_posterior_interpolates_and_is_unsure_far_away() -> None:
    chosen = LEGAL[::40]
    points = schedule_features(LEGAL)[::40]
    log_us, flat = np.log([truth(s) for s in chosen]), np.zeros(len(chosen))
    known = surrogate.fit(points[:-5], log_us[:-5], flat[:-5])
    at_known = known.over(points[:-5], flat[:-5])
    assert at_known.mean == pytest.approx(surrogate.softened(log_us[:-5]), abs=3 * known.noise)
    beyond = known.over(points[-5:], flat[-5:])
    assert beyond.deviation.min() > 1.5 * at_known.deviation.max()


def test_believing_a_point_is_the_same_as_fitting_it_at_its_mean() -> None:
    points, log_cost = schedule_features(LEGAL), np.log(PREDICTED)
    observed = list(range(0, len(LEGAL), 60))
    posterior = surrogate.fit(points[observed], np.log([truth(LEGAL[i]) for i in observed]), log_cost[observed])
    pool = list(range(5, len(LEGAL), 100))
    belief = posterior.over(points[pool], log_cost[pool])
    mean = belief.mean.copy()
    belief.believe(4)
    assert belief.mean == pytest.approx(mean)
    both = [*observed, pool[4]]
    cross = posterior.covariance(points[pool], points[both], log_cost[pool], log_cost[both])
    covariance = posterior.covariance(points[both], points[both], log_cost[both], log_cost[both])
    covariance += posterior.noise**2 * np.eye(len(both))
    own = np.diag(posterior.covariance(points[pool], points[pool], log_cost[pool], log_cost[pool]))
    variance = own - np.einsum("ij,ji->i", cross, np.linalg.solve(covariance, cross.T))
    assert belief.variance == pytest.approx(np.maximum(variance, 1e-10), rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("trusts", [True, False])
def test_the_gradient_of_the_likelihood_is_its_difference(trusts: bool) -> None:
    observed = list(range(0, len(LEGAL), 60))
    points = schedule_features(LEGAL)[observed]
    log_cost = np.log(PREDICTED)[observed] - np.log(PREDICTED).mean()
    residual = np.log([truth(LEGAL[i]) for i in observed])
    residual -= np.median(residual)
    apart = np.abs(points[:, None, :] - points[None, :, :]).transpose(2, 0, 1)
    means = surrogate._means(log_cost, log_cost, trusts=trusts)
    place = np.random.default_rng(0).normal(-1.5, 0.5, points.shape[1] + 2)
    slope = surrogate._density(place, apart, residual, means)[1]
    for at, step in enumerate(1e-5 * np.eye(len(place))):
        ahead, behind = (surrogate._density(place + side * step, apart, residual, means)[0] for side in (1, -1))
        assert slope[at] == pytest.approx((ahead - behind) / 2e-5, rel=1e-4, abs=1e-5)


def test_many_observations_are_all_known_though_the_weights_are_fitted_to_some() -> None:
    points, flat = schedule_features(LEGAL)[::10], np.zeros(len(LEGAL[::10]))
    log_us = np.log([truth(s) for s in LEGAL[::10]])
    assert len(log_us) > 2 * surrogate.FITTED
    known = surrogate.fit(points, log_us, flat)
    at_known = known.over(points, flat)
    assert at_known.mean == pytest.approx(surrogate.softened(log_us), abs=4 * known.noise)


def test_a_feature_that_decides_gets_a_larger_weight_than_one_that_does_not() -> None:
    rng = np.random.default_rng(3)
    points = rng.integers(0, 4, (40, 3)).astype(float)
    found = surrogate.fit(points, 0.1 * points[:, 1] ** 2 + 0.002 * rng.normal(size=40), rng.normal(size=40))
    assert not found.trusts  # the prior was noise
    assert found.weights[1] > 3 * max(found.weights[0], found.weights[2])
    log_cost = 0.1 * points[:, 1] ** 2
    assert surrogate.fit(points, log_cost + 0.002 * rng.normal(size=40), log_cost).trusts


def test_expected_improvement_matches_its_integral() -> None:
    grid = np.linspace(-8, 8, 20001)
    for mean, deviation, best in itertools.product((-1.0, 0.3), (0.2, 1.5), (0.0,)):
        y = mean + deviation * grid
        density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
        integral = float((np.maximum(best - y, 0) * density).sum() * (grid[1] - grid[0]))
        found = surrogate.expected_improvement(np.array([mean]), np.array([deviation]), best)[0]
        assert found == pytest.approx(integral, rel=1e-3, abs=1e-6)


def test_a_recorded_file_becomes_a_landscape_of_its_problem(tmp_path: Path) -> None:
    from normgen.program.source import problem_for
    from normgen.spec.reader import load

    asked = problem_for(load("rmsnorm"), shape="64x8192", dtype="bf16", without=("weight",))
    device = TARGETS["h200"]
    chosen = [Schedule(threads_per_row=t, vector=8, hold="registers", unroll=0) for t in (128, 256, 512)]
    key = {
        "op": "rmsnorm", "direction": "forward", "rows": 64, "cols": 8192, "pitch": 8192, "align": 16,
        "dtypes": {t.name: t.dtype.name for t in asked.tensors},
    }  # fmt: skip
    points = (
        Trial(schedule=chosen[0], us=2.0, registers=40),
        Trial(schedule=chosen[1], outcome=Outcome.WRONG_RESULT),
        Trial(schedule=chosen[2], us=2.5, twin=chosen[0]),
    )
    made = Sweep(
        **opening(device, {}, {"seed": 0}), legal=3, default=chosen[1], problem=key, place=Place(setting=Setting.HOT),
        roof_us=1.4, noise_floor=0.01, bytes=asked.compulsory_bytes, points=points,
    )  # fmt: skip
    write(tmp_path / "a.jsonl.xz", made)
    sweep = read_sweep(tmp_path / "a.jsonl.xz")
    assert sweep == made
    assert sweep.points[2].twin == chosen[0]
    assert swept_problem(sweep.problem) == asked
    land = landscape_of(sweep)
    assert land.us == (2.0, None, 2.5)
    assert land.wrong == (False, True, False)
    assert land.optimum_us == 2.0
    assert all(us > 0 for us in land.predicted_us)


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown strategy"):
        replay(LAND, "annealing", seeds=1)
    assert min(us for us in LAND.us if us is not None) >= OPTIMUM
