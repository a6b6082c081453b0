"""The protocol of timing: interleaved replays, drift against a fixed reference, a confirmation with its noise.

Nothing here knows a device: a `Timer` replays one candidate once and says µs a link of its chain, or alone a launch.
How a replay is made (many links in a graph, over rotating buffers) is its affair. A timer that is also `Watched` says
when a round was disturbed, and the round is done again; one that is a `Racer` runs whole races itself, next to the
device.

    race     every live candidate once a round, in shuffled order; the clearly slower ones drop out
    screen   a race of new candidates with the reference in every round, divided by the reference's drift
    confirm  no one drops out, the leader's twin runs along: its distance from the leader is the noise floor
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from normgen.records import statistics
from normgen.records.place import Context
from normgen.records.statistics import Price, Ratio, Times

Series = dict[str, list[float]]
REDO_SHARE = 1.0  # disturbed rounds that are done again, as a share of the rounds asked for


class Timer(Protocol):
    """Replays candidates that were loaded into it under a key.

    bases   keys of the chain without a kernel, sampled with every race; none where kernels are timed alone
    """

    @property
    def bases(self) -> Sequence[str]: ...

    def warm_up(self, key: str) -> None:
        """Run the candidate for a while, by time, untimed."""

    def sample(self, key: str) -> float:
        """One replay: µs a link of its chain, alone a launch."""

    def twin(self, key: str, context: Context | None = None) -> str:
        """A second, separately captured replay of the same cubin, under a new key: for A/A comparisons, or in another
        context. Raises NormgenError where the device or the problem has no such context."""


@runtime_checkable
class WatchedTimer(Protocol):
    """A timer that knows about its device's clock."""

    def disturbance(self) -> str:
        """Why what was sampled since the last call is not to be trusted; empty: it is."""


@runtime_checkable
class Racer(Protocol):
    """A timer that runs `race` where the device is: for one in another process, a message instead of hundreds."""

    def race(
        self,
        keys: Sequence[str],
        *,
        samples: int,
        seed: int,
        keep: Sequence[str],
        drop_after: int | None,
        margin: float,
    ) -> Series:
        """As the function `race`."""


# How kernels are checked and timed. Raise it with every change that makes an older verdict or time wrong or no longer
# comparable: kept results of another protocol are measured again. Refactoring changes nothing here.
PROTOCOL = "2"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How many samples, and when a candidate is given up. Part of what a record's figures mean.

    price_spread    a confirmation goes on, `confirm_samples` rounds at a time, until the interval of the fastest one's
                    price is narrower than this share of it
    confirm_most    rounds, whatever the interval then is
    """

    screen_samples: int = 12
    confirm_samples: int = 40
    drop_after: int = 6  # below six samples there is no 95 % interval of a median
    margin: float = 0.02
    finalists: int = 5
    price_spread: float = 0.02
    confirm_most: int = 160


@dataclass(frozen=True, kw_only=True)
class Screened:
    """Times of a batch, divided by the reference's drift since its baseline."""

    times: Mapping[str, Times]
    reference_us: float  # as seen in this batch
    drift: float


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What a confirmation found. `ratio` is each candidate against the winner, paired; `ties` includes the winner.

    chain   times of the chain without a kernel; None alone
    prices  of the candidates and the others; alone there are none
    """

    winner: str
    times: Mapping[str, Times]
    ratio: Mapping[str, Ratio]
    noise_floor: float
    ties: tuple[str, ...]
    chain: Times | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)


def race(
    timer: Timer,
    keys: Sequence[str],
    *,
    samples: int,
    seed: int,
    keep: Sequence[str] = (),
    drop_after: int | None = None,
    margin: float = 0.0,
) -> Series:
    """`samples` interleaved replays of every key; sample i of each series is from round i.

    After `drop_after` rounds a key whose interval lies more than `margin` above the leader's is given up, unless
    it is in `keep`; its series stays as short as it is. The order within a round is shuffled, so that no
    candidate always runs after the same one. A round that the timer calls disturbed does not count and is done
    again, as often as there are rounds in all; after that they count as they are.
    """
    if isinstance(timer, Racer):
        return timer.race(keys, samples=samples, seed=seed, keep=keep, drop_after=drop_after, margin=margin)
    shuffle = random.Random(seed)
    live = list(dict.fromkeys(keys))
    series: Series = {key: [] for key in live}
    for key in live:
        timer.warm_up(key)
    redo = int(REDO_SHARE * samples)
    if isinstance(timer, WatchedTimer):
        timer.disturbance()  # what was before the first round is nobody's
    for round_number in range(samples):
        taken, redo = _round(timer, live, shuffle, redo)
        for key, us in taken.items():
            series[key].append(us)
        if drop_after is not None and round_number + 1 >= drop_after:
            leader = min(live, key=lambda k: statistics.median(series[k]))
            live = [k for k in live if k in keep or not statistics.clearly_behind(series[k], series[leader], margin)]
    return series


def _round(timer: Timer, live: Sequence[str], shuffle: random.Random, redo: int) -> tuple[dict[str, float], int]:
    """One sample of each key from one undisturbed round, and how many more rounds may be done again."""
    while True:
        order = list(live)
        shuffle.shuffle(order)
        taken = {key: timer.sample(key) for key in order}
        if not isinstance(timer, WatchedTimer) or not timer.disturbance() or redo == 0:
            return taken, redo
        redo -= 1


def screen(
    timer: Timer,
    keys: Sequence[str],
    *,
    reference: str,
    baseline_us: float | None,
    policy: Policy,
    seed: int,
) -> Screened:
    """Times of new candidates, made comparable with other batches.

    `reference` runs in every round; its median over `baseline_us` (its median in the first batch; None in that
    batch) is the drift all times are divided by.
    """
    series = race(
        timer,
        [reference, *keys],
        samples=policy.screen_samples,
        seed=seed,
        keep=(reference,),
        drop_after=policy.drop_after,
        margin=policy.margin,
    )
    reference_us = statistics.median(series[reference])
    drift = reference_us / baseline_us if baseline_us else 1.0
    times = {key: statistics.summarise(series[key]).scaled(1 / drift) for key in keys}
    return Screened(times=times, reference_us=reference_us, drift=drift)


def confirm(
    timer: Timer,
    keys: Sequence[str],
    *,
    tie_order: Callable[[str], Any],
    policy: Policy,
    seed: int,
    others: Sequence[str] = (),
    incumbent: str | None = None,
    settle: Callable[[str, Mapping[str, float]], str] = lambda winner, _: winner,
) -> Confirmation:
    """Re-time the finalists in one interleaved run and name the winner.

    Candidates are ranked by the time of the whole chain: what it takes without them is common to all. The noise floor
    is keys[0] (the leader of the search) against its twin. A candidate whose paired ratio to the fastest is within the
    floor ties with it; the incumbent wins a tie, else the least `tie_order`. `others` (the roofs) are timed along and
    never win. `settle` has the last word: of the winner and each candidate's price, or time where there is no chain.
    """
    if not keys:
        raise ValueError("a confirmation needs a candidate")
    twin = timer.twin(keys[0])
    bases = tuple(timer.bases)
    series: Series = {}
    while True:
        block = race(timer, [*keys, twin, *bases, *others], samples=policy.confirm_samples, seed=seed + _rounds(series))
        series = {key: [*series.get(key, ()), *samples] for key, samples in block.items()}
        fastest = min(keys, key=lambda k: (statistics.median(series[k]), tie_order(k)))
        prices = prices_of(series, (*keys, *others), bases)
        is_sure = not prices or prices[fastest].spread <= policy.price_spread
        if is_sure or _rounds(series) + policy.confirm_samples > policy.confirm_most:
            break
    floor = statistics.noise_floor(series[keys[0]], series[twin])
    behind = {k: statistics.paired_ratio(series[k], series[fastest]) for k in keys}
    ties = sorted((k for k in keys if behind[k].median - 1 <= floor), key=tie_order)
    cost = {k: prices[k].median if prices else statistics.median(series[k]) for k in keys}
    winner = settle(incumbent if incumbent in ties else ties[0], cost)
    return Confirmation(
        winner=winner,
        times={k: statistics.summarise(series[k]) for k in (*keys, *others)},
        ratio={k: statistics.paired_ratio(series[k], series[winner]) for k in (*keys, *others)},
        noise_floor=floor,
        ties=tuple(ties),
        chain=chain_times(series, bases),
        prices=prices,
    )


def _rounds(series: Series) -> int:
    return max(map(len, series.values()), default=0)


def chain_times(series: Series, bases: Sequence[str]) -> Times | None:
    """T0: all samples of the chain without a kernel; None where there is none."""
    return statistics.summarise([us for key in bases for us in series[key]]) if bases else None


def prices_of(series: Series, keys: Sequence[str], bases: Sequence[str]) -> dict[str, Price]:
    """T - T0 of each key; nothing where kernels are timed alone."""
    return {k: statistics.price_of(series[k], [series[b] for b in bases]) for k in keys} if bases else {}


def figures_of(series: Series, keys: Sequence[str], bases: Sequence[str]) -> dict[str, float]:
    """What a roof of each key costs, in µs: its price, or alone its time. One that is not above 0 is no figure."""
    if not bases:
        return {key: statistics.median(series[key]) for key in keys}
    return {key: price.median for key, price in prices_of(series, keys, bases).items() if price.median > 0}
