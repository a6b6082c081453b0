"""Search over the enumerated legal schedules, kept as an Optuna study.

What to measure next is `strategies.Surrogate`'s word. Only legal points are ever proposed: the sampler hands Optuna
whole points of the enumerated set as its relative sample, so the study has one categorical parameter a knob and
opens in optuna-dashboard as any other.
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
from normgen.tuning.search.strategies import SEEDS, Surrogate

SETTLED_AFTER = 40  # points told before a search may end early
SETTLED_HOPE = 0.003  # expected relative improvement of the most promising point: below it nothing is to be won
ROOF_HOPE = 0.01  # the same once the roof is reached
LEAST_PRICE = 0.01  # of a chain's time: noise may show a kernel at less than nothing


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One point to evaluate: tell its number back. `chosen`: as `strategies.Surrogate.how`."""

    number: int
    schedule: Schedule
    predicted_us: float
    chosen: str = ""


class LegalSampler(optuna.samplers.BaseSampler):  # type: ignore[misc,unused-ignore]
    """Hands out the points a chooser picked, as relative samples over all knobs."""

    def __init__(self, space: Mapping[str, optuna.distributions.BaseDistribution]) -> None:
        self._space = dict(space)
        self.next_point: dict[str, Any] = {}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:  # noqa: ARG002
        return dict(self._space)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:  # noqa: ARG002
        return dict(self.next_point)

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:  # noqa: ARG002
        raise RuntimeError(f"knob '{param_name}' was asked for outside the enumerated set")


class Search:
    """Batch ask and tell over `legal`; deterministic for a seed and the values told.

    predicted  the cost model's µs of each legal schedule, in the same order
    seeds      schedules to try first, in order (the default, known winners); those outside `legal` are skipped
    copy       a study in a database that every told trial is copied to
    """

    def __init__(
        self,
        legal: Sequence[Schedule],
        *,
        predicted: Sequence[float],
        seeds: Sequence[Schedule] = (),
        seed_count: int = SEEDS,
        seed: int = 0,
        study_name: str = "normgen",
        copy: StudyCopy | None = None,
    ) -> None:
        if not legal:
            raise NothingValidError(
                "no schedule is legal for this problem", hint="normgen space --why lists each refusal"
            )
        self.legal = Schedules.of(legal)
        self.predicted = np.maximum(np.asarray(predicted, dtype=np.float64), 1e-9)
        self._strategy = Surrogate(
            self.legal,
            log_cost=np.log(self.predicted),
            seeds=[self.legal.index(s) for s in seeds if s in self.legal],
            seed_count=seed_count,
            seed=seed,
        )
        self._distributions = _distributions(self.legal)
        self._sampler = LegalSampler(self._distributions)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(sampler=self._sampler, direction="minimize", study_name=study_name)
        self._copy = copy
        self._pending: dict[int, tuple[Any, int]] = {}  # trial number -> trial, index in legal
        self._best: tuple[Schedule, float] | None = None
        self._told = 0
        self._base_us = 0.0

    def in_chain(self, base_us: float) -> None:
        """Before the first is told: what is told are times of a chain that takes `base_us` without the kernel.

        The strategy is told prices, as the cost model predicts them: beside `base_us` their differences look small.
        """
        self._base_us = base_us

    def ask(self, count: int) -> list[Proposal]:
        """Up to `count` points nobody has been asked for; fewer, or none, when the set runs out."""
        return [self._proposal(i) for i in self._strategy.ask(count)]

    def tell(self, number: int, us: float | None, *, reason: str = "", is_wrong: bool = False) -> None:
        """The time of a proposal, or None when it is no usable kernel; `reason` goes into the study.

        `is_wrong`: its result missed the accuracy contract. How the statistics are computed decides accuracy, the
        other knobs do not, so that a rewrite that is wrong again and again and never right is not proposed again.
        """
        trial, index = self._pending.pop(number)
        if reason:
            trial.set_user_attr("reason", reason)
        self._told += 1
        cost_us = None if us is None else max(us - self._base_us, LEAST_PRICE * us)
        self._strategy.tell(index, cost_us, is_wrong=is_wrong)
        if us is None:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            if self._best is None or us < self._best[1]:
                self._best = self.legal[index], us
            self.study.tell(trial, us)
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
        at_roof = roof_us is not None and self._best[1] <= roof_us
        return self._strategy.hope() < (ROOF_HOPE if at_roof else SETTLED_HOPE)

    def _proposal(self, index: int) -> Proposal:
        self._sampler.next_point = self.legal[index].as_dict()
        trial = self.study.ask(self._distributions)
        self._pending[trial.number] = (trial, index)
        schedule, us = self.legal[index], float(self.predicted[index])
        return Proposal(number=trial.number, schedule=schedule, predicted_us=us, chosen=self._strategy.how[index])


def _distributions(legal: Sequence[Schedule]) -> dict[str, Any]:
    """One categorical distribution a knob, over the values that occur."""
    values = Schedules.of(legal).compact().values
    return {knob: optuna.distributions.CategoricalDistribution(some) for knob, some in zip(NAMES, values, strict=True)}
