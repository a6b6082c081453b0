"""What a campaign knows at a moment. Only `Standings.after` leads from one moment to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from normgen.measure.judge import RoofCosts
from normgen.schedule.policy import costs_to_others
from normgen.schedule.schedule import Schedule
from normgen.tuning.candidate import Candidate, Failed, Timed


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The kernel whose time in each batch says how the device has drifted.

    baseline_us  what it took first, here or where known times come from; None until then
    """

    key: str
    text: str
    baseline_us: float | None

    def baselined(self, us: float) -> Reference:
        return self if self.baseline_us else replace(self, baseline_us=us)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the reference took where known times come from: it holds for a run that has no such time yet."""

    us: float


Event = Timed | Failed | Reference | Baseline | RoofCosts


@dataclass(frozen=True, kw_only=True)
class Standings:
    """Which candidates are usable, which are out, and what times are held against.

    settled      by key: the last state of each candidate that was timed, or failed
    reference    None: not chosen yet, or lost
    baseline_us  of the reference; of the one that comes, while there is none
    """

    settled: Mapping[str, Timed | Failed] = field(default_factory=dict)
    reference: Reference | None = None
    baseline_us: float | None = None
    roof: RoofCosts = field(default_factory=RoofCosts)

    def after(self, event: Event) -> Standings:
        match event:
            case RoofCosts():
                return replace(self, roof=event)
            case Baseline():
                return replace(self, baseline_us=self.baseline_us or event.us)
            case Reference():
                return replace(self, reference=event, baseline_us=event.baseline_us)
            case Timed() | Failed():
                is_lost = isinstance(event, Failed) and self.is_reference(event.key)
                left = None if is_lost else self.reference
                return replace(self, settled={**self.settled, event.key: event}, reference=left)

    @property
    def ranked(self) -> list[Timed]:
        """The usable ones, fastest first."""
        return sorted(self.usable.values(), key=lambda c: (c.times_us.median, tie_order(c)))

    @property
    def usable(self) -> dict[str, Timed]:
        return {key: state for key, state in self.settled.items() if isinstance(state, Timed)}

    @property
    def failed(self) -> list[Failed]:
        return [state for state in self.settled.values() if isinstance(state, Failed)]

    def is_reference(self, key: str) -> bool:
        return self.reference is not None and self.reference.key == key

    def us_of(self, schedule: Schedule) -> float | None:
        return next((c.times_us.median for c in self.usable.values() if c.schedule == schedule), None)

    @property
    def conditions(self) -> dict[str, Any]:
        """What makes times comparable with those of other runs."""
        text = self.reference.text if self.reference and self.baseline_us else None
        return {"reference": text, "reference_us": self.baseline_us}


def tie_order(candidate: Candidate) -> tuple[Any, ...]:
    """Among equals: the schedule that others pay least for, then fewer registers, a smaller block, the key."""
    s = candidate.schedule
    return (*costs_to_others(s), candidate.registers, s.threads, s.key)
