"""Who takes part in a bench's race, ours and peers, and how the bench of a race between them is opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from normgen.codegen.module import Module
from normgen.cuda.cache import CubinCache
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import Cubin
from normgen.device import Device
from normgen.errors import NormgenError
from normgen.measure.isolation.bench import Patience, WorkerBench
from normgen.measure.isolation.process import Post
from normgen.measure.judge import Eliminated, Judge, Passed, bench_at
from normgen.measure.replays import CONTEST_REPLAY_US
from normgen.measure.timing import Series
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.records.place import Place
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.trials.head import one_line, reason_of

CHECKED_ELEMENTS = 1 << 21  # of the adversarial check; what is timed is checked on its own inputs besides
ROOF_SAMPLES = 12  # of each roof, to choose the best of each family
PREPARE_S = 150.0  # a peer may compile this long: twice the longest that torch.compile took for an entry of a suite
CAPTURE_S = 60.0  # hundreds of a library's calls may take this long to be captured


@dataclass(kw_only=True)
class Draft:
    """What is known so far of an entrant, for `measure.judge`: `failed` says why it will have no time."""

    key: str
    module: Module | None = None
    cubin: Cubin | None = None
    failed: str = ""
    error: Mapping[str, float] = field(default_factory=dict)
    prepare_s: float = 0.0

    def judged(self, verdict: Passed | Eliminated) -> bool:
        """Take down what `measure.judge` found: whether it is right."""
        self.error = verdict.error
        if isinstance(verdict, Eliminated):
            self.fail(verdict)
        return not self.failed

    def fail(self, fault: Eliminated) -> None:
        said = one_line(fault.reason)
        self.failed = f"wrong result: {said}" if fault.outcome is Outcome.WRONG_RESULT else said


def raced(judge: Judge, timed: Sequence[Draft], twins: Sequence[str] = (), *, samples: int, seed: int) -> Series:
    """Samples of the drafts that do not fault, the roofs and the chain; the others say why they have none."""
    series, faults = judge.race([*(draft.key for draft in timed), *twins], samples=samples, seed=seed)
    for draft in timed:
        if draft.key in faults:
            draft.fail(faults[draft.key])
    return series


def compiled(key: str, problem: Problem, schedule: Schedule, arch: int) -> Draft:
    """Our kernel for a schedule, ready to be loaded; a schedule without one says why."""
    draft, start = Draft(key=key), time.perf_counter()
    try:
        draft.module = emit(problem, schedule)
        draft.cubin = compile_module(draft.module, arch, cache=CubinCache())
    except NormgenError as error:
        draft.failed = reason_of(error)
    draft.prepare_s = time.perf_counter() - start
    return draft


def race_bench(
    post: Post, problem: Problem, facts: Device, *, place: Place, seed: int, note: Callable[[str], None]
) -> WorkerBench:
    """The bench of a race between libraries or techniques: longer replays than a search has."""
    return bench_at(
        post,
        problem,
        facts,
        place=place,
        seed=seed,
        note=note,
        patience=Patience(
            fixed_s={"prepare": PREPARE_S, "warm_up": CAPTURE_S, "race": CAPTURE_S}, once=frozenset({"prepare"})
        ),
        checked_elements=CHECKED_ELEMENTS,
        replay_us=CONTEST_REPLAY_US,
    )
