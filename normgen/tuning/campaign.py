"""One tuning run on a GPU: batches are proposed, compiled, checked, timed; then the best few are confirmed.

Between the two come a few legal points drawn at random. All other points of a run were picked by somebody's opinion,
so that what learns from them learns nothing about the rest; the drawn ones are a fair sample of what the search left.
The search never hears of them, but one that is the fastest wins.

While one batch runs on the GPU the next one compiles. A batch is proposed when the one before the last has been
told, never earlier or later, so the proposals do not depend on which compilation ends first.

A kernel that faults is out: it is recorded with the cause, whatever it was part of is done again without it.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from normgen.errors import NothingValidError
from normgen.measure import timing
from normgen.measure.protocol import DeviceLostError
from normgen.records.memory import reference_us
from normgen.records.record import Outcome
from normgen.tuning.candidate import Built, Candidate, Checked, Failed, Proposed, Timed, Twin
from normgen.tuning.finals import CampaignEnd, confirm
from normgen.tuning.hearing import Hearing
from normgen.tuning.progress import Standing
from normgen.tuning.standings import Baseline, Reference

if TYPE_CHECKING:
    from normgen.tuning.search.search import Proposal

BATCH = 8  # two are in flight: small enough that the seeds are told before the surrogate is asked
RANDOM = 8  # drawn points at most, one for each batch: a fair sample of 300 problems is then 2400 timings
RANDOM_SHARE = 0.05  # of a run's time, which they take at most
Batch = list[tuple[int | None, Candidate]]  # each with the number of its proposal; None: of no search


class Campaign(Hearing):
    """Runs the search on a bench; every candidate is recorded when its outcome is known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._waiting: deque[Batch] = deque()
        self._asked = self._evaluated = 0
        self._tried: set[str] = set()
        size = len(self.search.legal)
        self._drawn = random.Random(self.run.seed).sample(range(size), min(size, self.run.trials + RANDOM))

    def ask_ahead(self) -> None:
        """Keep two batches in flight, one on the GPU and one in the compiler; the first two need no device yet."""
        while len(self._waiting) < 2 and self._asked < self.run.trials and self.has_time():
            batch = self._ask(min(BATCH, self.run.trials - self._asked))
            if not batch:
                return
            for index in self._untried()[self._asked // BATCH : RANDOM][:1]:  # one is compiled behind each batch
                self.builder.ahead(self.search.legal[index])
            self._asked += len(batch)
            self._waiting.append(batch)

    def finish(self) -> CampaignEnd:
        """Search until trials, time or points run out, then confirm.

        Ctrl-C, or a kernel that takes the device down, ends either with the best so far.
        Raises NothingValidError when no candidate was usable.
        """
        try:
            self._measure_roof()
            for number, batch in enumerate(itertools.chain(self._batches(), self._random())):
                self._evaluate(number, batch)
            if not self.standings.usable:
                received, hint = self.run.counted, "the record file has each candidate's reason"
                raise NothingValidError("no candidate compiled, launched and was right", received=received, hint=hint)
            self.run.progress.phase("confirm")
            with self.turn():
                return confirm(self)
        except (KeyboardInterrupt, DeviceLostError) as end:
            if not self.standings.usable:
                raise
            return self._unconfirmed(end)

    def _unconfirmed(self, end: BaseException) -> CampaignEnd:
        """The best of the search, after an early end."""
        why = "interrupted" if isinstance(end, KeyboardInterrupt) else str(end)
        self.run.note(f"{why}: the winner is the best of the search so far and was not confirmed")
        ranked = self.standings.ranked
        return CampaignEnd(
            winner=ranked[0],
            candidates=tuple(ranked[: self.policy.finalists]),
            roof=self.standings.roof,
            default_us=self.standings.us_of(self.default),
            interrupted=isinstance(end, KeyboardInterrupt),
        )

    def _measure_roof(self) -> None:
        """The roofs alone, so that progress can show % of roof; the confirmation times the best of them again."""
        samples = self.policy.screen_samples
        with self.run.clock.phase("roof"), self.turn():
            self.take(self.judge.choose_roofs(samples=samples, seed=self.run.seed))
        self.search.in_chain(self.standings.roof.base_us)

    def _batches(self) -> Iterator[Batch]:
        """What to evaluate next, until trials, time or points run out."""
        if not self._waiting and not self.has_time():
            self.run.note("the budget ended before the search began: only the default was compiled")
            self._waiting.append(self._ask(1))
        while True:
            roof = self.standings.roof
            roof_us = None if roof.us is None else roof.us + roof.base_us
            if self.run.goes_on or not self.search.is_settled(roof_us):
                self.ask_ahead()
            if not self._waiting or not self.has_time(late=True):
                return
            yield self._waiting.popleft()

    def _random(self) -> Iterator[Batch]:
        """The first drawn points that the search did not try, one for each of its batches: nothing where time is short.

        A kernel takes what one of the search took to check and to time, on average.
        """
        took_s = sum(self.run.clock.phases_s.get(name, 0.0) for name in ("verify", "time"))
        affordable = RANDOM_SHARE * self.run.clock.elapsed_s * self._evaluated
        left = self._untried()
        count = min(self._asked // BATCH, RANDOM, int(affordable / took_s) if took_s else RANDOM)
        if count and left and self.standings.usable and self.has_time():
            with self.run.clock.phase("emit"):
                batch: Batch = [(None, self._begun(self._drawn_point(i))) for i in left[:count]]
            yield batch

    def _untried(self) -> list[int]:
        return [i for i in self._drawn if self.search.legal[i].key not in self._tried]

    def _drawn_point(self, index: int) -> Proposed:
        us = float(self.search.predicted[index])
        return Proposed(schedule=self.search.legal[index], predicted_us=us, chosen="random")

    def _ask(self, count: int) -> Batch:
        """Proposals, in compilation unless an earlier run knows them."""
        with self.run.clock.phase("ask"):
            asked = self.search.ask(count)
        with self.run.clock.phase("emit"):
            self._tried |= {p.schedule.key for p in asked}
            return [(p.number, self._begun(self._proposed(p))) for p in asked]

    def _proposed(self, point: Proposal) -> Proposed:
        chosen = "default" if point.schedule == self.default else point.chosen
        return Proposed(schedule=point.schedule, predicted_us=point.predicted_us, chosen=chosen)

    def _begun(self, candidate: Proposed) -> Candidate:
        known = self.run.recall(candidate, self.builder.text_of)
        if known is not None:
            return candidate.known_as(known)
        self.builder.begin(candidate)
        return candidate

    def _evaluate(self, number: int, batch: Batch) -> None:
        """Wait for the batch's cubins, check, time, record and tell."""
        phase = self.run.clock.phase
        self._evaluated += len(batch)
        with phase("compile (waiting)"):
            states = [self.builder.finish(c) if isinstance(c, Proposed) else c for _, c in batch]
        with self.turn():
            self.run.memory.refresh()
            states = [self._taken_over(state) for state in states]
            with phase("verify"):
                states = list(self._checked(states))
            with phase("time"):
                timed = self._timed([s for s in states if isinstance(s, Checked)], number)
            with phase("record"):
                for (trial, _), state in zip(batch, states, strict=True):
                    self._settle(trial, timed.get(state.key, state))
                self._forget_losers()
        self._tell_progress()

    def _taken_over(self, state: Candidate) -> Candidate:
        """What another process measured while this one waited for its turn; known times as this run would take them."""
        known = self.run.recall(state, self.builder.text_of) if isinstance(state, Built) else None
        if known is not None and known.outcome in (Outcome.OK, Outcome.WRONG_RESULT):  # this one did compile
            state = state.known_as(known)
        if isinstance(state, Timed) and state.known is not None:
            if then := reference_us(state.known, self.default_text):
                self.take(Baseline(us=then))  # where there is none: from here on this run's times are held against it
                state = replace(state, times_us=state.times_us.scaled((self.standings.baseline_us or then) / then))
            self.take(state)
        return state

    def _checked(self, states: Sequence[Candidate]) -> Iterator[Candidate]:
        """Built ones are checked; once one is usable, those that the time of the run does not reach are left out."""
        is_any = bool(self.standings.usable)
        for state in states:
            if not isinstance(state, Built):
                yield state
            elif is_any and not self.has_time():
                yield state.failed(Outcome.TIMEOUT, "not reached within the time of the run")
            else:
                found = self.admit(state)
                is_any = is_any or isinstance(found, Checked)
                yield found

    def _timed(self, checked: Sequence[Checked], number: int) -> dict[str, Timed | Failed]:
        """By key: candidates timed against the reference; one that faults drops out and the rest are timed again."""
        by_key = {c.key: c for c in checked}

        def screen(keys: list[str]) -> timing.Screened | None:
            if not keys:
                return None
            reference = self.standings.reference or self._reference([by_key[key] for key in keys])
            self.take(reference)
            screened = timing.screen(
                self.bench,
                keys,
                reference=reference.key,
                baseline_us=reference.baseline_us,
                policy=self.policy,
                seed=self.run.seed + number,
            )
            self.take(reference.baselined(screened.reference_us))
            return screened

        screened, faults = self.judge.rerun(list(by_key), screen, dropped=partial(self.drop, among=by_key))
        found: dict[str, Timed | Failed] = {
            key: by_key[key].failed(fault.outcome, fault.reason) for key, fault in faults.items()
        }
        if screened is not None:
            found |= {c.key: c.timed(screened.times[c.key]) for c in checked if c.key not in faults}
            for state in found.values():
                self.take(state)
            self.bench.expect(self.standings.ranked[0].times_us.median)
        return found

    def _reference(self, checked: Sequence[Checked]) -> Reference:
        """The default; should it be lost, the best so far, whose time is already comparable."""
        default, baseline_us = self.default, self.standings.baseline_us
        if measured := next((c for c in checked if c.schedule == default), None):
            return Reference(key=measured.key, text=measured.text, baseline_us=baseline_us)
        known = self.standings.usable.get(default.key)
        for timed in [*([known] if known else []), *self.standings.ranked]:
            if timed.key in self.judge.loaded or isinstance(self.admit(timed), Checked):
                us = baseline_us if timed is known else timed.times_us.median
                return Reference(key=timed.key, text=timed.text, baseline_us=us)
        return Reference(key=checked[0].key, text=checked[0].text, baseline_us=None)

    def _settle(self, trial: int | None, state: Candidate) -> None:
        """Record the candidate and tell the search that asked; one with another's code shares that one's fate."""
        if isinstance(state, Twin):
            state = state.like(self.standings.settled[state.first])
            self.run.counts["same_code"] += 1
        elif isinstance(state, Failed):
            self.take(state)
        assert isinstance(state, Timed | Failed), "what was checked was timed, or failed"
        self.run.keep(state, **self.standings.roof.evidence, search=self.conditions)
        us = state.times_us.rounded if isinstance(state, Timed) else None
        if trial is not None:
            self.search.tell(trial, us, reason=state.reason, is_wrong=state.outcome is Outcome.WRONG_RESULT)

    def _forget_losers(self) -> None:
        """Graphs cost device memory: keep those that may come to the confirmation."""
        ranked = self.standings.ranked
        kept = {c.key for c in itertools.islice(ranked, 2 * self.policy.finalists)}
        kept.update(c.key for c in ranked if self.standings.is_reference(c.key) or self.is_guest(c))
        self.judge.forget(self.judge.loaded - kept)

    def _tell_progress(self) -> None:
        best, roof = self.search.best, self.standings.roof
        self.run.progress.standing(
            Standing(
                trials=self.search.trials,
                trials_max=self.run.trials,
                best=str(best[0]) if best else "",
                best_us=best[1] - roof.base_us if best else None,
                roof_us=roof.us,
                bytes=self.run.problem.compulsory_bytes,
                left_s=max(0.0, self.run.clock.left_s),
            )
        )
