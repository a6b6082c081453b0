"""What `tune()` returns: the winner with its evidence, and where everything was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import normgen
from normgen.device import Device
from normgen.export import Ships
from normgen.problem.problem import Problem
from normgen.records.record import Record
from normgen.text import figure

NOT_MEASURED = "predicted, not measured"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one tuning run.

    record       the winner; `record.measured` says whether a GPU timed it
    default      the default schedule in the same run; None when it was not usable
    finalists    the winner and its rivals as confirmed (or predicted), fastest first
    counts       candidates per outcome, among them `same_code` (folded into another candidate)
    phases_s     seconds of wall time per phase, and `other`; they add up to `all`
    record_path, header_path  None where the folder took no file; `notes` says why
    ships        of a prediction: the measured record of the same question that comes with normgen, where there is one
    adopted      the winner went into the user's records; False when the one there is better
    interrupted  Ctrl-C ended the run: the best so far, with what was not done in `notes`
    """

    problem: Problem
    device: Device
    record: Record
    default: Record | None
    finalists: tuple[Record, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    phases_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    candidates_path: Path
    record_path: Path | None
    header_path: Path | None = None
    ships: Ships | None = None
    adopted: bool = False
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    def kernel(self, *, device: int | str = 0) -> normgen.Kernel:
        """The winner as a callable on a GPU by its number, or on the CPU: see `normgen.kernel`."""
        asked = self.problem.arguments()
        return normgen.kernel(self.problem.spec, **asked, device=device, schedule=self.record.schedule)

    def __repr__(self) -> str:
        how = "measured" if self.measured else NOT_MEASURED
        price = self.record.price_us.median if self.record.price_us else self.record.us
        tried = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        return (
            f"<normgen result {self.problem} on {self.device.name}: {figure(price)} µs, {how}\n"
            f"  {self.record.schedule}\n  tried {tried}; header {self.header_path}>"
        )

    @property
    def measured(self) -> bool:
        return self.record.measured

    def as_dict(self) -> dict[str, Any]:
        """The object `normgen tune --json` prints.

        problem, rows, cols, device: the question; measured; best, default (records, see `tuning.records`);
        finalists: list of {schedule, price_us, us (T), low, high, alone_us, gb_per_s, percent_of_roof, and tflops
        of products}; counts;
        phases_s; paths: candidates, record, header; ships: of a prediction {record, header}, the measured record of the
        question that comes with normgen, or null; adopted; interrupted; notes.
        """
        return {
            "problem": self.problem.name,
            "rows": self.problem.rows,
            "cols": self.problem.cols,
            "device": self.device.name,
            "measured": self.measured,
            "best": self.record.as_dict(),
            "default": self.default.as_dict() if self.default else None,
            "finalists": [_short(r) for r in self.finalists],
            "counts": dict(self.counts),
            "phases_s": {name: round(seconds, 3) for name, seconds in self.phases_s.items()},
            "paths": {
                "candidates": str(self.candidates_path),
                "record": str(self.record_path) if self.record_path else None,
                "header": str(self.header_path) if self.header_path else None,
            },
            "ships": self.ships.as_dict() if self.ships else None,
            "adopted": self.adopted,
            "interrupted": self.interrupted,
            "notes": list(self.notes),
        }


def _short(record: Record) -> dict[str, Any]:
    return {
        "schedule": str(record.schedule),
        "price_us": record.price_us.median if record.price_us else None,
        "us": record.us,
        "low": record.times_us.low if record.times_us else None,
        "high": record.times_us.high if record.times_us else None,
        "alone_us": record.alone_us,
        "gb_per_s": record.gb_per_s,
        **({"tflops": record.tflops} if record.flops else {}),
        "percent_of_roof": record.percent_of_roof,
    }
