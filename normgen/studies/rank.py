"""`normgen study rank`: fit the ranker of first choices to frozen problems, and say what it is worth on those left out.

Boosted trees by LightGBM, extremely randomised: of every feature one bound at random is tried, which generalises better
from a few hundred problems than the best one does. The target is the root of `log(us / least)` of a problem: points
near the best must be told apart, and among the slow ones little matters, which weighs less as well.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.choice.features import Features, features
from normgen.choice.first import is_ranked
from normgen.choice.ranker import Ranker, Split
from normgen.device import Device, device_from
from normgen.errors import UsageError
from normgen.records.place import DEFAULT_PLACE
from normgen.schedule.many import Schedules
from normgen.schedule.schedule import Schedule
from normgen.studies.frozen.file import part_of
from normgen.studies.frozen.first import Choice, Scores, scores
from normgen.studies.replay import swept_problem
from normgen.studies.sweep_file import Sweep
from normgen.trials.trial import Trial

TREES = 600
SETTINGS = {
    "objective": "l2", "extra_trees": True, "num_leaves": 21, "learning_rate": 0.04, "min_data_in_leaf": 12,
    "lambda_l2": 1.0, "feature_fraction": 0.5, "bagging_fraction": 0.7, "bagging_freq": 1, "seed": 1,
    "deterministic": True, "num_threads": 1, "verbose": -1,
}  # fmt: skip
FAR = 0.2  # behind the best: points so far off count half
SCALE = 1000  # steps of a leaf's value in the file, for each 1
DIGITS = 4  # of a bound
FOLDS = 8
OF_TRIALS = 0.5  # what a run of trials counts, for each sweep of as many schedules
LEAST = 2  # schedules of a run that tell something


@dataclass(frozen=True, kw_only=True)
class Examples:
    """The timed schedules of one problem in one run.

    features   of each schedule
    behind     [schedules], how far each is behind the fastest of them, log(us / least)
    sweep      where they are a sweep's: what a ranker can be scored on
    """

    question: Mapping[str, Any]
    device: Device
    schedules: tuple[Schedule, ...]
    features: Features
    behind: NDArray[np.float64]
    sweep: Sweep | None = None


def _examples(
    question: Mapping[str, Any], device: Mapping[str, Any], timed: Mapping[Schedule, float], sweep: Sweep | None = None
) -> Examples:
    took, facts = np.array([*timed.values()]), device_from(device)
    return Examples(
        question=question,
        device=facts,
        schedules=tuple(timed),
        features=features(swept_problem(question), Schedules.of(timed), facts),
        behind=np.log(took / took.min()),
        sweep=sweep,
    )


def examples(sweep: Sweep) -> Examples:
    """Of a sweep with a time or more."""
    timed = {p.schedule: p.us for p in sweep.points if p.us is not None}
    return _examples(sweep.problem, sweep.device, timed, sweep)


def raced(trials: Iterable[Trial], parts: Collection[str]) -> Iterator[Examples]:
    """Of trials in place, the runs that compare some schedules of a problem of these parts; of other programs none."""
    runs: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.place == DEFAULT_PLACE and (trial.us or trial.ratio):
            runs.setdefault(f"{trial.run} {json.dumps(trial.question)} {trial.device}", []).append(trial)
    for run in runs.values():
        question, device = run[0].question, run[0].device
        timed = {t.schedule: t.us or t.ratio or 0.0 for t in run}
        if question is None or device is None or len(timed) < LEAST or part_of(question) not in parts:
            continue
        if is_ranked(swept_problem(question)):
            yield _examples(question, device, timed)


def fit(known: Sequence[Examples], data: Mapping[str, Any]) -> Ranker:
    """The ranker of these problems, each of which counts by the root of its points. Raises UsageError for none, and
    without LightGBM.
    """
    try:
        import lightgbm
    except ImportError:
        hint = "pip install 'normgen[study]'"
        raise UsageError("a ranker is fitted by LightGBM", received="it is not installed", hint=hint) from None
    if not known:
        raise UsageError("a ranker is fitted to problems that were timed", received="none")
    names = [*known[0].features]
    table = np.concatenate([np.stack([one.features[name] for name in names], axis=1) for one in known])
    behind = np.concatenate([one.behind for one in known])
    share = np.concatenate([np.full(len(one.behind), _worth(one) * len(one.behind) ** -0.5) for one in known])
    weight = share / (1 + (behind / FAR) ** 2)
    rows = lightgbm.Dataset(table, np.sqrt(behind), weight=weight / weight.mean())
    dump = lightgbm.train(SETTINGS, rows, TREES).dump_model()
    return Ranker(
        archs=tuple(sorted({one.device.arch for one in known})),
        data={**data, "problems": len(known), "points": len(behind), "by": f"LightGBM {lightgbm.__version__}"},
        names=tuple(names),
        trees=tuple(_tree(one["tree_structure"]) for one in dump["tree_info"]),
    )


def _worth(one: Examples) -> float:
    """Trials of tunes are near a rule's choice or a search's best: random schedules beside them tell more."""
    return 1.0 if one.sweep else OF_TRIALS


def _tree(node: Mapping[str, Any]) -> Split | float:
    if "leaf_value" in node:
        return float(node["leaf_value"])
    low, high = _tree(node["left_child"]), _tree(node["right_child"])
    bound = float(f"{node['threshold']:.{DIGITS}g}")
    return Split(int(node["split_feature"]), int(bound) if bound == int(bound) else bound, low, high)


def left_out(
    known: Sequence[Examples], by: Callable[[Mapping[str, Any]], str], *, progress: Callable[[str], None]
) -> Scores:
    """What rankers are worth on sweeps that they were not fitted to: the timed points in their order.

    by   what is left out together, as the problem or its operation
    """
    groups = sorted({by(one.question) for one in known if one.sweep})
    random.Random(0).shuffle(groups)
    found: list[Choice] = []
    for fold in range(min(FOLDS, len(groups))):
        progress(f"fold {fold + 1} of {min(FOLDS, len(groups))}")
        out = set(groups[fold::FOLDS])
        ranker = fit([one for one in known if by(one.question) not in out], {})
        for one in known:
            if one.sweep and by(one.question) in out:
                listed = [one.schedules[place] for place in np.argsort(ranker.scores(one.features), kind="stable")]
                found += scores([one.sweep], partial(_listed, listed)).choices
    return Scores(choices=tuple(found))


def _listed(found: list[Schedule], *_: object) -> list[Schedule]:
    return found


def sources(files: Iterable[Path], known: Iterable[Examples]) -> dict[str, Any]:
    """What a ranker says of its data: the names of the files, and the GPUs."""
    return {"files": sorted(f.name for f in files), "gpus": sorted({one.device.name for one in known})}
