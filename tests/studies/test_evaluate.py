"""The cost model's first choice against the best of measured schedules, and the command that says it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.cli import main as cli
from normgen.cost.constants import Constants, write_constants
from normgen.cost.model import predict
from normgen.device import TARGETS
from normgen.program.source import problem_for, stages_of
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies.evaluate import first_choice, lines, summary
from normgen.studies.fit import TimedProblem
from tests.races import TIMED

H200 = TARGETS["h200"]
PROBLEM = problem_for(load("rmsnorm"), shape="4096x4096", dtype="bf16")
BASE = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0)


def measured(*us: tuple[Schedule, float]) -> TimedProblem:
    return TimedProblem(problem=PROBLEM, device=H200, points=us)


def test_the_ratio_is_that_of_the_models_choice_to_the_optimum() -> None:
    slow = replace(BASE, vector=1)
    model = [predict(PROBLEM, s, H200, stages=stages_of(PROBLEM)).us for s in (BASE, slow)]
    assert model[0] < model[1]
    right, wrong = (
        first_choice(measured((slow, 30.0), (BASE, 20.0))),
        first_choice(measured((slow, 20.0), (BASE, 25.0))),
    )
    assert (right.first, right.ratio, right.rank) == (BASE, 1.0, 0)
    assert (wrong.first, wrong.ratio, wrong.rank) == (BASE, 1.25, 1)
    assert wrong.optimum == slow
    assert wrong.predicted_us == pytest.approx(model[0])
    found = summary([right, wrong])
    assert (found["median"], found["largest"]) == (1.125, 1.25)
    assert "1.250 x" in lines([wrong])[0]


def test_of_equal_predictions_the_plainest_is_the_choice() -> None:
    hinted = replace(BASE, load="streaming")
    other = replace(BASE, load="no_allocate", store="streaming")
    same = replace(Constants(), load_past_l1=1.0, store_streaming=1.0)
    assert first_choice(measured((other, 1.0), (hinted, 1.0), (BASE, 1.0)), same).first == BASE


def test_the_command_judges_recorded_candidates_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(["calibrate", "--evaluate", str(TIMED), "--json"])
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["choices"]) == 35
    assert found["median"] <= 1.10
    assert not list(tmp_path.iterdir())
    worse = tmp_path / "worse.json"  # nothing but the launch counts: the model cannot tell schedules apart
    write_constants(worse, replace(Constants(), launch_us=1e6), device="made up", evidence={})
    with pytest.raises(SystemExit):
        cli.main(["calibrate", "--evaluate", str(TIMED), "--from", str(worse), "--json"])
    blind = json.loads(capsys.readouterr().out)
    means = [sum(choice["ratio"] for choice in told["choices"]) / 35 for told in (found, blind)]
    assert means[0] < means[1] - 0.03  # 1.122 and 1.162: of what a search had chosen already
