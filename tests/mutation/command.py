"""The command `python -m tests.mutation`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutation.arguments import arguments
from tests.mutation.kernel_run import (
    MOST_EQUIVALENT,
    WrongBaseline,
    judged,
    refuted_arguments,
    share_equivalent,
    unused_arguments,
)
from tests.mutation.mutants import ALL_CASES, ALL_CLASSES, all_sites, chosen, sample
from tests.mutation.package_changes import CHANGES
from tests.mutation.package_run import StaleChange, package_report, tried
from tests.mutation.tables import kernel_report

DESCRIPTION = """\
Makes wrong kernels, or wrong lines of the package, and tells which of them nothing finds.

Progress goes to stderr, the tables to stdout. The exit code is 1 if an unchanged kernel or the unchanged package does
not pass, if a mutant of the package changes a text that is not there any more, if too many mutants are equivalent, or
if an argument of equivalent.toml is refuted or needed by no survivor; 130 after Ctrl-C.
"""


def show_progress(done: int, total: int, what: str) -> None:
    print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    known = argparse.ArgumentParser(prog="python -m tests.mutation", description=DESCRIPTION, formatter_class=formatter)
    files = sorted({change.file for change in CHANGES})
    known.add_argument("what", choices=("kernels", "package"))
    known.add_argument("--sample", type=int, metavar="N", help="only N mutants, of as many classes or files as can be")
    known.add_argument("--seed", type=int, default=0, help="which places are changed (default 0)")
    known.add_argument("--schedule", metavar="NAME", choices=sorted(ALL_CASES), help="kernels: only this one")
    names = [*(mutation.name for mutation in ALL_CLASSES), *files]
    known.add_argument("--class", dest="kind", metavar="NAME", choices=names, help="only this class, or only this file")
    known.add_argument("--json", type=Path, metavar="FILE", help="every result, as one list")
    known.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default 1)")
    return known


def kernels(asked: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """Results as plain values, and what is wrong with the run itself."""
    whole = chosen(all_sites(), seed=asked.seed)
    mutants = [m for m in whole if asked.kind in (None, m.kind) and asked.schedule in (None, m.case)]
    if asked.sample is not None:
        mutants = sample(mutants, asked.sample, seed=asked.seed)
    results = judged(mutants, jobs=asked.jobs, progress=show_progress)
    print(kernel_report(results))
    is_whole = len(mutants) == len(whole) and asked.seed == 0
    wrong = refuted_arguments(results, arguments())
    if is_whole:
        wrong += unused_arguments(results, arguments())
    if is_whole and share_equivalent(results) > MOST_EQUIVALENT:
        wrong.append(f"more than {MOST_EQUIVALENT:.0%} of the mutants are equivalent: the classes are ill chosen")
    return [result.plain() for result in results], wrong


def package(asked: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    changes = [change for change in CHANGES if asked.kind in (None, change.file)]
    if asked.sample is not None:
        changes = sample(changes, asked.sample, seed=asked.seed)
    results = tried(changes, jobs=asked.jobs, progress=show_progress)
    print(package_report(results))
    return [result.plain() for result in results], []


def main(words: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(words)
    try:
        plain, wrong = (kernels if asked.what == "kernels" else package)(asked)
    except KeyboardInterrupt:
        return 130
    except (WrongBaseline, StaleChange) as error:
        print(error, file=sys.stderr)
        return 1
    if asked.json:
        asked.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0
