"""Whether a change of emitted text changes machine code.

    python -m tests.codegen.same_code write FILE      the machine code of today, case by case
    python -m tests.codegen.same_code compare FILE    which cases have other code than those of FILE
    python -m tests.codegen.same_code carry FILE      shipped records of the same code get the identity of today's text

The cases are those of digests.py: every shipped record, and random schedules that cover all knobs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.errors import CompileError
from normgen.export.proof import text_today
from normgen.pipeline import emit
from normgen.records.questions import problem_of
from normgen.records.record import Record
from normgen.records.winners import read, shipped_folder
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.codegen.digests import Case, kept_cases, problem_asked, question_of
from tests.mutation.machine_code import ARCH, sections

# Notes for the launch (.nv.info) hold numbers of symbols, which any function of the text shifts.
INSTRUCTIONS = (".text.", ".nv.constant", ".nv.shared.")


def code_of(module: Module) -> dict[str, str]:
    """Of each kernel: a digest of its instructions, and one of its constants and the size of its shared memory."""
    found: dict[str, tuple[list[bytes], list[bytes]]] = {}
    for name, size, content in sections(compile_module(module, ARCH).data):
        if not name.startswith(INSTRUCTIONS):
            continue
        number = next((i for i, k in reversed(list(enumerate(module.kernels))) if k.name in name), -1)
        plain = next(kind for kind in INSTRUCTIONS if name.startswith(kind))
        kinds = found.setdefault(f"kernel_{number}", ([], []))
        kinds[0 if name.startswith(".text.") else 1].append(f"{plain} {size} ".encode() + content)
    return {
        kernel: " ".join(hashlib.sha256(b"".join(sorted(kind))).hexdigest()[:16] for kind in kinds)
        for kernel, kinds in sorted(found.items())
        if kernel != "kernel_-1"
    }


def code_of_case(case: Case) -> dict[str, str]:
    question, knobs = case
    try:
        return code_of(emit(problem_asked(question), Schedule(**knobs)))
    except CompileError as error:
        return {"refused": str(error.received)}


def codes(cases: list[Case]) -> Iterator[dict[str, str]]:
    with ProcessPoolExecutor() as pool:
        for number, code in enumerate(pool.map(code_of_case, cases, chunksize=4), start=1):
            if number % 50 == 0:
                print(f"{number} of {len(cases)}", file=sys.stderr, flush=True)
            yield code


def carried(record: Record, before: Mapping[str, Any]) -> Record | None:
    """The record whose kernel, of a text with the machine code of today's, is said to be of today's; None if it is not.

    A record that was proven again of a text that nobody timed stays one: it is that text's identity that is carried.
    """
    problem = problem_of(record.problem, load(record.problem.op))
    case: Case = (question_of(problem), record.schedule.chosen)
    if before.get(json.dumps(list(case))) != code_of_case(case):
        return None
    now = text_today(problem, record.schedule)
    if record.verified is not None and record.verified.text:
        return replace(record, verified=replace(record.verified, text=now))
    return replace(record, text=now)


def carry(file: Path) -> int:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    before = {json.dumps([question, knobs]): code for question, knobs, code in lines}
    other = 0
    for path in sorted(shipped_folder().glob("*.jsonl")):
        records = read(path).records
        with ProcessPoolExecutor() as pool:
            found = list(pool.map(partial(carried, before=before), records, chunksize=4))
        other += found.count(None)
        print(f"{path.name}: {len(found) - found.count(None)} of {len(found)} carried")
        path.write_text("".join((f or r).line() for f, r in zip(found, records, strict=True)), encoding="utf-8")
    return min(other, 1)


def main(words: list[str]) -> int:
    """0 if nothing differs."""
    what, file = words[0], Path(words[1])
    every = int(words[2]) if len(words) > 2 else 1
    if what == "carry":
        return carry(file)
    if what == "write":
        cases = kept_cases()
        lines = [json.dumps([*case, code]) for case, code in zip(cases, codes(cases), strict=True)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return 0
    before = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][::every]
    other = []
    for (question, knobs, old), new in zip(before, codes([(b[0], b[1]) for b in before]), strict=True):
        if old != new:
            other.append(f"{question} {knobs}: {old} {new}")
    print(*other, sep="\n")
    print(f"{len(before) - len(other)} of {len(before)} kernels have the same machine code")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
