"""Tuning without a GPU: compile for a named target, prune by resources, rank by the cost model, check on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from normgen.cost.model import predicted_us
from normgen.cuda.cache import CubinCache
from normgen.cuda.pool import CompilePool
from normgen.errors import NormgenError, NothingValidError
from normgen.measure import cpu_check
from normgen.pipeline import emit
from normgen.records.record import Outcome, Record
from normgen.schedule.schedule import Schedule
from normgen.tuning.compile import Builder
from normgen.tuning.measured import prepare
from normgen.tuning.run import Candidate, Run, brief, local_bytes, misfit

COMPILED = 40  # schedules worth compiling when nothing is measured
COMPILE_SHARE = 0.6  # of the budget; the rest is for the CPU executor
CHECKED_ELEMENTS = 1 << 20  # of a call on the CPU executor: more takes 1 to 3 s, and is left to `normgen verify`
CHECKED = 12  # kernels that may fail on the CPU executor before the run gives up


def predict_without_gpu(run: Run) -> tuple[tuple[Record, ...], bool]:
    """The best by the cost model that passes the CPU executor, then its rivals; and whether Ctrl-C ended it.

    Raises NothingValidError when none compiles, fits and is right.
    """
    interrupted = False
    candidates: list[Candidate] = []
    with CompilePool(cache=CubinCache()) as pool:
        run.progress.phase("enumerate")
        with run.clock.phase("enumerate"):
            search, default, _ = prepare(run)
        builder = Builder(run.problem, emit=emit, submit=lambda m: pool.submit(m, run.device.arch))
        if run.storage:
            run.note("nothing is measured without a GPU: no study was written to the storage")
        run.progress.phase("compile")
        if run.clock.left_s > 0:
            proposals = search.ask(min(run.trials, COMPILED))
        else:
            proposals = search.ask(1)  # the default
            run.note("the budget ended while the schedules were enumerated: only the default was compiled")
        try:
            with run.clock.phase("compile"):
                compile_all(run, builder, [Candidate(schedule=p.schedule) for p in proposals], candidates.append)
        except KeyboardInterrupt:
            interrupted = True
    ranked = rank(run, candidates)
    if not ranked and interrupted:
        raise KeyboardInterrupt
    if not ranked:
        raise NothingValidError("no schedule compiled and fits the target", received=run.counted)
    run.progress.phase("verify on the CPU")
    with run.clock.phase("verify on the CPU"):
        ranked = first_right(run, ranked) if not interrupted else unchecked(run, ranked, "interrupted")
    for candidate in ranked:
        if not candidate.error:  # the verified one is recorded already
            run.keep(candidate)
    default_us = next((c.predicted_us for c in ranked if c.schedule == default), None)
    summary = {"trials": len(candidates), "outcomes": dict(sorted(run.counts.items()))}
    return tuple(run.record(c, default_us=default_us, search=summary) for c in ranked), interrupted


def compile_all(run: Run, builder: Builder, candidates: list[Candidate], done: Callable[[Candidate], None]) -> None:
    """Emit all, then collect their cubins; what has none is recorded here.

    Once one kernel is there, the others are waited for until the time for it is over.
    """
    deadline_s = run.clock.budget_s * COMPILE_SHARE
    for candidate in candidates:
        if not run.recall(candidate, builder.text_of) or candidate.outcome is Outcome.PREDICTED:
            candidate.outcome = None
            builder.begin(candidate)
    late, is_usable = 0, False
    for candidate in candidates:
        builder.finish(candidate, timeout_s=max(0.0, deadline_s - run.clock.elapsed_s) if is_usable else None)
        late += candidate.outcome is Outcome.TIMEOUT
        if builder.twin_of(candidate) is not None:
            run.counts["same_code"] += 1
            continue
        if candidate.outcome is None and (reason := misfit(candidate.resources, run.device)):
            candidate.fail(Outcome.ILLEGAL, reason)
        is_usable = is_usable or candidate.outcome is None
        if candidate.outcome is not None:
            run.keep(candidate)
        done(candidate)
    if late:
        run.note(f"the budget ended while kernels were compiled: {late} of {len(candidates)} schedules were not")


def rank(run: Run, candidates: list[Candidate]) -> list[Candidate]:
    """By the cost model that now knows the registers; one that uses local memory comes after all that do not."""
    fit = [c for c in candidates if c.outcome is None and c.cubin is not None]
    for candidate in fit:
        candidate.predicted_us = predicted_us(
            run.problem, candidate.schedule, run.device, candidate.resources[0], hot=run.place.is_hot
        )
        candidate.outcome = Outcome.PREDICTED
        if local := local_bytes(candidate.resources):
            candidate.reason = f"{local} bytes a thread in local memory"
    return sorted(fit, key=lambda c: (local_bytes(c.resources) > 0, c.predicted_us or 0.0, c.registers, c.key))


def first_right(run: Run, ranked: list[Candidate]) -> list[Candidate]:
    """The ranking from the first kernel on that the CPU executor finds right; wrong ones are recorded and left out.

    The first is checked even if the budget is over.
    """
    if why := cpu_check.why_unchecked(run.problem):
        return unchecked(run, ranked, why)
    left = list(ranked)
    for number in range(CHECKED):
        if not left or (number and run.clock.left_s < 0):
            break
        candidate = left.pop(0)
        if is_right(run, candidate):
            run.keep(candidate)
            return [candidate, *left]
        run.note(f"left out: {candidate.schedule}: {brief(candidate.reason)}")
        run.keep(candidate)
        # What is wrong with one kernel is mostly the way it computes the statistics: try another way next.
        left.sort(key=lambda c: way(c) == way(candidate))
    raise NothingValidError("no kernel passed the CPU executor", received=run.counted, hint=str(run.candidates_path))


def is_right(run: Run, candidate: Candidate) -> bool:
    """Run the candidate on the CPU executor; its outcome says why when it is not right."""
    assert candidate.module is not None
    if candidate.known is not None and candidate.known.error:
        run.note("verified on the CPU executor before the run was resumed")
        return True
    try:
        check = cpu_check.check_on_cpu(run.problem, candidate.module, seed=run.seed, most_elements=CHECKED_ELEMENTS)
    except NormgenError as error:
        candidate.fail(Outcome.COMPILE_ERROR, f"on the CPU executor: {error}")
        return False
    candidate.error, candidate.verified = check.error, check.verified
    if check.verified is None:
        candidate.fail(Outcome.WRONG_RESULT, check.summary)
        return False
    run.note(f"verified on the CPU executor at {check.rows} rows and in {check.verified.calls - 1} other calls")
    for said in check.not_shown:
        run.note(f"not shown: {said}")
    return True


def way(candidate: Candidate) -> tuple[str, ...]:
    schedule = candidate.schedule
    return schedule.variance, schedule.softmax, schedule.reduce_with


def unchecked(run: Run, ranked: list[Candidate], why: str) -> list[Candidate]:
    """The ranking without a check, and a line that says so: only formulas as written, no rewrite may lose accuracy."""
    as_written = Schedule()
    trusted = [
        c for c in ranked if (c.schedule.variance, c.schedule.softmax) == (as_written.variance, as_written.softmax)
    ]
    run.note(f"not verified, and only formulas as written were considered: {why}")
    if not trusted:
        raise NothingValidError("no schedule with the formulas as written is among those compiled", received=why)
    return trusted
