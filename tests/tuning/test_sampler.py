"""Samplers over a legal set in plain Optuna studies: legal points only, each once, from the study's own trials."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import normgen
from normgen.errors import UsageError
from normgen.tuning.search.names import SAMPLERS, require_sampler
from normgen.tuning.search.sampler import WRONG, LegalSampler, NearestSampler, SurrogateSampler, UniformSampler
from normgen.tuning.search.search import Search
from tests.tuning.storages import opened
from tests.tuning.test_search import DEFAULT, LEGAL, PREDICTED, truth

THREADS, LAYOUTS = (32, 64, 128, 256, 512), ("rows", "columns", "tiles")
POINTS = [
    {"threads": threads, "unroll": unroll, "layout": layout}
    for threads, unroll, layout in itertools.product(THREADS, range(1, 9), LAYOUTS)
    if threads * unroll <= 1024
]
BEST = {"threads": 128, "unroll": 6, "layout": "tiles"}


def cost(point: dict[str, Any]) -> float:
    apart = abs(math.log2(point["threads"] / 128)) + 0.1 * abs(point["unroll"] - 6)
    return 5 + apart + (point["layout"] != "tiles")


def objective(trial: optuna.Trial) -> float:
    """Distributions are the user's own: an int, a categorical in another order."""
    point = {
        "layout": trial.suggest_categorical("layout", ["tiles", "rows", "columns"]),
        "unroll": trial.suggest_int("unroll", 1, 8),
        "threads": trial.suggest_categorical("threads", list(THREADS)),
    }
    return cost(point)


def studied(sampler: LegalSampler, trials: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=trials)
    return study


def points_of(study: optuna.Study) -> list[dict[str, Any]]:
    return [{knob: trial.params[knob] for knob in POINTS[0]} for trial in study.get_trials(deepcopy=False)]


def nearest(seed: int = 0) -> NearestSampler:
    return NearestSampler(optuna.samplers.TPESampler(seed=seed), POINTS, seed=seed)


MAKERS: dict[str, Callable[[], LegalSampler]] = {
    "surrogate": lambda: SurrogateSampler(POINTS, seed=0),
    "tpe": nearest,
    "random": lambda: UniformSampler(POINTS, seed=0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_optimize_evaluates_each_legal_point_once_and_then_ends(name: str) -> None:
    study = studied(MAKERS[name](), len(POINTS) + 20)
    found = points_of(study)
    assert len(found) == len(POINTS)
    assert all(point in found for point in POINTS)


def test_the_published_sampler_finds_the_best_of_a_users_space_in_a_third_of_it() -> None:
    for seed in range(5):
        study = studied(normgen.SurrogateSampler(POINTS, seed=seed), len(POINTS) // 3)
        assert study.best_params == BEST, seed


def test_seeds_come_first_and_a_prior_orders_what_follows() -> None:
    log_cost = np.log([cost(p) for p in POINTS])
    sampler = SurrogateSampler(POINTS, log_cost=log_cost, seeds=[POINTS[7], {"threads": 1, "unroll": 1}, POINTS[3]])
    assert points_of(studied(sampler, 3)) == [POINTS[7], POINTS[3], BEST]


@pytest.mark.parametrize("name", MAKERS)
def test_a_study_without_anything_left_gives_the_best_again(name: str) -> None:
    sampler = MAKERS[name]()
    study = studied(sampler, len(POINTS))
    assert sampler.left(study) == 0
    assert objective(study.ask()) == cost(BEST)


def test_the_next_point_follows_from_the_trials_whoever_made_them(tmp_path: Path) -> None:
    """A second process with a fresh sampler goes on in the storage as the first would have gone on."""
    whole = points_of(studied(SurrogateSampler(POINTS, seed=4), 30))
    with opened(f"sqlite:///{tmp_path / 'studies.db'}") as storage:
        for count in (0, 13, 17):
            sampler = SurrogateSampler(POINTS, seed=4)
            study = optuna.create_study(sampler=sampler, storage=storage, study_name="a", load_if_exists=True)
            study.optimize(objective, n_trials=count)
        assert points_of(study) == whole


def test_trials_of_another_sampler_and_of_the_user_count() -> None:
    sampler = SurrogateSampler(POINTS, seed=0)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=40)  # some of them illegal
    legal = {tuple(sorted(p.items())) for p in points_of(study) if p in POINTS}
    study.sampler = sampler
    study.enqueue_trial(BEST)
    assert tuple(sorted(BEST.items())) not in legal
    assert sampler.left(study) == len(POINTS) - len(legal) - 1  # what is enqueued is spoken for
    study.optimize(objective, n_trials=1)
    assert study.trials[-1].params == BEST
    study.optimize(objective, n_trials=10)
    later = [tuple(sorted(p.items())) for p in points_of(study)[41:]]
    assert len(set(later)) == 10
    assert not set(later) & (legal | {tuple(sorted(BEST.items()))})


def test_running_trials_are_believed_at_their_mean_so_that_a_batch_spreads(tmp_path: Path) -> None:
    """Those of another process, too: it has asked, and nothing but the storage says so."""
    with opened(f"sqlite:///{tmp_path / 'studies.db'}") as storage:
        optuna.create_study(storage=storage, study_name="a").optimize(lambda _: 1.0, n_trials=0)
        ours, theirs = (
            optuna.load_study(study_name="a", storage=storage, sampler=SurrogateSampler(POINTS, seed=0))
            for _ in range(2)
        )
        ours.optimize(objective, n_trials=12)
        asked = [study.ask() for study in (ours, theirs, ours, theirs)]  # no parameter is suggested yet
        params = [(t.suggest_int("unroll", 1, 8), t.suggest_categorical("threads", THREADS)) for t in asked]
        params = [
            (*p, t.suggest_categorical("layout", ["tiles", "rows", "columns"]))
            for p, t in zip(params, asked, strict=True)
        ]
        assert len(set(params)) == 4
    # In a row instead, the second point would be another: it would know the first one's time.
    alone = studied(SurrogateSampler(POINTS, seed=0), 14)
    assert points_of(alone)[12] == dict(zip(("unroll", "threads", "layout"), params[0], strict=True))


def test_a_failed_trial_is_slow_and_a_way_that_is_wrong_twice_is_left_alone() -> None:
    sampler = SurrogateSampler(POINTS, ways=[p["layout"] for p in POINTS], seed=1)
    study = optuna.create_study(sampler=sampler)
    for _ in range(len(POINTS)):
        if not sampler.left(study):
            break
        trial = study.ask(sampler.distributions)
        if trial.params["layout"] == "columns":
            trial.set_user_attr(WRONG, True)
        if trial.params["layout"] == "columns" or trial.params["unroll"] == 1:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, cost(trial.params))
    found = Counter(p["layout"] for p in points_of(study))
    legal = Counter(p["layout"] for p in POINTS)
    assert found == {"rows": legal["rows"], "tiles": legal["tiles"], "columns": 2}


class Fixed(optuna.samplers.RandomSampler):
    """Proposes one point, and keeps what it is shown."""

    def __init__(self, point: dict[str, Any]) -> None:
        super().__init__()
        self.point = point

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:  # noqa: ARG002
        return self.point[param_name]


def test_a_proposal_is_moved_to_the_nearest_legal_point_that_is_left() -> None:
    wanted = {"threads": 512, "unroll": 8, "layout": "tiles"}
    assert wanted not in POINTS
    found = points_of(studied(NearestSampler(Fixed(wanted), POINTS), len(POINTS)))
    apart = [sum(point[knob] != wanted[knob] for knob in wanted) for point in found]
    assert apart == sorted(apart)
    assert Counter(apart) == Counter(sum(p[knob] != wanted[knob] for knob in wanted) for p in POINTS)


def test_random_draws_each_point_that_is_left_alike() -> None:
    first = Counter(tuple(points_of(studied(UniformSampler(POINTS[:4], seed=s), 1))[0].values()) for s in range(200))
    assert len(first) == 4
    assert min(first.values()) >= 30


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([], "at least one legal point"),
        ([{"a": 1}, {"b": 1}], "the same knobs"),
        ([{"a": 1}, {"a": 2}, {"a": 1}], "occurs once"),
        ([{}], "a mapping of a knob"),
        ([3], "a mapping of a knob"),
        ([{"a": [1]}, {"a": [2]}], "one that Optuna stores"),
    ],
)
def test_points_that_are_no_set_are_refused(points: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SurrogateSampler(points)


def test_a_knob_may_have_more_values_than_two_bytes_count() -> None:
    sampler = SurrogateSampler([{"a": i} for i in range(1 << 16)])
    assert [sampler.index_of({"a": i}) for i in (0, 40000, 65535, 65536)] == [0, 40000, 65535, None]


@pytest.mark.parametrize("given", ["log_cost", "features"])
@pytest.mark.parametrize("number", [math.nan, "x"])
def test_what_is_computed_with_is_finite(given: str, number: Any) -> None:
    with pytest.raises(UsageError, match=f"{given} is made of finite numbers"):
        SurrogateSampler(POINTS, **{given: [number] * len(POINTS)})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["log_cost", "features", "groups", "ways"])
def test_what_goes_with_the_points_has_their_number(given: str) -> None:
    with pytest.raises(UsageError, match=f"{given} has an entry for each of {len(POINTS)} points"):
        SurrogateSampler(POINTS, **{given: [0.0]})  # type: ignore[arg-type]


def test_a_study_of_another_kind_is_refused() -> None:
    study = optuna.create_study(sampler=SurrogateSampler(POINTS), direction="maximize")
    with pytest.raises(UsageError, match="minimizes one value"):
        study.ask()
    study = optuna.create_study(sampler=SurrogateSampler(POINTS))
    with pytest.raises(UsageError, match="positive"):
        study.optimize(lambda trial: objective(trial) - 100, n_trials=3)


def test_a_knob_or_a_value_that_one_side_lacks_is_refused() -> None:
    study = optuna.create_study(sampler=SurrogateSampler(POINTS))
    with pytest.raises(UsageError, match="no such knob"):
        study.ask().suggest_int("warps", 1, 8)
    with pytest.raises(UsageError, match="its distribution lacks"):
        study.ask().suggest_int("threads", 1, 8)
    study.enqueue_trial({"threads": 33})
    with pytest.raises(UsageError, match="agrees with a legal point"):
        study.ask()


@pytest.mark.parametrize("name", MAKERS)
def test_what_an_enqueued_trial_leaves_open_is_chosen_among_the_points_that_agree_with_it(name: str) -> None:
    study = studied(MAKERS[name](), 12)
    for layout in ("rows", "columns", "rows"):
        study.enqueue_trial({"layout": layout, "threads": 256})
    study.optimize(objective, n_trials=3)
    found = points_of(study)
    assert [(p["layout"], p["threads"]) for p in found[12:]] == [("rows", 256), ("columns", 256), ("rows", 256)]
    assert len({tuple(p.values()) for p in found}) == 15


def test_gp_without_torch_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(UsageError, match=r"needs scipy and torch(.|\n)*pip install .*torch"):
        require_sampler("gp")
    for name in SAMPLERS:
        if name != "gp":
            require_sampler(name)
    with pytest.raises(UsageError, match=r"no such sampler(.|\n)*normgen"):
        require_sampler("annealing")


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_search_begins_with_the_default_under_every_sampler_and_proposes_legal_points_once(name: str) -> None:
    if name == "gp":
        pytest.importorskip("torch", reason="torch is not installed")
        pytest.importorskip("scipy", reason="scipy is not installed")
    search = Search(LEGAL, predicted=PREDICTED, seeds=(DEFAULT,), sampler=name)
    found = []
    while search.trials < 24:
        for proposal in search.ask(8):
            found.append(proposal.schedule)
            search.tell(proposal.number, truth(proposal.schedule))
    assert found[0] == DEFAULT
    assert len(set(found)) == 24
    assert set(found) <= set(LEGAL)


def test_tune_refuses_a_sampler_before_it_looks_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    for name, words in (("gp", "needs scipy and torch"), ("annealing", "no such sampler")):
        with pytest.raises(UsageError, match=words):
            normgen.tune("layernorm", shape="8x64", device="cpu", sampler=name)
