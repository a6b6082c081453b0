"""What `normgen tune --suite` prints: a line as each job ends, on a terminal what every worker does, then a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normgen.cli.text.result import LiveLine
from normgen.text import figure, legend, table
from normgen.tuning.result import NOT_MEASURED

if TYPE_CHECKING:
    from normgen.suites.crew import SuiteResult


class SuiteTerminal(LiveLine):
    """Progress of a suite on stderr."""

    refresh_per_second = 4.0

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._over: set[int] = set()
        self._places: dict[str, str] = {}
        self._phases: dict[str, str] = {}

    def event(self, place: str, facts: Mapping[str, Any]) -> None:
        """One event of a worker."""
        what, number = str(facts["event"]), int(facts["job"])
        label = self._labels[number] if 0 <= number < len(self._labels) else ""
        if what == "phase":
            self._phases[place] = str(facts["name"])
        elif what == "standing":
            best = f"  best {figure(facts['best_us'])} µs" if facts["best_us"] else ""
            self._places[place] = f"{label}  {facts['trials']}/{facts['trials_max']}{best}"
        elif what == "start":
            self._places[place] = label
            if facts["attempt"] > 1:
                self._say(f"{place}  {label}: taken over, attempt {facts['attempt']}")
        elif what in ("done", "failed"):
            self._over.add(number)
            self._places[place] = ""
            self._say(f"[{len(self._over)}/{len(self._labels)}]  {place}  {label}  {_outcome(facts)}")
        elif what == "died":
            self._say(f"{place}  the worker ended with status {facts['status']}")
        elif what == "error":
            self._say(f"{place}  {facts['reason']}")
        self._draw()

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _draw(self) -> None:
        if self._live is not None:
            from rich.text import Text

            lines = [
                f"{place}  {self._phases.get(place, '')}  {doing}" for place, doing in self._places.items() if doing
            ]
            self._live.update(Text("\n".join(lines)))


def _outcome(facts: Mapping[str, Any]) -> str:
    if facts["event"] == "failed":
        return "failed: " + str(facts["reason"]).splitlines()[0]
    parts = [f"{figure(facts['us'])} µs"]
    if facts["percent_of_roof"]:
        parts.append(f"{figure(facts['percent_of_roof'], 3)} % of roofline")
    parts += [] if facts["measured"] else [NOT_MEASURED]
    return "  ".join([*parts, f"{facts['seconds']:.1f} s"])


def suite_text(result: SuiteResult) -> str:
    """One line a problem, then how long it took."""
    rows = []
    for job in result.jobs:
        record = result.records.get(job.number)
        if record is None:
            why = job.reason.splitlines()[0] if job.reason else job.status
            rows.append([job.label, "-", "-", "-", why])
            continue
        roof = figure(record.percent_of_roof, 3)
        rows.append([job.label, figure(record.cost_us), figure(record.gb_per_s), roof, str(record.schedule)])
    done = sum(job.status == "done" for job in result.jobs)
    is_measured = all(record.measured for record in result.records.values())
    head = f"{result.suite} on {result.device.name}" + ("" if is_measured else f" ({NOT_MEASURED})")
    left = len(result.jobs) - done - len(result.failed)
    tail = f"{done} tuned, {len(result.failed)} failed, {left} left; {result.workers} workers, {result.wall_s:.1f} s"
    if result.interrupted:
        tail += "; interrupted: --resume goes on"
    cost = "marginal µs" if is_measured else "predicted µs"
    times = table(("problem", cost, "GB/s", "% of roofline", "schedule"), rows)
    return "\n".join([head, "", times, *legend(times), "", tail])
