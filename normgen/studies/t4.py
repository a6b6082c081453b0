"""Candidates in T4, the results format that Kernel Tuner and KTT exchange.

T4 results 1.0.0: {schema_version, results: [{timestamp, configuration, objectives, times, invalidity, correctness,
measurements}]}. Times are in ms there, as Kernel Tuner writes them. Source: the TuningSchema of the auto-tuning
community (Lorentz Center workshop, 2022), as shipped with Kernel Tuner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from normgen.records.record import Outcome, Record

SCHEMA_VERSION = "1.0.0"

_INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.PREDICTED: "correct",
    Outcome.ILLEGAL: "constraints",
    Outcome.COMPILE_ERROR: "compile",
    Outcome.LAUNCH_ERROR: "runtime",
    Outcome.WORKER_DIED: "runtime",
    Outcome.TIMEOUT: "timeout",
    Outcome.WRONG_RESULT: "correctness",
}


def t4_results(records: Iterable[Record]) -> dict[str, Any]:
    """The T4 object of some candidates."""
    return {"schema_version": SCHEMA_VERSION, "results": [_result(record) for record in records]}


def _result(record: Record) -> dict[str, Any]:
    times = record.times_us
    runtimes = [] if times is None else [_ms(times.median)]
    return {
        "timestamp": record.created,
        "configuration": record.schedule.as_dict(),
        "objectives": ["time"],
        "times": {"runtimes": runtimes},
        "invalidity": _INVALIDITY[record.outcome],
        "correctness": 1.0 if record.is_usable else 0.0,
        "measurements": _measurements(record),
    }


def _measurements(record: Record) -> list[dict[str, Any]]:
    times = record.times_us
    found: dict[str, tuple[float | None, str]] = {"time": (_ms(record.us) if record.us else None, "ms")}
    if times is not None:
        found |= {"time_low": (_ms(times.low), "ms"), "time_high": (_ms(times.high), "ms")}
    found |= {"GB/s": (record.gb_per_s, "GB/s"), "percent_of_roof": (record.percent_of_roof, "%")}
    registers = max((int(r.get("registers", 0)) for r in record.resources), default=0)
    found["registers"] = (registers or None, "")
    return [{"name": n, "value": v, "unit": unit} for n, (v, unit) in found.items() if v is not None]


def _ms(us: float) -> float:
    return round(us / 1000, 9)
