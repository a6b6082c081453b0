"""Results of single candidates that outlive their run, so that a second run or a wider space times only what is new.

<cache folder>/results/<gpu>/<problem>.jsonl     records, appended; every environment keeps its own lines

A line answers for a schedule only where its whole environment is the asker's (spec text, GPU model, NVRTC release,
the protocol of checks and times, its policy, the place), and where the schedule is emitted as the same text
today. Any other line is a miss with its reason. What can pass by itself (a timeout, a launch that failed) is never an
answer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from normgen.device import Device
from normgen.files.private import cache_root, distrust, make_private, private_folder, to_stderr
from normgen.problem.question import Question
from normgen.records.lines import append, aside_of, parsed, set_damaged_aside
from normgen.records.record import Outcome, Record, parse_line
from normgen.records.winners import gpu_slug
from normgen.schedule.schedule import Schedule

_LASTING = (Outcome.OK, Outcome.ILLEGAL, Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What two results must share to be comparable, beside the problem."""

    spec: str  # sha256 of the spec
    gpu: str
    nvrtc: str
    protocol: str  # of checks and times: `measure.PROTOCOL`
    place: str
    policy: str  # canonical JSON of how it was measured

    def difference(self, here: Environment) -> str:
        """`nvrtc 13.0, here 13.1; ...`, empty when nothing differs."""
        pairs = [(f.name, getattr(self, f.name), getattr(here, f.name)) for f in fields(self)]
        return "; ".join(f"{name} {_short(then)}, here {_short(now)}" for name, then, now in pairs if then != now)


def environment_of(record: Record) -> Environment:
    return Environment(
        spec=record.problem.spec_sha256,
        gpu=str(record.device.get("name", "")),
        nvrtc=record.versions.get("nvrtc", ""),
        protocol=record.versions.get("protocol", ""),
        place=str(record.place),
        policy=canonical(record.search.get("policy") or {}),
    )


def canonical(policy: Mapping[str, Any]) -> str:
    return json.dumps(policy, sort_keys=True)


def results_folder(root: Path | None = None) -> Path:
    return private_folder((root or cache_root()) / "results")


def results_path(problem: Question, device: Device, root: Path | None = None) -> Path:
    """One file a problem and GPU model; the text of the spec is left out, so that a changed one can be explained."""
    digest = hashlib.sha256(repr(problem.slot()).encode()).hexdigest()[:10]
    name = f"{problem.op}_{problem.direction}_{problem.rows}x{problem.cols}_{digest}.jsonl"
    return results_folder(root) / gpu_slug(device) / name


class KeptResults:
    """One problem's results on one GPU model, read as other processes append to them.

    A file that cannot be written is reported once, and the run goes on without it.
    """

    def __init__(self, path: Path, here: Environment, *, report: Callable[[str], None] = to_stderr) -> None:
        self.path = path
        self.here = here
        self._report = report
        self._is_writable = self._is_trusted = True
        self._forget()
        self.refresh()

    def _forget(self) -> None:
        self._inode, self._offset = 0, 0
        self._hits: dict[Schedule, Record] = {}
        self._misses: dict[Schedule, str] = {}

    def refresh(self) -> None:
        """Take in the lines that were appended since the last look; none that another user may have written."""
        try:
            if why := distrust(self.path.parent) or distrust(self.path):
                self._forget()
                if self._is_trusted:
                    self._report(f"results in {self.path} are not believed ({why})")
                self._is_trusted = False
                return
            with self.path.open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._offset:
                    self._forget()
                    self._inode = facts.st_ino
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        lines = parsed(whole, parse_line, path=self.path)
        for record in lines.found:
            self._take(record)
        if lines.damaged:
            self._set_damaged_aside()

    def _take(self, record: Record) -> None:
        difference = environment_of(record).difference(self.here)
        if difference:
            self._misses[record.schedule] = difference
        elif record.outcome in _LASTING:
            self._hits[record.schedule] = record

    def get(self, schedule: Schedule) -> Record | None:
        """The last result of a schedule in this environment; whether its text is today's, the asker must see."""
        return self._hits.get(schedule)

    def counts(self) -> dict[str, int]:
        """Usable schedules, and for each reason how many schedules miss because of it."""
        found = {"usable": len(self._hits)}
        for schedule, reason in self._misses.items():
            if schedule not in self._hits:
                found[reason] = found.get(reason, 0) + 1
        return found

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(self._hits.values())

    def append(self, record: Record) -> None:
        """Add a result that lasts; the lines of others stay."""
        if record.outcome not in _LASTING:
            return
        try:
            make_private(self.path.parent)
            append(self.path, record.line(), durable=False)  # what a power cut takes is measured again
        except OSError as error:
            if self._is_writable:
                self._report(f"results cannot be kept in {self.path} ({error}); the run goes on without")
            self._is_writable = False

    def _set_damaged_aside(self) -> None:
        try:
            damaged = set_damaged_aside(self.path, parse_line)
        except OSError as error:
            self._report(f"{self.path} is damaged and cannot be repaired: {error}")
            return
        if damaged:
            aside = aside_of(self.path)
            self._report(f"{self.path}: {len(damaged)} damaged lines ({damaged[0].why}) set aside in {aside}")


def _short(text: str) -> str:
    return text if len(text) <= 16 else text[:12]
