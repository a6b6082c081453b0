"""`normgen study rank`: fit the ranker of first choices to frozen problems, and say what it is worth on those left out.

Boosted trees by LightGBM, extremely randomised: of every feature one bound at random is tried, which generalises better
from a few hundred problems than the best one does. The target is the root of `log(us / least)` of a problem: points
near the best must be told apart, and among the slow ones little matters, which weighs less as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.choice.features import Features, features
from normgen.choice.ranker import Ranker, Split
from normgen.device import device_from
from normgen.errors import UsageError
from normgen.schedule.many import Schedules
from normgen.schedule.schedule import Schedule
from normgen.studies.frozen.first import Scores, scores
from normgen.studies.replay import swept_problem
from normgen.studies.sweep_file import Sweep

TREES = 400
SETTINGS = {
    "objective": "l2", "extra_trees": True, "num_leaves": 31, "learning_rate": 0.06, "min_data_in_leaf": 12,
    "feature_fraction": 0.5, "bagging_fraction": 0.7, "bagging_freq": 1, "seed": 1, "deterministic": True,
    "num_threads": 1, "verbose": -1,
}  # fmt: skip
FAR = 0.2  # behind the best: points so far off count half
SCALE = 1000  # steps of a leaf's value in the file, for each 1
DIGITS = 4  # of a bound
FOLDS = 8


@dataclass(frozen=True, kw_only=True)
class Examples:
    """The timed points of one problem: features, and how far each is behind the fastest of them, log(us / least)."""

    sweep: Sweep
    features: Features
    behind: NDArray[np.float64]


def examples(sweep: Sweep) -> Examples:
    """Of a sweep with a time or more."""
    timed = [p for p in sweep.points if p.us is not None]
    us = np.array([p.us for p in timed])
    problem, device = swept_problem(sweep.problem), device_from(sweep.device)
    found = features(problem, Schedules.of(p.schedule for p in timed), device)
    return Examples(sweep=sweep, features=found, behind=np.log(us / us.min()))


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
    share = np.concatenate([np.full(len(one.behind), len(one.behind) ** -0.5) for one in known])
    weight = share / (1 + (behind / FAR) ** 2)
    rows = lightgbm.Dataset(table, np.sqrt(behind), weight=weight / weight.mean())
    dump = lightgbm.train(SETTINGS, rows, TREES).dump_model()
    return Ranker(
        archs=tuple(sorted({int(one.sweep.device["arch"]) for one in known})),
        data={**data, "problems": len(known), "points": len(behind), "by": f"LightGBM {lightgbm.__version__}"},
        names=tuple(names),
        trees=tuple(_tree(one["tree_structure"]) for one in dump["tree_info"]),
    )


def _tree(node: Mapping[str, Any]) -> Split | float:
    if "leaf_value" in node:
        return float(node["leaf_value"])
    low, high = _tree(node["left_child"]), _tree(node["right_child"])
    bound = float(f"{node['threshold']:.{DIGITS}g}")
    return Split(int(node["split_feature"]), int(bound) if bound == int(bound) else bound, low, high)


def left_out(
    known: Sequence[Examples], by: Callable[[Sweep], str], *, progress: Callable[[str], None] = lambda _: None
) -> Scores:
    """What rankers are worth on problems that they were not fitted to: the timed points in their order.

    by   what is left out together, as the problem or its operation
    """
    groups = sorted({by(one.sweep) for one in known})
    random.Random(0).shuffle(groups)
    found: list[Scores] = []
    for fold in range(min(FOLDS, len(groups))):
        progress(f"fold {fold + 1} of {min(FOLDS, len(groups))}")
        out = set(groups[fold::FOLDS])
        ranker = fit([one for one in known if by(one.sweep) not in out], {})
        held = [one for one in known if by(one.sweep) in out]
        lists = {one.sweep.key: timed_order(one, ranker) for one in held}
        found += [scores([one.sweep], partial(_listed, lists[one.sweep.key])) for one in held]
    return Scores(choices=tuple(choice for one in found for choice in one.choices))


def timed_order(one: Examples, ranker: Ranker) -> list[Schedule]:
    """The timed points of a problem, the ranker's first ones first."""
    timed = [p.schedule for p in one.sweep.points if p.us is not None]
    return [timed[place] for place in np.argsort(ranker.scores(one.features), kind="stable")]


def _listed(found: list[Schedule], *_: object) -> list[Schedule]:
    return found


def sources(files: Iterable[Path], sweeps: Iterable[Sweep]) -> dict[str, Any]:
    """What a ranker says of its data: the files, the GPUs, and when they were measured."""
    known = list(sweeps)
    return {
        "files": sorted(f.name for f in files),
        "gpus": sorted({str(s.device["name"]) for s in known}),
        "measured": sorted({s.started[:10] for s in known}),
    }
