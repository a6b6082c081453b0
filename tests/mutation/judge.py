"""The verdict on a kernel: machine code first, then the check that `normgen tune` and `verify` use without a GPU.

Every kernel is judged in a process of its own, because a wrong one may end the process or never end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import connection
from pathlib import Path
from typing import Any

from normgen.codegen.module import Module
from normgen.errors import CompileError
from normgen.measure.cpu_check import check_on_cpu
from normgen.problem.problem import Problem
from tests.mutation.machine_code import code_digest

LIMIT_S = 30.0  # a right kernel takes 0.1 to 0.3 s, and a machine may be busy
_HANGS = ("deadlock:", "timeout:")


class Outcome(StrEnum):
    """What became of a mutant."""

    SAME_CODE = "same_code"  # the compiler makes the same program of it: not a wrong kernel
    DOES_NOT_COMPILE = "does_not_compile"
    FAULT = "killed_by_fault"
    NUMBERS = "killed_by_numbers"
    HANG = "killed_by_hang"
    ARGUED = "argued_equivalent"  # it survived, and equivalent.toml says why that is right
    SURVIVED = "survived"

    @property
    def is_wrong(self) -> bool:
        """Whether the mutant counts as a wrong kernel."""
        return self not in (Outcome.SAME_CODE, Outcome.ARGUED)

    @property
    def is_killed(self) -> bool:
        return self.is_wrong and self is not Outcome.SURVIVED


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`code` is the digest of the machine code, "" if there is none or nobody looked."""

    outcome: Outcome
    detail: str = ""
    code: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kernel to judge; with `original`, the digest of the unchanged kernel's machine code."""

    problem: Problem
    module: Module
    original: str = ""


def project_check(problem: Problem, module: Module) -> tuple[Outcome, str]:
    """What the project's own check says. The only place that calls it."""
    try:
        check = check_on_cpu(problem, module)
    except CompileError as error:
        return Outcome.DOES_NOT_COMPILE, (error.log or str(error))[:500]
    if check.ok:
        return Outcome.SURVIVED, ""
    if check.error:
        return Outcome.NUMBERS, check.summary
    hangs = any(line.startswith(_HANGS) for line in check.summary.splitlines())
    return Outcome.HANG if hangs else Outcome.FAULT, check.summary


def judge(task: Task) -> Verdict:
    """The verdict of this process, which may not survive it."""
    started = time.monotonic()
    try:
        code = code_digest(task.module)
    except CompileError as error:
        return Verdict(outcome=Outcome.DOES_NOT_COMPILE, detail=f"NVRTC: {error.received}")
    if code == task.original:
        return Verdict(outcome=Outcome.SAME_CODE, code=code)
    outcome, detail = project_check(task.problem, task.module)
    return Verdict(outcome=outcome, detail=detail, code=code, seconds=time.monotonic() - started)


def _work(sender: connection.Connection, task: Task, scratch: str) -> None:
    os.setsid()  # with the compiler it starts, it can be killed as one group; Ctrl-C is its parent's business
    os.environ.update(NORMGEN_CACHE_DIR=f"{scratch}/cache", TMPDIR=scratch)
    try:
        found: Verdict | Exception = judge(task)
    except Exception as error:
        found = error
    with suppress(BrokenPipeError):  # its parent was interrupted and listens no more
        sender.send(found)


@dataclass(frozen=True)
class _Running:
    index: int
    process: Any
    deadline: float

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # before it had a group of its own
        self.process.join()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C takes effect at the end: no process is started and then forgotten."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def judge_all(
    tasks: Sequence[Task], scratch: Path, *, jobs: int = 1, limit_s: float = LIMIT_S
) -> Iterator[Iterator[tuple[int, Verdict]]]:
    """(index, verdict) of every task, in the order in which they end; `scratch` holds what is built on the way.

    At the end of the context no judging process is left, whatever ended it.
    """
    running: dict[connection.Connection, _Running] = {}
    try:
        yield _judged(tasks, scratch, running, jobs, limit_s)
    finally:
        with uninterrupted():
            for one in running.values():
                one.end()


def _judged(
    tasks: Sequence[Task], scratch: Path, running: dict[connection.Connection, _Running], jobs: int, limit_s: float
) -> Iterator[tuple[int, Verdict]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.mutation.judge"])
    waiting = iter(enumerate(tasks))
    while True:
        for index, task in waiting:
            with uninterrupted():
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(sender, task, str(scratch)))
                process.start()
                sender.close()
                running[receiver] = _Running(index, process, time.monotonic() + limit_s)
            if len(running) >= jobs:
                break
        if not running:
            return
        for receiver, verdict in _ended(running, limit_s):
            with uninterrupted():
                one = running.pop(receiver)
                one.end()
                receiver.close()
            yield one.index, verdict


def _of_the_dead(process: Any) -> Verdict | Exception:
    process.join()
    if process.exitcode >= 0:
        return RuntimeError(f"a judging process ended with {process.exitcode} and without a verdict")
    return Verdict(outcome=Outcome.FAULT, detail=f"the process ended by signal {-process.exitcode}")


def _ended(
    running: dict[connection.Connection, _Running], limit_s: float
) -> Iterator[tuple[connection.Connection, Verdict]]:
    """Those that have a verdict, have died, or are late."""
    now = time.monotonic()
    left = max(0.0, min(one.deadline for one in running.values()) - now)
    ready = connection.wait(list(running), timeout=left)
    for receiver in [r for r in running if r in ready]:
        try:
            found = receiver.recv()
        except EOFError:
            found = _of_the_dead(running[receiver].process)
        if isinstance(found, Exception):
            raise found  # not the kernel's doing
        yield receiver, found
    for receiver, one in list(running.items()):
        if receiver not in ready and one.deadline <= time.monotonic():
            yield receiver, Verdict(outcome=Outcome.HANG, detail=f"no verdict after {limit_s:g} s")
