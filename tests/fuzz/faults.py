"""Faults as they are found: a line of JSON each, with the spec, the question and the schedules that show it again.

A line is on disk before the next draw begins. What is being tried has a file of its own, which stays behind where the
process dies: that is a fault as well, and `--replay` takes that file too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from normgen.records.lines import append
from normgen.records.winners import state_folder
from tests.fuzz.exact import Exact
from tests.fuzz.specs import Asked
from tests.fuzz.stages import Answer, Drawn


def default_file() -> Path:
    return state_folder() / "fuzz" / "faults.jsonl"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a step found wrong, or `tried`, with what it was found on.

    question, schedules   the arguments of `problem_for` and the knobs, of a draw that got as far as having them
    asked   what a draw of `Asked` is made of besides its text
    """

    step: str
    seed: int
    state: str
    text: str
    why: str = ""
    trace: str = ""
    question: Mapping[str, Any] | None = None
    schedules: Sequence[Mapping[str, Any]] = ()
    asked: Mapping[str, Any] | None = None

    def drawn(self) -> Drawn:
        """What the fault was found on, to the letter where its question is known."""
        is_known = self.asked is None or (self.question is not None and self.schedules)
        return Exact(self.text, self.question or {}, self.schedules) if is_known else self.made_again()

    def made_again(self) -> Drawn:
        """The same from what its question and schedules are made of, where it was drawn so."""
        return Asked(text=self.text, **self.asked) if self.asked is not None else self.drawn()

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    def __str__(self) -> str:
        return f"== {self.step}, seed {self.seed}: {self.state}\n{self.drawn()}{self.why}\n{self.trace}"


def fault_of(step: str, seed: int, drawn: Drawn, answer: Answer) -> Fault:
    """A fault as it is kept: what cannot be had of its question is left out."""
    kept = drawn.kept()
    with suppress(Exception):
        problem = drawn.problem()
        kept |= {"question": problem.arguments()}
        kept |= {"schedules": [schedule.chosen for schedule in drawn.schedules(problem)]}
    return Fault(step=step, seed=seed, state=answer.state, text=drawn.text, why=answer.why, trace=answer.trace, **kept)


@dataclass(frozen=True)
class Faults:
    """The file that a run keeps its faults in."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> Faults:
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @contextmanager
    def trying(self, step: str, seed: int, drawn: Drawn) -> Iterator[None]:
        """Keeps the draw where the process dies within, or is ended."""
        tried = self.path.with_suffix(f".{os.getpid()}.tried.jsonl")
        tried.write_text(Fault(step=step, seed=seed, state="tried", text=drawn.text, **drawn.kept()).line())
        yield
        tried.unlink(missing_ok=True)

    def keep(self, fault: Fault) -> None:
        append(self.path, fault.line())


def read_faults(path: Path) -> list[Fault]:
    return [Fault(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]
