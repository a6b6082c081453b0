"""The trials that come with normgen: of which problems, how they were chosen, and that they are worth their bytes."""

from __future__ import annotations

import json
import statistics
from collections import Counter

from normgen.files.decoded import unpacked
from normgen.studies.replay import swept_problem
from normgen.trials.file import read
from normgen.trials.kept import Trials, joined
from tests.races import TIMED


def test_the_trials_that_ship_are_whole_and_of_471_problems() -> None:
    run = read(Trials, TIMED, is_strict=True)
    assert run.finished
    assert TIMED.stat().st_size <= 400_000
    runs = [(t.run, json.dumps(t.question), (t.device or {})["name"]) for t in run.trials]
    assert (len(set(runs)), len(run.trials)) == (471, 11_474)
    assert len(set(zip(runs, (t.schedule for t in run.trials), strict=True))) == len(run.trials)
    assert Counter(t.chosen for t in run.trials) == {"tune": 9896, "hand": 1226, "default": 154, "tuned": 99, "": 99}
    for trial in run.trials:
        assert (trial.us is None) != (trial.ratio is None)  # µs, or what is left of them
        assert trial.measured
        assert trial.place is not None
    timed = [t for t in run.trials if t.us is not None]
    assert all(t.us > t.base_us > 0 and t.registers > 0 and t.versions for t in timed)


def test_each_trial_says_a_problem_of_today_and_is_written_as_it_was_read() -> None:
    run = read(Trials, TIMED, is_strict=True)
    problems = [swept_problem(question) for question in {id(t.question): t.question for t in run.trials}.values()]
    assert len({str(p) for p in problems}) > 400
    assert statistics.median(p.rows for p in problems) > 1
    whole = joined(run.trials)
    assert [whole.plain(t) for t in whole.trials] == [
        json.loads(line) for line in unpacked(TIMED.read_bytes()).decode().splitlines()[1:]
    ]
