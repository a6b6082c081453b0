"""One tuning run on a GPU: batches are proposed, compiled, checked, timed; then the best few are confirmed.

While one batch runs on the GPU the next one compiles. A batch is proposed when the one before the last has been
told, never earlier or later, so the proposals do not depend on which compilation ends first.

A kernel that faults is out: it is recorded with the cause, whatever it was part of is done again without it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from normgen.errors import NothingValidError
from normgen.measure import timing
from normgen.measure.judge import Judge
from normgen.measure.protocol import Bench, DeviceLostError, KernelFaultError, roof_name
from normgen.measure.timing import Confirmation, Policy
from normgen.records import statistics
from normgen.records.memory import reference_us
from normgen.records.record import Outcome, Record
from normgen.schedule.policy import costs_to_others
from normgen.schedule.schedule import Schedule
from normgen.tuning.compile import Builder
from normgen.tuning.progress import Standing
from normgen.tuning.run import Candidate, Run, brief
from normgen.tuning.search import Search

BATCH = 8  # two are in flight: small enough that the seeds are told before the surrogate is asked
CONFIRM_RESERVE = 0.15  # share of the budget kept for the confirmation


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What a campaign ends with; times of `candidates` and `confirmation` are of one interleaved run."""

    winner: Candidate
    candidates: tuple[Candidate, ...]  # the finalists, fastest first, the default among them
    confirmation: Confirmation | None
    roof_us: float | None
    roofs_us: Mapping[str, float]
    default_us: float | None
    interrupted: bool


class Campaign:
    """Runs the search on a bench; every candidate is recorded when its outcome is known."""

    def __init__(
        self, run: Run, *, search: Search, builder: Builder, bench: Bench, default: Schedule, policy: Policy
    ) -> None:
        self.run = run
        self.search = search
        self.builder = builder
        self.bench = bench
        self.judge = Judge(bench)
        self.default = default
        self.policy = policy
        self.incumbent: Schedule | None = None
        self.turn: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._usable: dict[str, Candidate] = {}
        self._reference: Candidate | None = None
        self._default_text = builder.text_of(default)
        self._baseline_us = run.memory.baseline_us(self._default_text)
        self._roof_us: float | None = None
        self._roofs_us: Mapping[str, float] = {}
        self._batches = 0
        self._has_said_wrong = False
        self.conditions: Mapping[str, Any] = {}  # of the device during the confirmation

    def finish(self) -> Finish:
        """Search until trials, time or points run out, then confirm.

        Ctrl-C, or a kernel that takes the device down, ends either with the best so far.
        Raises NothingValidError when no candidate was usable.
        """
        try:
            self._measure_roof()
            self._search()
            if not self._usable:
                received, hint = self.run.counted, "the record file has each candidate's reason"
                raise NothingValidError("no candidate compiled, launched and was right", received=received, hint=hint)
            return self._confirm()
        except (KeyboardInterrupt, DeviceLostError) as end:
            if not self._usable:
                raise
            return self._unconfirmed(end)

    def _unconfirmed(self, end: BaseException) -> Finish:
        """The best of the search, after an early end."""
        why = "interrupted" if isinstance(end, KeyboardInterrupt) else str(end)
        self.run.note(f"{why}: the winner is the best of the search so far and was not confirmed")
        ranked = self._ranked()
        return Finish(
            winner=ranked[0],
            candidates=tuple(ranked[: self.policy.finalists]),
            confirmation=None,
            roof_us=self._roof_us,
            roofs_us=self._roofs_us,
            default_us=self._us_of(self.default),
            interrupted=isinstance(end, KeyboardInterrupt),
        )

    def _measure_roof(self) -> None:
        """The copies alone, so that progress can show % of roof; the confirmation times them again."""
        with self.run.clock.phase("roof"), self.turn():
            series = self.judge.race([], samples=self.policy.screen_samples, seed=self.run.seed)
        self._keep_roofs({key: statistics.median(samples) for key, samples in series.items()})

    def _keep_roofs(self, roofs_us: Mapping[str, float]) -> None:
        self._roofs_us = {roof_name(key): us for key, us in roofs_us.items()}
        self._roof_us = min(roofs_us.values(), default=None)

    def _search(self) -> None:
        """Two batches are in flight: one on the GPU, one in the compiler."""
        waiting: deque[list[tuple[int, Candidate]]] = deque()
        asked = 0
        if not self._has_time():
            self.run.note("the budget ended before the search began: only the default was compiled")
            waiting.append(self._ask(1))
        while True:
            settled = self.search.is_settled(self._roof_us)
            while len(waiting) < 2 and asked < self.run.trials and self._has_time() and not settled:
                batch = self._ask(min(BATCH, self.run.trials - asked))
                if not batch:
                    break
                asked += len(batch)
                waiting.append(batch)
            if not waiting or not self._has_time(late=True):
                return
            self._evaluate(waiting.popleft())

    def _has_time(self, late: bool = False) -> bool:
        """Whether another batch may begin; the first one may always finish."""
        reserve = self.run.clock.budget_s * CONFIRM_RESERVE
        return self.run.clock.left_s > reserve or (late and not self._usable)

    def _ask(self, count: int) -> list[tuple[int, Candidate]]:
        with self.run.clock.phase("ask"):
            proposals = self.search.ask(count)
        batch = [(p.number, Candidate(schedule=p.schedule, predicted_us=p.predicted_us)) for p in proposals]
        with self.run.clock.phase("emit"):
            for _, candidate in batch:
                if not self.run.recall(candidate, self.builder.text_of):
                    self.builder.begin(candidate)
        return batch

    def _evaluate(self, batch: list[tuple[int, Candidate]]) -> None:
        """Wait for the batch's cubins, check, time, record and tell."""
        with self.run.clock.phase("compile (waiting)"):
            for _, candidate in batch:
                self.builder.finish(candidate)
        with self.turn():
            self._take_known([c for _, c in batch])
            fresh = [c for _, c in batch if c.known is None]
            ready = [c for c in fresh if c.cubin is not None and self.builder.twin_of(c) is None]
            with self.run.clock.phase("verify"):
                good = self._admitted(ready)
            with self.run.clock.phase("time"):
                self._time(good)
            with self.run.clock.phase("record"):
                for number, candidate in batch:
                    self._settle(number, candidate)
                self._batches += 1
                self._forget_losers()
        self._tell_progress()

    def _take_known(self, batch: list[Candidate]) -> None:
        """What earlier runs know, and what another process measured while this one waited for its turn."""
        self.run.memory.refresh()
        for candidate in batch:
            if candidate.known is None and candidate.outcome is None and self.builder.twin_of(candidate) is None:
                self.run.recall(candidate, self.builder.text_of)
            if candidate.known is not None and candidate.outcome is Outcome.OK:
                self._scale(candidate)
                self._usable[candidate.key] = candidate

    def _rebuild(self, candidate: Candidate) -> None:
        """Emit and compile what was taken over from an earlier run: the device needs it now."""
        self.builder.begin(candidate)
        self.builder.finish(candidate)
        twin = self.builder.twin_of(candidate)
        if twin is not None:
            self.builder.finish(twin)
            candidate.module, candidate.cubin = twin.module, twin.cubin

    def _admitted(self, ready: list[Candidate]) -> list[Candidate]:
        """Those that are right; once one is usable, those that the time of the run does not reach are left out."""
        good: list[Candidate] = []
        for candidate in ready:
            if (good or self._usable) and not self._has_time():
                candidate.fail(Outcome.TIMEOUT, "not reached within the time of the run")
            elif self._admit(candidate):
                good.append(candidate)
        return good

    def _admit(self, candidate: Candidate, *, full: bool = False) -> bool:
        """Load and check a candidate; a wrong kernel is never timed."""
        if candidate.cubin is None:
            self._rebuild(candidate)
        try:
            is_right = self.judge.admit(candidate, full=full)
        except DeviceLostError:
            self.run.keep(candidate)
            raise
        if candidate.outcome is Outcome.WRONG_RESULT:
            self._say_wrong(candidate, is_choice=full or self._is_guest(candidate))
        return is_right

    def _say_wrong(self, candidate: Candidate, *, is_choice: bool) -> None:
        """The reason of a choice that was wrong, and of the first other candidate; the record file has the rest."""
        if is_choice or not self._has_said_wrong:
            self.run.note(f"left out: {candidate.schedule}: {brief(candidate.reason)}")
        self._has_said_wrong = True

    def _time(self, good: list[Candidate]) -> None:
        """Time candidates against the reference; one that faults drops out and the rest are timed again."""
        screened = self.judge.rerun(good, lambda _: self._screen(good), dropped=self._drop)
        if screened is None:
            return
        for candidate in good:
            candidate.times_us = screened.times[candidate.key]
            candidate.outcome = Outcome.OK
            self._usable[candidate.key] = candidate
        self.bench.expect(self._best_us())

    def _screen(self, good: list[Candidate]) -> timing.Screened | None:
        """The first reference is the default; should it be lost, the best so far, whose time is already comparable."""
        if not good:
            return None
        if self._reference is None:
            self._reference = self._choose_reference(good)
        screened = timing.screen(
            self.bench,
            [c.key for c in good],
            reference=self._reference.key,
            baseline_us=self._baseline_us,
            policy=self.policy,
            seed=self.run.seed + self._batches,
        )
        self._baseline_us = self._baseline_us or screened.reference_us
        return screened

    def _drop(self, fault: KernelFaultError) -> bool:
        """Whether a candidate faulted; one that was recorded as usable is recorded again."""
        was_reference = self._reference is not None and self._reference.key == fault.key
        if was_reference:
            self._reference = None
        known = self._usable.pop(fault.key, None)
        if known is not None:
            known.times_us = None
            known.fail(fault.outcome, str(fault))
            self.run.keep(known, search=self._conditions())
        return was_reference or known is not None

    def _best_us(self) -> float:
        return min(c.times_us.median for c in self._usable.values() if c.times_us)

    def _choose_reference(self, good: list[Candidate]) -> Candidate:
        """The default; should it be lost, the best so far, whose time is already comparable."""
        measured = next((c for c in good if c.schedule == self.default), None)
        if measured is not None:
            return measured
        known = self._usable.get(self.default.key)
        for candidate in [*([known] if known else []), *self._ranked()]:
            if candidate.key in self.judge.loaded or self._admit(candidate):
                if candidate is not known and candidate.times_us is not None:
                    self._baseline_us = candidate.times_us.median
                return candidate
            self._usable.pop(candidate.key, None)
        self._baseline_us = None
        return good[0]

    def _scale(self, candidate: Candidate) -> None:
        """Times of an earlier run, as if the reference had taken then what it took in this run."""
        assert candidate.known is not None
        then = reference_us(candidate.known, self._default_text)
        if candidate.times_us is not None and then and self._baseline_us:
            candidate.times_us = candidate.times_us.scaled(self._baseline_us / then)

    def _settle(self, number: int, candidate: Candidate) -> None:
        """Record the candidate and tell the search; one with another's code shares that one's fate."""
        twin = self.builder.twin_of(candidate) if candidate.known is None else None
        if twin is not None:
            candidate.outcome, candidate.times_us, candidate.error = twin.outcome, twin.times_us, twin.error
            candidate.module, candidate.cubin = twin.module, twin.cubin
            candidate.reason = f"same code as {twin.schedule}"
            self.run.counts["same_code"] += 1
        self.run.keep(candidate, roof_us=self._roof_us, roofs_us=self._roofs_us, search=self._conditions())
        us = candidate.times_us.rounded if candidate.outcome is Outcome.OK and candidate.times_us else None
        self.search.tell(number, us, reason=candidate.reason, is_wrong=candidate.outcome is Outcome.WRONG_RESULT)

    def _conditions(self) -> dict[str, Any]:
        """What makes a candidate's times comparable with those of other runs."""
        reference = self._reference.text if self._reference and self._baseline_us else None
        return {"policy": self.policy.as_dict(), "reference": reference, "reference_us": self._baseline_us}

    def _ranked(self) -> list[Candidate]:
        return sorted(self._usable.values(), key=lambda c: (c.times_us.median if c.times_us else 0.0, _tie_order(c)))

    def _forget_losers(self) -> None:
        """Graphs cost device memory: keep those that may come to the confirmation."""
        kept = {c.key for c in self._ranked()[: 2 * self.policy.finalists]}
        kept.update(c.key for c in self._usable.values() if c is self._reference or self._is_guest(c))
        self.judge.forget(self.judge.loaded - kept)

    def _is_guest(self, candidate: Candidate) -> bool:
        return candidate.schedule in (self.default, self.incumbent)

    def _confirmed(self) -> tuple[list[Candidate], Confirmation]:
        with self.run.clock.phase("verify in full"):
            finalists = self._finalists()
        with self.run.clock.phase("confirm"):
            return finalists, self._confirmation(finalists)

    def _confirm(self) -> Finish:
        """Check the finalists in full, re-time them with the roof in one interleaved run."""
        self.run.progress.phase("confirm")
        with self.turn():
            finalists, confirmation = self._confirmed()
        by_key = {c.key: c for c in finalists}
        for key, candidate in by_key.items():
            candidate.times_us = confirmation.times[key]
        self._keep_roofs({key: confirmation.times[key].median for key in self.bench.roofs})
        for said in self.judge.not_shown.get(confirmation.winner, ()):
            self.run.note(f"not shown: {said}")
        ranked = sorted(finalists, key=lambda c: (c.key != confirmation.winner, confirmation.times[c.key].median))
        return Finish(
            winner=by_key[confirmation.winner],
            candidates=tuple(ranked),
            confirmation=confirmation,
            roof_us=self._roof_us,
            roofs_us=self._roofs_us,
            default_us=self._us_of(self.default),
            interrupted=False,
        )

    def _confirmation(self, finalists: list[Candidate]) -> Confirmation:
        """The finalists' last race; one that faults is taken out of `finalists` and the others race again."""

        def run(keys: list[str]) -> Confirmation:
            if not keys:
                raise NothingValidError("every finalist failed in the confirmation", received=self.run.counted)
            return timing.confirm(
                self.bench,
                keys,
                tie_order=_order_among({c.key: c for c in finalists}),
                policy=self.policy,
                seed=self.run.seed,
                others=self.bench.roofs,
                incumbent=next((c.key for c in finalists if c.schedule == self.incumbent), None),
            )

        confirmation = self.judge.rerun(finalists, run, dropped=self._drop)
        self.conditions = self.bench.conditions()
        return confirmation

    def _finalists(self) -> list[Candidate]:
        """The fastest that pass the full check, then the default and the incumbent where usable."""
        chosen: list[Candidate] = []
        places = self.policy.finalists
        for candidate in self._ranked():
            if places == 0 and not self._is_guest(candidate):
                continue
            if not self._admit(candidate, full=True):
                del self._usable[candidate.key]
                candidate.times_us = None
                self.run.keep(candidate, search=self._conditions())
                self._reference = None if self._reference is candidate else self._reference
                continue
            chosen.append(candidate)
            places -= places > 0
        if not chosen:
            raise NothingValidError("every candidate failed the full check", received=self.run.counted)
        return chosen

    def _us_of(self, schedule: Schedule) -> float | None:
        times = [c.times_us for c in self._usable.values() if c.schedule == schedule]
        return times[0].median if times and times[0] else None

    def _tell_progress(self) -> None:
        best = self.search.best
        self.run.progress.standing(
            Standing(
                trials=self.search.trials,
                trials_max=self.run.trials,
                best=str(best[0]) if best else "",
                best_us=best[1] if best else None,
                roof_us=self._roof_us,
                bytes=self.run.problem.compulsory_bytes,
                left_s=max(0.0, self.run.clock.left_s),
            )
        )


def search_summary(campaign: Campaign, finish: Finish) -> dict[str, Any]:
    """What a record says of the search that found it."""
    confirmation = finish.confirmation
    incumbent = campaign.incumbent
    rivals = {c.schedule: c for c in finish.candidates} if confirmation else {}
    return {
        "trials": campaign.search.trials,
        "outcomes": dict(sorted(campaign.run.counts.items())),
        "phases_s": {name: round(s, 2) for name, s in campaign.run.clock.phases_s.items()},
        "elapsed_s": round(campaign.run.clock.elapsed_s, 2),
        "noise_floor": confirmation.noise_floor if confirmation else None,
        "ties": len(confirmation.ties) if confirmation else None,
        "policy": campaign.policy.as_dict(),
        "conditions": dict(campaign.conditions),
        # Its line is replaced only by a winner of the same interleaved run, which was faster beyond the noise.
        "incumbent": incumbent.key if incumbent in rivals else None,
    }


def finalist_records(campaign: Campaign, finish: Finish) -> tuple[Record, ...]:
    """The finalists' records, the winner first."""
    evidence = {
        "roof_us": finish.roof_us,
        "roofs_us": finish.roofs_us,
        "default_us": finish.default_us,
        "search": search_summary(campaign, finish),
    }
    winner_first = [finish.winner, *(c for c in finish.candidates if c is not finish.winner)]
    return tuple(campaign.run.record(c, **evidence) for c in winner_first)


def _tie_order(candidate: Candidate) -> tuple[Any, ...]:
    """Among equals: the schedule that others pay least for, then fewer registers, a smaller block, the key."""
    s = candidate.schedule
    return (*costs_to_others(s), candidate.registers, s.threads, s.key)


def _order_among(by_key: Mapping[str, Candidate]) -> Callable[[str], Any]:
    return lambda key: _tie_order(by_key[key])
