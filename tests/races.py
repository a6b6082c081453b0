"""Schedules of one problem timed against each other on a GPU, between plain kernels, its input just written.

    tests/data/races_h200.jsonl.xz   races
    tests/data/races_h100.jsonl.xz   races; tunes of random shapes, with all that they timed, or with the rule's, the
                                     default and the tuned schedule; tunes beside an H200's record

A line: op, the keyword arguments of `problem_for`, and chains: schedule -> what the chain takes, over the first's of a
race, the default's of that day of a tune, or the tuned one's. source (H100): which of these; tuned: that schedule.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgen.device import Device, target
from normgen.ladder.points import read_schedule
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

TOLD = {"op", "roof_us", "chains", "source", "tuned"}


@dataclass(frozen=True, kw_only=True)
class Race:
    problem: Problem
    chains: Mapping[Schedule, float]
    source: str = ""
    tuned: Schedule | None = None

    def behind(self, schedule: Schedule) -> float | None:
        """How much longer the chain takes than with the best that was timed; None of a schedule that was not."""
        chain = self.chains.get(schedule)
        return None if chain is None else chain / min(self.chains.values())


def races(gpu: str) -> list[Race]:
    with lzma.open(Path(__file__).parent / "data" / f"races_{gpu}.jsonl.xz", "rt") as lines:
        return [_race(json.loads(line), target(gpu)) for line in lines]


def _race(told: Mapping[str, Any], device: Device) -> Race:
    problem = problem_for(load(told["op"]), **{k: v for k, v in told.items() if k not in TOLD})

    def named(words: str) -> Schedule:
        return read_schedule(problem, device, f"plain {words}")

    return Race(
        problem=problem,
        chains={named(words): chain for words, chain in told["chains"].items()},
        source=told.get("source", ""),
        tuned=named(told["tuned"]) if "tuned" in told else None,
    )
