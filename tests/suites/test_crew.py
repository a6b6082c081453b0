"""A suite over two simulated GPUs: every job once, a killed worker replaced, a suite begun anew; the shipped one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.suites.crew import HostPlan, share_of_cores, tasks_of, tune_suite
from normgen.suites.jobs import JobStore
from normgen.suites.suite import load_suite

H200 = TARGETS["h200"]
WORKER = (sys.executable, "-m", "normgen.files.loading", "tests.suites.fake_worker")


def task(rows: int, trials: int = 4) -> tuple[str, dict[str, Any]]:
    plain = {"op": "rmsnorm", "without": ["rstd"], "trials": trials, "budget_s": 60.0, "seed": 0}
    return f"rmsnorm {rows}x256", {**plain, "shape": f"{rows}x256"}


class Heard:
    """Keeps the events; kills the worker of `victim` when it first reports a standing."""

    def __init__(self, url: str = "", *, victim: str = "") -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self._url, self._victim = url, victim

    def event(self, place: str, facts: Mapping[str, Any]) -> None:
        self.events.append((place, facts))
        if self._victim == place and facts["event"] == "standing":
            self._victim = ""
            store = JobStore(self._url)
            (job,) = (j for j in store.jobs(SUITE) if j.number == facts["job"])
            store.close()
            os.kill(int(job.owner.split(":")[1]), signal.SIGKILL)

    def of(self, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [(place, facts) for place, facts in self.events if facts["event"] == kind]


SUITE = "made-up"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_two_gpus_share_a_suite_and_a_killed_worker_is_replaced(folders: Path) -> None:
    queue = folders / "state" / "suites" / f"{SUITE}.sqlite"
    heard = Heard(f"sqlite:///{queue}", victim="gpu 1")
    tasks = [task(64 * n) for n in range(1, 5)]
    plan = HostPlan(suite=SUITE, tasks=tasks, device=H200, devices=[0, 1], worker=WORKER)
    result = tune_suite(plan, heard)
    assert [job.status for job in result.jobs] == ["done"] * 4
    assert not result.failed
    ((place, died),) = heard.of("died")
    assert (place, died["status"]) == ("gpu 1", -signal.SIGKILL)
    after = heard.events[heard.events.index((place, died)) :]
    assert any(p == "gpu 1" and f["event"] == "start" for p, f in after), "its place works on"
    taken_over = [job for job in result.jobs if job.attempts > 1]
    assert len(taken_over) == 1
    assert {p for p, _ in heard.of("done")} == {"gpu 0", "gpu 1"}
    assert sorted(f["job"] for _, f in heard.of("done")) == [0, 1, 2, 3]
    assert {r.problem.rows for r in result.records.values()} == {64, 128, 192, 256}
    assert all(r.measured for r in result.records.values())


def test_with_a_storage_a_suite_is_joined_and_restart_begins_it_anew(folders: Path) -> None:
    url = f"sqlite:///{folders}/shared.sqlite"
    plan = HostPlan(suite=SUITE, tasks=[task(64)], device=H200, devices=[0], worker=WORKER, storage=url)
    first, joined, again = Heard(), Heard(), Heard()
    tune_suite(plan, first)
    result = tune_suite(plan, joined)
    assert [job.status for job in result.jobs] == ["done"]
    assert not joined.of("start"), "what is done is not done again"
    result = tune_suite(replace(plan, restart=True), again)
    assert len(again.of("done")) == len(first.of("done")) == 1
    assert [job.attempts for job in result.jobs] == [1]


def test_a_suite_that_somebody_works_on_is_not_begun_anew(folders: Path) -> None:
    url = f"sqlite:///{folders}/shared.sqlite"
    plan = HostPlan(suite=SUITE, tasks=[task(64)], device=H200, devices=[0], worker=WORKER, storage=url, restart=True)
    with contextlib.closing(JobStore(url)) as store:
        store.add(SUITE, plan.tasks)
        assert store.claim(SUITE) is not None  # this process lives
        with pytest.raises(UsageError, match="another process tunes this suite"):
            tune_suite(plan, Heard())


def test_workers_of_one_host_do_not_compete_for_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    shares = [share_of_cores(place, 4) for place in range(4)]
    assert sorted(core for share in shares for core in share) == list(range(16))
    assert {len(share) for share in shares} == {4}
    assert share_of_cores(0, 1) == list(range(16))


def test_the_scaling_suite_has_sixteen_problems_none_of_which_outweighs_its_share() -> None:
    suite = load_suite("scaling_h200")
    assert len(suite.entries) == 16
    tasks = tasks_of(suite.entries, trials=None, budget_s=60.0, seed=0)
    assert len({label for label, _ in tasks}) == 16
    sizes = [e.problem.compulsory_bytes for e in suite.entries]
    assert max(sizes) < 4 * sum(sizes) / 16, "a fourth of the suite must not hang on one problem"
    assert {bool(e.problem.column_outputs) for e in suite.entries} == {True, False}
