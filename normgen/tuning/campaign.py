"""One tuning run on a GPU: batches are proposed, compiled, checked, timed; then the best few are confirmed.

While one batch runs on the GPU the next one compiles. A batch is proposed when the one before the last has been
told, never earlier or later, so the proposals do not depend on which compilation ends first.

A kernel that faults is out: it is recorded with the cause, whatever it was part of is done again without it.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normgen.errors import NothingValidError
from normgen.measure import timing
from normgen.measure.elsewhere import Elsewhere, Trial
from normgen.measure.judge import Judge, Roof
from normgen.measure.protocol import Bench, DeviceLostError, KernelFaultError
from normgen.measure.timing import Confirmation, Policy
from normgen.records.memory import reference_us
from normgen.records.record import Outcome, Record
from normgen.schedule.knobs import Statistics
from normgen.schedule.legality import statistics
from normgen.schedule.policy import costs_to_others
from normgen.schedule.schedule import Schedule
from normgen.tuning.compile import Builder
from normgen.tuning.progress import Standing
from normgen.tuning.run import Candidate, Run, brief
from normgen.tuning.search import Search

BATCH = 8  # two are in flight: small enough that the seeds are told before the surrogate is asked
LEFT_OUT_PAYS = 0.01  # of its price, which a kernel that cannot store a statistic must gain over one that can
CONFIRM_RESERVE = 0.15  # share of the budget kept for the confirmation


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What a campaign ends with; times of `candidates` and `confirmation` are of one interleaved run."""

    winner: Candidate
    candidates: tuple[Candidate, ...]  # the finalists, fastest first, the default among them
    confirmation: Confirmation | None
    roof: Roof
    default_us: float | None
    interrupted: bool
    matmul: Mapping[str, Any] = field(default_factory=dict)  # by schedule's key, see `measure.elsewhere`


class Campaign:
    """Runs the search on a bench; every candidate is recorded when its outcome is known."""

    def __init__(
        self,
        run: Run,
        *,
        search: Search,
        builder: Builder,
        bench: Bench,
        default: Schedule,
        policy: Policy,
        incumbent: Schedule | None = None,
        turn: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """incumbent: of the records, confirmed along; turn: held while the device is used, one process at a time."""
        self.run = run
        self.search = search
        self.builder = builder
        self.bench = bench
        self.judge = Judge(bench)
        self.default = default
        self.policy = policy
        self.incumbent = incumbent
        self.turn = turn
        self._usable: dict[str, Candidate] = {}
        self._reference: Candidate | None = None
        self._default_text = builder.text_of(default)
        self._baseline_us = run.memory.baseline_us(self._default_text)
        self._roof = Roof()
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
            roof=self._roof,
            default_us=self._us_of(self.default),
            interrupted=isinstance(end, KeyboardInterrupt),
        )

    def _measure_roof(self) -> None:
        """The roofs alone, so that progress can show % of roof; the confirmation times the best of them again."""
        with self.run.clock.phase("roof"), self.turn():
            self._roof = self.judge.choose_roofs(samples=self.policy.screen_samples, seed=self.run.seed)
        self.search.in_chain(self._roof.base_us)

    def _search(self) -> None:
        """Two batches are in flight: one on the GPU, one in the compiler."""
        waiting: deque[list[tuple[int, Candidate]]] = deque()
        asked = 0
        if not self._has_time():
            self.run.note("the budget ended before the search began: only the default was compiled")
            waiting.append(self._ask(1))
        while True:
            roof_us = self._roof.us
            settled = self.search.is_settled(None if roof_us is None else roof_us + self._roof.base_us)
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
        known = self._out(fault.key)
        if known is not None:
            known.fail(fault.outcome, str(fault))
            self.run.keep(known, search=self._conditions())
        return was_reference or known is not None

    def _out(self, key: str) -> Candidate | None:
        """Neither usable any more nor the reference: the candidate, if it was one, without its times."""
        if self._reference is not None and self._reference.key == key:
            self._reference = None
        known = self._usable.pop(key, None)
        if known is not None:
            known.times_us = None
        return known

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
            self._out(candidate.key)
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
            candidate.outcome, candidate.times_us = twin.outcome, twin.times_us
            candidate.error, candidate.verified = twin.error, twin.verified
            candidate.module, candidate.cubin = twin.module, twin.cubin
            candidate.reason = f"same code as {twin.schedule}"
            self.run.counts["same_code"] += 1
        self.run.keep(candidate, **self._roof.evidence, search=self._conditions())
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
            with self.run.clock.phase("elsewhere"):
                found = self._elsewhere(finalists, confirmation)
        for candidate in finalists:
            candidate.times_us = confirmation.times[candidate.key]
            candidate.price_us = confirmation.prices.get(candidate.key)
            candidate.alone_us = found.alone_us.get(candidate.key)
        self._roof = self.judge.roof_in(confirmation)
        for said in found.winner.verified.not_shown if found.winner.verified else ():
            self.run.note(f"not shown: {said}")
        ranked = sorted(finalists, key=lambda c: (c is not found.winner, confirmation.times[c.key].median))
        return Finish(
            winner=found.winner,
            candidates=tuple(ranked),
            confirmation=confirmation,
            roof=self._roof,
            default_us=self._us_of(self.default),
            interrupted=False,
            matmul=found.matmul,
        )

    def _elsewhere(self, finalists: list[Candidate], confirmation: Confirmation) -> Elsewhere[Candidate]:
        """The winner that does not lose between matrix products, and what the finalists take alone."""
        found = Trial(
            self.judge,
            finalists,
            confirmation,
            default=next((c for c in finalists if c.schedule == self.default), None),
            place=self.run.place,
            policy=self.policy,
            seed=self.run.seed,
            dropped=self._drop,
        ).held()
        for candidate in found.passed_over:
            self.run.note(f"passed over, it loses to the default between matrix products: {candidate.schedule}")
        if found.refused:
            self.run.note(f"not compared between matrix products: {found.refused}")
        price = confirmation.prices.get(found.winner.key)
        if price is not None and price.spread > self.policy.price_spread:
            rounds = confirmation.times[found.winner.key].n
            self.run.note(f"the price's interval is {100 * price.spread:.1f} % wide after {rounds} rounds")
        return found

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
                others=self.judge.roofs,
                incumbent=next((c.key for c in finalists if c.schedule == self.incumbent), None),
                settle=lambda winner, us: _settled(finalists, winner, us),
            )

        confirmation = self.judge.rerun(finalists, run, dropped=self._drop)
        self.conditions = self.bench.conditions()
        if spills := self.conditions.get("spills"):
            self.run.note(f"not hot: {spills}")
        return confirmation

    def _finalists(self) -> list[Candidate]:
        """The fastest that pass the full check, then the default and the incumbent where usable."""
        chosen: list[Candidate] = []
        for candidate in self._ranked():
            if len(chosen) >= self.policy.finalists and not self._is_guest(candidate):
                continue
            if self._admit(candidate, full=True):
                chosen.append(candidate)
            else:
                self._out(candidate.key)
                self.run.keep(candidate, search=self._conditions())
        if not chosen:
            raise NothingValidError("every candidate failed the full check", received=self.run.counted)
        return [*chosen, *self._counterpart(chosen)]

    def _counterpart(self, chosen: Sequence[Candidate]) -> list[Candidate]:
        """The leader without code for statistics that nobody asked for, where it has some; or with it."""
        leader = chosen[0].schedule
        other = Statistics.NULLABLE if leader.statistics is Statistics.LEFT_OUT else Statistics.LEFT_OUT
        schedule = replace(leader, statistics=other)
        if statistics(self.run.problem, schedule, self.run.device) is not None or not self._has_time():
            return []
        if any(c.schedule == schedule for c in chosen):
            return []
        candidate = Candidate(schedule=schedule, predicted_us=chosen[0].predicted_us)
        if not self._admit(candidate, full=True):
            self.run.keep(candidate, search=self._conditions())
            return []
        candidate.outcome = Outcome.OK
        return [candidate]

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
                best_us=best[1] - self._roof.base_us if best else None,
                roof_us=self._roof.us,
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
        "matmul": dict(finish.matmul),
        "policy": campaign.policy.as_dict(),
        "conditions": dict(campaign.conditions),
        # Its line is replaced only by a winner of the same interleaved run, which was faster beyond the noise.
        "incumbent": incumbent.key if incumbent in rivals else None,
    }


def finalist_records(campaign: Campaign, finish: Finish) -> tuple[Record, ...]:
    """The finalists' records, the winner first."""
    evidence = {
        **finish.roof.evidence,
        "default_us": finish.default_us,
        "search": search_summary(campaign, finish),
    }
    winner_first = [finish.winner, *(c for c in finish.candidates if c is not finish.winner)]
    return tuple(campaign.run.record(c, **evidence) for c in winner_first)


def _settled(finalists: Sequence[Candidate], winner: str, us: Mapping[str, float]) -> str:
    """The winner; where it only gains little by leaving statistics out, the kernel that serves all callers."""
    schedule = next(c.schedule for c in finalists if c.key == winner)
    full = replace(schedule, statistics=Statistics.NULLABLE).key
    return full if us.get(full, math.inf) * (1 - LEFT_OUT_PAYS) <= us[winner] else winner


def _tie_order(candidate: Candidate) -> tuple[Any, ...]:
    """Among equals: the schedule that others pay least for, then fewer registers, a smaller block, the key."""
    s = candidate.schedule
    return (*costs_to_others(s), candidate.registers, s.threads, s.key)


def _order_among(by_key: Mapping[str, Candidate]) -> Callable[[str], Any]:
    return lambda key: _tie_order(by_key[key])
