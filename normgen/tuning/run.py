"""The state of one tuning run: its folder, its clock, its facts, and a record for each candidate as it happens."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from normgen.cost.work import flops
from normgen.device import Device
from normgen.errors import refusal_of
from normgen.files.private import make_private
from normgen.problem.problem import Problem
from normgen.problem.words import file_stem
from normgen.records.lines import append
from normgen.records.memory import KnownAnswers
from normgen.records.place import Place
from normgen.records.record import Record
from normgen.records.winners import gpu_slug, needs_state, state_folder
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import is_built_in
from normgen.tuning import resume as resuming
from normgen.tuning.candidate import Candidate, Settled
from normgen.tuning.progress import Progress, Standing


class Study(Protocol):
    """A study that hosts share: it gets every candidate, and gives back what was recorded of this run."""

    def add(self, record: Record) -> None: ...

    def records(self) -> Sequence[Record]: ...


class Clock:
    """Seconds since the start, per phase, and until the budget ends. One thread's phases: they never overlap."""

    def __init__(self, budget_s: float) -> None:
        self._start = time.monotonic()
        self.budget_s = budget_s
        self.phases_s: dict[str, float] = {}
        self._within: list[float] = []  # seconds that the phases inside each open phase took

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        return self.budget_s - self.elapsed_s

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time until the end of the block; that of a phase inside it counts there only."""
        start = time.monotonic()
        self._within.append(0.0)
        try:
            yield
        finally:
            took = time.monotonic() - start
            self.phases_s[name] = self.phases_s.get(name, 0.0) + took - self._within.pop()
            if self._within:
                self._within[-1] += took

    def shares_s(self) -> dict[str, float]:
        """Seconds of every phase, of what is in no phase (`other`), and `all`: the sum of those before it."""
        elapsed_s = self.elapsed_s
        return {**self.phases_s, "other": elapsed_s - sum(self.phases_s.values()), "all": elapsed_s}


@dataclass(kw_only=True)
class TuningRun:
    """What every part of a run needs to know, and the file its candidates go to."""

    problem: Problem
    device: Device
    place: Place
    seed: int
    trials: int
    clock: Clock
    progress: Progress
    command: str
    versions: Mapping[str, str]
    folder: Path
    measured: bool = False
    goes_on: bool = False
    reuse: bool = True
    recorded: tuple[Record, ...] = ()  # what the run's file held when it was resumed
    memory: KnownAnswers = field(default_factory=KnownAnswers)
    study: Study | None = None
    storage: str | None = None
    sampler: str = "normgen"
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def counted(self) -> str:
        """`3 timeout, 5 wrong_result`."""
        return ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items())) or "no candidate"

    @cached_property
    def own_spec(self) -> str:
        """The text of a spec that does not come with normgen."""
        spec = self.problem.spec
        return "" if is_built_in(spec) else spec.text

    @property
    def candidates_path(self) -> Path:
        """The file of this run's records."""
        return self.folder / "candidates.jsonl"

    def begin(self, phase: str, trials: int = 0) -> None:
        """Tell of a phase of so many trials at most, and of the time left."""
        self.progress.phase(phase)
        left_s = max(0.0, self.clock.left_s)
        self.progress.standing(Standing(trials=0, trials_max=trials or self.trials, left_s=left_s))

    def note(self, text: str) -> None:
        """Say it now and keep it for the result."""
        self.notes.append(text)
        self.progress.note(text)

    def record(self, candidate: Settled, **evidence: Any) -> Record:
        """The candidate's record, with what the run knows; `search` says how it was chosen too."""
        if candidate.chosen:
            evidence["search"] = {**evidence.get("search", {}), "chosen": candidate.chosen}
        return Record(
            problem=self.problem.question,
            place=self.place,
            bytes=self.problem.compulsory_bytes,
            flops=flops(self.problem),
            device=self.device.as_dict(),
            versions=self.versions,
            command=self.command,
            seed=self.seed,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            spec=self.own_spec,
            **candidate.evidence(),
            **evidence,
        )

    def recall(self, candidate: Candidate, text_of: Callable[[Schedule], str]) -> Record | None:
        """What an earlier run, or this one before it was resumed, found out about the candidate.

        Only where the schedule is emitted as the text that was measured then.
        """
        known = self.memory.recall(candidate.schedule)
        if known is not None and known.text != (candidate.text or text_of(candidate.schedule)):
            self._note_other_text()
            return None
        return known

    def _note_other_text(self) -> None:
        self.counts["another_text"] += 1
        if self.counts["another_text"] == 1:
            self.note("kept results of kernels that are emitted as another text today are measured again")

    def keep(self, candidate: Settled, **evidence: Any) -> Record:
        """Write the candidate's record to the run's file, and count it.

        What was taken over is not written twice, and keeps its own date and command.
        """
        known = candidate.known
        if known is None:
            record = self.record(candidate, **evidence)
            self.memory.learn(record)
        else:
            record = replace(known, search={**known.search, "reused": True})
            self.counts["reused"] += 1
        self.counts[record.outcome.value] += 1
        if known is None or not self.memory.is_own(known):
            self._append(record)
            if self.study is not None:
                self.study.add(record)
        return record

    def take_over(self, records: Sequence[Record]) -> None:
        """What other hosts recorded of this run is as good as its own."""
        here = {r.schedule for r in self.recorded}
        others = [r for r in records if r.schedule not in here]
        for record in others:
            self._append(record)
        self.recorded = (*self.recorded, *others)
        self.memory = KnownAnswers(own=self.recorded)
        if others:
            self.note(f"{len(others)} candidates of this run were recorded by another process")

    def finish(self) -> None:
        """All is written: `--resume` has nothing to go on with."""
        with self.keeping("that the run is finished"):
            resuming.write_manifest(self.folder, self.asked, finished=True)

    @contextlib.contextmanager
    def keeping(self, what: str) -> Iterator[None]:
        """Write into the state folder: what it does not take is said once, and costs nothing else."""
        try:
            yield
        except OSError as error:
            lost = f"not kept: {what} ({refusal_of(error)})"
            if lost not in self.notes:
                self.note(lost)

    def _append(self, record: Record) -> None:
        with self.keeping("candidates"):
            append(self.candidates_path, record.line())

    @property
    def asked(self) -> dict[str, Any]:
        """What must be the same for another process to go on with this run."""
        return {
            "problem": self.problem.question.as_dict(),
            "space": {name: list(values) for name, values in self.problem.searched_knobs.items()},
            "device": self.device.name,
            **self.place.as_dict(),
            "seed": self.seed,
            "sampler": self.sampler,
            "measured": self.measured,
            "nvrtc": self.versions.get("nvrtc"),
            "protocol": self.versions.get("protocol"),
        }


@contextlib.contextmanager
def open_run(
    problem: Problem,
    device: Device,
    *,
    place: Place,
    seed: int,
    trials: int,
    budget_s: float,
    progress: Progress,
    command: str,
    versions: Mapping[str, str],
    measured: bool = False,
    resume: bool = False,
    reuse: bool = True,
    study: Study | None = None,
    storage: str | None = None,
    sampler: str = "normgen",
    clock: Clock | None = None,
    goes_on: bool = False,
) -> Iterator[TuningRun]:
    """A run with a fresh folder under the state folder.

    resume   go on in the folder of the newest run that asked the same and did not finish, where there is one
    reuse    measured results of other runs are taken over
    study    where the candidates go too, and where those of a dead host's run come from
    storage  a database that gets a copy of the study
    sampler  what decides which candidate is next: one of `search.names`
    clock    one that has been running for this run already
    goes_on  to all the trials there is time for, whatever they promise
    """
    run = TuningRun(
        problem=problem,
        device=device,
        place=place,
        seed=seed,
        trials=trials,
        clock=clock or Clock(budget_s),
        progress=progress,
        command=command,
        versions=versions,
        folder=Path(),
        measured=measured,
        goes_on=goes_on,
        reuse=reuse,
        study=study,
        storage=storage,
        sampler=sampler,
    )
    with needs_state():
        lock = _folder_of(run, resume=resume)
    try:
        if study is not None:
            run.take_over(study.records())
        yield run
    finally:
        os.close(lock)


def _folder_of(run: TuningRun, *, resume: bool) -> int:
    """The lock of the folder to work in: an interrupted run's, where there is one to go on with, or a fresh one."""
    lock = _go_on(run) if resume else -1
    return lock if lock >= 0 else _begin(run)


def _begin(run: TuningRun) -> int:
    """A fresh folder, locked."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    name = f"{stamp}-{file_stem(run.problem)}-{gpu_slug(run.device)}-{os.getpid()}"
    run.folder = state_folder() / "runs" / name
    make_private(run.folder)
    lock = resuming.take(run.folder)
    resuming.write_manifest(run.folder, run.asked)
    return lock


def _go_on(run: TuningRun) -> int:
    """The folder and the records of the run that was interrupted; -1 when there is none."""
    found = resuming.find_unfinished(state_folder() / "runs", run.asked)
    if found.folder is None:
        run.note(f"nothing to resume: {found.reason}; a new run begins")
        return -1
    run.folder = found.folder
    run.recorded, damaged = resuming.recover(run.candidates_path)
    run.memory = KnownAnswers(own=run.recorded)
    aside = f"; {damaged} damaged lines were set aside" if damaged else ""
    run.note(f"resumed {found.folder.name} with {len(run.recorded)} recorded candidates{aside}")
    return found.lock


def brief(reason: str) -> str:
    """The first two lines of a check's summary in one: the call that was wrong, and what was wrong in it."""
    return "; ".join(line.strip() for line in reason.splitlines()[:2])
