"""The schedules of rows side by side that are searched, and the one that nobody tuned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from normgen.device import Device
from normgen.errors import NothingValidError, UsageError
from normgen.knobs import ArithmeticMode, Hold, LoadHint, SoftmaxMethod, StoreHint, VarianceMethod
from normgen.problem.problem import COPIED, Problem
from normgen.program.ir import looks
from normgen.program.rewrites.approximate import has_exponentials
from normgen.program.rewrites.reductions import applicable
from normgen.program.source import written_program
from normgen.schedule.lanes.clocks import expected_registers, register_limit, work
from normgen.schedule.lanes.plan import steps_of_part, sums_bytes
from normgen.schedule.legality import refusal
from normgen.schedule.plan import WARP
from normgen.schedule.policy import shows_in_float32
from normgen.schedule.schedule import Schedule

VECTORS = (1, 2, 4, 8)
SLOTS = (4, 8, 16, 32, 64, 128, 256)
THREADS = (128, 256, 512, 1024)
SPARED = 1.3  # registers that are expected, for each that a default's bound leaves: the compiler does with as few
OCCUPIED = 1024  # threads of an SM that registers are bound for, so that some load while others store
FEW_THREADS = (32, 64)  # of rows of few columns, which no more threads share
FEW_COLS = 16
LONGEST_HELD = 64  # columns of a thread that are held, each with text of its own
# Where elements wait, and columns on their way at a time
PLACES = ((Hold.REGISTERS, 0), (Hold.SHARED, 8), (Hold.RELOAD, 8), (Hold.RELOAD, 4))
METHODS = (VarianceMethod.TWO_PASS, VarianceMethod.CORRECTED_TWO_PASS, VarianceMethod.GUARDED)


def base_points(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Ways to cut rows among threads, legal ones, without hints and other methods."""
    slots = (WARP,) if problem.sums_rows else SLOTS
    walkers = (1, 2, 3, 4) if problem.sums_rows else (0,)
    approximate = problem_arithmetic(problem)
    is_seen_once = looks(written_program(problem)) <= 1
    sizes = (*FEW_THREADS, *THREADS) if problem.cols < FEW_COLS else THREADS
    for vector, beside, threads, (hold, unroll) in itertools.product(VECTORS, slots, sizes, PLACES):
        found = Schedule(
            vector=vector,
            rows_per_block=beside,
            threads_per_row=max(1, threads // beside),
            hold=hold,
            unroll=unroll,
            arithmetic=approximate,
        )
        if found.threads != threads:
            continue
        if hold is Hold.REGISTERS and steps_of_part(problem, found) > LONGEST_HELD:
            continue
        if expected_registers(problem, found) > register_limit(found, device):
            continue  # it would spill
        if hold is Hold.SHARED and is_seen_once:
            continue
        for persistent, bound in itertools.product(walkers, (0, OCCUPIED // found.threads)):
            one = found.varied(persistent=persistent, blocks_per_sm=bound)
            if bound != 1 and refusal(problem, one, device) is None:
                yield one


def problem_arithmetic(problem: Problem) -> ArithmeticMode:
    """As of rows: outputs of 16 bits hide approximate exponentials."""
    elems = [t for t in problem.tensors if t.is_written and t.kind.is_elem]
    is_hidden = bool(elems) and all(t.dtype.bytes <= 2 for t in elems)
    asked = ArithmeticMode.APPROXIMATE in problem.searched_knobs.get("arithmetic", (ArithmeticMode.APPROXIMATE,))
    is_approximate = is_hidden and asked and has_exponentials(written_program(problem))
    return ArithmeticMode.APPROXIMATE if is_approximate else ArithmeticMode.EXACT


def points(problem: Problem, device: Device) -> Iterator[Schedule]:
    """The legal cuts with the methods and hints that apply; where a spec names a knob's values, these."""
    known = applicable(written_program(problem))
    variances = [v for v in METHODS if v in known["variance"]] or [VarianceMethod.TWO_PASS]
    softmaxes = [v for v in SoftmaxMethod if v in known["softmax"]]
    stores = (StoreHint.DEFAULT, StoreHint.STREAMING)
    asked: dict[str, Any] = {n: v for n, v in problem.searched_knobs.items() if n in ("variance", "softmax") and v}
    for base in base_points(problem, device):
        # Read again, elements must stay in the caches.
        loads = (LoadHint.DEFAULT,) if base.hold is Hold.RELOAD else (LoadHint.DEFAULT, LoadHint.STREAMING)
        for variance, softmax, load, store in itertools.product(variances, softmaxes, loads, stores):
            found = base.varied(variance=variance, softmax=softmax, load=load, store=store)
            if any(getattr(found, name) not in values for name, values in asked.items()):
                continue
            if refusal(problem, found, device) is None:
                yield found


def default_of_lanes(problem: Problem, device: Device) -> Schedule:
    """Of the cuts the one whose bytes, latencies and instructions take least by the formula."""
    known = applicable(written_program(problem))
    asked = problem.searched_knobs.get("variance") or ()
    variances = [v for v in METHODS if v in known["variance"] and (not asked or v in asked)] or [
        VarianceMethod.TWO_PASS
    ]
    softmaxes = [v for v in SoftmaxMethod if v in known["softmax"]]
    best: tuple[float, str, Schedule] | None = None
    for base, variance, softmax in itertools.product(base_points(problem, device), variances, softmaxes):
        found = base.varied(variance=variance, softmax=softmax)
        fits = expected_registers(problem, found) <= SPARED * register_limit(found, device)
        is_legal = refusal(problem, found, device) is None and shows_in_float32(problem, found) is None
        rank = (work(problem, found, device).us, found.key, found)
        if fits and is_legal and (best is None or rank[:2] < best[:2]):
            best = rank
    if best is None:
        used, most = sums_bytes(problem), device.shared_per_block
        why = f"sums of {problem.cols} columns take {used} bytes of a block, which has {most}: " if used > most else ""
        raise NothingValidError("no schedule is legal for this problem", received=str(problem), hint=f"{why}{COPIED}")
    return best[2]


def fallbacks_of_lanes(problem: Problem) -> tuple[Schedule, ...]:
    """Raises UsageError: a kernel of rows side by side knows its columns."""
    rule = "a kernel of rows side by side knows its columns: there is none of any number of columns"
    raise UsageError(rule, received=str(problem), hint=COPIED)
