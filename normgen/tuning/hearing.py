"""What the search and the confirmation of a campaign share: the device, the rules, and the standings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from normgen.cost.work import arithmetic_us
from normgen.files.plain import plain
from normgen.measure.judge import Eliminated, Judge
from normgen.measure.protocol import Bench, DeviceLostError
from normgen.measure.timing import Policy
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.tuning.candidate import Built, Candidate, Checked, Failed, Timed
from normgen.tuning.compile import Builder
from normgen.tuning.run import TuningRun, brief

if TYPE_CHECKING:
    from normgen.tuning.search.search import Search
from normgen.tuning.standings import Event, Standings

CONFIRM_RESERVE = 0.15  # share of the budget kept for the confirmation


@dataclass
class Hearing:
    """Candidates are heard here, one event after the other: `standings` is what they come to.

    incumbent  of the records, confirmed along
    turn       held while the device is used: one process at a time
    """

    run: TuningRun
    _: KW_ONLY
    search: Search
    builder: Builder
    bench: Bench
    default: Schedule
    policy: Policy
    incumbent: Schedule | None = None
    turn: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def __post_init__(self) -> None:
        self.judge = Judge(self.bench, arithmetic_us=arithmetic_us(self.run.problem, self.run.device))
        self.default_text = self.builder.text_of(self.default)
        self.standings = Standings(baseline_us=self.run.memory.baseline_us(self.default_text))

    def take(self, event: Event) -> None:
        self.standings = self.standings.after(event)

    def admit(self, candidate: Built | Timed, *, full: bool = False) -> Checked | Failed:
        """Load and check a candidate; one that is out is so in the standings. A wrong kernel is never timed."""
        found = self._heard(candidate, full=full)
        if isinstance(found, Failed):
            self._say_wrong(found, is_choice=full or self.is_guest(candidate))
            self.take(found)
        return found

    def _heard(self, candidate: Built | Timed, *, full: bool) -> Checked | Failed:
        kernel = candidate if isinstance(candidate, Built) else candidate.kernel or self.builder.rebuilt(candidate)
        if isinstance(kernel, Failed):
            return kernel
        try:
            return kernel.judged(self.judge.admit(kernel, full=full))
        except DeviceLostError as lost:
            self.run.keep(kernel.failed(Outcome.LAUNCH_ERROR, str(lost)))
            raise

    def drop(self, key: str, fault: Eliminated, among: Mapping[str, Candidate]) -> bool:
        """A kernel faulted: whether its race can be run again without it.

        One that was recorded as usable is recorded again; one of `among`, which is under way, will be.
        """
        known, was_reference = self.standings.usable.get(key), self.standings.is_reference(key)
        candidate = known or among.get(key)
        if candidate is not None:
            failed = candidate.failed(fault.outcome, fault.reason)
            self.take(failed)
            if known is not None:
                self.run.keep(failed, search=self.conditions)
        return was_reference or known is not None

    def _say_wrong(self, failed: Failed, *, is_choice: bool) -> None:
        """The reason of a choice that was wrong, and of the first other candidate; the record file has the rest."""
        if failed.outcome is not Outcome.WRONG_RESULT:
            return
        before = any(f.outcome is Outcome.WRONG_RESULT and f.known is None for f in self.standings.failed)
        if is_choice or not before:
            self.run.note(f"left out: {failed.schedule}: {brief(failed.reason)}")

    @property
    def conditions(self) -> dict[str, Any]:
        """What makes a candidate's times comparable with those of other runs."""
        return {"policy": plain(self.policy), **self.standings.conditions}

    def is_guest(self, candidate: Candidate) -> bool:
        return candidate.schedule in (self.default, self.incumbent)

    def has_time(self, late: bool = False) -> bool:
        """Whether another batch may begin; the first one may always finish."""
        reserve = self.run.clock.budget_s * CONFIRM_RESERVE
        return self.run.clock.left_s > reserve or (late and not self.standings.usable)
