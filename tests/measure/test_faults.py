"""A whole search with a fault of every kind planted among its candidates, in real worker processes.

Without a GPU the device is `fake_device`; the same faults in real kernels' texts are marked `gpu` below.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import KernelEntry, Launch, Module
from normgen.cost.model import predicted_us
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import Cubin, Resources
from normgen.device import TARGETS, Device
from normgen.measure.isolation import process
from normgen.measure.isolation.bench import Patience, WorkerBench
from normgen.measure.isolation.process import Post, Worker
from normgen.measure.isolation.start import processes
from normgen.measure.timing import Policy
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import Place
from normgen.records.record import Outcome, Record
from normgen.records.winners import read
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load
from normgen.tuning import measured
from normgen.tuning.campaign import Campaign
from normgen.tuning.compile import Builder, Emit
from normgen.tuning.finals import finalist_records
from normgen.tuning.progress import Silent, Standing
from normgen.tuning.run import TuningRun, open_run
from normgen.tuning.search.search import Search
from tests.measure.planted import KINDS, plant, planting
from tests.measure.simulated import problem
from tests.measure.test_isolation import FACTORY, Killer
from tests.tuning.test_search import DEFAULT, LEGAL, OPTIMUM, PREDICTED, truth

# They would all win, were they right.
PLANTED = {
    Schedule(threads_per_row=512, rows_per_block=2, vector=4, hold="registers", params=params, load=load): words
    for (params, load), words in zip(
        [(p, ld) for p in ("early", "late") for ld in ("default", "streaming")],
        ["wrong", "segv@check", "lost@sample", "hang@check"],
        strict=True,
    )
} | {
    Schedule(threads_per_row=1024, vector=4, hold="registers", params="late"): "refused",
    Schedule(threads_per_row=1024, vector=2, hold="registers", params="late"): "slow@warm_up",
}
OUTCOMES = {
    "wrong": Outcome.WRONG_RESULT,
    "segv@check": Outcome.WORKER_DIED,
    "lost@sample": Outcome.LAUNCH_ERROR,
    "hang@check": Outcome.TIMEOUT,
    "refused": Outcome.LAUNCH_ERROR,
    "slow@warm_up": Outcome.TIMEOUT,
}
TRIALS = 64


def emitting(planted: Mapping[Schedule, str]) -> Emit:
    """Texts for the fake device; what is planted is twice as fast as it should be."""

    def emit(_: Problem, schedule: Schedule) -> Module:
        us = truth(schedule) * (0.5 if schedule in planted else 1.0)
        text = f"{schedule.key} {planted.get(schedule, '')} us={us}"
        return Module(
            instructions="", text=text, kernels=(KernelEntry(name="k", params=(), launch=Launch(threads=32)),)
        )

    return emit


def compile_now(module: Module) -> Future[Cubin]:
    answer: Future[Cubin] = Future()
    data, resources = module.text.encode(), {"k": Resources(registers=40)}
    answer.set_result(
        Cubin(data=data, arch=90, resources=resources, log="", seconds=0.0, nvrtc_version=(13, 0), key=module.text)
    )
    return answer


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TuningRun]:
    monkeypatch.setattr(Search, "is_settled", lambda *_: False)
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    with open_run(
        problem(), TARGETS["h200"], place=Place(), seed=3, trials=TRIALS, budget_s=60.0, progress=Silent(),
        command="test", versions={"normgen": "0.1.0"},
    ) as opened:  # fmt: skip
        yield opened


def search_on_fake_device(run: TuningRun, *, planted: Mapping[Schedule, str], log: Path) -> tuple[Record, list[Record]]:
    """The winner's record, and the records of all candidates by file order."""
    patience = Patience(floor_s=0.5, first_s=2.0, multiple=20.0)
    opening = {"problem": run.problem, "seed": 3, "log": str(log)}
    with Post(FACTORY, 0) as post:
        bench = WorkerBench(post, opening=opening, note=run.note, patience=patience)
        campaign = Campaign(
            run,
            search=Search(LEGAL, predicted=PREDICTED, seeds=(DEFAULT, *planted), seed=run.seed),
            builder=Builder(run.problem, emit=emitting(planted), submit=compile_now),
            bench=bench,
            default=DEFAULT,
            policy=Policy(),
        )
        finish = campaign.finish()
        records = finalist_records(campaign, finish)
    return records[0], list(read(run.folder / "candidates.jsonl").records)


def test_each_planted_fault_has_its_outcome_and_the_right_winner_is_found(run: TuningRun, tmp_path: Path) -> None:
    winner, records = search_on_fake_device(run, planted=PLANTED, log=tmp_path / "log")
    outcome = {r.schedule: r.outcome for r in records}
    assert {words: outcome[s] for s, words in PLANTED.items()} == OUTCOMES
    reasons = {PLANTED[r.schedule]: r.reason for r in records if r.schedule in PLANTED}
    assert "SIGSEGV" in reasons["segv@check"]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in reasons["lost@sample"]
    assert "no answer within" in reasons["hang@check"]
    assert len({r.schedule for r in records}) == len(records)
    assert sum(r.search["chosen"] != "random" for r in records) == TRIALS
    assert truth(winner.schedule) <= 1.02 * min(truth(s) for s in LEGAL if s not in PLANTED)
    assert winner.times_us is not None
    assert winner.times_us.median == pytest.approx(truth(winner.schedule), rel=0.01)
    incidents = winner.search["conditions"]["lost_workers"]
    assert [item["then"] for item in incidents] == ["tried again alone", "given up"] * 3
    wrong, *lost = sorted(run.notes, key=lambda note: not note.startswith("left out: "))
    assert "y[0, 0]: got 1, want 2" in wrong
    assert len(lost) == 6  # three kernels, each lost with two workers


def test_workers_killed_by_hand_lose_no_candidate(run: TuningRun, tmp_path: Path) -> None:
    killer = Killer(tmp_path / "log", count=3, give_up_s=1.5)
    killer.start()
    winner, records = search_on_fake_device(run, planted={}, log=tmp_path / "log")
    killer.join()
    assert killer.killed >= 1
    assert len(run.notes) >= 1
    assert all("SIGKILL" in note for note in run.notes)
    assert {r.outcome for r in records} == {Outcome.OK}
    assert len({r.schedule for r in records}) == len(records)
    assert sum(r.search["chosen"] != "random" for r in records) == TRIALS
    assert truth(winner.schedule) <= 1.02 * OPTIMUM


REAL = problem_for(load("layernorm"), shape="2048x768")


def some_legal(facts: Device, count: int) -> list[Schedule]:
    """The default, then legal schedules that hold the row in registers and compute the variance as written."""
    default = default_schedule(REAL, facts)
    plain = [
        s
        for s in space(REAL, facts).legal
        if s != default and (s.hold, s.variance, s.reduce_with) == ("registers", "two_pass", "shuffle")
    ]
    plain.sort(key=lambda s: (predicted_us(REAL, s, facts), s.key))
    return [default, *plain[: count - 1]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_fault_is_a_text_that_compiles(kind: str) -> None:
    module = emit(REAL, default_schedule(REAL, TARGETS["h200"]))
    assert compile_module(plant(module, kind, cols=REAL.cols), 90).data.startswith(b"\x7fELF")


class KillsTheWorker(Silent):
    """Kills the newest worker from outside after each of the first `count` batches."""

    def __init__(self, pids: list[int], count: int) -> None:
        self._pids, self._left = pids, count

    def standing(self, standing: Standing) -> None:
        if self._left and standing.trials:  # none were tried yet where a phase begins
            self._left -= 1
            os.kill(self._pids[-1], signal.SIGKILL)


def tune_planted(
    monkeypatch: pytest.MonkeyPatch, legal: list[Schedule], kinds: dict[Schedule, str], *, kills: int, facts: Device
) -> tuple[Record, list[Record], list[str]]:
    """A whole measured run over `legal`: the winner, every candidate's record, the run's notes."""
    pids: list[int] = []

    class Noted(Worker):
        def __init__(self, factory: str, index: int) -> None:
            super().__init__(factory, index)
            pids.append(self.pid)

    def prepare(run: TuningRun, **_: object) -> tuple[Search, Schedule, None]:
        predicted = [predicted_us(run.problem, s, facts) for s in legal]
        return Search(legal, predicted=predicted, seeds=legal, seed=run.seed), legal[0], None

    monkeypatch.setattr(Search, "is_settled", lambda *_: False)  # all of `legal` is wanted
    monkeypatch.setattr(process, "Worker", Noted)
    monkeypatch.setattr(measured, "prepare", prepare)
    monkeypatch.setattr(measured, "emit", planting(kinds))
    with processes(0) as using, open_run(
        REAL, facts, place=Place(), seed=0, trials=len(legal), budget_s=120.0,
        progress=KillsTheWorker(pids, kills), command="test", versions={"normgen": "0.1.0"},
    ) as run:  # fmt: skip
        records, _ = measured.measure_on_gpu(run, using)
        return records[0], list(read(run.candidates_path).records), run.notes


@pytest.mark.gpu(alone=True)
def test_faults_in_real_kernels_are_recorded_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normgen.cuda.driver import device_facts

    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))  # results of sound kernels must not answer
    facts = device_facts(0)
    legal = some_legal(facts, 24)
    kinds = dict(zip(legal[2:20:3], KINDS, strict=True))
    winner, records, notes = tune_planted(monkeypatch, legal, kinds, kills=0, facts=facts)
    outcome = {kind: next(r.outcome for r in records if r.schedule == s) for s, kind in kinds.items()}
    assert outcome == {
        "far": Outcome.LAUNCH_ERROR,
        "behind": Outcome.WRONG_RESULT,
        "endless": Outcome.TIMEOUT,
        "trap": Outcome.LAUNCH_ERROR,
        "wrong": Outcome.WRONG_RESULT,
        "shared": Outcome.LAUNCH_ERROR,
    }
    right = [r for r in records if r.schedule not in kinds and not r.reason.startswith("same code")]
    assert {r.outcome for r in right} == {Outcome.OK}
    assert {r.schedule for r in records} == set(legal)
    assert winner.schedule not in kinds
    lost = [note for note in notes if note.startswith("worker lost")]
    assert len(lost) == 6  # far, endless and trap, each lost with two workers
    (left_out,) = set(notes) - set(lost)
    assert left_out.startswith("left out: ")  # a kernel that was wrong and would have been the first choice
    assert winner.us is not None
    assert winner.us <= 1.05 * min(r.us for r in right if r.us is not None)


@pytest.mark.gpu(alone=True)  # beside others a launch may take so long that its kernel is given up
def test_a_worker_killed_twice_between_batches_loses_no_real_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normgen.cuda.driver import device_facts

    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))  # results of sound kernels must not answer
    facts = device_facts(0)
    legal = some_legal(facts, 24)
    winner, records, notes = tune_planted(monkeypatch, legal, {}, kills=2, facts=facts)
    assert {r.schedule for r in records} == set(legal)
    assert not [(r.outcome, r.reason) for r in records if r.outcome is not Outcome.OK]
    assert len(notes) == 2
    assert all("SIGKILL" in note for note in notes)
    assert winner.search["conditions"]["lost_workers"]
