"""A bench in a worker process of its own: a kernel that takes the device down takes only the worker with it.

The parent keeps how each key was made: of a kernel the cubin. When a worker is lost, the next one is started and makes
the keys again as they are asked for. The kernel that ran when it was lost is the suspect: it is tried once more, alone
in the fresh worker. If it passes, what was interrupted is done again and nothing is lost; if not, it is out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from normgen.codegen.module import Module
from normgen.errors import NormgenError
from normgen.measure.isolation.process import Post, RefusedError, Worker, WorkerLostError
from normgen.measure.protocol import Check, DeviceLostError, KernelFaultError
from normgen.measure.timing import Series
from normgen.records.place import Context
from normgen.records.record import Outcome

ALONE_SAMPLES = 3
STARTS = 3  # workers in a row that may be lost before they hold the problem's data


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long an answer may take: `multiple` times the quickest of its kind so far, but `floor_s` at least.

    first_s    before there is one of its kind
    open_s     until a worker is started and holds the problem's data
    fixed_s    of verbs for which the quickest answer says nothing about the next
    once       verbs that are not done again when their time has run out: it would run out again
    """

    multiple: float = 50.0
    floor_s: float = 5.0
    first_s: float = 30.0
    open_s: float = 120.0
    fixed_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    once: frozenset[str] = frozenset()


class WorkerBench:
    """A `bench.Bench` whose device lives in a worker process.

    post      of the worker, which as a context the bench leaves in its place, unless it ends with an exception
    opening   named arguments of the worker's bench (see `isolation.server`)
    note      is told of every loss, in one line
    """

    def __init__(
        self,
        post: Post,
        *,
        opening: Mapping[str, Any],
        note: Callable[[str], None],
        patience: Patience | None = None,
    ) -> None:
        self._post = post
        self._worker: Worker | None = post.worker()
        self._opening = dict(opening)
        self._note = note
        self._patience = patience or Patience()
        self._quickest_s: dict[str, float] = {}
        self._recipes: dict[str, tuple[str, tuple[Any, ...]]] = {}  # verb and arguments that make a key
        self._twins: dict[str, tuple[str, Context | None]] = {}  # what each was captured of, and where
        self._present: set[str] = set()  # keys that the present worker knows
        self._is_open = False
        self._roofs: tuple[str, ...] | None = None
        self._bases: tuple[str, ...] = ()
        self._best_us: float | None = None
        self._incidents: list[dict[str, str]] = []
        self._send_open(self._worker)

    @property
    def roofs(self) -> Sequence[str]:
        """The roofs' keys; the first call waits until the worker is ready."""
        if self._roofs is None:
            self._ready()
        assert self._roofs is not None
        return self._roofs

    @property
    def bases(self) -> Sequence[str]:
        """The keys of the chain without a kernel; waits as `roofs`."""
        assert self.roofs is not None
        return self._bases

    @property
    def pid(self) -> int | None:
        """The present worker's process; None between two."""
        return self._worker.pid if self._worker else None

    def load(self, key: str, module: Module, cubin: Any) -> None:
        """Raises NormgenError when the device refuses the kernel."""
        self.make(key, "load", module, cubin)

    def make(self, key: str, verb: str, *args: Any) -> Any:
        """Let the worker's bench make a key ready by one of its methods; the next worker makes it in the same way.

        Raises NormgenError when the bench refuses, KernelFaultError when two workers are lost over it.
        """
        self._recipes[key] = (verb, args)
        try:
            return self._guarded(key, verb, lambda: self._provide(key))
        except NormgenError:
            self._recipes.pop(key, None)
            raise

    def check(self, key: str, *, full: bool) -> Check:
        answer = self._guarded(key, "check", lambda: self._of(key, "check", key, full=full))
        assert isinstance(answer, Check)
        return answer

    def unload(self, key: str) -> None:
        """Forget the kernel; the worker frees it when it has it."""
        self._recipes.pop(key, None)
        self._twins = {twin: made for twin, made in self._twins.items() if made[0] != key}
        # A worker lost over this leaves nothing behind that would have to be freed.
        self._guarded(key, "unload", lambda: self._call("unload", key) if key in self._present else None)
        self._present.discard(key)

    def warm_up(self, key: str) -> None:
        self._guarded(key, "warm up", lambda: self._of(key, "warm_up", key))

    def sample(self, key: str) -> float:
        """One replay, as a race of one."""
        return self.race([key], samples=1, seed=0, keep=(), drop_after=None, margin=0.0)[key][0]

    def twin(self, key: str, context: Context | None = None) -> str:
        """Raises NormgenError where the device or the problem has no such context."""
        again = str(self._guarded(key, "capture again", lambda: self._of(key, "twin", key, context)))
        self._twins[again] = key, context
        self._present.add(again)
        return again

    def expect(self, best_us: float) -> None:
        self._best_us = best_us
        if self._is_open:
            self._guarded(None, "expect", lambda: self._call("expect", best_us))

    def conditions(self) -> Mapping[str, Any]:
        """What the worker's device says, and the losses so far: {key, during, cause, then}."""
        found = dict(self._guarded(None, "conditions", lambda: self._call("conditions")))
        return found | ({"lost_workers": list(self._incidents)} if self._incidents else {})

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
        """`measure.race` in the worker. Raises KernelFaultError for the one that cannot be timed."""
        settings = {"samples": samples, "seed": seed, "keep": tuple(keep), "drop_after": drop_after, "margin": margin}

        def run() -> Series:
            for key in keys:
                self._provide_again(key)
            series: Series = self._call("race", list(keys), **settings)
            return series

        found: Series = self._guarded(None, "time", run)
        return found

    def __enter__(self) -> Self:
        self._ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Free the problem's data. A worker that was interrupted, or does not answer, is ended."""
        if kind is None and self._is_open:
            with contextlib.suppress(WorkerLostError, RefusedError):
                self._call("close")
                return
        self._post.close()

    def _guarded(self, key: str | None, during: str, action: Callable[[], Any]) -> Any:
        """Do it; when the worker is lost over it, try the suspect alone, then do it again.

        Raises KernelFaultError when the suspect fails alone, or when the second try is lost too.
        """
        blamed: set[str | None] = set()
        while True:
            try:
                return action()
            except WorkerLostError as loss:
                self._drop_worker()
                suspect = self._origin(loss.at or key)
                is_hopeless = loss.outcome is Outcome.TIMEOUT and during in self._patience.once
                if suspect in blamed or is_hopeless:
                    raise self._out(suspect, during, loss, again=suspect in blamed) from loss
                blamed.add(suspect)
                self._remember(suspect, during, loss, then="tried again alone")
                # Making or checking it again is trying it alone.
                if suspect in self._recipes and during not in (self._recipes[suspect][0], "check"):
                    self._try_alone(suspect, during, loss)

    def _try_alone(self, suspect: str, during: str, loss: WorkerLostError) -> None:
        """Load, check and replay the suspect in a fresh worker. Raises KernelFaultError if that is lost as well."""
        try:
            self._provide(suspect)
            check: Check = self._call("check", suspect, full=False)
            self._call("race", [suspect], samples=ALONE_SAMPLES, seed=0)
        except WorkerLostError as again:
            self._drop_worker()
            raise self._out(suspect, during, again, again=True) from again
        except RefusedError as refusal:
            text = f"{loss}; alone: {refusal}"
            raise KernelFaultError(text, key=suspect, outcome=Outcome.LAUNCH_ERROR) from refusal
        if not check.ok:
            text = f"{loss}; alone: {check.summary}"
            raise KernelFaultError(text, key=suspect, outcome=Outcome.WRONG_RESULT) from loss

    def _out(self, suspect: str | None, during: str, loss: WorkerLostError, *, again: bool) -> NormgenError:
        """The error that ends a suspect, which was tried again or not; without one, the device is to blame."""
        self._remember(suspect, during, loss, then="given up")
        if suspect is None:
            return DeviceLostError("a worker process must stay alive", received=str(loss))
        self._recipes.pop(suspect, None)
        tried = "; tried again alone: the same end" if again else ""
        return KernelFaultError(f"{loss}{tried} ({during})", key=suspect, outcome=loss.outcome)

    def _remember(self, suspect: str | None, during: str, loss: WorkerLostError, *, then: str) -> None:
        who = suspect or "no kernel"
        self._incidents.append({"key": who, "during": during, "cause": str(loss), "then": then})
        self._note(f"worker lost ({during}, {who}): {loss}; {then}")

    def _origin(self, key: str | None) -> str | None:
        return self._twins[key][0] if key in self._twins else key

    def _of(self, key: str, verb: str, *args: Any, **named: Any) -> Any:
        """A call that needs the kernel in the worker."""
        self._provide(key)
        return self._call(verb, *args, **named)

    def _provide_again(self, key: str) -> None:
        """As `_provide`, of a key that a worker could make once. Raises KernelFaultError when this one refuses."""
        try:
            self._provide(key)
        except RefusedError as refusal:
            raise KernelFaultError(str(refusal), key=key, outcome=Outcome.LAUNCH_ERROR) from refusal

    def _provide(self, key: str) -> Any:
        """Make sure that the present worker knows a key: a kernel, a twin, or a roof (which it always does).

        Returns what making it gave; None for one that is there.
        """
        self._ready()
        if key in self._present or key in (*(self._roofs or ()), *self._bases):
            return None
        try:
            if key in self._twins:
                origin, context = self._twins[key]
                self._provide(origin)
                answer = self._call("twin", origin, context)
            else:
                verb, args = self._recipes[key]
                answer = self._call(verb, key, *args)
        except WorkerLostError as loss:
            loss.at = loss.at or key
            raise
        self._present.add(key)
        return answer

    def _call(self, verb: str, *args: Any, **named: Any) -> Any:
        """Tell and hear, within the time that this kind of call may take."""
        self._ready()
        assert self._worker is not None
        kind = f"{verb} in full" if named.get("full") else verb
        start = time.monotonic()
        self._worker.tell(verb, *args, **named)
        answer = self._worker.hear(self._limit_s(kind))
        took = time.monotonic() - start
        self._quickest_s[kind] = min(took, self._quickest_s.get(kind, took))
        return answer

    def _limit_s(self, kind: str) -> float:
        if kind in self._patience.fixed_s:
            return self._patience.fixed_s[kind]
        quickest = self._quickest_s.get(kind)
        if quickest is None:
            return max(self._patience.first_s, self._patience.floor_s)
        return max(self._patience.floor_s, self._patience.multiple * quickest)

    def _ready(self) -> None:
        """An open worker: the present one, else a new one.

        Raises DeviceLostError when none stays alive, RefusedError when the first one cannot hold the problem's data.
        """
        for _ in range(STARTS):
            if self._is_open:
                return
            try:
                if self._worker is None:
                    self._worker = self._post.worker()
                    self._send_open(self._worker)
                self._roofs, self._bases = self._worker.hear(self._patience.open_s)
                self._is_open = True
                if self._best_us is not None:
                    self._worker.tell("expect", self._best_us)
                    self._worker.hear(self._patience.first_s)
            except WorkerLostError as loss:
                self._drop_worker()
                self._remember(None, "open", loss, then="started again")
            except RefusedError as refusal:
                if self._roofs is None:
                    raise  # nothing is lost: the problem may be too large for the device
                raise DeviceLostError("the device must take the problem's data", received=str(refusal)) from refusal
        if not self._is_open:
            raise DeviceLostError(f"one of {STARTS} worker processes must start", received=self._incidents[-1]["cause"])

    def _send_open(self, worker: Worker) -> None:
        """The worker builds its bench while the parent goes on. A worker that is gone is noticed when it is heard."""
        with contextlib.suppress(WorkerLostError):
            worker.tell("open", **self._opening)

    def _drop_worker(self) -> None:
        """The worker is gone: the next call that needs one starts it."""
        self._worker, self._is_open = None, False
        self._present.clear()
