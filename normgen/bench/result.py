"""What a suite's run found, as plain data that is printed, drawn, written and read back.

The JSON object (`Results.as_dict`), of which a file has the head as its first line and then a line an entry; times in
µs, ratios formed round by round. In place (`records.place`) a contender stands between the same P and C as all others;
what it adds to their time T0 is its price. Files of schema 1 are alone: there a time is that of a launch behind itself,
`cache` stands for context and setting, and nothing has a price. Those of schema 2 are one object.

schema, suite, summary    layout version; the suite
device, versions          facts of the GPU; ours, the compiler's, the driver's and every peer's versions
options                   peers, seed, samples, compile mode, ...: what was asked for
started, seconds, finished, note    as in `trials.head`
geometric_mean            of best peer / ours over the entries that have both, by prices (alone: by times)
geometric_mean_of_chains  the same by T
geometric_mean_to_roof    of ours / roof, by prices (alone: by times)
entries                   one object an entry, in the suite's order:
  label, op, direction, shape, rows, cols, dtypes, pitch, align, context, setting, bytes
  flops                   of products: additions and multiplications; 0 of others
  chain_us                T0: n, median, p05, p95, low, high; null alone
  roof_us, roof           the price of the best hand-written kernel that moves the same bytes, and which
  roofs_us                the best of each family: copy, elementwise, reduction, two launches; of products arithmetic
  ours, peers.{name}      providers:
    price_us              {median, low, high}: T - T0 (95 %, bootstrapped); null alone and if not timed
    times_us              T: n, median, p05, p95, low, high (95 % interval of the median); null if not timed
    to_roof               {median, low, high}: its price over the roof's (alone: times)
    to_copy               the same over the memcpy node's
    alone_us              the median of a launch behind itself, where that was asked for
    failed                why there is no time: not offered, raised, wrong result; "" if there is one
    error                 largest error per written tensor as a fraction of what was allowed
    note                  ours: where the schedule comes from
    schedule              ours: every knob
    overlaps              ours: its first kernel starts while the kernel before it ends, which no peer's does
    prepare_s             ours: seconds to emit and compile; a peer's: until its first result
    ours_to_this          peers: {median, low, high} of our T over its T
    our_price_to_this     the same of prices; null alone
  seconds                 wall time of the entry
  run                     `started` of the run that timed it, where files were joined; "" for the file's own
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normgen.errors import NothingValidError, UsageError, VerificationError
from normgen.files.plain import BESIDE, made, plain
from normgen.records.place import Context, Place, Setting
from normgen.records.statistics import Price, Ratio, Times
from normgen.trials.head import Run


@dataclass(frozen=True, kw_only=True)
class Provider:
    """One provider's part of an entry; see the module's docstring."""

    price_us: Price | None = None
    times_us: Times | None = None
    to_roof: Ratio | None = None
    to_copy: Ratio | None = None
    failed: str = ""
    error: Mapping[str, float | None] = field(default_factory=dict, hash=False)
    note: str = ""
    schedule: Mapping[str, Any] = field(default_factory=dict, hash=False)
    overlaps: bool = False
    prepare_s: float = 0.0
    ours_to_this: Ratio | None = None
    our_price_to_this: Ratio | None = None
    alone_us: float | None = None

    @property
    def us(self) -> float | None:
        """T, by which contenders are ranked."""
        return self.times_us.median if self.times_us else None

    @property
    def cost_us(self) -> float | None:
        """The price, or alone the time; None where there is none, or none above 0."""
        cost_us = self.price_us.median if self.price_us else self.us
        return cost_us if cost_us is not None and cost_us > 0 else None


@dataclass(frozen=True, kw_only=True)
class EntryResult:
    label: str
    op: str
    direction: str
    shape: str
    rows: int
    cols: int
    dtypes: Mapping[str, str] = field(hash=False)
    pitch: int
    align: int
    place: Place = field(metadata=BESIDE)
    bytes: int
    roof_us: float | None
    roof: str
    ours: Provider
    peers: Mapping[str, Provider] = field(hash=False)
    seconds: float
    roofs_us: Mapping[str, float] = field(default_factory=dict, hash=False)
    chain_us: Times | None = None
    flops: int = 0
    run: str = ""

    @property
    def key(self) -> str:
        return f"{self.label} {sorted(self.dtypes)}"

    @property
    def gb_per_s(self) -> float | None:
        return self.bytes / self.ours.cost_us / 1e3 if self.ours.cost_us else None

    def tflops(self, provider: Provider | None) -> float | None:
        """Of products, 10^12 operations a second; None of other problems, and without a time."""
        us = provider.cost_us if provider else None
        return self.flops / us / 1e6 if self.flops and us else None

    def percent_of_roof(self, provider: Provider) -> float | None:
        return 100 * self.roof_us / provider.cost_us if provider.cost_us and self.roof_us else None

    @property
    def best_peer(self) -> str | None:
        """The fastest peer with a right result."""
        timed = {name: peer.us for name, peer in self.peers.items() if peer.us is not None}
        return min(timed, key=lambda name: timed[name]) if timed else None

    @property
    def faster(self) -> Ratio | None:
        """The best peer's price over ours; alone, its time over ours."""
        if self.best_peer is None:
            return None
        best = self.peers[self.best_peer]
        return _inverse(best.our_price_to_this if self.chain_us else best.ours_to_this)

    @property
    def chain_faster(self) -> Ratio | None:
        """The best peer's T over ours."""
        return _inverse(self.peers[self.best_peer].ours_to_this) if self.best_peer else None


def _inverse(ratio: Ratio | None) -> Ratio | None:
    return Ratio(median=1 / ratio.median, low=1 / ratio.high, high=1 / ratio.low) if ratio else None


@dataclass(frozen=True, kw_only=True)
class Results(Run):
    """A whole suite's run."""

    READ = (1, 2, 3)
    TRIALS = "entries"
    WRITER = "`normgen bench --json`"

    suite: str
    summary: str
    entries: tuple[EntryResult, ...] = ()

    @classmethod
    def trial_of(cls, data: Any) -> EntryResult:
        """An entry of its plain values, those of schema 1 too. Raises ValueError."""
        if isinstance(data, dict) and "cache" in data:
            place = Place(context=Context.ALONE, setting=Setting(data["cache"]))
            data = {name: value for name, value in data.items() if name != "cache"} | plain(place)
        return made(EntryResult, data)

    def is_good(self, trial: EntryResult) -> bool:
        return trial.ours.us is not None

    @property
    def exit_code(self) -> int:
        """As every run's; 4 a wrong kernel of ours, 3 one that does not compile or run, else 0."""
        if ended := super().exit_code:
            return ended
        failed = [entry.ours.failed for entry in self.entries if entry.ours.failed]
        if any(reason.startswith("wrong result") for reason in failed):
            return VerificationError.exit_code
        return NothingValidError.exit_code if failed else 0

    @property
    def peers(self) -> tuple[str, ...]:
        """Every peer of any entry, in the order they were asked for."""
        return tuple(dict.fromkeys(name for entry in self.entries for name in entry.peers))

    @property
    def compared(self) -> tuple[EntryResult, ...]:
        """The entries in which both we and a peer have a time."""
        return tuple(e for e in self.entries if e.faster is not None)

    @property
    def geometric_mean(self) -> float | None:
        return geometric_mean([e.faster.median for e in self.compared if e.faster])

    @property
    def worst(self) -> EntryResult | None:
        """Where the best peer is closest to us, or ahead by most."""
        return min(self.compared, key=lambda e: e.faster.median if e.faster else math.inf, default=None)

    def mean_to_roofs(self) -> dict[str, float]:
        """Family of roofs -> geometric mean of what ours takes over the best of them."""
        shares: dict[str, list[float]] = {}
        for entry in self.entries:
            for family, us in entry.roofs_us.items():
                if entry.ours.cost_us:
                    shares.setdefault(family, []).append(entry.ours.cost_us / us)
        return {family: mean for family, found in shares.items() if (mean := geometric_mean(found))}

    def figures(self) -> dict[str, float | None]:
        return {
            "geometric_mean": self.geometric_mean,
            "geometric_mean_of_chains": geometric_mean(
                [e.chain_faster.median for e in self.compared if e.chain_faster]
            ),
            "geometric_mean_to_roof": geometric_mean([e.ours.to_roof.median for e in self.entries if e.ours.to_roof]),
        }


def joined(older: Results, newer: Results) -> Results:
    """The entries of both runs of a suite on one GPU model: the newer one's where it has a time, in the older's order.

    Each says which run it is of, and the note how many are of which day; the head is the newer one's, but summary and
    options those of the run with more entries, of which the other may be a small part; versions and peers are those of
    both.

    Raises UsageError for runs of two suites or of two GPU models, whose figures do not stand side by side.
    """
    for name, old, new in (
        ("suite", older.suite, newer.suite),
        ("GPU model", older.device.get("name"), newer.device.get("name")),
    ):
        if old != new:
            raise UsageError(f"runs of one {name} are joined", received=f"{old} and {new}")
    of_both = [[replace(e, run=e.run or found.started) for e in found.entries] for found in (older, newer)]
    fresh = {e.label: e for e in of_both[1] if e.ours.us is not None}
    known = {e.label for e in older.entries}
    added = tuple(e for label, e in fresh.items() if label not in known)
    entries = (*(fresh.get(e.label, e) for e in of_both[0]), *added)
    whole = max(older, newer, key=lambda run: len(run.entries))
    asked = [run.options.get("peers") for run in (older, newer)]
    peers = None if None in asked else list(dict.fromkeys(name for names in asked for name in names or ()))  # None: all
    return replace(
        newer,
        summary=whole.summary,
        options={**whole.options, "peers": peers},
        entries=entries,
        versions={**older.versions, **newer.versions},
        seconds=math.fsum(e.seconds for e in entries),
        finished=older.finished or newer.finished,  # one of them has all entries
        note=days_of(entries),
    )


def days_of(entries: Sequence[EntryResult]) -> str:
    """`timed on 2026-11-22 (38 entries) and 2026-11-25 (74)`, of the entries of joined files."""
    first, *others = sorted(Counter(entry.run[:10] for entry in entries).items()) or [("no day", 0)]
    days = [f"{first[0]} ({first[1]} entries)", *(f"{day} ({count})" for day, count in others)]
    return f"timed on {' and '.join(days)}"


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp(mean(log v)); None of nothing. Ratios multiply: 2 and 1/2 mean no difference, which 1.25 would not say."""
    if not values:
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))
