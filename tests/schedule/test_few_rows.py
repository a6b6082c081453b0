"""The clocks of teams, of clusters of them and of few rows, against what an H200 took for 250 schedules."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normgen.cost.model import predict
from normgen.device import target
from normgen.knobs import Fragment
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule, changed
from normgen.schedule.tiles.clocks import busy_clocks
from normgen.spec.reader import load

H200 = target("h200")
FILE = Path(__file__).parents[1] / "data" / "few_rows.json.xz"
KEPT: dict[str, Any] = json.loads(lzma.decompress(FILE.read_bytes()))
PROBLEMS = {f"{one['shape']} {one['inner']}, run {one['run']}": one for one in KEPT["problems"]}
# 64 and 256 rows of the widths that the change log names, after the last change of the text
NAMED = [name for name, one in PROBLEMS.items()
         if one["run"] == 2 and one["shape"] != "64x4096" and one["shape"].split("x")[0] in ("64", "256")]  # fmt: skip
NAMED.append("64x4096 14336, run 2")


@cache
def timed(name: str) -> tuple[Problem, dict[Schedule, float]]:
    """What is still legal of the trials; µs."""
    one = PROBLEMS[name]
    asked = {"dtype": KEPT["dtype"], "layout": KEPT["layout"], "without": tuple(one["without"])}
    problem = problem_for(load(one["op"]), shape=one["shape"], inner=one["inner"], **asked)
    trials = {changed(Schedule(), text): us for text, us in one["trials"].items()}
    legal = {schedule: us for schedule, us in trials.items() if refusal(problem, schedule, H200) is None}
    assert len(legal) > 0.85 * len(trials)
    return problem, legal


@cache
def liked(name: str) -> float:
    """µs of the schedule that the formula likes best."""
    problem, trials = timed(name)
    return trials[min(trials, key=lambda s: (busy_clocks(problem, s, H200), -s.stages))]


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_the_formula_likes_best_is_nearly_the_fastest(name: str) -> None:
    assert liked(name) <= 1.11 * min(timed(name)[1].values())


def test_it_is_on_the_average() -> None:
    over = {name: np.log(liked(name) / min(timed(name)[1].values())) for name in PROBLEMS}
    assert np.exp(np.mean([*over.values()])) <= 1.016
    assert np.exp(max(over[name] for name in NAMED)) <= 1.03


def test_the_model_predicts_the_time_of_teams() -> None:
    """12 µs to 5 ms; clusters of short sums are the farthest."""
    of_teams = [(problem, s, us) for problem, trials in map(timed, PROBLEMS) for s, us in trials.items()
                if s.fragment is Fragment.WGMMA and problem.rows >= 64]  # fmt: skip
    apart = np.log([predict(problem, s, H200).us / us for problem, s, us in of_teams])
    assert abs(apart.mean()) < 0.05
    assert apart.std() < 0.09
    assert abs(apart).max() < 0.3


def test_the_change_log_says_what_was_timed() -> None:
    assert len(NAMED) == 10
    ratios = [PROBLEMS[name]["torch_us"] / liked(name) for name in NAMED]
    assert np.exp(np.mean(np.log(ratios))) >= 1 / 0.96
    assert min(ratios) >= 0.99
