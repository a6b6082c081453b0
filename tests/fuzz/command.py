"""The command `python -m tests.fuzz`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.fuzz.faults import Fault, Faults, default_file, fault_of, read_faults
from tests.fuzz.shrink import shrunk
from tests.fuzz.specs import Asked, draw
from tests.fuzz.stages import STEPS, Answer, answered, build_together

BATCH = 16  # specs, of two kernels each: as many as one call of the compiler takes

DESCRIPTION = """\
Draws random specs and takes them to CUDA text, through NVRTC, and to the CPU executor; and random legal schedules of
the operations that come with normgen (--legal), and of random products of matrices (--products), whose kernels the
whole check must find right.

Each fault is printed and kept as it is found, with all that shows it again (--replay); a table follows. The exit code
is 1 if there was a fault: a crash, a hang, a right kernel called wrong (or the other way round: the two cannot be told
apart here).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    known = argparse.ArgumentParser(prog="python -m tests.fuzz", description=DESCRIPTION, formatter_class=formatter)
    for name in STEPS:
        known.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"draws of the step {name}")
    known.add_argument("--seed", type=int, default=0, help="the first draw's; the next one has the next (default 0)")
    known.add_argument("--minutes", type=float, default=math.inf, help="stop each step after so many")
    words = "the file that faults are added to (default: fuzz/faults.jsonl in the state folder)"
    known.add_argument("--faults", type=Path, metavar="FILE", help=words)
    known.add_argument("--replay", type=Path, metavar="FILE", help="try again what such a file holds, and nothing else")
    known.add_argument("--shrink", action="store_true", help="with --replay: find the smallest spec with such a fault")
    asked = known.parse_args(arguments)
    if asked.replay:
        return int(replay(read_faults(asked.replay), shrink=asked.shrink) > 0)
    kept = Faults.at(asked.faults or default_file())
    faults = 0
    for name in STEPS:
        faults += run(name, getattr(asked, name), seed=asked.seed, kept=kept, minutes=asked.minutes)
    if faults:
        print(f"{faults} faults are kept: python -m tests.fuzz --replay {kept.path}", flush=True)
    return int(faults > 0)


def run(name: str, count: int, *, seed: int, kept: Faults, minutes: float = math.inf) -> int:
    """How many of `count` draws show a fault in one step; each is kept before the next draw."""
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for number in range(seed, seed + count):
        if time.monotonic() - started > 60 * minutes:
            break
        if name == "execute" and (number - seed) % BATCH == 0:
            build_together(draw(Random(n)) for n in range(number, min(number + BATCH, seed + count)))
        drawn = STEPS[name].draw(Random(number))
        with kept.trying(name, number, drawn):
            answer: Answer = answered(STEPS[name].do, drawn)
        counts[answer.state] += 1
        if answer.is_fault:
            fault = fault_of(name, number, drawn, answer)
            kept.keep(fault)
            print(fault, flush=True)
        if sum(counts.values()) % 100 == 0:
            print(f"{name}: {dict(counts)} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if count:
        print(f"{name}: {sum(counts.values())} drawn: {dict(counts)}", flush=True)
    return counts["wrong"] + counts["crash"] + counts["hang"]


def replay(faults: Sequence[Fault], *, shrink: bool = False) -> int:
    """How many of the faults show again; each is printed with what is found today."""
    again = 0
    for fault in faults:
        drawn = fault.made_again() if shrink else fault.drawn()
        answer = answered(STEPS[fault.step].do, drawn)
        again += answer.is_fault
        if answer.is_fault and isinstance(drawn, Asked):
            drawn, answer = shrunk(STEPS[fault.step].do, drawn, answer)
        print(fault_of(fault.step, fault.seed, drawn, answer), flush=True)
    print(f"{again} of {len(faults)} show again", flush=True)
    return again
