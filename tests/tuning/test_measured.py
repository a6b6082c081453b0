"""The measured path on the real space, emitter, compiler and worker process; only the device is simulated."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import optuna
import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import Module
from normgen.cuda.cubin import Cubin
from normgen.device import TARGETS, Device
from normgen.measure.isolation import process
from normgen.measure.isolation.start import processes
from normgen.measure.protocol import Check
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import Place
from normgen.records.record import Outcome, Record
from normgen.records.winners import adopt, read, state_folder
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import with_default
from normgen.spec.reader import load
from normgen.trials.file import read as read_trials
from normgen.trials.kept import Trials
from normgen.trials.versions import environment
from normgen.tuning import measured, tuner
from normgen.tuning.progress import Silent
from normgen.tuning.run import open_run
from tests.measure.simulated import SimulatedTimer
from tests.tuning.storages import opened

H200 = TARGETS["h200"]
PROBLEM = problem_for(load("layernorm"), shape="8x1024x768")
COPY_US = 13.5


class PredictedBench(SimulatedTimer):
    """A device on which the cost model is right, but for what registers cost, and corrected_two_pass is wrong."""

    roofs = ("copy",)

    def __init__(self, problem: Problem, facts: Device, *, index: int, place: Place, seed: int) -> None:
        super().__init__({"copy": COPY_US}, seed=seed, base_us=4.0)
        assert (problem, facts, index, place) == (PROBLEM, H200, 0, Place())
        self._rewrite: dict[str, str] = {}

    def load(self, key: str, module: Module, cubin: Cubin) -> None:
        assert cubin.data.startswith(b"\x7fELF")
        kernel = module.kernels[0]
        registers = cubin.resources[kernel.name].registers
        self.truth[key] = COPY_US * (1.02 + registers / 1000 + kernel.launch.threads / 20000)
        self._rewrite[key] = module.text

    def check(self, key: str, *, full: bool) -> Check:
        text = self._rewrite[key]
        is_wrong = "x_rough_mean" in text and "x_margin" not in text and not full
        return Check(ok=not is_wrong, summary="y: 3 bad", error={"y": 0.1})

    def unload(self, key: str) -> None:
        del self.truth[key]


def tune_once(monkeypatch: pytest.MonkeyPatch, storage: str | None = None) -> tuple[tuple[Record, ...], Path]:
    monkeypatch.setattr(process, "BENCH", f"{__name__}:PredictedBench")
    with processes(0) as using, open_run(
        PROBLEM, H200, place=Place(), seed=0, trials=32, budget_s=60.0, progress=Silent(),
        command="test", versions=environment(measured=False), storage=storage,
    ) as run:  # fmt: skip
        records, interrupted = measured.measure_on_gpu(run, using)
        assert not interrupted
        return records, run.candidates_path


def test_a_run_over_real_kernels_confirms_a_winner_and_keeps_every_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("normgen.records.results.cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(
        "normgen.records.winners.shipped_folder", lambda: tmp_path / "none"
    )  # a shipped record would win
    records, path = tune_once(monkeypatch)
    winner = records[0]
    assert winner.measured
    assert winner.outcome is Outcome.OK
    assert winner.roof_us == pytest.approx(COPY_US, rel=0.05)
    assert winner.default_us is not None
    assert winner.us is not None
    assert winner.us <= winner.default_us * 1.01
    default = default_schedule(PROBLEM, H200)
    assert default in [r.schedule for r in records]
    kept = read(path).records
    assert sum(r.search["chosen"] != "random" for r in kept) == 32
    assert kept[0].schedule == default
    assert {"variance=corrected_two_pass" in str(r.schedule) for r in kept} == {True, False}

    adopt(winner, state_folder() / "records", H200)
    database = f"sqlite:///{tmp_path / 'studies.db'}"
    again, path = tune_once(monkeypatch, storage=database)
    assert read(path).records[1].schedule == winner.schedule  # the incumbent comes right after the default
    assert winner.schedule in [r.schedule for r in again]
    with opened(database) as storage:
        study = optuna.load_study(study_name=path.parent.name, storage=storage)
        assert [Schedule(**t.params) for t in study.get_trials()] == [
            r.schedule for r in read(path).records if r.search["chosen"] != "random"
        ]
        assert study.user_attrs["device"] == H200.name


def test_the_default_is_searched_even_if_the_spec_leaves_it_out() -> None:
    default: Any = Schedule(threads_per_row=512)
    others = [Schedule(threads_per_row=64), Schedule(threads_per_row=128)]
    assert with_default(others, default) == [default, *others]
    assert with_default([*others, default], default) == [*others, default]


def test_every_tune_keeps_its_trials_in_its_folder_and_in_one_file_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("normgen.records.results.cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(process, "BENCH", f"{__name__}:PredictedBench")
    monkeypatch.setattr("normgen.cuda.driver.device_facts", lambda _: H200)
    monkeypatch.setattr(tuner, "environment", lambda *, measured: environment(measured=False))  # noqa: ARG005
    result = tuner.tune(shape="8x1024x768", trials=16)
    run = read_trials(Trials, result.candidates_path.with_name("trials.jsonl"), is_strict=True)
    records = read(result.candidates_path).records
    searched, confirmed = run.trials[: len(records)], run.trials[len(records) :]
    assert [(t.schedule, t.chosen, t.outcome, t.us) for t in searched] == [
        (r.schedule, r.search["chosen"], r.outcome, r.us) for r in records
    ]
    assert {t.schedule for t in confirmed} == {r.schedule for r in result.finalists}
    for trial in confirmed:
        assert trial.price_us is not None
        assert trial.low <= trial.price_us <= trial.high
        assert trial.base_us > 0
        assert trial.registers > 0
    assert searched[0].chosen == "default"
    assert (run.common.question, run.common.run) == (PROBLEM.question.as_dict(), result.candidates_path.parent.name)
    assert (run.device["name"], dict(run.versions)) == (H200.name, dict(result.record.versions))
    grown = tmp_path / "trials.jsonl"
    assert read_trials(Trials, grown, is_strict=True).trials == run.trials

    again = tuner.tune(shape="8x1024x768", trials=16)  # takes over all that the first one timed, but for the finalists
    found = read_trials(Trials, again.candidates_path.with_name("trials.jsonl"), is_strict=True).trials
    assert {t.schedule for t in found if t.price_us} == {r.schedule for r in again.finalists}
    taken = {r.schedule for r in read(again.candidates_path).records if r.search.get("reused")}
    assert taken
    assert not taken & {t.schedule for t in found if not t.price_us}
    assert read_trials(Trials, grown, is_strict=True).trials == (*run.trials, *found)


def test_the_phases_of_a_measured_run_add_up_to_its_wall_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("normgen.records.results.cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(process, "BENCH", f"{__name__}:PredictedBench")
    monkeypatch.setattr("normgen.cuda.driver.device_facts", lambda _: H200)
    monkeypatch.setattr(tuner, "environment", lambda *, measured: environment(measured=False))  # noqa: ARG005
    start = time.monotonic()
    result = tuner.tune(shape="8x1024x768", trials=16)
    took = time.monotonic() - start
    phases = dict(result.phases_s)
    whole = phases.pop("all")
    assert result.measured
    assert sum(phases.values()) == pytest.approx(whole, rel=1e-6)
    assert whole == pytest.approx(took, abs=0.5)  # what ends the processes comes after it
    assert {"read the spec", "enumerate", "wait for the device", "compile (waiting)", "verify", "time"} <= set(phases)
    assert {"verify in full", "confirm", "export", "other"} <= set(phases)
    assert phases["other"] < 0.3 * whole
    assert all(seconds >= 0 for seconds in phases.values())
