"""Mutants of kernels, judged and counted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.caches import with_runtime
from tests.mutation.arguments import Argument, argument_for, arguments
from tests.mutation.judge import Outcome, Task, Verdict, judge_all
from tests.mutation.mutants import ALL_CASES, Mutant, module_of

MOST_EQUIVALENT = 0.15  # of all mutants; with more, the classes are ill chosen
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A mutant and its verdict; `because` is the argument of one that is argued to be right."""

    mutant: Mutant
    verdict: Verdict
    because: str = ""

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        mutant, verdict = self.mutant, self.verdict
        return {
            "name": mutant.name,
            "class": mutant.kind,
            "kernel": mutant.case,
            "line": mutant.line,
            "before": mutant.before,
            "after": mutant.after,
            "outcome": verdict.outcome.value,
            "detail": verdict.detail,
            "because": self.because,
        }


class WrongBaseline(Exception):
    """A kernel that nobody changed does not pass."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="normgen-mutation-", ignore_cleanup_errors=True) as folder:
        with_runtime(Path(folder) / "cache")
        yield Path(folder)


def judged(mutants: Sequence[Mutant], *, jobs: int = 1, progress: Progress = lambda *_: None) -> list[Result]:
    """The result of every mutant, in their order. Raises WrongBaseline."""
    cases = list(dict.fromkeys(mutant.case for mutant in mutants))
    verdicts: dict[int, Verdict] = {}
    with scratch_folder() as scratch:
        codes: dict[str, str] = {}
        unchanged = [Task(problem=ALL_CASES[case].problem, module=module_of(case)) for case in cases]
        with judge_all(unchanged, scratch, jobs=jobs) as judgements:
            for index, verdict in judgements:
                if verdict.outcome is not Outcome.SURVIVED:
                    raise WrongBaseline(f"{cases[index]}, unchanged: {verdict.outcome}: {verdict.detail}")
                codes[cases[index]] = verdict.code
        tasks = [Task(problem=ALL_CASES[m.case].problem, module=m.module(), original=codes[m.case]) for m in mutants]
        with judge_all(tasks, scratch, jobs=jobs) as judgements:
            for index, verdict in judgements:
                verdicts[index] = verdict
                progress(len(verdicts), len(tasks), f"{mutants[index].name}: {verdict.outcome}")
    listed = arguments()
    return [argued(mutant, verdicts[index], listed) for index, mutant in enumerate(mutants)]


def argued(mutant: Mutant, verdict: Verdict, listed: Sequence[Argument]) -> Result:
    """The result; a survivor that an argument covers is equivalent."""
    argument = argument_for(mutant, listed) if verdict.outcome is Outcome.SURVIVED else None
    if argument is None:
        return Result(mutant=mutant, verdict=verdict)
    right = Verdict(outcome=Outcome.ARGUED, code=verdict.code, seconds=verdict.seconds)
    return Result(mutant=mutant, verdict=right, because=argument.because)


def share_killed(results: Sequence[Result]) -> float:
    """Killed mutants of those that are wrong; of none, all."""
    wrong = [r for r in results if r.verdict.outcome.is_wrong]
    return sum(r.verdict.outcome.is_killed for r in wrong) / len(wrong) if wrong else 1.0


def share_equivalent(results: Sequence[Result]) -> float:
    return sum(not r.verdict.outcome.is_wrong for r in results) / len(results) if results else 0.0


def refuted_arguments(results: Sequence[Result], listed: Sequence[Argument]) -> list[str]:
    """Mutants that an argument calls right, and that the check kills."""
    covered = [(r, argument_for(r.mutant, listed)) for r in results if r.verdict.outcome.is_killed]
    return [f"{r.mutant.name} is killed, and equivalent.toml says: {a.because}" for r, a in covered if a is not None]


def unused_arguments(results: Sequence[Result], listed: Sequence[Argument]) -> list[str]:
    """Arguments that no survivor needs."""
    used = {result.because for result in results}
    unused = [argument for argument in listed if argument.because not in used]
    return [f"equivalent.toml: no survivor of {', '.join(a.classes)} for: {a.because}" for a in unused]
