"""Two measured searches with known figures, a predicted run, and their winners."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from normgen.device import TARGETS
from normgen.problem.question import Direction, Question
from normgen.records.place import DEFAULT_PLACE, Place
from normgen.records.record import Outcome, Record
from normgen.records.statistics import Times
from normgen.schedule.schedule import Schedule
from normgen.studies.sweep_file import Sweep
from normgen.trials.file import write as write_run
from normgen.trials.trial import Trial

H200 = TARGETS["h200"].as_dict()
VERSIONS = {"normgen": "0.1.0", "nvrtc": "13.0"}
SEARCH = {"trials": 12, "noise_floor": 0.01, "policy": {"confirm_samples": 40}, "elapsed_s": 3.5}
SCHEDULES = [
    Schedule(threads_per_row=t, vector=v, load=ld)
    for t, v, ld in itertools.product((32, 64, 256), (1, 4), ("default", "streaming"))
]
RESOURCES = {
    "kernel": "k", "threads": 128, "registers": 40, "spill_bytes": 0, "stack_bytes": 0, "static_shared_bytes": 0,
    "dynamic_shared_bytes": 0,
}  # fmt: skip
FAILED = {2: Outcome.WRONG_RESULT, 7: Outcome.COMPILE_ERROR}


def key(op: str = "layernorm", *, rows: int = 8192, cols: int = 768, dtype: str = "f32", **more: Any) -> Question:
    values = {"spec_sha256": "ab" * 32, "direction": Direction.FORWARD, "pitch": cols, "align": 16} | more
    return Question(op=op, rows=rows, cols=cols, dtypes=(("y", dtype), ("mean", "f32"), ("x", dtype)), **values)


def us_of(schedule: Schedule) -> float:
    """By hand: the vector matters most, threads less, the hint not at all."""
    return 10.0 * {1: 2.0, 4: 1.0}[schedule.vector] * {32: 1.0, 64: 1.1, 256: 1.4}[schedule.threads_per_row]


def record(problem: Question, schedule: Schedule, us: float | None, **changes: Any) -> Record:
    times = Times(n=12, median=us, p05=us, p95=us * 1.01, low=us * 0.99, high=us * 1.01) if us else None
    values: dict[str, Any] = {
        "problem": problem, "schedule": schedule, "outcome": Outcome.OK, "measured": us is not None,
        "times_us": times, "roof_us": 9.5, "bytes": 50_000_000, "device": H200, "versions": VERSIONS,
        "command": "normgen tune", "created": "2026-11-20T00:00:00Z", "resources": (RESOURCES,),
    }  # fmt: skip
    return Record(**(values | changes))


def candidates(problem: Question, **changes: Any) -> list[Record]:
    """Twelve candidates, slowest first, with what a tune says of each; the third and the eighth fail."""
    changes = {"search": {"policy": SEARCH.get("policy"), "chosen": "search"}} | changes
    ordered = sorted(SCHEDULES, key=us_of, reverse=True)
    made = [record(problem, s, None if i in FAILED else us_of(s), **changes) for i, s in enumerate(ordered)]
    return [replace(r, outcome=FAILED[i], reason="NVRTC <b>") if i in FAILED else r for i, r in enumerate(made)]


def winner(problem: Question, us: float = 10.0, **changes: Any) -> Record:
    return record(problem, SCHEDULES[2], us, **({"default_us": 20.0, "search": SEARCH} | changes))


def predicted(problem: Question, us: float = 12.0, **changes: Any) -> Record:
    values = {"outcome": Outcome.PREDICTED, "predicted_us": us, "roof_us": None}
    return record(problem, SCHEDULES[2], None, **(values | changes))


def write(path: Path, records: Sequence[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(r.line() for r in records), encoding="utf-8")
    return path


def files(folder: Path) -> list[Path]:
    """A layernorm and an rmsnorm search with their winners, and a predicted softmax run."""
    soft = key("softmax", cols=4096)
    made = {
        "layernorm.jsonl": candidates(key()),
        "rmsnorm.jsonl": candidates(key("rmsnorm", dtype="bf16", cols=4096)),
        "softmax.jsonl": [predicted(soft, 12.0 + i) for i in range(3)],
        "winners.jsonl": [
            winner(key()),
            winner(key("rmsnorm", dtype="bf16", cols=4096), us=11.0),
            predicted(soft, search={"trials": 3}),
        ],
    }
    return [write(folder / name, records) for name, records in made.items()]


def sweep(path: Path, *, place: Place = DEFAULT_PLACE) -> Path:
    """A finished sweep of the twelve schedules, one of them wrong, one the twin of another."""
    problem = key()
    plain = problem.as_dict()
    points = [Trial(schedule=s, us=us_of(s), registers=40) for s in SCHEDULES]
    points[3] = replace(points[3], outcome=Outcome.WRONG_RESULT, us=None)
    points[1] = replace(points[1], twin=SCHEDULES[0])
    head = {"device": H200, "versions": VERSIONS, "options": {"seed": 0}, "started": "2026-01-02T03:04:05Z"}
    made = Sweep(
        **head, legal=len(SCHEDULES), default=SCHEDULES[0], problem=plain, place=place, roof_us=9.5, noise_floor=0.004,
        bytes=50_000_000, points=tuple(points),
    )  # fmt: skip
    write_run(path, made)
    return path
