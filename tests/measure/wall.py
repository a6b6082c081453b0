"""By how much the check makes a tune longer: `python -m tests.measure.wall`.

Every candidate of a tune has one plain call, the winner that call in full and then the others (`measure.calls`).
These others are what a wider check adds. So a tune runs as a user's does, then its winner is checked once more with
the time of each call taken, and

    growth = (seconds of the other calls) / (seconds of the tune - the same)

On the CPU executor one kernel is checked, the first that is right, and its check is most of the tune: the bar of 10 %
is for a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import normgen
from normgen.cuda.driver import device_facts
from normgen.measure import calls, check, cpu_check
from normgen.measure.calls import CheckedCalls, KernelCall
from normgen.pipeline import emit
from normgen.records.verified import VerifiedOn
from normgen.tuning.predicted import CHECKED_ELEMENTS

BAR = 0.10
ASKED = (
    "layernorm:8192x768:bf16:forward",
    "rmsnorm:16x8192:bf16:forward",
    "rmsnorm:4096x1024:bf16:backward",
    "softmax:4096x4096:f32:forward",
    "layernorm:1024x16384:f32:forward",
)


@dataclass(frozen=True, kw_only=True)
class Wall:
    """One tune; seconds of a check by its call, "" the plain one.

    wall_s      of the whole tune
    checked_s   of it, in the phases that check
    candidates  how many were checked, each with one plain call
    """

    asked: str
    wall_s: float
    checked_s: float
    candidates: int
    calls_s: dict[str, float]

    @property
    def others_s(self) -> float:
        """What the calls besides plain ones take of the winner."""
        return sum(seconds for says, seconds in self.calls_s.items() if says)

    @property
    def growth(self) -> float:
        return self.others_s / (self.wall_s - self.others_s)

    def __str__(self) -> str:
        others = len([says for says in self.calls_s if says])
        return (
            f"{self.asked}: a tune took {self.wall_s:.2f} s, {self.checked_s / self.wall_s:.1%} of it checks of "
            f"{self.candidates} candidates; {self.others_s:.3f} s for {others} other calls of the winner: "
            f"{self.growth:.1%} longer by them"
        )


def timed(seconds: dict[str, float], made: Iterable[tuple[KernelCall, Any]], site: VerifiedOn) -> CheckedCalls:
    """`together`, with the seconds of each call."""

    def each() -> Iterator[tuple[KernelCall, Any]]:
        start = time.perf_counter()
        for call, found in made:
            seconds[call.says] = seconds.get(call.says, 0.0) + time.perf_counter() - start
            yield call, found
            start = time.perf_counter()

    return calls.together(each(), site)


def measured(asked: str, *, device: int | str, budget_s: float, trials: int | None) -> Wall:
    op, shape, dtype, direction = asked.split(":")
    found = normgen.tune(
        op,
        shape=shape,
        dtype=dtype,
        direction=direction,
        device=device,
        budget_s=budget_s,
        trials=trials,
        reuse=False,
    )
    problem, schedule = found.problem, found.record.schedule
    module, seconds = emit(problem, schedule), dict[str, float]()
    on_cpu = device == "cpu"
    with patch.object(cpu_check if on_cpu else check, "together", partial(timed, seconds)):
        if on_cpu:
            judged = cpu_check.check_on_cpu(problem, module, most_elements=CHECKED_ELEMENTS)
        else:
            judged = check.check_on_gpu(problem, module, device_facts(int(device)), index=int(device), seed=0)
    assert judged.ok, judged.summary
    return Wall(
        asked=asked,
        wall_s=found.phases_s["all"],
        checked_s=sum(took for name, took in found.phases_s.items() if name.startswith("verify")),
        candidates=1 if on_cpu else found.counts.get("ok", 0),
        calls_s=seconds,
    )


def main(words: Sequence[str] | None = None) -> int:
    known = argparse.ArgumentParser(prog="python -m tests.measure.wall", description=__doc__)
    known.formatter_class = argparse.RawDescriptionHelpFormatter
    known.add_argument("asked", nargs="*", default=ASKED, metavar="OP:SHAPE:DTYPE:DIRECTION")
    known.add_argument("--device", default="0", help='the number of a GPU, or "cpu" (default 0)')
    known.add_argument("--budget", type=float, default=20.0, metavar="S", help="seconds of a tune (default 20)")
    known.add_argument("--trials", type=int, metavar="N", help="candidates of a tune at most")
    known.add_argument("--json", type=Path, metavar="FILE", help="all that was measured")
    given = known.parse_args(words)
    device = given.device if given.device == "cpu" else int(given.device)
    found = []
    with tempfile.TemporaryDirectory() as state, patch.dict("os.environ", NORMGEN_STATE_DIR=state):
        for asked in given.asked:
            found.append(measured(asked, device=device, budget_s=given.budget, trials=given.trials))
            print(found[-1], flush=True)
    growths = [wall.growth for wall in found]
    print(f"growth of {len(found)} tunes: median {statistics.median(growths):.1%}, largest {max(growths):.1%}")
    if given.json:
        plain = [{**asdict(wall), "others_s": wall.others_s, "growth": wall.growth} for wall in found]
        given.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return int(device != "cpu" and statistics.median(growths) > BAR)


if __name__ == "__main__":
    sys.exit(main())
