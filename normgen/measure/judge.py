"""Load -> check -> race: what tunes, sweeps, studies and benches do with kernels on a device, in one place.

The device belongs to a worker process (`isolation/`), so that a kernel that faults or hangs ends a worker and no run.
Every entrant comes out with samples of an interleaved race, or with the outcome and the reason why it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from normgen.codegen.module import Module
from normgen.cost.work import ARITHMETIC, roof_of
from normgen.device import Device
from normgen.errors import NormgenError
from normgen.measure import timing
from normgen.measure.isolation.bench import Patience, WorkerBench
from normgen.measure.isolation.process import Post
from normgen.measure.protocol import Bench, DeviceLostError, KernelFaultError, roof_family
from normgen.measure.timing import Confirmation, Series
from normgen.problem.problem import Problem
from normgen.records import statistics
from normgen.records.place import Place
from normgen.records.record import Outcome
from normgen.records.statistics import Times
from normgen.records.verified import Verified


class Entrant(Protocol):
    """What is judged under its key: a kernel with its cubin, or anything that its bench can make, check and replay."""

    @property
    def key(self) -> str: ...

    @property
    def module(self) -> Module | None: ...

    @property
    def cubin(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Passed:
    """It is right. `error` per written tensor as a fraction of its bound; `verified`: where, and by which calls."""

    error: Mapping[str, float] = field(default_factory=dict)
    verified: Verified | None = None


@dataclass(frozen=True, kw_only=True)
class Eliminated:
    """It is out, and why."""

    outcome: Outcome
    reason: str
    error: Mapping[str, float] = field(default_factory=dict)


Found = TypeVar("Found")


def bench_at(
    post: Post,
    problem: Problem,
    facts: Device,
    *,
    place: Place,
    seed: int,
    note: Callable[[str], None],
    patience: Patience | None = None,
    **more: Any,
) -> WorkerBench:
    """A bench of the problem in the post's worker; `more` are further arguments of what the worker builds."""
    opening = {"problem": problem, "facts": facts, "index": post.index, "place": place, "seed": seed, **more}
    return WorkerBench(post, opening=opening, note=note, patience=patience)


@dataclass(frozen=True, kw_only=True)
class RoofCosts:
    """What the roofs cost by name, and what the chain takes without a kernel (None alone), in one run.

    That of the products is no kernel's: it follows from the device.
    """

    roofs_us: Mapping[str, float] = field(default_factory=dict)
    chain: Times | None = None

    @property
    def us(self) -> float | None:
        """The best of them, or what the products take, whichever is longer."""
        found = roof_of(self.roofs_us)
        return found[1] if found else None

    @property
    def arithmetic(self) -> dict[str, float]:
        """What the products take, of a problem that has some."""
        return {name: us for name, us in self.roofs_us.items() if name == ARITHMETIC}

    @property
    def base_us(self) -> float:
        return self.chain.median if self.chain else 0.0

    @property
    def evidence(self) -> dict[str, Any]:
        """Fields of a record."""
        return {"roof_us": self.us, "roofs_us": self.roofs_us, "chain_us": self.chain}


class Judge:
    """Judges entrants on one bench.

    loaded  the keys that the bench holds
    roofs   the keys of the roofs that races have: all of the bench, or after `choose_roofs` the best of each family
    """

    def __init__(self, bench: Bench, *, arithmetic_us: float = 0.0) -> None:
        """`arithmetic_us`: what the products of its problem take at least."""
        self.bench = bench
        self._arithmetic = {ARITHMETIC: arithmetic_us} if arithmetic_us else {}
        self.loaded: set[str] = set()
        self._chosen: tuple[str, ...] | None = None

    @property
    def roofs(self) -> tuple[str, ...]:
        return tuple(self.bench.roofs) if self._chosen is None else self._chosen

    def choose_roofs(self, *, samples: int, seed: int) -> RoofCosts:
        """Race the roofs by themselves: from now on the best variant of each family takes part."""
        series, _ = self.race([], samples=samples, seed=seed)
        best: dict[str, str] = {}
        for key in sorted(self.roofs, key=lambda k: statistics.median(series[k])):
            best.setdefault(roof_family(key), key)
        self._chosen = tuple(best.values())
        figures = timing.figures_of(series, self._chosen, self.bench.bases)
        return self._roof(figures, timing.chain_times(series, self.bench.bases))

    def roof_in(self, confirmation: Confirmation) -> RoofCosts:
        """What the roofs cost in the run of a confirmation."""
        costs = {key: price.median for key, price in confirmation.prices.items()}
        costs = costs or {key: times.median for key, times in confirmation.times.items()}
        return self._roof({key: costs[key] for key in self.roofs if costs[key] > 0}, confirmation.chain)

    def admit(
        self, entrant: Entrant, *, full: bool = False, warm: bool = False, make: Callable[[], object] | None = None
    ) -> Passed | Eliminated:
        """Load, unless that was done, and check. What fails is unloaded: it is never timed.

        warm   also warm up, so that what cannot be replayed is out before the race
        make   puts it on the device; None: its module and cubin are loaded
        Raises DeviceLostError when nothing can be judged any more.
        """
        try:
            if entrant.key not in self.loaded:
                if make is not None:
                    make()
                else:
                    assert entrant.module is not None, "what did not compile is not judged"
                    self.bench.load(entrant.key, entrant.module, entrant.cubin)
                self.loaded.add(entrant.key)
            check = self.bench.check(entrant.key, full=full)
            if warm and check.ok:
                self.bench.warm_up(entrant.key)
        except DeviceLostError:
            raise
        except KernelFaultError as fault:
            found = Eliminated(outcome=fault.outcome, reason=str(fault))
        except NormgenError as error:
            found = Eliminated(outcome=Outcome.LAUNCH_ERROR, reason=str(error))
        else:
            if check.ok:
                return Passed(error=check.error, verified=check.verified)
            found = Eliminated(outcome=Outcome.WRONG_RESULT, reason=check.summary, error=check.error)
        self.forget([entrant.key])
        return found

    def race(self, keys: Sequence[str], *, samples: int, seed: int) -> tuple[Series, dict[str, Eliminated]]:
        """One interleaved race of the admitted keys, the roofs and the chain without a kernel; and who faulted.

        Raises DeviceLostError when a roof cannot be timed.
        """

        def run(left: list[str]) -> Series:
            return timing.race(self.bench, [*left, *self.bench.bases, *self.roofs], samples=samples, seed=seed)

        return self.rerun(keys, run)

    def rerun(
        self,
        keys: Sequence[str],
        run: Callable[[list[str]], Found],
        *,
        dropped: Callable[[str, Eliminated], bool] = lambda *_: False,
    ) -> tuple[Found, dict[str, Eliminated]]:
        """What `run` finds for the keys, and the fault of each that is out: the others run again without it.

        dropped   is told of each fault; true: the run can do without what faulted although it is none of the keys
        Raises DeviceLostError when something else faults: a roof, a reference.
        """
        out: dict[str, Eliminated] = {}
        while True:
            try:
                return run([key for key in keys if key not in out]), out
            except KernelFaultError as error:
                fault = Eliminated(outcome=error.outcome, reason=str(error))
                self.forget([error.key])
                if not dropped(error.key, fault) and (error.key not in keys or error.key in out):
                    rule = "a roof, or a reference, must stay usable"
                    raise DeviceLostError(rule, received=str(error)) from error
                if error.key in keys:
                    out[error.key] = fault

    def forget(self, keys: Iterable[str]) -> None:
        """Unload what is loaded of the keys."""
        for key in [k for k in keys if k in self.loaded]:
            self.bench.unload(key)
            self.loaded.remove(key)

    def _roof(self, figures: Mapping[str, float], chain: Times | None) -> RoofCosts:
        families = {roof_family(key): us for key, us in figures.items()}
        return RoofCosts(roofs_us=families | self._arithmetic, chain=chain)
