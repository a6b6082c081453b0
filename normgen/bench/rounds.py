"""Contenders that are timed by the host's clock, round by round: one turn each, another one first each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from normgen.records.statistics import Ratio, median, paired_ratio
from normgen.text import figure, table
from normgen.trials.head import Run

WARM_UP = 3  # rounds: the first ones compile, load and learn


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One contender at one step: its samples, its time over the base's, what it saves of what an ideal one would."""

    step: str = ""
    name: str
    samples: tuple[float, ...]
    of_base: Ratio
    share: Ratio | None = None

    ALSO = ("median",)

    @property
    def median(self) -> float:
        return median(self.samples)


@dataclass(frozen=True, kw_only=True)
class Rounds(Run):
    """A whole run: `about` says what was timed, `unit` in what, `base` beside whom; `failed` why one is not there."""

    TRIALS = "contenders"
    WRITER = "`normgen bench --json`"
    EXACT = True

    name: str
    about: str
    unit: str
    base: str
    failed: Mapping[str, str] = field(default_factory=dict, hash=False)
    contenders: tuple[Contender, ...] = ()

    def __str__(self) -> str:
        has_steps = any(one.step for one in self.contenders)
        has_shares = any(one.share for one in self.contenders)
        head = ["step"] * has_steps + ["", self.unit, f"of {self.base}"] + ["share of what copies save"] * has_shares
        rows = [
            [one.step] * has_steps
            + [one.name, figure(one.median), between(one.of_base)]
            + [between(one.share)] * has_shares
            for one in self.contenders
        ]
        return "\n\n".join([self.about, table(head, rows), *(f"{what}: {why}" for what, why in self.failed.items())])


def between(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def against(samples: Mapping[str, tuple[float, ...]], base: str, *, step: str = "") -> list[Contender]:
    """Each contender beside the base."""
    return [
        Contender(step=step, name=name, samples=own, of_base=paired_ratio(own, samples[base]))
        for name, own in samples.items()
    ]


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    scale: float,
    wait: Callable[[], object],
    is_whole: bool,
) -> dict[str, tuple[float, ...]]:
    """Seconds times `scale` of each contender by round; `wait` before each turn, and within it where it `is_whole`."""
    names = list(calls)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + WARM_UP):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            wait()
            start = time.perf_counter()
            calls[name]()
            if is_whole:
                wait()
            if number >= WARM_UP:
                found[name].append((time.perf_counter() - start) * scale)
    return {name: tuple(samples) for name, samples in found.items()}
