"""Schedules to cubins: emit here, compile in the pool, fold schedules whose code is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Executor, Future

from normgen.codegen.module import Module
from normgen.cuda.compiler import identity_of
from normgen.cuda.cubin import Cubin
from normgen.errors import CompileError, NormgenError
from normgen.problem.problem import Problem
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.tuning.run import Candidate

Emit = Callable[[Problem, Schedule], Module]
Submit = Callable[[Module], "Future[Cubin]"]


class Builder:
    """Turns candidates into cubins; `begin` emits and hands on to the compiler, `finish` waits.

    A candidate whose text (or, once compiled, whose machine code and launch) is that of an earlier one has a
    `twin_of`: it is not compiled (or timed) again. The emitter, if one is given, has a single thread: which of two
    equal texts counts as the first must not depend on chance.
    """

    def __init__(self, problem: Problem, *, emit: Emit, submit: Submit, emitter: Executor | None = None) -> None:
        self._problem = problem
        self._emit = emit
        self._submit = submit
        self._emitter = emitter
        self._emitting: dict[str, Future[None]] = {}
        self._by_text: dict[str, Candidate] = {}
        self._by_code: dict[str, Candidate] = {}
        self._waiting: dict[str, Future[Cubin]] = {}
        self._twins: dict[str, Candidate] = {}

    def text_of(self, schedule: Schedule) -> str:
        return text_of(self._problem, schedule, self._emit)

    def begin(self, candidate: Candidate) -> None:
        """Emit the candidate and start its compilation; with an emitter, in its thread."""
        if self._emitter is None:
            self._begin(candidate)
        else:
            self._emitting[candidate.key] = self._emitter.submit(self._begin, candidate)

    def _begin(self, candidate: Candidate) -> None:
        try:
            candidate.module = self._emit(self._problem, candidate.schedule)
        except NormgenError as error:
            candidate.fail(Outcome.ILLEGAL, str(error))
            return
        candidate.text = identity_of(candidate.module)
        first = self._by_text.setdefault(candidate.text, candidate)
        if first is not candidate:
            self._twins[candidate.key] = first
        else:
            self._waiting[candidate.key] = self._submit(candidate.module)

    def finish(self, candidate: Candidate, *, timeout_s: float | None = None) -> None:
        """Wait for the candidate's cubin; a refused text, or one that takes too long, becomes its outcome."""
        emitting = self._emitting.pop(candidate.key, None)
        if emitting is not None:
            emitting.result()
        waiting = self._waiting.pop(candidate.key, None)
        if waiting is None or candidate.module is None:
            return
        try:
            candidate.cubin = waiting.result(timeout_s)
        except TimeoutError:
            waiting.cancel()
            candidate.fail(Outcome.TIMEOUT, "not compiled within the time of the run")
            return
        except CompileError as error:
            candidate.fail(Outcome.COMPILE_ERROR, f"{error}\n{error.log}".strip())
            return
        first = self._by_code.setdefault(code_digest(candidate.module, candidate.cubin), candidate)
        if first is not candidate:
            self._twins[candidate.key] = first

    def twin_of(self, candidate: Candidate) -> Candidate | None:
        """The earlier candidate with the same code; None for the first of its kind."""
        return self._twins.get(candidate.key)


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
