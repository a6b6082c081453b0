"""What became of a kernel, and where and how it was verified: the fields `outcome` and `verified` of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

GPU, CPU = "gpu", "cpu"
NOT_RECORDED = "not recorded"


class Outcome(StrEnum):
    OK = "ok"
    ILLEGAL = "illegal"
    COMPILE_ERROR = "compile_error"
    LAUNCH_ERROR = "launch_error"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    WORKER_DIED = "worker_died"  # the process that ran it ended, twice, without saying why
    PREDICTED = "predicted"

    @property
    def is_usable(self) -> bool:
        """The kernel may be shipped: measured, or honestly predicted."""
        return self in (Outcome.OK, Outcome.PREDICTED)


@dataclass(frozen=True, kw_only=True)
class VerifiedOn:
    """What ran the kernel.

    executor  gpu | cpu
    device    the GPU's model; of the CPU executor, the machine's architecture
    version   the newest CUDA release that the GPU's driver supports; of the CPU executor, its C++ compiler
    """

    executor: str
    device: str
    version: str

    def __str__(self) -> str:
        if self.executor == CPU:
            return f"CPU executor on {self.device} ({self.version})"
        return f"{self.device}, driver for CUDA {self.version}"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The calls of a kernel that were compared with the float64 reference and were right.

    calls      how many
    rows, cols  the row counts and the lengths of these calls, ascending
    compared   rows of the plain call that were compared element by element
    families   of rows that were tried
    own_pitches  tensors with a pitch of their own in some call
    nulls      statistics that were passed as null in some call
    orders     orders of blocks and threads
    unbounded  of the elements compared, the share that has no finite bound: any value passes there
    left_out   families that were not tried: a sum over rows cannot hold them, or the contract leaves them out
    uncounted  families that were tried, but that the spec's accuracy contract leaves out
    not_made   calls that the check has and that were too large here: "at 17 rows"
    text       the identity of the text that was compared, where it is not the one that was timed: the kernel is
               emitted as another text today, and was proven again
    finite_to  "x: 2^58": up to which size of an input a row is finite under every schedule; beyond, one may find NaN
               where another finds a number. Of inputs that may be any number of their dtype, nothing
    seen       values of scalars, and families of other inputs than the first, on which an element of some call
               depends: "eps=0.1", "label cols"; None of a record that is older than these
    unseen     those that were tried and change no element, and what has no other value at which rows are finite
    """

    site: VerifiedOn
    calls: int
    rows: tuple[int, ...]
    cols: tuple[int, ...]
    compared: int
    families: tuple[str, ...]
    own_pitches: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    orders: int = 1
    unbounded: float = 0.0
    left_out: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    not_made: tuple[str, ...] = ()
    text: str = ""
    finite_to: tuple[str, ...] = ()
    seen: tuple[str, ...] | None = None
    unseen: tuple[str, ...] = ()

    @property
    def not_shown(self) -> tuple[str, ...]:
        """What the calls say nothing about, in words."""
        return (*_free([self]), *self._not_called)

    @property
    def _not_called(self) -> tuple[str, ...]:
        said = []
        if self.left_out:
            said.append(f"rows of {', '.join(self.left_out)} were not tried")
        if self.uncounted:
            said.append(f"rows of {', '.join(self.uncounted)} are outside the spec's accuracy contract")
        if self.unseen:
            said.append(f"no call shows what depends on {', '.join(self.unseen)}")
        return (*said, *(f"a call {call} was not made" for call in self.not_made))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values: the site's fields beside the others; an older record's line stays as it was."""
        newer = ("seen", "unseen") if self.seen is None else ()
        own = {name: value for name, value in asdict(self).items() if name not in ("site", *newer)}
        kept = {name: value for name, value in own.items() if value or name not in ("text", "finite_to")}
        return {**asdict(self.site), **kept}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Verified:
        """Of the plain values that `schema.json` allows."""
        plain: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in data.items()}
        site = VerifiedOn(**{name: plain.pop(name) for name in ("executor", "device", "version")})
        return Verified(site=site, **plain)


def told(found: Iterable[Verified | None]) -> list[str]:
    """What is known of some kernels, a line for each site; in a line of its own how many records do not say."""
    every = list(found)
    by_site: dict[VerifiedOn, list[Verified]] = {}
    for one in every:
        if one is not None:
            by_site.setdefault(one.site, []).append(one)
    counted = [(len(group), f"{site}: {_width(group)}") for site, group in by_site.items()]
    counted += [(n, NOT_RECORDED)] if (n := every.count(None)) else []
    return [text if n == len(every) else f"{n} of {len(every)} kernels: {text}" for n, text in counted]


def _width(group: Sequence[Verified]) -> str:
    """The calls of kernels that were verified at one site."""
    families = {name for one in group for name in one.families}
    parts = [
        _counted(_ends(group, lambda one: (one.calls,)), "call"),
        _counted(_ends(group, lambda one: one.rows), "row"),
        _counted((len(families), len(families)), "famil", "y", "ies") + " of rows",
    ]
    seen = {text for one in group for text in one.seen or ()}
    parts += [_counted((len(seen), len(seen)), "value") + " of scalars and other inputs"] if seen else []
    pitched, nulls = (_names(group, of) for of in (lambda one: one.own_pitches, lambda one: one.nulls))
    parts += [f"own pitches of {pitched}"] if pitched else []
    parts += [f"null {nulls}"] if nulls else []
    parts += ["another order of threads"] if any(one.orders > 1 for one in group) else []
    not_called = list(dict.fromkeys(said for one in group for said in one._not_called))
    return "; ".join([", ".join(parts), *_free(group), *not_called])


def _free(group: Iterable[Verified]) -> list[str]:
    """In which share of the elements of kernels any value passes; nothing where all have a bound."""
    shares = sorted({f"{one.unbounded:.2g}" for one in group if one.unbounded}, key=float)
    if not shares:
        return []
    share = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"
    return [f"any value passes in {share} of the elements, which have no finite bound"]


def _ends(group: Sequence[Verified], of: Callable[[Verified], Sequence[int]]) -> tuple[int, int]:
    values = [value for one in group for value in of(one)]
    return min(values, default=0), max(values, default=0)


def _counted(ends: tuple[int, int], noun: str, one: str = "", more: str = "s") -> str:
    least, most = ends
    number = str(most) if least == most else f"{least} to {most}"
    return f"{number} {noun}{one if number == '1' else more}"


def _names(group: Sequence[Verified], of: Callable[[Verified], Sequence[str]]) -> str:
    return ", ".join(dict.fromkeys(name for one in group for name in of(one)))
