"""What the finalists of a confirmation do in other contexts than their own: between matrix products, and alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from normgen.errors import NormgenError, NothingValidError
from normgen.measure import timing
from normgen.measure.chains.matmul import too_long
from normgen.measure.judge import Eliminated, Found, Judge
from normgen.measure.protocol import BASE, DeviceLostError, KernelFaultError
from normgen.measure.timing import Confirmation, Policy, Series
from normgen.records import statistics
from normgen.records.place import Context, Place


class Finalist(Protocol):
    @property
    def key(self) -> str: ...


E = TypeVar("E", bound=Finalist)
FEW = 3  # samples that say how long two matrix products take


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Generic[E]):
    """What was found.

    left      the finalists that did not fault
    winner    the first of the confirmation's order that does not lose to the default between matrix products
    matmul    by key, of those that were tried: us, chain_us (medians of T and T0 there), to_default (paired ratio of T)
    alone_us  by key: the median behind itself
    passed_over  who would have won, but loses there
    refused   why nothing was compared between matrix products; empty where it was, or where nothing was to be compared
    """

    left: tuple[E, ...]
    winner: E
    matmul: Mapping[str, Any] = field(default_factory=dict)
    alone_us: Mapping[str, float] = field(default_factory=dict)
    passed_over: tuple[E, ...] = ()
    refused: str = ""


class FinalistTrial(Generic[E]):
    """Tries the finalists of one confirmation; one that faults is left out from then on."""

    def __init__(
        self,
        judge: Judge,
        finalists: Sequence[E],
        confirmation: Confirmation,
        *,
        default: E | None,
        place: Place,
        policy: Policy,
        seed: int,
        dropped: Callable[[str, Eliminated], bool],
    ) -> None:
        self._judge, self._bench = judge, judge.bench
        self._left, self._confirmation, self._default = list(finalists), confirmation, default
        self._place, self._policy, self._seed, self._dropped = place, policy, seed, dropped
        self._matmul: dict[str, Any] = {}

    def held(self) -> Elsewhere[E]:
        """Raises NothingValidError when every finalist faults, DeviceLostError when the device is gone."""
        passed_over: list[E] = []
        refused = ""
        if self._bench.bases and self._place.context is Context.BETWEEN and self._default is not None:
            base, refused = self._base()
            while base and self._loses(self._order(passed_over)[0], base):
                passed_over.append(self._order(passed_over)[0])
        alone_us = self._alone() if self._bench.bases else {}
        return Elsewhere(
            left=tuple(self._left),
            winner=self._order(passed_over)[0],
            matmul=self._matmul,
            alone_us=alone_us,
            passed_over=tuple(e for e in passed_over if e in self._left),
            refused=refused,
        )

    def _order(self, passed_over: Sequence[E]) -> list[E]:
        """The winner, then those that tie with it, then the others by their times; without those that lost."""
        found = self._confirmation

        def key(entrant: E) -> tuple[bool, bool, float]:
            return entrant.key != found.winner, entrant.key not in found.ties, found.times[entrant.key].median

        order = sorted((e for e in self._left if e not in passed_over), key=key)
        if not order:
            raise NothingValidError("every finalist failed after the confirmation", received="no finalist is left")
        return order

    def _base(self) -> tuple[str, str]:
        """The key of the two matrix products without a kernel; or why there is none to compare with."""
        if self._order(())[0] is self._default:
            return "", ""
        try:
            base = self._bench.twin(BASE, Context.MATMUL)
        except (DeviceLostError, KernelFaultError):
            raise
        except NormgenError as refusal:
            return "", refusal.received or refusal.rule
        us = statistics.median(timing.race(self._bench, [base], samples=FEW, seed=self._seed)[base])
        why = too_long(us)
        return ("", why) if why else (base, "")

    def _loses(self, entrant: E, base: str) -> bool:
        """Whether a finalist is slower than the default there by more than the noise, or faults; the default is not."""
        default = self._default
        if default is None or entrant is default or default not in self._left:
            return False

        def run(keys: list[str]) -> Series:
            twins = {key: self._bench.twin(key, Context.MATMUL) for key in keys}
            samples = self._policy.confirm_samples
            series = timing.race(self._bench, [*twins.values(), base], samples=samples, seed=self._seed)
            return {key: series[twin] for key, twin in (twins | {base: base}).items()}

        series = self._rerun((entrant, default), run)
        pair = [e for e in (entrant, default) if e in self._left]
        chain_us = statistics.median(series[base])
        self._matmul |= {e.key: {"us": statistics.median(series[e.key]), "chain_us": chain_us} for e in pair}
        if pair != [entrant, default]:
            return entrant not in pair
        ratio = statistics.paired_ratio(series[entrant.key], series[default.key])
        self._matmul[entrant.key]["to_default"] = asdict(ratio)
        return ratio.low > 1 + self._confirmation.noise_floor

    def _alone(self) -> dict[str, float]:
        """The median of each finalist behind itself."""

        def run(keys: list[str]) -> dict[str, float]:
            twins = {key: self._bench.twin(key, Context.ALONE) for key in keys}
            samples = self._policy.screen_samples
            series = timing.race(self._bench, list(twins.values()), samples=samples, seed=self._seed)
            return {key: statistics.median(series[twin]) for key, twin in twins.items()}

        return self._rerun(self._left, run)

    def _rerun(self, entrants: Sequence[E], run: Callable[[list[str]], Found]) -> Found:
        """What `run` finds for those that do not fault; the others are left out."""
        found, faults = self._judge.rerun([e.key for e in entrants], run, dropped=self._dropped)
        self._left = [e for e in self._left if e.key not in faults]
        return found
