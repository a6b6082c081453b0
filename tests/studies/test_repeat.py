"""Repeated tunes: real commands in empty folders on a simulated device, and their winners in one interleaved run."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from normgen.cli import main as cli
from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.device import TARGETS
from normgen.errors import NothingValidError, UsageError
from normgen.measure.isolation import process
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE, Place, Setting
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies import repeat
from normgen.studies.repeat import SWEPT, Repeat, Tuned, fastest_of, time_together, tune_apart
from normgen.studies.sweep_file import Sweep
from normgen.trials.contest import Venue
from normgen.trials.head import opening
from normgen.trials.trial import Trial
from tests.suites.fake_worker import COPY_US, FakeBench

H200 = TARGETS["h200"]
PROBLEM = problem_for(load("rmsnorm"), shape="64x512", dtype="bf16")
VENUE = Venue(facts=H200, index=0, samples=60, seed=0)
CHOSEN = [Schedule(threads_per_row=t, rows_per_block=2, vector=8, hold="registers", unroll=0) for t in (32, 64)]


def swept(*us: float, place: Place = DEFAULT_PLACE) -> Sweep:
    key = {
        "op": "rmsnorm", "direction": "forward", "rows": 64, "cols": 512, "pitch": 512, "align": 16,
        "dtypes": {t.name: t.dtype.name for t in PROBLEM.tensors},
    }  # fmt: skip
    schedules = [Schedule(threads_per_row=32, rows_per_block=2 ** (n + 1)) for n in range(len(us))]
    points = tuple(Trial(schedule=s, us=t) for s, t in zip(schedules, us, strict=True))
    return Sweep(
        **opening(H200, {}, {}), legal=len(us), default=schedules[0], problem=key, place=place, roof_us=1.0,
        noise_floor=0.01, bytes=1, points=points,
    )  # fmt: skip


def test_tunes_of_two_seeds_find_the_same_within_the_noise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("normgen.cuda.driver.device_facts", lambda _: H200)
    monkeypatch.setattr(process, "BENCH", "tests.suites.fake_worker:FakeBench")
    monkeypatch.setattr(repeat, "COMMAND", (sys.executable, "-m", "tests.tuning.fake_tune"))
    arguments = [
        "--op",
        "rmsnorm",
        "--shape",
        "64x512",
        "--dtype",
        "bf16",
        "--trials",
        "8",
        "--seeds",
        "2",
        "--stable-parameters",
        "--json",
    ]
    with pytest.raises(SystemExit) as end:
        cli.main(["study", "repeat", *arguments])
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [t["seed"] for t in found["tunes"]] == [0, 1]
    assert all(8 <= t["candidates"] <= 9 for t in found["tunes"]), "all are tried again, and one is drawn behind them"
    for one in found["tunes"]:
        assert 0 < one["timed"] <= one["candidates"]
        assert one["phases_s"]["all"] <= one["wall_s"]
        assert one["us"] > COPY_US
        assert next(iter(one["finalists"])) == one["winner"]
        assert len(one["finalists"]) > 1
    assert 1.0 <= found["worst_ratio"] < 1.3
    assert found["median_candidates"] == statistics.median(t["candidates"] for t in found["tunes"])
    assert found["noise_floor"] < 0.05
    assert not found["best"]["of_sweep"]


def test_one_run_times_every_schedule_and_equal_ones_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BENCH", "tests.suites.fake_worker:FakeBench")
    us, floor = time_together(PROBLEM, DEFAULT_PLACE, [*CHOSEN, CHOSEN[0]], VENUE)
    assert set(us) == set(CHOSEN)
    for schedule, took in us.items():
        module = emit(PROBLEM, schedule)
        bench = FakeBench()
        bench.load("k", module, compile_module(module, 90))
        assert took == pytest.approx(bench.truth["k"], rel=0.02)
        assert took > COPY_US
    assert 0 < floor < 0.02


def test_what_cannot_be_timed_with_the_others_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def emitted(problem: Problem, schedule: Schedule) -> Module:
        if schedule == CHOSEN[1]:
            raise UsageError("no such kernel")
        return emit(problem, schedule)

    monkeypatch.setattr(process, "BENCH", "tests.suites.fake_worker:FakeBench")
    monkeypatch.setattr("normgen.trials.entrant.emit", emitted)
    with pytest.raises(NothingValidError, match="must compile and be right") as refused:
        time_together(PROBLEM, DEFAULT_PLACE, CHOSEN, VENUE)
    assert refused.value.received == "no such kernel"


def test_winners_are_compared_with_the_fastest_of_the_sweep_as_timed_in_the_same_run() -> None:
    a, b, c = (Schedule(threads_per_row=t) for t in (32, 64, 128))
    one = Tuned(seed=0, winner=c, candidates=60, timed=58, wall_s=7.0, phases_s={})
    two = Tuned(seed=1, winner=a, candidates=64, timed=62, wall_s=9.0, phases_s={})
    us = {a: 10.2, b: 10.0, c: 9.9}
    plain = Repeat(tunes=(one, two), us=us, swept=(a, b), noise_floor=0.01).as_dict()
    assert plain["best"] == {"schedule": str(b), "us": 10.0, "of_sweep": True}
    assert [t["ratio"] for t in plain["tunes"]] == [0.99, 1.02]
    assert (plain["worst_ratio"], plain["median_candidates"], plain["median_wall_s"]) == (1.02, 62, 8.0)
    assert Repeat(tunes=(one, two), us=us, swept=(), noise_floor=0.01).best == c


def test_the_fastest_of_a_sweep_are_those_of_the_same_question() -> None:
    sweep = swept(5.0, 3.0, 4.0, 6.0, 2.0)
    order = [sweep.points[i].schedule for i in (4, 1, 2)]
    assert list(fastest_of(sweep, PROBLEM, Place(), H200)) == order[:SWEPT]
    assert fastest_of(None, PROBLEM, Place(), H200) == ()
    with pytest.raises(UsageError, match="sweep must be of the problem"):
        fastest_of(swept(5.0, place=Place(setting=Setting.HOT)), PROBLEM, Place(), H200)


def test_a_tune_that_fails_or_only_predicts_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NothingValidError, match="seed 3"):
        tune_apart(("--shape", "not a shape"), seed=3)
    wrapper = tmp_path / "predicts.py"
    wrapper.write_text("import json; print(json.dumps(dict(measured=False, device='NVIDIA H200')))")
    monkeypatch.setattr(repeat, "COMMAND", (sys.executable, str(wrapper)))
    with pytest.raises(UsageError, match="repeated on a GPU"):
        tune_apart((), seed=0)
