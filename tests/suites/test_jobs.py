"""Jobs that several processes share: claimed once, taken over from the dead. SQLite, and a real PostgreSQL server."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from normgen.errors import UsageError
from normgen.program.source import problem_for
from normgen.records.record import Outcome, Record, parse_line
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.suites import jobs
from normgen.suites.jobs import MAX_ATTEMPTS, JobStore, StorageError
from normgen.suites.shared_study import SharedStudy, delete_studies, study_names
from normgen.suites.worker import Configuration, study_name
from tests.suites import postgres
from tests.suites.claiming import claim_all
from tests.tuning.storages import opened

TASKS = [(f"job {n}", {"n": n}) for n in range(6)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.sqlite"
    found: str = request.getfixturevalue("server")
    return found


def test_of_several_processes_each_job_goes_to_one(url: str) -> None:
    suite = f"claims-{time.monotonic_ns()}"
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    many = [(f"job {n}", {}) for n in range(40)]
    JobStore(url).add(suite, many)
    processes = [context.Process(target=claim_all, args=(url, suite, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    claimed = [answers.get(timeout=5) for _ in range(40)]
    assert sorted(number for _, number in claimed) == list(range(40))
    assert JobStore(url).is_over(suite)


def test_entering_a_suite_twice_changes_nothing(url: str) -> None:
    suite = f"twice-{time.monotonic_ns()}"
    first, second = JobStore(url), JobStore(url)
    first.add(suite, TASKS)
    job = first.claim(suite)
    assert job is not None
    second.add(suite, TASKS)
    assert [j.status for j in second.jobs(suite)] == ["running"] + ["open"] * 5
    assert job.task == {"n": 0}


def other_machine(monkeypatch: pytest.MonkeyPatch, store: Callable[[], JobStore]) -> JobStore:
    """A store whose owner seems to live elsewhere."""
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "_machine", lambda: "elsewhere")
        return store()


def test_a_job_is_taken_over_when_its_heartbeat_stops_and_not_before(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = f"beats-{time.monotonic_ns()}"
    far = other_machine(monkeypatch, lambda: JobStore(url))
    near = JobStore(url, stale_s=1.5)
    near.add(suite, TASKS[:1])
    job = far.claim(suite)
    assert job is not None
    for _ in range(8):
        assert far.beat(job)
        assert near.claim(suite) is None
        time.sleep(0.3)
    assert near.claim(suite) is None
    time.sleep(1.6)
    mine = near.claim(suite)
    assert mine is not None
    assert mine.attempts == 2
    assert not far.beat(job)
    assert not far.finish(job, "late")
    assert near.finish(mine, "{}")
    assert [j.result for j in near.jobs(suite)] == ["{}"]


def test_a_job_over_which_workers_keep_dying_fails(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = f"deadly-{time.monotonic_ns()}"
    JobStore(url).add(suite, TASKS[:1])
    monkeypatch.setattr(jobs, "_lives_here", lambda owner: False if owner else None)
    for _ in range(MAX_ATTEMPTS):
        assert JobStore(url).claim(suite) is not None
    assert JobStore(url).claim(suite) is None
    (job,) = JobStore(url).jobs(suite)
    assert (job.status, job.reason) == ("failed", f"{MAX_ATTEMPTS} workers died over it")
    JobStore(url).reopen_failed(suite)
    assert JobStore(url).claim(suite) is not None


def test_a_dead_process_of_this_machine_is_known_at_once() -> None:
    child = subprocess.run(
        [sys.executable, "-c", "from normgen.suites.jobs import process_name; print(process_name())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert jobs._lives_here(child.stdout.strip()) is False
    assert jobs._lives_here(jobs.process_name()) is True
    assert jobs._lives_here("elsewhere:1:2:abc") is None


def test_what_is_no_database_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="postgresql://user@host/normgen"):
        JobStore("my database")
    with pytest.raises(StorageError, match="cannot be used"):
        JobStore(f"sqlite:///{tmp_path}/no/such/folder/jobs.sqlite")


def test_a_study_of_other_knob_values_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Numbers may leave the range of earlier trials; a word that the study has not seen may not be added."""
    url, name = f"sqlite:///{tmp_path}/study.sqlite", "older"
    number = optuna.distributions.IntDistribution(1, 4)
    word = optuna.distributions.CategoricalDistribution(("plain",))
    problem = problem_for(load("rmsnorm"), shape="64x256").question
    record = Record(problem=problem, schedule=Schedule(vector=8), outcome=Outcome.COMPILE_ERROR, measured=True)
    older = {
        name: optuna.create_trial(params={"vector": 2}, distributions={"vector": number}, value=1.0),
        "words": optuna.create_trial(params={"hold": "plain"}, distributions={"hold": word}, value=1.0),
    }
    for study, trial in older.items():
        with opened(url) as storage:
            optuna.create_study(storage=storage, study_name=study, direction="minimize").add_trial(trial)
    with SharedStudy(url, name) as shared:
        shared.add(record)
        assert shared.records() == (record,)
    with SharedStudy(url, "words") as shared, pytest.raises(StorageError, match="other knobs"):
        shared.add(record)


def start_worker(url: str, suite: str, folder: Path, machine: str, slow_s: float = 0.0) -> subprocess.Popen[str]:
    """A worker process as on a host of its own: own state, own caches of results, own name."""
    settings = {"NORMGEN_STATE_DIR": str(folder / machine), "NORMGEN_CACHE_DIR": str(folder / machine / "cache")}
    settings |= {"NORMGEN_TEST_MACHINE": machine, "NORMGEN_TEST_SLOW": str(slow_s)}
    worker = subprocess.Popen(
        [sys.executable, "-m", "normgen.files.loading", "tests.suites.fake_worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings},
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    configuration = Configuration(url=url, suite=suite, device=0, stale_s=2.0, shared=True)
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(asdict(configuration)) + "\n")
    worker.stdin.flush()
    return worker


def close(worker: subprocess.Popen[str]) -> None:
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        assert pipe is not None
        pipe.close()


def recorded(url: str, name: str) -> tuple[Record, ...]:
    with SharedStudy(url, name) as study:
        return study.records()


def suite_tasks() -> list[tuple[str, dict[str, Any]]]:
    plain = {"op": "rmsnorm", "without": ["rstd"], "trials": 16, "budget_s": 60.0, "seed": 0}
    return [(f"rmsnorm {rows}x256", {**plain, "shape": f"{rows}x256"}) for rows in (64, 128, 256)]


def test_hosts_share_a_suite_and_one_that_is_killed_loses_nothing(server: str, tmp_path: Path) -> None:
    suite = f"hosts-{time.monotonic_ns()}"
    store = JobStore(server)
    store.add(suite, suite_tasks())
    victim = start_worker(server, suite, tmp_path, "host-a", slow_s=0.15)
    assert victim.stdout is not None
    for line in victim.stdout:  # until a batch is recorded
        if json.loads(line).get("trials"):
            break
    (taken,) = (job for job in store.jobs(suite) if job.status == "running")
    victim.send_signal(signal.SIGKILL)
    close(victim)
    name = study_name(taken)
    before = {r.schedule: r for r in recorded(server, name)}
    assert 8 <= len(before) < 16
    others = [start_worker(server, suite, tmp_path, host) for host in ("host-b", "host-c")]
    said = [
        worker.stdout.read() for worker in others if worker.stdout is not None
    ]  # stdin stays open: the parent lives
    assert [worker.wait() for worker in others] == [0, 0]
    for worker in others:
        close(worker)
    events = [json.loads(line) for text in said for line in text.splitlines()]
    found = store.jobs(suite)
    assert [job.status for job in found] == ["done"] * 3
    assert [job.attempts for job in found] == [2 if job.number == taken.number else 1 for job in found]
    assert sorted(e["job"] for e in events if e["event"] == "done") == [0, 1, 2]
    assert any("recorded by another process" in e["text"] for e in events if e["event"] == "note")
    for job in found:
        winner = parse_line(job.result)
        assert winner.measured
        assert f"{winner.problem.rows}x{winner.problem.cols}" == job.task["shape"]
        kept = recorded(server, study_name(job))
        assert len(kept) == len({r.schedule for r in kept})
        assert sum(r.search["chosen"] != "random" for r in kept) == 16
        assert replace(winner.schedule, statistics="nullable") in {r.schedule for r in kept}  # a finalist may lack them
    after = {r.schedule: r for r in recorded(server, name)}
    assert all(after[schedule] == record for schedule, record in before.items())  # not measured again
    assert sorted(study_names(server, suite)) == [study_name(job) for job in found]  # hosts begin in any order
    delete_studies(server, suite + "/")
    assert study_names(server, suite) == []
