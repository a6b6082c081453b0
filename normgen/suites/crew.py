"""Tuning a suite: one worker process a GPU, jobs from a queue that several hosts may share."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from normgen.device import Device
from normgen.errors import UsageError, refusal_of
from normgen.files.names import NamePart, name_part
from normgen.files.private import make_private, to_stderr
from normgen.files.shipped import VERSION
from normgen.measure.timing import PROTOCOL
from normgen.problem.problem import Problem
from normgen.records.record import Record, parse_line
from normgen.records.winners import adopt, gpu_slug, needs_state, state_folder
from normgen.suites.jobs import STALE_S, Job, JobStore, StorageError
from normgen.suites.shared_study import delete_studies
from normgen.suites.worker import Configuration

WORKER = (sys.executable, "-m", "normgen.files.loading", "normgen.suites.worker")
RESPAWNS = 8  # of one place, over a whole suite


class CrewEntry(Protocol):
    """One problem of a suite."""

    def arguments(self) -> dict[str, Any]: ...
    @property
    def problem(self) -> Problem: ...
    @property
    def label(self) -> str: ...


class SuiteProgress(Protocol):
    def event(self, place: str, facts: Mapping[str, Any]) -> None:
        """A worker said something; `place` is its GPU."""


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """What became of every job; `wall_s` is this host's time."""

    suite: str
    device: Device
    jobs: tuple[Job, ...]
    records: Mapping[int, Record] = field(hash=False)
    workers: int
    wall_s: float
    interrupted: bool = False

    @property
    def failed(self) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs if job.status == "failed")

    def as_dict(self) -> dict[str, Any]:
        """What `normgen tune --suite --json` prints: suite, device, workers, wall_s, interrupted, jobs."""
        jobs = [
            {
                "label": job.label,
                "status": job.status,
                "attempts": job.attempts,
                "reason": job.reason,
                "best": self.records[job.number].as_dict() if job.number in self.records else None,
            }
            for job in self.jobs
        ]
        head = {"suite": self.suite, "device": self.device.name, "workers": self.workers}
        return {**head, "wall_s": round(self.wall_s, 2), "interrupted": self.interrupted, "jobs": jobs}


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """What one host does: which tasks of which suite, on which devices."""

    suite: str
    tasks: Sequence[tuple[str, Mapping[str, Any]]]
    device: Device
    devices: Sequence[int | str]  # one worker each
    target: str = "h200"
    storage: str | None = None
    resume: bool = False
    restart: bool = False
    reuse: bool = True
    stale_s: float = STALE_S
    worker: Sequence[str] = WORKER


def tasks_of(
    entries: Iterable[CrewEntry], *, trials: int | None, budget_s: float, seed: int
) -> list[tuple[str, dict[str, Any]]]:
    """(label, arguments of `tune`) of each entry, the most bytes first: a long job at the end keeps one GPU busy."""
    ordered = sorted(entries, key=lambda e: (-e.problem.compulsory_bytes, e.label))
    asked = {"trials": trials, "budget_s": budget_s, "seed": seed}
    return [(e.label, {**e.arguments(), **asked}) for e in ordered]


def suite_id(name: str, tasks: Sequence[tuple[str, Mapping[str, Any]]], device: Device, *, measured: bool) -> str:
    """The same on every host that asks the same of the same GPU model with the same release and protocol."""
    facts = json.dumps([tasks, device.name, measured, VERSION, PROTOCOL], sort_keys=True)
    return f"{name_part(NamePart.SUITE, name)}-{gpu_slug(device)}-{hashlib.sha256(facts.encode()).hexdigest()[:10]}"


def tune_suite(plan: HostPlan, progress: SuiteProgress) -> SuiteResult:
    """Tune every job of the plan; winners go to this user's records, on every host that takes part.

    Without a storage the queue is this host's own; `resume` goes on with what is left of it. With one, the call joins
    whoever works on the suite. Ctrl-C ends the workers; what they recorded is kept.
    """
    began = time.monotonic()
    store = JobStore(plan.storage or f"sqlite:///{_queue_file(plan.suite)}", stale_s=plan.stale_s)
    try:
        _enter(plan, store)
        crew = _Crew(plan, store, progress)
        interrupted = crew.run()
        jobs = store.jobs(plan.suite)
    finally:
        store.close()
    records = {job.number: _winner(job) for job in jobs if job.status == "done"}
    _adopt(records.values(), plan.device)
    return SuiteResult(
        suite=plan.suite,
        device=plan.device,
        jobs=tuple(jobs),
        records=records,
        workers=len(plan.devices),
        wall_s=time.monotonic() - began,
        interrupted=interrupted,
    )


def _winner(job: Job) -> Record:
    try:
        return parse_line(job.result)
    except ValueError as error:
        raise StorageError("a job that is done holds a record", received=f"{job.label}: {error}") from None


def _adopt(records: Iterable[Record], device: Device) -> None:
    """Among this user's winners; the queue keeps the records of a state folder that takes none."""
    try:
        for record in records:
            adopt(record, state_folder() / "records", device)
    except OSError as error:
        to_stderr(f"not kept: the winners among this user's records ({refusal_of(error)})")


def _queue_file(suite: str) -> Path:
    folder = state_folder() / "suites"
    with needs_state():
        make_private(folder)
    return folder / f"{suite}.sqlite"


def _enter(plan: HostPlan, store: JobStore) -> None:
    """Put the jobs into the queue, or join those that are there."""
    if plan.restart or not (plan.storage or plan.resume):
        if owners := store.live_owners(plan.suite):
            hint = "--resume joins it"
            raise UsageError("another process tunes this suite", received=f"{len(owners)} jobs at work", hint=hint)
        store.clear(plan.suite)
        if plan.storage:
            delete_studies(store.url, plan.suite + "/")
    elif plan.resume:
        store.reopen_failed(plan.suite)
    store.add(plan.suite, plan.tasks)


class _Crew:
    """The worker processes of this host: started, listened to, replaced when they die."""

    def __init__(self, plan: HostPlan, store: JobStore, progress: SuiteProgress) -> None:
        self._plan = plan
        self._store = store
        self._progress = progress
        self._heard: queue.Queue[tuple[int, Mapping[str, Any] | None]] = queue.Queue()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._respawns = [0] * len(plan.devices)

    def run(self) -> bool:
        """Until every worker has ended of itself; whether Ctrl-C ended them."""
        try:
            for place in range(len(self._plan.devices)):
                self._start(place)
            while self._processes:
                place, facts = self._heard.get()
                if facts is not None:
                    self._progress.event(self._name(place), facts)
                else:
                    self._ended(place)
        except KeyboardInterrupt:
            return True
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
        return False

    def _name(self, place: int) -> str:
        device = self._plan.devices[place]
        return f"gpu {device}" if isinstance(device, int) else f"{device} {place}"

    def _start(self, place: int) -> None:
        plan = self._plan
        configuration = Configuration(
            url=self._store.url,
            suite=plan.suite,
            device=plan.devices[place],
            target=plan.target,
            cores=share_of_cores(place, len(plan.devices)),
            stale_s=plan.stale_s,
            resume=plan.resume,
            reuse=plan.reuse,
            shared=plan.storage is not None,
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        process = subprocess.Popen(
            plan.worker,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process, which then ends its workers
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(configuration)) + "\n")
        process.stdin.flush()
        self._processes[place] = process
        threading.Thread(target=self._listen, args=(place, process), daemon=True).start()

    def _listen(self, place: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._heard.put((place, json.loads(line)))
        process.wait()
        self._heard.put((place, None))

    def _ended(self, place: int) -> None:
        """A worker that died is replaced; its job is taken over by whoever looks for work next."""
        process = self._processes.pop(place)
        assert process.stdin is not None
        process.stdin.close()
        if process.returncode == 0:
            return
        self._respawns[place] += 1
        facts = {"event": "died", "job": -1, "status": process.returncode}
        self._progress.event(self._name(place), facts)
        if process.returncode < 0 and self._respawns[place] <= RESPAWNS and not self._store.is_over(self._plan.suite):
            self._start(place)


def share_of_cores(place: int, places: int) -> list[int]:
    """An equal, contiguous part of the cores this process may use: compilers of two GPUs do not compete."""
    cores = sorted(os.sched_getaffinity(0))
    if places < 2 or places > len(cores):
        return cores
    return cores[place * len(cores) // places : (place + 1) * len(cores) // places]
