"""T4, the format that tuners exchange: what is written is read back, what Kernel Tuner writes is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normgen.errors import UsageError
from normgen.records.record import Outcome
from normgen.records.statistics import Price, summarise
from normgen.schedule.schedule import Schedule
from normgen.studies.t4 import t4_read, t4_results
from normgen.studies.trial_files import read_trials
from normgen.trials.trial import trial_of
from tests.report.made import candidates, key, predicted

# One valid and one invalid configuration, in the form that Kernel Tuner 1.5 writes them.
FOREIGN: dict[str, Any] = {
    "results": [
        {
            "timestamp": "2026-11-27 10:00:00.0+00:00",
            "configuration": {"threads_per_row": 64, "vector": 4, "hold": "registers"},
            "times": {"compilation": 310.2, "benchmark": 12.5, "runtimes": [0.0125, 0.0121, 0.0130]},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": 0.0125, "unit": "ms"}, {"name": "GB/s", "value": 2, "unit": ""}],
            "objectives": ["time"],
        },
        {
            "configuration": {"threads_per_row": 1024},
            "times": {"runtimes": []},
            "invalidity": "runtime",
            "correctness": 1,
            "measurements": [{"name": "time", "value": "RuntimeFailedConfig", "unit": "ms"}],
        },
    ],
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "milliseconds"},
}  # fmt: skip


def test_what_is_written_is_read_back() -> None:
    first = candidates(key())[0]
    alone = replace(first, times_us=summarise([14.0, 14.1, 14.2]), resources=({"registers": 40, "spill_bytes": 8},))
    chained = replace(alone, chain_us=summarise([4.0, 4.1]))
    priced = replace(chained, price_us=Price(median=10.05, low=9.9, high=10.1))
    timed = [alone, chained, priced, predicted(key(), 12.0)]
    failed = [replace(first, outcome=o, times_us=None) for o in Outcome if not o.is_usable]
    written = json.loads(json.dumps(t4_results([*timed, *failed])))
    found = t4_read(written, run="some")
    assert len(found) == len(timed) + len(failed)
    for trial, record in zip(found, [*timed, *failed], strict=True):
        told = trial_of(record, run="some")
        for name in ("us", "base_us", "price_us", "low", "high"):
            assert getattr(trial, name) == pytest.approx(getattr(told, name)), (name, record.outcome)
        for name in ("schedule", "outcome", "registers", "spill_bytes", "run", "measured"):
            assert getattr(trial, name) == getattr(told, name), (name, record.outcome)
    assert found[2].cost_us == pytest.approx(10.05)


def test_results_of_kernel_tuner_are_read_in_microseconds() -> None:
    ok, failed = t4_read(FOREIGN)
    assert (ok.schedule, ok.us, ok.outcome) == (
        Schedule(threads_per_row=64, vector=4, hold="registers"), pytest.approx(12.5), Outcome.OK,
    )  # fmt: skip
    assert (failed.us, failed.outcome, failed.measured) == (None, Outcome.LAUNCH_ERROR, False)
    bare = json.loads(json.dumps(FOREIGN))
    bare["results"][0]["measurements"] = []
    assert t4_read(bare)[0].us == pytest.approx(12.5)  # the median of the runtimes
    bare["results"][0]["correctness"] = 0.5
    assert t4_read(bare)[0].outcome is Outcome.WRONG_RESULT


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((), [], "an object with a list of results"),
        (("results",), {}, "an object with a list of results"),
        (("schema_version",), "2.0.0", "schema_version '2.0.0', this version reads 1.0.0"),
        (("metadata",), {"timeunit": "seconds"}, "milliseconds"),
        (("results", 0), 3, "result 1: "),
        (("results", 0, "configuration"), {"block_size_x": 32}, "result 1: unknown knob: block_size_x"),
        (("results", 0, "configuration", "vector"), 3, "result 1: knob 'vector'"),
        (("results", 0, "invalidity"), "fine", "result 1: KeyError: 'fine'"),
        (("results", 0, "measurements", 0, "value"), "0.1", "result 1: ValueError: a time is a number"),
        (("results", 0, "measurements", 0, "value"), -1.0, "result 1: ValueError: us is a number above 0"),
        (("results", 0, "measurements", 0, "value"), None, "result 1: ValueError: a valid configuration has a time"),
        (("results", 1, "times"), None, "result 2: "),
    ],
)
def test_what_is_no_t4_of_ours_is_refused_with_the_place(
    path: tuple[Any, ...], value: object, said: str, tmp_path: Path
) -> None:
    data = json.loads(json.dumps(FOREIGN))
    if path:
        at = data
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
    else:
        data = value
    with pytest.raises(ValueError, match=said):
        t4_read(data)
    if path:
        file = tmp_path / "results.json"
        file.write_text(json.dumps(data))
        with pytest.raises(UsageError, match="what Kernel Tuner wrote"):
            read_trials(file)


def test_a_file_of_t4_is_one_of_trials(tmp_path: Path) -> None:
    file = tmp_path / "other_tuner.json"
    file.write_text(json.dumps(FOREIGN, indent=2))
    assert [(t.us, t.run) for t in read_trials(file)] == [(pytest.approx(12.5), "other_tuner"), (None, "other_tuner")]
