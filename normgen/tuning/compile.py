"""Schedules to cubins: emit here, compile in the pool, fold schedules whose code is the same."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace

from normgen.codegen.module import Module
from normgen.cuda.compiler import identity_of
from normgen.cuda.cubin import Cubin
from normgen.errors import CompileError, LostCompilerError, NormgenError
from normgen.problem.problem import Problem
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.tuning.candidate import Built, Candidate, Failed, Proposed, Twin

Emit = Callable[[Problem, Schedule], Module]
Submit = Callable[[Module], "Future[Cubin]"]
Finished = Built | Twin | Failed
_Begun = tuple[Proposed, Module, str, "Future[Cubin]"] | Twin | Failed


class Builder:
    """Turns proposed candidates into built ones: `begin` emits and hands on to the compiler, `finish` waits.

    A candidate whose text (or, once compiled, whose machine code and launch) is that of an earlier one is its twin:
    it is not compiled (or timed) again. The emitter, if one is given, has a single thread: which of two
    equal texts counts as the first must not depend on chance.
    """

    def __init__(self, problem: Problem, *, emit: Emit, submit: Submit, emitter: Executor | None = None) -> None:
        self._problem = problem
        self._emit = emit
        self._submit = submit
        self._emitter = emitter
        self._begun: dict[str, Callable[[], _Begun]] = {}
        self._done: dict[str, Finished] = {}
        self._by_text: dict[str, str] = {}
        self._by_code: dict[str, str] = {}
        self._ahead: dict[str, tuple[Module, Future[Cubin]]] = {}

    def text_of(self, schedule: Schedule) -> str:
        return text_of(self._problem, schedule, self._emit)

    def ahead(self, schedule: Schedule) -> None:
        """Emit and compile a schedule that may be begun later, when it is ready; until then it is nobody's twin."""

        def make() -> None:
            with contextlib.suppress(NormgenError):  # it is refused when it is begun
                module = self._emit(self._problem, schedule)
                self._ahead[schedule.key] = module, self._submit(module)

        if self._emitter is None:
            make()
        else:
            self._emitter.submit(make)

    def begin(self, candidate: Proposed) -> None:
        """Emit the candidate and start its compilation; with an emitter, in its thread."""
        if self._emitter is None:
            begun = self._start(candidate)
            self._begun[candidate.key] = lambda: begun
        else:
            self._begun[candidate.key] = self._emitter.submit(self._start, candidate).result

    def _start(self, candidate: Proposed) -> _Begun:
        module, compiling = self._ahead.pop(candidate.key, (None, None))
        try:
            module = module or self._emit(self._problem, candidate.schedule)
        except NormgenError as error:
            return candidate.failed(Outcome.ILLEGAL, str(error))
        text = identity_of(module)
        first = self._by_text.setdefault(text, candidate.key)
        if first != candidate.key:
            return candidate.twin_of(first, text)
        return candidate, module, text, compiling or self._submit(module)

    def finish(self, candidate: Candidate, *, timeout_s: float | None = None) -> Finished:
        """Wait for the candidate's cubin; a refused text, or one that takes too long, is a failure."""
        return self._finish(candidate.key, timeout_s)

    def _finish(self, key: str, timeout_s: float | None = None) -> Finished:
        if key in self._begun:
            self._done[key] = self._end(self._begun.pop(key)(), timeout_s)
        return self._done[key]

    def _end(self, begun: _Begun, timeout_s: float | None) -> Finished:
        if not isinstance(begun, tuple):
            return begun
        candidate, module, text, waiting = begun
        try:
            cubin = waiting.result(timeout_s)
        except TimeoutError:
            waiting.cancel()
            return replace(candidate, text=text).failed(Outcome.TIMEOUT, "not compiled within the time of the run")
        except LostCompilerError as error:  # which passes: another run may have more memory, or time
            return replace(candidate, text=text).failed(Outcome.TIMEOUT, str(error))
        except CompileError as error:
            return replace(candidate, text=text).failed(Outcome.COMPILE_ERROR, f"{error}\n{error.log}".strip())
        first = self._by_code.setdefault(code_digest(module, cubin), candidate.key)
        if first != candidate.key:
            return candidate.twin_of(first, text)
        return candidate.built(module, cubin, text)

    def rebuilt(self, candidate: Candidate) -> Built | Failed:
        """The kernel of a candidate that was taken over from an earlier run: the device needs it now."""
        proposed = candidate.proposed()
        self.begin(proposed)
        found = first = self.finish(proposed)
        while isinstance(first, Twin):
            first = self._finish(first.first)
        if isinstance(first, Failed):
            return proposed.failed(first.outcome, first.reason)
        return proposed.built(first.module, first.cubin, found.text)

    def forget(self, candidate: Candidate) -> None:
        """Let its cubin go; what has the same code is still told to be its twin."""
        self._done.pop(candidate.key, None)


def text_of(problem: Problem, schedule: Schedule, emit: Emit) -> str:
    """The identity of a schedule's emitted text; empty where the emitter refuses the schedule."""
    try:
        return identity_of(emit(problem, schedule))
    except NormgenError:
        return ""


def code_digest(module: Module, cubin: Cubin) -> str:
    """The machine code and how it is launched, whatever the kernels are called."""
    data = cubin.data
    for number, kernel in enumerate(module.kernels):
        data = data.replace(kernel.name.encode(), f"kernel_{number}".encode())
    return hashlib.sha256(data + b"\0" + module.launches.encode()).hexdigest()
