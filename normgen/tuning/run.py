"""The state of one tuning run: its folder, its clock, its facts, and a record for each candidate as it happens."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import normgen
from normgen.device import Device
from normgen.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.tuning.progress import Progress
from normgen.tuning.records import Cache, Outcome, ProblemKey, Record
from normgen.tuning.revision import generator_revision
from normgen.tuning.statistics import Times
from normgen.tuning.store import RecordWriter, gpu_slug, state_folder

if TYPE_CHECKING:
    from normgen.codegen.module import Module
    from normgen.cuda.compiler import Cubin


@dataclass(kw_only=True)
class Candidate:
    """One schedule on its way through the run."""

    schedule: Schedule
    predicted_us: float | None = None
    module: Module | None = None
    cubin: Cubin | None = None
    outcome: Outcome | None = None
    reason: str = ""
    times_us: Times | None = None
    error: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.schedule.key

    @property
    def resources(self) -> tuple[dict[str, Any], ...]:
        """What the compiler says of each kernel, as plain values."""
        return resources_of(self.module, self.cubin) if self.module and self.cubin else ()

    @property
    def registers(self) -> int:
        return max((int(r.get("registers", 0)) for r in self.resources), default=0)

    def fail(self, outcome: Outcome, reason: str) -> None:
        self.outcome, self.reason = outcome, reason


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
class Run:
    """What every part of a run needs to know, and the file its candidates go to."""

    problem: Problem
    device: Device
    cache: Cache
    seed: int
    trials: int
    clock: Clock
    progress: Progress
    command: str
    versions: Mapping[str, str]
    folder: Path
    writer: RecordWriter
    storage: str | None = None
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say it now and keep it for the result."""
        self.notes.append(text)
        self.progress.note(text)

    def record(self, candidate: Candidate, **evidence: Any) -> Record:
        """The candidate's record, with what the run knows."""
        assert candidate.outcome is not None, "a candidate is recorded when its outcome is known"
        return Record(
            problem=ProblemKey.of(self.problem),
            cache=self.cache,
            schedule=candidate.schedule,
            outcome=candidate.outcome,
            measured=candidate.times_us is not None,
            times_us=candidate.times_us,
            predicted_us=candidate.predicted_us,
            bytes=self.problem.compulsory_bytes,
            error=candidate.error,
            resources=candidate.resources,
            device=self.device.as_dict(),
            versions=self.versions,
            command=self.command,
            seed=self.seed,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            reason=candidate.reason,
            **evidence,
        )

    def keep(self, candidate: Candidate, **evidence: Any) -> Record:
        """Write the candidate's record to the run's file, and count it."""
        record = self.record(candidate, **evidence)
        self.counts[record.outcome.value] += 1
        self.writer.append(record)
        return record


@contextlib.contextmanager
def open_run(
    problem: Problem,
    device: Device,
    *,
    cache: Cache,
    seed: int,
    trials: int,
    budget_s: float,
    progress: Progress,
    command: str,
    versions: Mapping[str, str],
    storage: str | None = None,
    clock: Clock | None = None,
) -> Iterator[Run]:
    """A run with a fresh folder under the state folder; `clock`: one that has been running for it already."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{problem.name}-{problem.rows}x{problem.cols}-{gpu_slug(device)}-{os.getpid()}"
    folder = state_folder() / "runs" / name
    with RecordWriter(folder / "candidates.jsonl") as writer:
        yield Run(
            problem=problem,
            device=device,
            cache=cache,
            seed=seed,
            trials=trials,
            clock=clock or Clock(budget_s),
            progress=progress,
            command=command,
            versions=versions,
            folder=folder,
            writer=writer,
            storage=storage,
        )


def versions(**more: object) -> dict[str, str]:
    """normgen, the generator's revision, Python, and what the caller knows of compiler and driver."""
    known = {
        "normgen": normgen.__version__,
        "generator": generator_revision(),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    return known | {name: str(value) for name, value in more.items() if value is not None}


def resources_of(module: Module, cubin: Cubin) -> tuple[dict[str, Any], ...]:
    """The compiler's figures per kernel in launch order, with the kernel's name, threads and dynamic shared memory."""
    figures = []
    for kernel in module.kernels:
        found = cubin.resources[kernel.name]
        figures.append(
            {
                "kernel": kernel.name,
                "threads": kernel.launch.threads,
                "registers": found.registers,
                "spill_bytes": found.spill_bytes,
                "stack_bytes": found.stack_bytes,
                "static_shared_bytes": found.static_shared_bytes,
                "dynamic_shared_bytes": kernel.launch.shared_bytes,
            }
        )
    return tuple(figures)


def misfit(resources: Sequence[Mapping[str, Any]], device: Device) -> str | None:
    """Why a block of one of the kernels fits no SM: registers or shared memory. None when all fit."""
    for figures in resources:
        granule = -(-int(figures["registers"]) // 8) * 8  # allocated in units of 8 a thread
        if granule * int(figures["threads"]) > device.registers_per_sm:
            asked = f"{figures['threads']} threads x {granule} registers"
            return f"{figures['kernel']}: {asked} exceed {device.registers_per_sm}"
        shared = int(figures["static_shared_bytes"]) + int(figures["dynamic_shared_bytes"])
        if shared > device.shared_per_block:
            return f"{figures['kernel']}: {shared} bytes of shared memory exceed {device.shared_per_block}"
    return None


def local_bytes(resources: Sequence[Mapping[str, Any]]) -> int:
    """Bytes a thread keeps in local memory: spilled registers, and arrays the compiler could not keep in any."""
    return sum(int(figures["spill_bytes"]) + int(figures["stack_bytes"]) for figures in resources)
