"""What is drawn as plain values: a spec's text, a question and knobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.spec.reader import parse


@dataclass(frozen=True)
class Exact:
    """A question and schedules as they were, whatever a draw of the same seed is today."""

    text: str
    question: Mapping[str, Any]
    knobs: Sequence[Mapping[str, Any]]

    def problem(self) -> Problem:
        return problem_for(parse(self.text, file="fuzz.toml"), **self.question)

    def schedules(self, problem: Problem) -> list[Schedule]:  # noqa: ARG002 - they were drawn for this problem
        return [schedule_from(knobs) for knobs in self.knobs]

    def kept(self) -> dict[str, Any]:
        return {"question": self.question, "schedules": self.knobs}

    def __str__(self) -> str:
        lines = [f"# {json.dumps(self.question)}", *(f"# {schedule_from(knobs)}" for knobs in self.knobs)]
        return "\n".join([self.text.rstrip(), *lines, ""])
