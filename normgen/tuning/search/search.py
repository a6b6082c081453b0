"""Search over the enumerated legal schedules: a study of Optuna, of which a sampler of `sampler` decides what is next.

The study has one categorical parameter a knob, so it opens in optuna-dashboard as any other; its values are prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna

from normgen.errors import NothingValidError
from normgen.schedule.many import NAMES, Schedules
from normgen.schedule.schedule import Schedule
from normgen.tuning.search.dashboard import StudyCopy
from normgen.tuning.search.features import cuts_of, regions_of, schedule_features, ways_of
from normgen.tuning.search.names import require_sampler
from normgen.tuning.search.sampler import (
    WRONG,
    LegalSampler,
    NearestSampler,
    SurrogateSampler,
    UniformSampler,
    optuna_sampler,
)
from normgen.tuning.search.strategies import SEEDS, Points
from normgen.tuning.search.surrogate import Array

SETTLED_AFTER = 40  # points told before a search may end early
SETTLED_HOPE = 0.003  # expected relative improvement of the most promising point: below it nothing is to be won
ROOF_HOPE = 0.01  # the same once the roof is reached
LEAST_PRICE = 0.01  # of a chain's time: noise may show a kernel at less than nothing


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One point to evaluate: tell its number back. `chosen`: as `LegalSampler.how`."""

    number: int
    schedule: Schedule
    predicted_us: float
    chosen: str = ""


class Search:
    """Batch ask and tell over `legal`; deterministic for a seed and the values told.

    predicted  the cost model's µs of each legal schedule, in the same order
    facts      columns of what the device makes of each (`features.facts_of`)
    seeds      schedules to try first, in order (the default, known winners); those outside `legal` are skipped
    sampler    one of SAMPLERS
    copy       a study in a database that every told trial is copied to
    """

    def __init__(
        self,
        legal: Sequence[Schedule],
        *,
        predicted: Sequence[float] | Array,
        facts: Sequence[Array] = (),
        seeds: Sequence[Schedule] = (),
        seed_count: int = SEEDS,
        seed: int = 0,
        sampler: str = "normgen",
        study_name: str = "normgen",
        copy: StudyCopy | None = None,
    ) -> None:
        if not legal:
            raise NothingValidError(
                "no schedule is legal for this problem", hint="normgen space --why lists each refusal"
            )
        self.legal = Schedules.of(legal)
        self.predicted = np.maximum(np.asarray(predicted, dtype=np.float64), 1e-9)
        self._sampler = sampler_named(
            sampler,
            self.legal,
            log_cost=np.log(self.predicted),
            facts=facts,
            seeds=seeds,
            seed_count=seed_count,
            seed=seed,
        )
        self._distributions = self._sampler.distributions
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(sampler=self._sampler, direction="minimize", study_name=study_name)
        self._copy = copy
        self._pending: dict[int, tuple[optuna.Trial, Schedule]] = {}  # by the trial's number
        self._best: tuple[Schedule, float] | None = None
        self._told = 0
        self._base_us = 0.0

    def in_chain(self, base_us: float) -> None:
        """Before the first is told: what is told are times of a chain that takes `base_us` without the kernel.

        The study is told prices, as the cost model predicts them: beside `base_us` their differences look small.
        """
        self._base_us = base_us

    def ask(self, count: int) -> list[Proposal]:
        """Up to `count` points nobody has been asked for; fewer, or none, when the set runs out."""
        asked: list[Proposal] = []
        while len(asked) < count and self._sampler.left(self.study):
            asked.append(self._proposal())
        return asked

    def tell(self, number: int, us: float | None, *, reason: str = "", is_wrong: bool = False) -> None:
        """The time of a proposal, or None when it is no usable kernel; `reason` goes into the study.

        `is_wrong`: its result missed the accuracy contract. How the statistics are computed decides accuracy, the
        other knobs do not, so that a rewrite that is wrong again and again and never right is not proposed again.
        """
        trial, schedule = self._pending.pop(number)
        if reason:
            trial.set_user_attr("reason", reason)
        if is_wrong:
            trial.set_user_attr(WRONG, True)
        self._told += 1
        if us is None:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            if self._best is None or us < self._best[1]:
                self._best = schedule, us
            self.study.tell(trial, max(us - self._base_us, LEAST_PRICE * us))
        if self._copy is not None:
            self._copy.add(self.study.get_trials(deepcopy=False)[number])

    @property
    def best(self) -> tuple[Schedule, float] | None:
        """The fastest schedule told so far, and its µs."""
        return self._best

    @property
    def trials(self) -> int:
        """Points told so far, failures included."""
        return self._told

    def is_settled(self, roof_us: float | None) -> bool:
        """Whether no point left promises enough to go on: less at the roof than before it."""
        if self._best is None or self._told < SETTLED_AFTER:
            return False
        if not isinstance(self._sampler, SurrogateSampler):
            return False
        at_roof = roof_us is not None and self._best[1] <= roof_us
        return self._sampler.hope(self.study) < (ROOF_HOPE if at_roof else SETTLED_HOPE)

    def _proposal(self) -> Proposal:
        trial = self.study.ask(self._distributions)
        index = self._sampler.index_of(trial.params)
        assert index is not None, "the sampler proposes legal points"
        self._pending[trial.number] = trial, self.legal[index]
        return Proposal(
            number=trial.number,
            schedule=self.legal[index],
            predicted_us=float(self.predicted[index]),
            chosen=self._sampler.how(trial),
        )


def sampler_named(
    name: str,
    legal: Sequence[Schedule],
    *,
    log_cost: Array,
    seeds: Sequence[Schedule],
    seed: int,
    facts: Sequence[Array] = (),
    seed_count: int = SEEDS,
) -> LegalSampler:
    """The sampler of SAMPLERS of that name over a legal set. Raises UsageError."""
    require_sampler(name)
    found, first = Schedules.of(legal).compact(), [s.as_dict() for s in seeds]
    points = Points(NAMES, found.codes, found.values)
    if name == "random":
        return UniformSampler(points, seeds=first, seed=seed, ways=ways_of(legal))
    if name != "normgen":
        return NearestSampler(optuna_sampler(name, seed), points, seeds=first, seed=seed, ways=ways_of(legal))
    return surrogate_sampler(
        legal, points=points, log_cost=log_cost, seeds=first, seed=seed, facts=facts, seed_count=seed_count
    )


def surrogate_sampler(
    legal: Sequence[Schedule],
    *,
    points: Sequence[Mapping[str, Any]] | Points,
    log_cost: Array,
    seeds: Sequence[Mapping[str, Any]],
    seed: int,
    facts: Sequence[Array] = (),
    seed_count: int = SEEDS,
) -> SurrogateSampler:
    """Our own over schedules, which are seen by what their knobs make of them; `points` are how the study has them."""
    return SurrogateSampler(
        points,
        log_cost=log_cost,
        seeds=seeds,
        seed=seed,
        features=schedule_features(legal, facts),
        groups=cuts_of(legal),
        regions=regions_of(legal),
        ways=ways_of(legal),
        seed_count=seed_count,
    )
