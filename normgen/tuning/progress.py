"""The limits of what a run is asked for, and what it tells while it runs.

The command line draws it; as a library normgen is silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

LONGEST_BUDGET_S = 30 * 24 * 3600.0  # a wait of more than some 292 years overflows the system's clock
LARGEST_SEED = 2**32 - 1  # numpy's generators, which optuna uses, take no larger one


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a search stands; None is not known yet."""

    trials: int
    trials_max: int
    best: str = ""  # the schedule
    best_us: float | None = None
    roof_us: float | None = None
    bytes: int = 0
    left_s: float = 0.0

    @property
    def gb_per_s(self) -> float | None:
        return self.bytes / self.best_us / 1e3 if self.best_us else None

    @property
    def percent_of_roof(self) -> float | None:
        return 100.0 * self.roof_us / self.best_us if self.best_us and self.roof_us else None


class Progress(Protocol):
    def phase(self, name: str) -> None:
        """A new phase began."""

    def standing(self, standing: Standing) -> None:
        """More candidates are done."""

    def note(self, text: str) -> None:
        """Something the user should know, in one line."""


class Silent:
    """Says nothing."""

    def phase(self, name: str) -> None:
        pass

    def standing(self, standing: Standing) -> None:
        pass

    def note(self, text: str) -> None:
        pass
