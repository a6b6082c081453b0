"""Digests of emitted texts: shipped records, and schedules that cover all knobs, over every operation and its forms.

tests/golden/digests.jsonl has a line for each problem: what is asked, digests of its programs and of its header, and of
each schedule [knobs that are not plain, digests of the text and of the launches]. A change of the emitter that should
change nothing is held to it.

    python -m tests.codegen.digests                what differs
    python -m tests.codegen.digests --update       write the digests of today, of the same cases
    python -m tests.codegen.digests --draw OP ...  the same, with the cases of these operations, or of all, drawn anew
    python -m tests.codegen.digests --coverage     how much of the language the cases show
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import sympy as sp

from normgen.codegen.module import Module
from normgen.device import target
from normgen.errors import VerificationError
from normgen.export import headers_of
from normgen.export.proof import text_today
from normgen.files.shipped import VERSION
from normgen.pipeline import emit, programs_of
from normgen.problem.problem import Problem
from normgen.problem.words import said_dtypes
from normgen.program.ir import used_exprs
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE
from normgen.records.record import Outcome, Record
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import list_presets, list_specs, load
from normgen.spec.spec import Spec
from tests.export.cases import CPU_CHECK

FILE = Path(__file__).parent.parent / "golden" / "digests.jsonl"
HEADER_TIMES = 512  # the rows of a problem: every grid has some to walk
EVERY = 6  # a normal test run takes one problem in so many
# What the cases show at least: pairs of operation and direction, programs behind all passes, their statements, ...
LEAST = {"pairs": 90, "programs": 600, "statements": 650, "expressions": 440, "sympy classes": 35}
PLAIN = {"direction": "forward", "without": [], "gradients": None, "align": 16, "dtypes": {}}
Case = tuple[dict[str, Any], dict[str, Any]]  # what is asked, and the knobs


@dataclass(frozen=True)
class Asked:
    """A problem as the arguments of `problem_for` and its operation, its schedules, and their digests."""

    question: dict[str, Any]
    knobs: tuple[dict[str, Any], ...]
    programs: str = ""
    header: str = ""
    texts: tuple[str, ...] = ()

    @staticmethod
    def read(line: str) -> Asked:
        question, programs, header, schedules = json.loads(line)
        return Asked(question, tuple(s[0] for s in schedules), programs, header, tuple(s[1] for s in schedules))

    def __str__(self) -> str:
        schedules = [list(pair) for pair in zip(self.knobs, self.texts, strict=True)]
        return json.dumps([self.question, self.programs, self.header, schedules], separators=(",", ":"))

    def today(self) -> Asked:
        problem, schedules = problem_asked(self.question), [Schedule(**knobs) for knobs in self.knobs]
        steps = dict.fromkeys(step for s in schedules for step in programs_of(problem, s))
        programs = digest("\n".join(f"{name}\n{program}" for name, program in steps))
        texts = tuple(" ".join(digests(emit(problem, s))) for s in schedules)
        return replace(self, programs=programs, header=digest(header_of(problem, schedules[0])), texts=texts)

    def differences(self) -> list[str]:
        """What is another text today."""
        now, asked = self.today(), f"{self.question}"
        found = [f"programs of {asked}"] if now.programs != self.programs else []
        found += [f"header of {asked}"] if now.header != self.header else []
        return found + [f"{asked} {k}" for k, a, b in zip(self.knobs, self.texts, now.texts, strict=True) if a != b]


@cache
def spec_of(op: str) -> Spec:
    return load((list_specs() | list_presets())[op])


def problem_asked(question: dict[str, Any]) -> Problem:
    facts = dict(question)
    return problem_for(spec_of(facts.pop("op")), **facts)


def question_of(problem: Problem) -> dict[str, Any]:
    """What differs from the plain question, in the order of `Problem.arguments`."""
    said = problem.arguments() | {"dtypes": said_dtypes(problem)}
    plain = PLAIN | {"pitch": problem.cols}
    return {"op": problem.spec.name, **{n: v for n, v in said.items() if n not in plain or v != plain[n]}}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def digests(module: Module) -> list[str]:
    text = module.source
    for number, kernel in enumerate(module.kernels):
        text = text.replace(kernel.name, f"kernel_{number}")
    grids = [shape_of(kernel.launch) for kernel in module.kernels]
    needs = [module.workspace_bytes(rows=r, sm_count=2, batches=b) for r in (0, 1, 100) for b in (1, 2, 5)]
    launches = f"{module.launches} {grids} {needs} {module.workspace.column} {module.min_arch}"
    return [digest(text), digest(launches)]


def shape_of(launch: Any) -> str:
    lengths = {"cols": 100, "inner": 50}  # of tiles
    grids = [launch.grid(rows=rows, sm_count=sms, **lengths) for rows in (0, 1, 100, 99999) for sms in (2, 132)]
    return f"{grids} {launch.threads} {launch.cluster} {launch.shared_bytes} {launch.dependent}"


def header_of(problem: Problem, schedule: Schedule) -> str:
    """The header of one record of the problem as it may leave, which nobody measured; none of any columns.

    Of more rows than the problem has, so that every grid has some to walk; of a schedule that is not legal there, the
    refusal.
    """
    if problem.any_cols:
        return ""
    problem = problem.with_rows(problem.rows * HEADER_TIMES)
    device = target("h200")
    record = Record(
        problem=problem.question,
        place=DEFAULT_PLACE,
        schedule=schedule,
        text=text_today(problem, schedule),
        outcome=Outcome.PREDICTED,
        measured=False,
        times_us=None,
        predicted_us=1.0,
        roof_us=None,
        default_us=None,
        bytes=problem.compulsory_bytes,
        error={t.name: 0.25 for t in problem.tensors if t.is_written},
        verified=CPU_CHECK,
        device=device.as_dict(),
        versions={},
        command="",
        created="2026-11-20T12:00:00Z",
    )
    try:
        texts = [header.text for header in headers_of([record], spec=problem.spec)]
        # The version of the package is no part of a kernel: a release changes no digest. It is taken as the first one.
        return "\n".join(text.replace(f'_VERSION "{VERSION}"', '_VERSION "0.1.0"') for text in texts)
    except VerificationError as error:
        return str(error)


def drawn(ops: Collection[str] = ()) -> list[Asked]:
    from tests.codegen.drawn import cases

    found: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {}
    for problem, schedule in cases(ops):
        question = question_of(problem)
        assert problem_asked(question).tensors == problem.tensors
        _, knobs = found.setdefault(json.dumps(question), (question, {}))
        knobs[str(schedule)] = schedule.chosen
    others = [asked for asked in kept() if asked.question["op"] not in ops] if ops else []
    return [*others, *(Asked(question, tuple(knobs.values())) for question, knobs in found.values())]


def kept() -> list[Asked]:
    return [Asked.read(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def kept_cases() -> list[Case]:
    return [(asked.question, knobs) for asked in kept() for knobs in asked.knobs]


def write(asked: Iterable[Asked]) -> None:
    with ProcessPoolExecutor() as pool:
        lines = [f"{one}\n" for one in pool.map(Asked.today, asked, chunksize=20)]
    FILE.write_text("".join(lines), encoding="utf-8")


def differences(asked: Sequence[Asked]) -> list[str]:
    with ProcessPoolExecutor() as pool:
        return [text for texts in pool.map(Asked.differences, asked, chunksize=20) for text in texts]


def coverage(asked: Iterable[Asked]) -> dict[str, int]:
    """How many distinct ones of what LEAST names the cases show."""
    pairs, texts, statements, expressions, classes = set(), set(), set(), set(), set()
    for one in asked:
        pairs.add((one.question["op"], one.question.get("direction", "forward")))
        problem = problem_asked(one.question)
        for program in {programs_of(problem, Schedule(**knobs))[-1][1] for knobs in one.knobs}:
            found = {expr for statement in program.statements for expr in used_exprs(statement)}
            texts.add(str(program))
            statements |= set(str(program).splitlines())
            expressions |= {str(expr) for expr in found}
            classes |= {type(node).__name__ for expr in found for node in sp.preorder_traversal(expr)}
    return dict(zip(LEAST, map(len, (pairs, texts, statements, expressions, classes)), strict=True))


def main(words: list[str]) -> int:
    if "--update" in words or "--draw" in words:
        ops = [word for word in words if not word.startswith("--")]
        write(drawn(ops) if "--draw" in words else kept())
        print(f"{FILE.name} has the digests of today")
        return 0
    cases = kept()
    if "--coverage" in words:
        found = coverage(cases)
        print(", ".join(f"{count} {what} (at least {LEAST[what]})" for what, count in found.items()))
        return int(any(count < LEAST[what] for what, count in found.items()))
    changed = differences(cases)
    print("\n".join(changed[:20]))
    count = sum(len(asked.knobs) for asked in cases)
    print(f"{len(changed)} differ of {count} emitted texts, of {len(cases)} problems, from {FILE.name}")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
