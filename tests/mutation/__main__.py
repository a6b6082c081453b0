"""`python -m tests.mutation kernels`: make mutants, judge them, tell which survive.

Progress goes to stderr, the tables to stdout. The exit code is 1 if more mutants are equivalent than classes that are
well chosen would make, or if an argument of equivalent.toml is refuted or needed by nothing; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutation.cases import CASES
from tests.mutation.classes import CLASSES
from tests.mutation.kernel_run import MOST_EQUIVALENT, faults_of_arguments, judged, share_equivalent
from tests.mutation.mutants import all_sites, chosen, sample
from tests.mutation.tables import kernel_report


def show_progress(done: int, total: int, what: str) -> None:
    print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.partition("\n")[0])
    known.add_argument("what", choices=("kernels",))
    known.add_argument("--sample", type=int, metavar="N", help="N mutants of all, of as many classes as there are")
    known.add_argument("--seed", type=int, default=0, help="which places are changed (default 0)")
    known.add_argument("--schedule", metavar="NAME", choices=sorted(CASES), help="only this one")
    known.add_argument("--class", dest="kind", metavar="NAME", help="only this class")
    known.add_argument("--json", type=Path, metavar="FILE", help="every result, as one list")
    known.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default 1)")
    return known


def kernels(asked: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    classes = [c for c in CLASSES if asked.kind in (None, c.name)]
    cases = {name: case for name, case in CASES.items() if asked.schedule in (None, name)}
    mutants = chosen(all_sites(classes, cases), seed=asked.seed)
    if asked.sample:
        mutants = sample(mutants, asked.sample, seed=asked.seed)
    results = judged(mutants, jobs=asked.jobs, progress=show_progress)
    print(kernel_report(results))
    whole = len(classes) == len(CLASSES) and len(cases) == len(CASES) and not asked.sample
    told = faults_of_arguments(results) if whole else []
    if whole and share_equivalent(results) > MOST_EQUIVALENT:
        told.append(f"more than {MOST_EQUIVALENT:.0%} of the mutants are equivalent: the classes are ill chosen")
    print("\n".join(told), file=sys.stderr)
    return [result.plain() for result in results], not told


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    try:
        plain, is_well = kernels(asked)
    except KeyboardInterrupt:
        return 130
    if asked.json:
        asked.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
