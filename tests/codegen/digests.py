"""Digests of emitted texts: every shipped record, and schedules that cover all knobs over awkward problems.

tests/golden/digests.json holds [question, knobs that are not plain, digest of the text, digest of the launches]. A
change of the emitter that should change nothing is held to it: `python -m tests.codegen.digests` prints what differs.
`--update` writes the texts of today; `--draw` draws the cases anew first.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from normgen.codegen.module import Module
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.questions import problem_of
from normgen.records.winners import read, shipped_folder
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.codegen.layouts import BACKWARD_SETS, SETS
from tests.codegen.matrix import sample
from tests.samples import CORE

FILE = Path(__file__).parent.parent / "golden" / "digests.json"
EXTRA = 4  # random schedules beside those that cover all pairs of values, for each operation and set of layouts
Case = list[Any]


def question_of(problem: Problem) -> dict[str, Any]:
    """The keyword arguments of `problem_for` that give this problem, and its operation."""
    declared = {t.name for t in problem.spec.tensors}
    stored = {t.name: t.dtype.name for t in problem.tensors}
    named = {n: stored.get(n) or stored.get(f"d{n}") for n in declared}
    plain = {
        "op": problem.spec.name,
        "shape": [problem.rows, problem.cols],
        "dtype": problem.dtype.name,
        "dtypes": {name: dtype for name, dtype in sorted(named.items()) if dtype},
        "direction": problem.direction.value,
        "without": list(problem.absent),
        "gradients": list(problem.gradients) if problem.gradients else None,
        "pitch": problem.pitch,
        "align": problem.align,
        "any_cols": problem.any_cols,
    }
    plain |= {"batches": problem.batches} if problem.batches != 1 else {}
    return plain | {n: True for n in ("accumulate", "deterministic", "stable_parameters") if getattr(problem, n)}


def problem_asked(question: dict[str, Any]) -> Problem:
    facts = dict(question)
    return problem_for(load(facts.pop("op")), shape=tuple(facts.pop("shape")), **facts)


def digests(module: Module) -> list[str]:
    text = module.source
    for number, kernel in enumerate(module.kernels):
        text = text.replace(kernel.name, f"kernel_{number}")
    launches = "\n".join(
        f"{[(p.ctype, p.source.value, p.key, p.offset, p.stable) for p in k.params]} {shape_of(k.launch)}"
        for k in module.kernels
    )
    launches += f" {module.workspace_fixed_bytes} {module.workspace_column_bytes} {module.workspace_block_bytes}"
    return [hashlib.sha256(part.encode()).hexdigest()[:16] for part in (text, launches)]


def shape_of(launch: Any) -> str:
    grids = [launch.grid(rows=rows, sm_count=sms) for rows in (0, 1, 100, 99999) for sms in (2, 132)]
    return f"{grids} {launch.threads} {launch.cluster} {launch.shared_bytes} {launch.dependent}"


def draw() -> list[Case]:
    folder = shipped_folder()
    shipped = [(problem_of(r.problem, load(r.problem.op)), r.schedule) for r in read(folder / "h200.jsonl").records]
    drawn = [
        case
        for direction, sets in (("forward", SETS), ("backward", BACKWARD_SETS))
        for op in CORE
        if direction == "forward" or load(op).outputs
        for layouts in sets.values()
        for case in sample(op, layouts, 1, extra=EXTRA, direction=direction)
    ]
    cases = [(question_of(p), s.chosen) for p, s in (*shipped, *drawn)]
    return [list(case) for case in {json.dumps(c, sort_keys=True): c for c in cases}.values()]


def now(cases: list[Case]) -> list[Case]:
    """The cases with the digests of today."""
    found = []
    for question, knobs, *_ in cases:
        found.append([question, knobs, *digests(emit(problem_asked(question), Schedule(**knobs)))])
    return found


def kept() -> list[Case]:
    return list(json.loads(FILE.read_text(encoding="utf-8")))


def write(cases: list[Case]) -> None:
    FILE.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n", encoding="utf-8")


def differences() -> list[str]:
    before = kept()
    return [f"{a[0]} {a[1]}" for a, b in zip(before, now(before), strict=True) if a != b]


if __name__ == "__main__":
    if "--update" in sys.argv or "--draw" in sys.argv:
        write(now(draw() if "--draw" in sys.argv else kept()))
    changed = differences()
    print("\n".join(changed[:20]))
    print(f"{len(changed)} of {len(kept())} emitted texts differ from {FILE.name}")
    sys.exit(bool(changed))
