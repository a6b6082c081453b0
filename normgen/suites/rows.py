"""`normgen tune --rows`: one tune for each of a few row counts, which serve all between them (`suites.bands`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgen.errors import UsageError
from normgen.export import headers_of
from normgen.files.private import write_atomically
from normgen.problem.problem import sizes_of
from normgen.records.record import Record
from normgen.suites.bands import STEP, Bands, parse_rows, row_counts
from normgen.text import figure, legend, table
from normgen.tuning.result import Result
from normgen.tuning.tuner import tune

RECORDS = "rows.jsonl"


@dataclass(frozen=True, kw_only=True)
class RowsResult:
    """The outcome: a tune's result for each row count, ascending; fewer than were asked for after Ctrl-C.

    records_path  the winners' records, one a line; None where the folder took no file
    header_path   the header that picks among the winners by rows; None where a kernel was not compared
    """

    results: tuple[Result, ...]
    records_path: Path | None
    header_path: Path | None
    interrupted: bool

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(result.record for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """The object `normgen tune --rows --json` prints."""
        return {
            "bands": [result.as_dict() for result in self.results],
            "paths": {name: str(path) if path else None for name, path in self._paths()},
            "interrupted": self.interrupted,
        }

    def _paths(self) -> tuple[tuple[str, Path | None], ...]:
        return ("records", self.records_path), ("header", self.header_path)

    def __str__(self) -> str:
        is_measured = all(r.measured for r in self.records)
        head = ["rows", *(("marginal µs", "T µs") if is_measured else ("predicted µs",)), "schedule"]
        prices = [[figure(r.price_us.median if r.price_us else None)] if is_measured else [] for r in self.records]
        rows = [
            [str(r.problem.rows), *price, figure(r.us), str(r.schedule)]
            for r, price in zip(self.records, prices, strict=True)
        ]
        times = table(head, rows)
        lines = [times, *legend(times), ""]
        lines += [f"{name}: {path}" for name, path in self._paths() if path]
        return "\n".join(lines)


def tune_rows(
    op: str = "layernorm",
    *,
    shape: str | int,
    rows: str = "1..16384",
    step: int = STEP,
    output: str | Path | None = None,
    on_band: Callable[[Result], None] = lambda _: None,
    **terms: Any,
) -> RowsResult:
    """Tune a spec for a range of row counts: both ends, and what lies `step` times apart between them.

    shape   cols, also "*x4096"
    output  folder of the header and of the records (default: the last run's own folder)
    terms   as of `tune`; the budget and the trials are those of each row count

    The winners go to this user's records, where `normgen.kernel(..., rows="any")` finds them. Errors: as `tune`.

    Raises UsageError for a shape that says the rows too.
    """
    cols = sizes_of(str(shape).removeprefix("*x"))
    if len(cols) != 1:
        raise UsageError("--rows says the rows, the shape only cols", received=str(shape), hint="for example *x4096")
    results: list[Result] = []
    for count in row_counts(*parse_rows(rows), step=step):
        results.append(tune(op, shape=(count, *cols), output=output, **terms))
        on_band(results[-1])
        if results[-1].interrupted:
            break
    return _kept(tuple(results), None if output is None else Path(output))


def _kept(results: tuple[Result, ...], output: Path | None) -> RowsResult:
    """Write the records of all winners into one file, and their header."""
    last = results[-1]
    folder = output or last.candidates_path.parent
    path = folder / RECORDS
    write_atomically(path, "".join(result.record.line() for result in results))
    records = [result.record for result in results]
    if last.problem.batch_invariant:  # a header has no kernels whose rows would differ in their bits
        order = Bands(last.problem, last.device, place=last.record.place, records=records).order.order
        records = [record for record in records if record.schedule.order == order]
    header_path = None
    if all(record.verified for record in records):  # else the tunes have said why there is no header
        (header,) = headers_of(records, spec=last.problem.spec)
        header_path = header.write(folder)
    return RowsResult(results=results, records_path=path, header_path=header_path, interrupted=last.interrupted)
