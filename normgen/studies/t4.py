"""Candidates in T4, the results format that Kernel Tuner and KTT exchange, and back.

T4 results 1.0.0: {schema_version, results: [{timestamp, configuration, objectives, times, invalidity, correctness,
measurements}]}. Times are in ms there, as Kernel Tuner writes them. Source: the TuningSchema of the auto-tuning
community (Lorentz Center workshop, 2022), as shipped with Kernel Tuner. Of what a trial knows T4 has no place for the
question, the device and the versions; T0, prices and the outcome are measurements of ours, which others need not know.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from normgen.errors import NormgenError
from normgen.records.record import Outcome, Record
from normgen.schedule.schedule import schedule_from
from normgen.trials.trial import Trial

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

_OUTCOME = {word: outcome for outcome, word in reversed(_INVALIDITY.items())}  # of equal words the first outcome


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
    found: dict[str, tuple[float | str | None, str]] = {"time": (_ms(record.us) if record.us else None, "ms")}
    if times is not None:
        found |= {"time_low": (_ms(times.low), "ms"), "time_high": (_ms(times.high), "ms")}
    found |= {"GB/s": (record.gb_per_s, "GB/s"), "percent_of_roof": (record.percent_of_roof, "%")}
    registers = max((int(r.get("registers", 0)) for r in record.resources), default=0)
    found["registers"] = (registers or None, "")
    found["spill_bytes"] = (sum(int(r.get("spill_bytes", 0)) for r in record.resources) or None, "")
    if record.chain_us is not None:
        found["time_without"] = (_ms(record.chain_us.median), "ms")
    if (price := record.price_us) is not None:
        prices = {"price": price.median, "price_low": price.low, "price_high": price.high}
        found |= {name: (_ms(us), "ms") for name, us in prices.items()}
    found["outcome"] = (record.outcome.value, "")
    return [{"name": n, "value": v, "unit": unit} for n, (v, unit) in found.items() if v is not None]


def _ms(us: float) -> float:
    return round(us / 1000, 9)


def t4_read(data: Any, **facts: Any) -> tuple[Trial, ...]:
    """The trials of a T4 object whose configurations are our knobs; `facts`: fields that all of them have.

    Raises ValueError with what is wrong with it, and where.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("results"), list):
        raise ValueError("T4 is an object with a list of results")
    if str(data.get("schema_version")).partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise ValueError(f"schema_version {data.get('schema_version')!r}, this version reads {SCHEMA_VERSION}")
    unit = dict(data.get("metadata", {})).get("timeunit", "milliseconds")
    if unit != "milliseconds":
        raise ValueError(f"times are in milliseconds, as Kernel Tuner writes them: {unit!r}")
    found: list[Trial] = []
    for number, result in enumerate(data["results"], start=1):
        try:
            found.append(_trial(result, facts))
        except NormgenError as error:
            raise ValueError(f"result {number}: {error.rule}: {error.received}") from None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"result {number}: {type(error).__name__}: {error}") from None
    return tuple(found)


def _trial(result: Mapping[str, Any], facts: Mapping[str, Any]) -> Trial:
    """Of a configuration that is not valid nothing counts as measured: Kernel Tuner writes an error for its time."""
    told = {one["name"]: one["value"] for one in result.get("measurements", ())}
    outcome = Outcome(told["outcome"]) if "outcome" in told else _OUTCOME[result["invalidity"]]
    if outcome is Outcome.OK and not result["correctness"] >= 1:
        outcome = Outcome.WRONG_RESULT
    runtimes = result["times"].get("runtimes", ())
    us = _us(told.get("time", statistics.median(runtimes) if runtimes else None)) if outcome.is_usable else None
    if outcome.is_usable and us is None:
        raise ValueError("a valid configuration has a time")
    timed = told if outcome.is_usable else {}
    base_us, price_us = _us(timed.get("time_without")) or 0.0, _us(timed.get("price"))
    ends = [_us(timed.get(f"{'time' if price_us is None else 'price'}_{end}")) for end in ("low", "high")]
    low, high = (end if end is None or price_us is not None else round(end - base_us, 6) for end in ends)
    return Trial(
        schedule=schedule_from(result["configuration"]),
        outcome=outcome,
        us=us,
        base_us=base_us,
        price_us=price_us,
        low=low,
        high=high,
        registers=int(told.get("registers", 0)),
        spill_bytes=int(told.get("spill_bytes", 0)),
        **facts,
    )


def _us(ms: Any) -> float | None:
    """Raises ValueError for what is no number, as the name of an error is in the place of a time."""
    if ms is None:
        return None
    if isinstance(ms, bool) or not isinstance(ms, int | float):
        raise ValueError(f"a time is a number of milliseconds: {ms!r}")
    return round(ms * 1000, 6)
