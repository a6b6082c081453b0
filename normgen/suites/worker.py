"""A worker of a suite: claims jobs one after the other, tunes them, hands in the winners.

Started by `suite_run` as a process of its own, a GPU each. The first line on
stdin is its configuration as JSON; each line on stdout is an event as JSON. When stdin closes its parent is gone,
and so is the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from normgen.errors import NormgenError
from normgen.suites.jobs import STALE_S, Job, JobStore
from normgen.suites.shared_study import SharedStudy
from normgen.tuning.progress import Standing
from normgen.tuning.result import Result
from normgen.tuning.tuner import tune

WAIT_S = 0.5  # between looks for work while others still run jobs they may leave behind
BEATS = 5  # heartbeats within the time after which a worker counts as dead
STUCK_BUDGETS = 10  # a job that takes so many times its budget, and two minutes, counts as stuck


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What a worker is told; `device` as `tune` takes it, `cores` those it may use."""

    url: str
    suite: str
    device: int | str | None
    target: str = "h200"
    cores: Sequence[int] = ()
    stale_s: float = STALE_S
    resume: bool = False
    reuse: bool = True
    shared: bool = False  # the storage is shared with other hosts: candidates go there too


class Events:
    """Progress of the job at hand as lines of JSON for the parent."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._lock = threading.Lock()
        self.number = -1

    def send(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "job": self.number, **facts})
        with self._lock, contextlib.suppress(OSError):
            print(line, file=self._out, flush=True)

    def phase(self, name: str) -> None:
        self.send("phase", name=name)

    def standing(self, standing: Standing) -> None:
        self.send("standing", trials=standing.trials, trials_max=standing.trials_max, best_us=standing.best_us)

    def note(self, text: str) -> None:
        self.send("note", text=text)


def work(configuration: Configuration, events: Events) -> None:
    """Claim and tune until every job of the suite is over."""
    store = JobStore(configuration.url, stale_s=configuration.stale_s)
    try:
        while True:
            job = store.claim(configuration.suite)
            if job is not None:
                do_job(job, store, configuration, events)
            elif store.is_over(configuration.suite):
                return
            else:
                time.sleep(WAIT_S)
    finally:
        store.close()


def do_job(job: Job, store: JobStore, configuration: Configuration, events: Events) -> None:
    """Tune one problem; an error of its own is the job's result, not the worker's end."""
    events.number = job.number
    events.send("start", label=job.label, attempt=job.attempts)
    began = time.monotonic()
    with heartbeat(job, store) as is_mine:
        try:
            result = tune_job(job, configuration, events)
        except NormgenError as error:
            store.fail(job, str(error))
            events.send("failed", reason=str(error))
            return
    if is_mine() and store.finish(job, result.record.line().strip()):
        seconds, measured = time.monotonic() - began, result.measured
        facts = {"percent_of_roof": result.record.percent_of_roof, "header": str(result.header_path or "")}
        events.send("done", us=result.record.cost_us, measured=measured, seconds=seconds, **facts)
    else:
        events.send("note", text="another worker took the job over meanwhile: this result is dropped")


def tune_job(job: Job, configuration: Configuration, events: Events) -> Result:
    with contextlib.ExitStack() as stack:
        study = None
        if configuration.shared:
            study = stack.enter_context(SharedStudy(configuration.url, study_name(job)))
        return tune(
            **task_arguments(job.task),
            device=configuration.device,
            target=configuration.target,
            progress=events,
            resume=configuration.resume or job.attempts > 1,
            reuse=configuration.reuse,
            study=study,
        )


def study_name(job: Job) -> str:
    """Of the shared study of one job, as optuna-dashboard lists it."""
    return f"{job.suite}/{job.number:03d} {job.label}"


def task_arguments(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task as `tune` takes it: JSON knows no tuples."""
    return {**task, "without": tuple(task.get("without", ()))}


@contextlib.contextmanager
def heartbeat(job: Job, store: JobStore) -> Iterator[Callable[[], bool]]:
    """Bump the job's counter while the block runs; what it yields says whether the job is still this worker's."""
    over, lost = threading.Event(), threading.Event()
    limit = time.monotonic() + 120.0 + STUCK_BUDGETS * float(job.task.get("budget_s") or 60.0)

    def run() -> None:
        while not over.wait(store.stale_s / BEATS) and time.monotonic() < limit:
            with contextlib.suppress(NormgenError):  # a database that is away for a moment
                if not store.beat(job):
                    lost.set()
                    return

    thread = threading.Thread(target=run, name="normgen-heartbeat", daemon=True)
    thread.start()
    try:
        yield lambda: not lost.is_set()
    finally:
        over.set()
        thread.join()


def end_with_parent(stream: IO[str]) -> None:
    """End this process when the parent's end of stdin closes, however the parent ended."""

    def run() -> None:
        while stream.read(1):
            pass
        os._exit(1)

    threading.Thread(target=run, name="normgen-parent", daemon=True).start()


def main() -> None:
    facts = json.loads(sys.stdin.readline())
    configuration = Configuration(**facts)
    end_with_parent(sys.stdin)
    if configuration.cores:
        os.sched_setaffinity(0, configuration.cores)
    events = Events(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # whatever else prints does not mix with the events
    try:
        work(configuration, events)
    except NormgenError as error:
        events.send("error", reason=str(error))
        sys.exit(error.exit_code)
