"""Tuning without a GPU: compile for a named target, prune by resources, rank by the cost model, check on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from normgen.cost.model import predicted_us
from normgen.cuda.cache import CubinCache
from normgen.cuda.pool import CompilePool
from normgen.errors import NormgenError, NothingValidError
from normgen.knobs import SoftmaxMethod
from normgen.measure import cpu_check
from normgen.pipeline import emit
from normgen.records.record import Outcome, Record
from normgen.tuning.candidate import Built, Failed, Predicted, Proposed, Settled, Twin, local_bytes, misfit
from normgen.tuning.compile import Builder, Finished
from normgen.tuning.measured import prepare
from normgen.tuning.progress import Standing
from normgen.tuning.run import TuningRun, brief
from normgen.tuning.search.names import SAMPLERS

# Schedules worth compiling when nothing is measured: by the model the best of 40 was one of the first 15 in each of ten
# problems (nine of rows, one of them backward, and a product).
COMPILED = 24
COMPILE_SHARE = 0.6  # of the budget; the rest is for the CPU executor
CHECKED_ELEMENTS = 1 << 20  # of a call on the CPU executor: more takes 1 to 3 s, and is left to `normgen verify`
CHECKED = 12  # kernels that may fail on the CPU executor before the run gives up
_WHY_CHECKED = "no kernel leaves that was not compared with the reference"


def predict_without_gpu(run: TuningRun) -> tuple[tuple[Record, ...], bool]:
    """The best by the cost model that passes the CPU executor, then its rivals; and whether Ctrl-C ended it.

    Raises NothingValidError when none compiles, fits and is right.
    """
    interrupted = False
    settled: list[Settled] = []
    with CompilePool(cache=CubinCache()) as pool:
        pool.warm()
        run.begin("enumerate", min(run.trials, COMPILED))
        with run.clock.phase("enumerate"):
            search, default, _ = prepare(run)
        builder = Builder(run.problem, emit=emit, submit=lambda m: pool.submit(m, run.device.arch))
        if run.storage:
            run.note("nothing is measured without a GPU: no study was written to the storage")
        if run.sampler != SAMPLERS[0]:
            run.note(f"nothing is measured without a GPU: the cost model decides, not the sampler {run.sampler}")
        run.begin("compile", min(run.trials, COMPILED))
        if run.clock.left_s > 0:
            proposals = search.ask(min(run.trials, COMPILED))
        else:
            proposals = search.ask(1)  # the default
            run.note("the budget ended while the schedules were enumerated: only the default was compiled")
        try:
            with run.clock.phase("compile"):
                compile_all(run, builder, [Proposed(schedule=p.schedule) for p in proposals], settled.append)
        except KeyboardInterrupt:
            interrupted = True
    ranked = rank([candidate for candidate in settled if isinstance(candidate, Predicted)])
    if not ranked and interrupted:
        raise KeyboardInterrupt
    if not ranked:
        raise NothingValidError("no schedule compiled and fits the target", received=run.counted)
    run.progress.phase("verify on the CPU")
    run.progress.standing(_standing(run, 0, len(ranked), ranked[0]))
    seconds = cpu_check.longest_s(run.problem)
    if seconds > max(0.0, run.clock.left_s):
        run.note(f"the check may outlast the budget, as it may take {seconds:.0f} s: {_WHY_CHECKED}")
    with run.clock.phase("verify on the CPU"):
        ranked = first_right(run, ranked) if not interrupted else unchecked(run, ranked, "interrupted")
    if run.clock.left_s < 0 and not interrupted:
        run.note(f"the check ended {-run.clock.left_s:.0f} s after the budget: {_WHY_CHECKED}")
    for candidate in ranked:
        if not candidate.error:  # the verified one is recorded already
            run.keep(candidate)
    default_us = next((c.predicted_us for c in ranked if c.schedule == default), None)
    summary = {"trials": len(settled), "outcomes": dict(sorted(run.counts.items()))}
    return tuple(run.record(c, default_us=default_us, search=summary) for c in ranked), interrupted


def compile_all(run: TuningRun, builder: Builder, proposed: list[Proposed], done: Callable[[Settled], None]) -> None:
    """Emit all, then collect their cubins; what has none, or fits no SM, is recorded here.

    Once one kernel is there, the others are waited for until the time for it is over.
    """
    deadline_s = run.clock.budget_s * COMPILE_SHARE
    known = {c.key: run.recall(c, builder.text_of) for c in proposed}
    for candidate in proposed:
        if _is_to_build(known[candidate.key]):
            builder.begin(candidate)
    late, is_usable = 0, False
    best: Predicted | None = None
    for number, candidate in enumerate(proposed, start=1):
        record, timeout_s = known[candidate.key], max(0.0, deadline_s - run.clock.elapsed_s) if is_usable else None
        found: Finished | Settled
        if record is not None and not _is_to_build(record):
            found = candidate.known_as(record)
        else:
            found = builder.finish(candidate, timeout_s=timeout_s)
        if isinstance(found, Twin):
            run.counts["same_code"] += 1
            continue
        if isinstance(found, Built):
            found = _fitting(run, found, record)
        is_usable = is_usable or isinstance(found, Predicted)
        if not isinstance(found, Predicted):
            late += found.outcome is Outcome.TIMEOUT
            run.keep(found)
        elif best is None or (found.predicted_us or 0.0) < (best.predicted_us or 0.0):
            best = found
        done(found)
        run.progress.standing(_standing(run, number, len(proposed), best))
    if late:
        run.note(f"the budget ended while kernels were compiled: {late} of {len(proposed)} schedules were not")


def _standing(run: TuningRun, done: int, total: int, best: Predicted | None) -> Standing:
    return Standing(
        trials=done,
        trials_max=total,
        best=str(best.schedule) if best else "",
        best_us=best.predicted_us if best else None,
        bytes=run.problem.compulsory_bytes,
        left_s=max(0.0, run.clock.left_s),
    )


def _is_to_build(known: Record | None) -> bool:
    """A kernel that was only predicted is needed again: the CPU executor checks its text."""
    return known is None or known.outcome is Outcome.PREDICTED


def _fitting(run: TuningRun, built: Built, known: Record | None) -> Predicted | Failed:
    """With the word of the cost model that now knows the registers, where a block fits an SM."""
    if reason := misfit(built.resources, run.device):
        return built.failed(Outcome.ILLEGAL, reason)
    us = predicted_us(run.problem, built.schedule, run.device, built.resources[0], hot=run.place.is_hot)
    local = local_bytes(built.resources)
    reason = f"{local} bytes a thread in local memory" if local else ""
    predicted = built.predicted(us, reason)
    return replace(predicted, known=known, error=known.error, verified=known.verified) if known else predicted


def rank(candidates: list[Predicted]) -> list[Predicted]:
    """By the cost model; one that uses local memory comes after all that do not."""
    return sorted(candidates, key=lambda c: (local_bytes(c.resources) > 0, c.predicted_us or 0.0, c.registers, c.key))


def first_right(run: TuningRun, ranked: list[Predicted]) -> list[Predicted]:
    """The ranking from the first kernel on that the CPU executor finds right; wrong ones are recorded and left out.

    The first is checked even if the budget is over.

    Raises NothingValidError if none is.
    """
    if why := cpu_check.why_unchecked(run.problem):
        return unchecked(run, ranked, why)
    left = list(ranked)
    for number in range(CHECKED):
        if not left or (number and run.clock.left_s < 0):
            break
        candidate = left.pop(0)
        found = checked(run, candidate)
        run.keep(found)
        if isinstance(found, Predicted):
            return [found, *left]
        run.note(f"left out: {found.schedule}: {brief(found.reason)}")
        # What is wrong with one kernel is mostly the way it computes the statistics: try another way next.
        left.sort(key=lambda c: way(c) == way(candidate))
    raise NothingValidError("no kernel passed the CPU executor", received=run.counted, hint=str(run.candidates_path))


def checked(run: TuningRun, candidate: Predicted) -> Predicted | Failed:
    """Run the candidate on the CPU executor."""
    if candidate.verified:
        run.note("verified on the CPU executor before the run was resumed")
        return candidate
    try:
        check = cpu_check.check_on_cpu(
            run.problem,
            candidate.module,
            seed=run.seed,
            most_elements=CHECKED_ELEMENTS,
            is_over=lambda: run.clock.left_s < 0,
        )
    except NormgenError as error:
        return candidate.failed(Outcome.COMPILE_ERROR, f"on the CPU executor: {error}")
    if check.verified is None:
        return candidate.failed(Outcome.WRONG_RESULT, check.summary, check.error)
    run.note(f"verified on the CPU executor at {check.rows} rows and in {check.verified.calls - 1} other calls")
    for said in check.not_shown:
        run.note(f"not shown: {said}")
    return replace(candidate, error=check.error, verified=check.verified)


def way(candidate: Predicted) -> tuple[str, ...]:
    schedule = candidate.schedule
    return schedule.variance, schedule.softmax, schedule.reduce_with


def unchecked(run: TuningRun, ranked: list[Predicted], why: str) -> list[Predicted]:
    """The ranking without a check, and a line that says so: only methods that look at a row twice lose no accuracy.

    Raises NothingValidError if no such schedule was compiled.
    """
    chosen = ((candidate, candidate.schedule) for candidate in ranked)
    trusted = [c for c, s in chosen if not s.variance.looks_once and s.softmax is SoftmaxMethod.TWO_PASS]
    run.note(f"not verified, and only methods that go over a row twice were considered: {why}")
    if not trusted:
        raise NothingValidError("no schedule that goes over a row twice is among those compiled", received=why)
    return trusted
