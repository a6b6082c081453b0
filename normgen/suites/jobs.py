"""The jobs of a suite in a database that workers of one or several hosts share. A job is claimed once.

A claim is one UPDATE that only fits the state the claimer saw, so of two claimers the database lets one through.
The owner of a job bumps its `beat` as long as it lives. Whoever waits for work watches these counters with its own
clock (clocks of hosts need not agree): a job whose beat stands still for `stale_s` is taken over, and one whose
owner was a process of this machine that is gone is taken over at once.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from normgen.errors import NormgenError, UsageError

STALE_S = 15.0
MAX_ATTEMPTS = 3  # workers that may die over one job

_METADATA = sql.MetaData()
_JOBS = sql.Table(
    "normgen_jobs",
    _METADATA,
    sql.Column("suite", sql.String(200), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("label", sql.Text, nullable=False),
    sql.Column("task", sql.Text, nullable=False),
    sql.Column("status", sql.String(16), nullable=False),
    sql.Column("owner", sql.String(200), nullable=False),
    sql.Column("beat", sql.Integer, nullable=False),
    sql.Column("attempts", sql.Integer, nullable=False),
    sql.Column("result", sql.Text, nullable=False),
    sql.Column("reason", sql.Text, nullable=False),
)


class StorageError(NormgenError):
    """The shared database cannot be reached, or refuses."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """One problem of a suite; `task` is what `tune` is asked, `result` the winner's record line."""

    suite: str
    number: int
    label: str
    task: Mapping[str, Any] = field(hash=False)
    status: str  # open | running | done | failed
    owner: str
    beat: int
    attempts: int
    result: str
    reason: str

    @property
    def is_over(self) -> bool:
        return self.status in ("done", "failed")


def storage_url(url: str) -> str:
    """The URL with the driver this package installs. Raises UsageError when it is no database URL."""
    try:
        parsed = sql.make_url(url)
    except sql.exc.ArgumentError:
        hint = "for example postgresql://user@host/normgen"
        raise UsageError("the storage is a database URL", received=url, hint=hint) from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


class JobStore:
    """Jobs of suites in one database; safe to use from several threads, processes and hosts."""

    def __init__(self, url: str, *, stale_s: float = STALE_S) -> None:
        self.url = storage_url(url)
        self.stale_s = stale_s
        self._owner = process_name()
        self._seen: dict[int, tuple[str, int, float]] = {}  # job -> owner, beat, when first seen so
        options: dict[str, Any] = {"connect_args": {"timeout": 30}} if self.url.startswith("sqlite") else {}
        try:
            self._engine = sql.create_engine(self.url, poolclass=sql.NullPool, **options)
        except ImportError as error:
            hint = "pip install 'normgen[distributed]'"
            raise UsageError("the storage's driver is not installed", received=str(error), hint=hint) from None
        self._create_table()

    def _create_table(self) -> None:
        for attempt in range(5):  # two processes may create it at the same moment: the second finds it there
            try:
                _METADATA.create_all(self._engine)
                return
            except (sql.exc.ProgrammingError, sql.exc.IntegrityError) as error:
                if attempt == 4:
                    raise StorageError("the table of jobs cannot be created", received=_text(error)) from None
                time.sleep(0.1)
            except sql.exc.SQLAlchemyError as error:
                shown = sql.make_url(self.url).render_as_string()
                raise StorageError("the storage cannot be used", received=f"{shown}: {_text(error)}") from None

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _begin(self) -> Iterator[Any]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except sql.exc.SQLAlchemyError as error:
            raise StorageError("the storage does not answer", received=_text(error)) from None

    def add(self, suite: str, tasks: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Enter (label, task) pairs as open jobs; those that are there already stay as they are."""
        known = {job.number for job in self.jobs(suite)}
        for number, (label, task) in enumerate(tasks):
            if number in known:
                continue
            fresh = {"suite": suite, "number": number, "label": label, "task": json.dumps(task)}
            fresh |= {"status": "open", "owner": "", "beat": 0, "attempts": 0, "result": "", "reason": ""}
            try:
                with self._engine.begin() as connection:
                    connection.execute(sql.insert(_JOBS).values(**fresh))
            except sql.exc.IntegrityError:
                continue  # another host entered it first
            except sql.exc.SQLAlchemyError as error:
                raise StorageError("the storage does not answer", received=_text(error)) from None

    def jobs(self, suite: str) -> list[Job]:
        """All jobs of a suite, in order."""
        query = sql.select(_JOBS).where(_JOBS.c.suite == suite).order_by(_JOBS.c.number)
        with self._begin() as connection:
            rows = connection.execute(query).mappings().all()
        return [Job(**{**row, "task": json.loads(row["task"])}) for row in rows]

    def clear(self, suite: str) -> None:
        """Forget a suite's jobs."""
        with self._begin() as connection:
            connection.execute(sql.delete(_JOBS).where(_JOBS.c.suite == suite))

    def reopen_failed(self, suite: str) -> None:
        """Failed jobs may be tried again."""
        fresh = {"status": "open", "attempts": 0, "reason": ""}
        where = (_JOBS.c.suite == suite, _JOBS.c.status == "failed")
        with self._begin() as connection:
            connection.execute(sql.update(_JOBS).where(*where).values(**fresh))

    def claim(self, suite: str) -> Job | None:
        """The next open job, else one whose owner is dead, now this process's; None when there is none just now."""
        jobs = self.jobs(suite)
        for job in jobs:
            if job.status == "open" and (mine := self._take(job)):
                return mine
        for job in jobs:
            if job.status != "running" or not self._is_dead(job):
                continue
            if job.attempts >= MAX_ATTEMPTS:
                reason = f"{job.attempts} workers died over it"
                self._update(job, status="failed", reason=reason)
            elif mine := self._take(job):
                return mine
        return None

    def is_over(self, suite: str) -> bool:
        """Every job is done or failed."""
        return all(job.is_over for job in self.jobs(suite))

    def live_owners(self, suite: str) -> list[str]:
        """Processes of this machine that work on the suite now."""
        running = [job.owner for job in self.jobs(suite) if job.status == "running"]
        return [owner for owner in running if _lives_here(owner) is True]

    def beat(self, job: Job) -> bool:
        """Say that the owner lives; False when the job is another's by now."""
        where = (_JOBS.c.suite == job.suite, _JOBS.c.number == job.number, _JOBS.c.owner == self._owner)
        values = {"beat": _JOBS.c.beat + 1}
        with self._begin() as connection:
            done = connection.execute(sql.update(_JOBS).where(*where, _JOBS.c.status == "running").values(**values))
        return bool(done.rowcount == 1)

    def finish(self, job: Job, result: str) -> bool:
        """Hand in the winner; False when the job is another's by now."""
        return self._end(job, status="done", result=result)

    def fail(self, job: Job, reason: str) -> bool:
        return self._end(job, status="failed", reason=reason)

    def _end(self, job: Job, **values: Any) -> bool:
        where = (_JOBS.c.suite == job.suite, _JOBS.c.number == job.number, _JOBS.c.owner == self._owner)
        with self._begin() as connection:
            done = connection.execute(sql.update(_JOBS).where(*where, _JOBS.c.status == "running").values(**values))
        return bool(done.rowcount == 1)

    def _take(self, job: Job) -> Job | None:
        changed = {"status": "running", "owner": self._owner, "beat": job.beat + 1, "attempts": job.attempts + 1}
        return Job(**{**vars(job), **changed}) if self._update(job, **changed) else None

    def _update(self, seen: Job, **values: Any) -> bool:
        """Change a job only if it still is as it was seen."""
        same = [getattr(_JOBS.c, n) == getattr(seen, n) for n in ("suite", "number", "status", "owner", "beat")]
        with self._begin() as connection:
            done = connection.execute(sql.update(_JOBS).where(*same).values(**values))
        return bool(done.rowcount == 1)

    def _is_dead(self, job: Job) -> bool:
        lives = _lives_here(job.owner)
        if lives is False:
            return True
        owner, beat, since = self._seen.get(job.number, ("", -1, 0.0))
        if (owner, beat) != (job.owner, job.beat):
            self._seen[job.number] = (job.owner, job.beat, time.monotonic())
            return False
        return time.monotonic() - since > self.stale_s


def process_name() -> str:
    """A name no other process has: machine, process id, its start, and a random part."""
    pid = os.getpid()
    return f"{_machine()}:{pid}:{_started(pid)}:{uuid.uuid4().hex[:8]}"


def _lives_here(owner: str) -> bool | None:
    """Whether the owner is a living process of this machine; None when it is of another one."""
    machine, _, rest = owner.partition(":")
    pid, _, rest = rest.partition(":")
    if machine != _machine() or not pid.isdecimal():
        return None
    return _started(int(pid)) == rest.partition(":")[0] != ""


@cache
def _machine() -> str:
    """One name per boot and process namespace: only there do process ids mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{uuid.getnode():x}"


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty when there is none, or it is a zombie."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if facts[0] == "Z" else facts[19]


def _text(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]
