"""What the command line prints: results as plain text on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import TracebackType
from typing import Any, Self

from normgen.choice.ranker import shipped_ranker
from normgen.export import Ships
from normgen.records.compare import FASTER, SAME, SLOWER, UNMEASURED, RecordComparison
from normgen.records.record import Record
from normgen.records.verified import told
from normgen.text import figure, filled, legend, table
from normgen.tuning.progress import Standing
from normgen.tuning.result import NOT_MEASURED, Result

PHASES = {"roof": "roofline"}  # of a run, as they are printed
LEFT_OUT = "left out: "  # how a note about a kernel that failed begins


def result_text(result: Result, said: Collection[str] = ()) -> str:
    """The table and the lines under it that `normgen tune` prints; `said` are notes that stderr had."""
    record, problem = result.record, result.problem
    title = f"{problem.spec.name} {problem.direction.value} {problem.dtype} on {result.device.name}"
    inner = f", inner = {problem.inner}" if problem.inner else ""
    inner += f", {problem.col_stride} rows side by side" if problem.col_stride != 1 else ""
    lines = [f"{title}: rows = {problem.rows}, cols = {problem.cols}{inner}, timed {record.place.words}"]
    if not result.measured:
        lines[0] += f" ({NOT_MEASURED})"
    times = _times_table(result)
    lines += ["", times, *legend(times), ""]
    lines.append(_verdict(result))
    lines += _ships(result.ships) if result.ships else []
    lines += [f"verified    {text}" for text in told([record.verified])]
    lines += [f"record      {result.record_path}"] if result.record_path else []
    lines += [f"header      {result.header_path}"] if result.header_path else []
    lines += [f"candidates  {result.candidates_path}", _effort(result)]
    failed = [note for note in result.notes if note.startswith(LEFT_OUT)]
    lines += [f"failed      {note.removeprefix(LEFT_OUT)}" for note in failed]
    lines += [f"note: {note}" for note in result.notes if note not in failed and note not in said]
    return "\n".join(lines)


def _times_table(result: Result) -> str:
    record = result.record
    timed = "marginal µs" if record.chain_us else "alone µs" if record.is_alone else "µs"
    cost = timed if record.measured else "predicted µs"
    chain = ("T µs", "T0 µs") if record.chain_us else ()
    alone = ("alone µs",) if record.alone_us else ()
    rate = ("TFLOP/s",) if record.flops else ()
    header = ("", cost, "low", "high", *chain, "GB/s", *rate, "% of roofline", "registers", *alone, "schedule")
    shown = [("best", record), *([("default", result.default)] if result.default is not None else [])]
    shown += [("", r) for r in [r for r in result.finalists if r not in (record, result.default)][:3]]
    rows = [_row(name, one, chain=bool(chain), alone=bool(alone)) for name, one in shown]
    roof = record.roof_us
    if roof is not None:
        family = next((name for name, us in record.roofs_us.items() if us == roof), "copy")
        blank = [""] * len((*chain, "low", "high"))
        rates = [figure(record.bytes / roof / 1e3), *([figure(record.flops / roof / 1e6)] if rate else [])]
        rows.append(["roofline", figure(roof), *blank, *rates, "100", "", *([""] * len(alone)), family])
    return filled(header, rows)


def _row(name: str, record: Record, *, chain: bool, alone: bool) -> list[str]:
    interval = record.cost_interval
    registers = max((int(r["registers"]) for r in record.resources), default=0)
    base = figure(record.chain_us.median) if record.chain_us else "-"
    return [
        name,
        figure(record.cost_us),
        figure(interval[0]) if interval else "-",
        figure(interval[1]) if interval else "-",
        *([figure(record.us), base] if chain else []),
        figure(record.gb_per_s),
        *([figure(record.tflops)] if record.flops else []),
        figure(record.percent_of_roof, 3),
        str(registers),
        *([figure(record.alone_us)] if alone else []),
        str(record.schedule),
    ]


def _verdict(result: Result) -> str:
    record = result.record
    if not result.measured:
        known = result.device.arch in shipped_ranker().archs
        never = "" if known else f"; nothing was ever measured on a GPU of {result.device.sm}"
        return f"{NOT_MEASURED}: compiled for {result.device.sm}, ranked by the cost model{never}"
    parts = []
    if record.cost_us and record.roof_us:
        parts.append(f"{record.cost_us / record.roof_us:.3f} x the roofline of this run")
    if record.to_copy:
        parts.append(f"{record.to_copy:.3f} x its memcpy node")
    if record.cost_us and record.default_cost_us:
        ratio = f"{record.default_cost_us / record.cost_us:.2f} x as fast as the default schedule"
        if record.chain_us and record.us and record.default_us:
            ratio += f" (the whole chain {record.default_us / record.us:.2f} x)"
        parts.append(ratio)
    floor = record.search.get("noise_floor")
    if floor is not None:
        parts.append(f"noise floor {100 * float(floor):.2f} %")
    return ", ".join(parts)


def _ships(ships: Ships) -> list[str]:
    """The measured record of the very question, where nothing was measured here: it is the better choice."""
    record = ships.record
    cost = "alone" if record.is_alone else "marginal"
    lines = [f"measured    {figure(record.cost_us)} µs {cost} on {record.device['name']}: {record.schedule}"]
    return [*lines, f"            ships with normgen, in {ships.header or ships.records}"]


def _effort(result: Result) -> str:
    counts = ", ".join(f"{n} {name}" for name, n in result.counts.items())
    seconds = ", ".join(f"{PHASES.get(name, name)} {s:.1f} s" for name, s in result.phases_s.items())
    return f"tried       {counts} ({seconds})"


class LiveLine:
    """A context with one live area on stderr where that is a terminal, and none elsewhere."""

    refresh_per_second = 8.0
    _live: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=self.refresh_per_second)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """The text in the live area."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text))


class Terminal(LiveLine):
    """Progress on stderr: one live line on a terminal, only phases and notes elsewhere."""

    def __init__(self) -> None:
        self._phase = "start"
        self.said: list[str] = []
        self._standing: Standing | None = None

    def phase(self, name: str) -> None:
        self._phase = name = PHASES.get(name, name)
        self._standing = None  # counts are of a phase
        if self._live is None:
            print(f"{name} ...", file=sys.stderr, flush=True)
        self._show()

    def standing(self, standing: Standing) -> None:
        self._standing = standing
        self._show()

    def note(self, text: str) -> None:
        self.said.append(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr)

    def _show(self) -> None:
        self.say(progress_line(self._phase, self._standing))


def progress_line(phase: str, standing: Standing | None) -> str:
    """`search  48/128 trials  best 14.02 µs  3595 GB/s  97.7 % of roofline  31 s left  threads_per_row=64 ...`"""
    if standing is None:
        return phase
    parts = [phase, f"{standing.trials}/{standing.trials_max} trials"]
    if standing.best_us is not None:
        parts += [f"best {figure(standing.best_us)} µs", f"{figure(standing.gb_per_s)} GB/s"]
    if standing.percent_of_roof is not None:
        parts.append(f"{figure(standing.percent_of_roof, 3)} % of roofline")
    return "  ".join([*parts, f"{standing.left_s:.0f} s left", standing.best]).rstrip()


def comparison_text(found: RecordComparison) -> str:
    """A table, what only one file has, and the counts."""
    rows = [
        [p.verdict, figure(p.before_us), figure(p.after_us), figure(p.ratio), figure(p.chain_ratio), p.problem]
        for p in found.pairs
    ]
    lines = [table(("", "before µs", "after µs", "ratio", "of chains", "problem"), rows), ""]
    lines += [f"verified before: {text}" for text in told(p.before_verified for p in found.pairs)]
    lines += [f"verified after: {text}" for text in told(p.after_verified for p in found.pairs)]
    lines += [f"only before: {name}" for name in found.only_before]
    lines += [f"only after: {name}" for name in found.only_after]
    counts = [f"{found.count(v)} {v.lower()}" for v in (FASTER, SLOWER, SAME, UNMEASURED) if found.count(v)]
    return "\n".join([*lines, ", ".join(counts)])
