"""What a run need not measure again: its own file when it goes on after a kill, then results of other runs."""

from __future__ import annotations

from collections.abc import Iterable

from normgen.records.record import Outcome, Record
from normgen.records.results import KeptResults
from normgen.schedule.schedule import Schedule

UNREACHED = "within the time of the run"  # how the reason of a candidate ends that nobody tried


class KnownAnswers:
    """Answers for schedules. Own records come first: they stand in the run's file already."""

    def __init__(self, *, own: Iterable[Record] = (), results: KeptResults | None = None, reuse: bool = True) -> None:
        self._own = {r.schedule: r for r in own if not is_unreached(r)}
        self.results = results  # new ones are kept there, whether or not old ones are taken from there
        self._known = results if reuse else None

    def recall(self, schedule: Schedule) -> Record | None:
        """What is known of a schedule."""
        found = self._own.get(schedule)
        return found if found is not None or self._known is None else self._known.get(schedule)

    def is_own(self, record: Record) -> bool:
        return self._own.get(record.schedule) is record

    def refresh(self) -> None:
        """Look for what other processes have measured meanwhile."""
        if self._known is not None:
            self._known.refresh()

    def learn(self, record: Record) -> None:
        """A candidate was measured: other runs may use it. What another has said of the same text is not said again."""
        known = self._known.get(record.schedule) if self._known is not None else None
        is_said = known is not None and (known.text, known.outcome) == (record.text, record.outcome)
        if self.results is not None and not is_said:
            self.results.append(record)

    def baseline_us(self, reference: str) -> float | None:
        """What the kernel of that text took where the known times come from: new ones are scaled to it."""
        known = [*self._own.values(), *(self._known.records if self._known else ())]
        return next((us for record in known if (us := reference_us(record, reference)) is not None), None)


def reference_us(record: Record, reference: str) -> float | None:
    """The time of the reference that a record's times are scaled to; None when its reference was another one."""
    us = record.search.get("reference_us")
    return float(us) if us and record.search.get("reference") == reference else None


def is_unreached(record: Record) -> bool:
    """Nobody tried the candidate, as the time was over."""
    return record.outcome is Outcome.TIMEOUT and record.reason.endswith(UNREACHED)
