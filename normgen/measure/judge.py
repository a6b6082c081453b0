"""Load -> check -> race: what tunes, sweeps, studies and benches do with kernels on a device, in one place.

The device belongs to a worker process (`isolation/`), so that a kernel that faults or hangs ends a worker and no run.
Every entrant comes out with samples of an interleaved race, or with the outcome and the reason why it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from normgen.codegen.module import Module
from normgen.device import Device
from normgen.errors import NormgenError
from normgen.measure import timing
from normgen.measure.isolation.bench import Patience, WorkerBench
from normgen.measure.isolation.process import Post
from normgen.measure.protocol import Bench, DeviceLostError, KernelFaultError
from normgen.measure.timing import Series
from normgen.problem.problem import Problem
from normgen.records.record import Cache, Outcome

BENCH = "normgen.measure.gpu:GpuBench"  # what a worker builds


class Entrant(Protocol):
    """What is judged under its key: a kernel with its cubin, or anything that its bench can make, check and replay."""

    module: Module | None
    cubin: Any
    error: Mapping[str, float]  # per written tensor, as a fraction of its bound

    @property
    def key(self) -> str: ...

    def fail(self, outcome: Outcome, reason: str) -> None:
        """Take down that it is out, and why."""


E = TypeVar("E", bound=Entrant)
Found = TypeVar("Found")


def bench_at(
    post: Post,
    problem: Problem,
    facts: Device,
    *,
    cache: Cache,
    seed: int,
    note: Callable[[str], None],
    patience: Patience | None = None,
    **more: Any,
) -> WorkerBench:
    """A bench of the problem in the post's worker; `more` are further arguments of what the worker builds."""
    opening = {"problem": problem, "facts": facts, "index": post.index, "cache": cache, "seed": seed, **more}
    return WorkerBench(post, opening=opening, note=note, patience=patience)


class Judge:
    """Judges entrants on one bench.

    loaded     the keys that the bench holds
    not_shown  by the full check of a key: what it says nothing about, in words
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.loaded: set[str] = set()
        self.not_shown: dict[str, tuple[str, ...]] = {}

    def admit(
        self, entrant: Entrant, *, full: bool = False, warm: bool = False, make: Callable[[], object] | None = None
    ) -> bool:
        """Load, unless that was done, and check. What fails is told why and is unloaded: it is never timed.

        warm   also warm up, so that what cannot be replayed is out before the race
        make   puts it on the device; None: its module and cubin are loaded, and one that did not compile stays out
        Raises DeviceLostError when nothing can be judged any more.
        """
        if make is None and (entrant.module is None or entrant.cubin is None):
            return False
        try:
            if entrant.key not in self.loaded:
                if make is not None:
                    make()
                else:
                    assert entrant.module is not None
                    self.bench.load(entrant.key, entrant.module, entrant.cubin)
                self.loaded.add(entrant.key)
            check = self.bench.check(entrant.key, full=full)
            entrant.error = check.error
            if full:
                self.not_shown[entrant.key] = check.not_shown
            if warm and check.ok:
                self.bench.warm_up(entrant.key)
        except KernelFaultError as fault:
            entrant.fail(fault.outcome, str(fault))
        except NormgenError as error:
            entrant.fail(Outcome.LAUNCH_ERROR, str(error))
            if isinstance(error, DeviceLostError):
                raise
        else:
            if check.ok:
                return True
            entrant.fail(Outcome.WRONG_RESULT, check.summary)
        self.forget([entrant.key])
        return False

    def race(self, entrants: list[E], *, samples: int, seed: int) -> Series:
        """One interleaved race of the admitted entrants and the roofs; `entrants` are in the end those that were timed.

        Raises DeviceLostError when a roof cannot be timed.
        """

        def run(keys: list[str]) -> Series:
            return timing.race(self.bench, [*keys, *self.bench.roofs], samples=samples, seed=seed)

        return self.rerun(entrants, run)

    def rerun(
        self,
        entrants: list[E],
        run: Callable[[list[str]], Found],
        *,
        dropped: Callable[[KernelFaultError], bool] = lambda _: False,
    ) -> Found:
        """What `run` finds for the entrants' keys. One that faults is out of `entrants`, and the others run again.

        dropped   is told of each fault; true: the run can do without what faulted although it is no entrant
        Raises DeviceLostError when something else faults: a roof, a reference.
        """
        while True:
            try:
                return run([e.key for e in entrants])
            except KernelFaultError as fault:
                out = [e for e in entrants if e.key == fault.key]
                for entrant in out:
                    entrant.fail(fault.outcome, str(fault))
                entrants[:] = [e for e in entrants if e.key != fault.key]
                self.forget([fault.key])
                if not dropped(fault) and not out:
                    rule = "a roof, or a reference, must stay usable"
                    raise DeviceLostError(rule, received=str(fault)) from fault

    def forget(self, keys: Iterable[str]) -> None:
        """Unload what is loaded of the keys."""
        for key in [k for k in keys if k in self.loaded]:
            self.bench.unload(key)
            self.loaded.remove(key)
