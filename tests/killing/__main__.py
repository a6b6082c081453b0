"""`python -m tests.killing --kills 100 --interrupts 50`: ends `normgen tune` at random moments; looks what is left."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.killing.harness import PATHS, faults_of_a_kill, faults_of_an_interrupt, moment, whole_run_s


def main(arguments: Sequence[str] | None = None) -> int:
    known = argparse.ArgumentParser(prog="python -m tests.killing", description=__doc__)
    known.add_argument("--kills", type=int, default=0, help="by SIGKILL, half of them on each path")
    known.add_argument("--interrupts", type=int, default=0, help="by Ctrl-C, half of them on each path")
    known.add_argument("--seed", type=int, default=0)
    asked = known.parse_args(arguments)
    total = 0
    with tempfile.TemporaryDirectory(prefix="normgen-killing-") as place:
        root = Path(place)
        lengths = {path: whole_run_s(root / path, root / "cache", path) for path in PATHS}
        for kind, count, end in (
            ("kills", asked.kills, faults_of_a_kill),
            ("interrupts", asked.interrupts, faults_of_an_interrupt),
        ):
            rng, ended, faulty = Random(asked.seed), 0, 0
            for number in range(count):
                path = list(PATHS)[number // 2 % 2]
                when = moment(rng, number, lengths[path])
                in_time, faults = end(root / f"{kind}{number}", root / "cache", path, when)
                ended, faulty = ended + in_time, faulty + bool(faults)
                for fault in faults:
                    print(f"{kind} {number}, {path}, at {when}: {fault}", flush=True)
            print(f"{kind}: {count}, {ended} before the end, {faulty} with faults", flush=True)
            total += faulty
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
