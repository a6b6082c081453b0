"""The command `python -m tests.fuzz`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from tests.fuzz.specs import draw
from tests.fuzz.stages import STEPS, Answer, answered, build_together

BATCH = 16  # specs, of two kernels each: as many as one call of the compiler takes

DESCRIPTION = """\
Draws random specs and takes them to CUDA text, through NVRTC, and to the CPU executor; and random legal schedules of
the operations that come with normgen (--legal), whose kernels the whole check must find right.

Each fault is printed with its spec as it is found; a table follows. The exit code is 1 if there was a fault: a crash, a
hang, a right kernel called wrong (or the other way round: the two cannot be told apart here).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    known = argparse.ArgumentParser(prog="python -m tests.fuzz", description=DESCRIPTION, formatter_class=formatter)
    for name in STEPS:
        known.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"draws of the step {name}")
    known.add_argument("--seed", type=int, default=0, help="the first draw's; the next one has the next (default 0)")
    known.add_argument("--minutes", type=float, default=math.inf, help="stop each step after so many")
    asked = known.parse_args(arguments)
    faults = 0
    for name in STEPS:
        faults += run(name, getattr(asked, name), seed=asked.seed, minutes=asked.minutes)
    return int(faults > 0)


def run(name: str, count: int, *, seed: int, minutes: float = math.inf) -> int:
    """How many of `count` draws show a fault in one step."""
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for number in range(seed, seed + count):
        if time.monotonic() - started > 60 * minutes:
            break
        if name == "execute" and (number - seed) % BATCH == 0:
            build_together(draw(Random(n)) for n in range(number, min(number + BATCH, seed + count)))
        spec = STEPS[name].draw(Random(number))
        answer: Answer = answered(STEPS[name].do, spec)
        counts[answer.state] += 1
        if answer.is_fault:
            print(f"== {name}, seed {number}: {answer.state}\n{spec}{answer.why}\n", flush=True)
        if sum(counts.values()) % 100 == 0:
            print(f"{name}: {dict(counts)} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if count:
        print(f"{name}: {sum(counts.values())} drawn: {dict(counts)}", flush=True)
    return counts["wrong"] + counts["crash"] + counts["hang"]
