"""A worker process seen from its parent: start it, tell it what to do, notice when it ends or does not answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from typing import Any, Self

from normgen.errors import NormgenError
from normgen.measure.faults import KernelFaultError
from normgen.records.verified import Outcome

BENCH = "normgen.measure.gpu:GpuBench"  # what a worker builds


class WorkerLostError(NormgenError):
    """A worker is no more: `outcome` for the kernel that ran (`at`, where known), `rule` says how it ended."""

    exit_code = 6

    def __init__(self, rule: str, *, outcome: Outcome, at: str | None) -> None:
        self.outcome = outcome
        self.at = at
        super().__init__(rule)


class RefusedError(NormgenError):
    """The device refused a call and goes on; the text is the worker's."""

    exit_code = 6


class Worker:
    """One `normgen.measure.isolation` process; it ends with `kill`, on its own, or with this process."""

    def __init__(self, factory: str, index: int) -> None:
        self._link, theirs = multiprocessing.Pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        arguments = [str(theirs.fileno()), str(os.getpid()), factory, str(index)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "normgen.measure.isolation", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the parent only, which then decides
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether it was ended, or found to have ended."""
        return self._link.closed

    def tell(self, verb: str, *args: Any, **named: Any) -> None:
        """Send a message; `hear` waits for its answer. Raises WorkerLostError when nobody is there."""
        try:
            self._link.send((verb, args, named))
        except OSError:
            raise self._ended(None) from None

    def hear(self, limit_s: float) -> Any:
        """The answer to the last message; every sign of life within it begins another `limit_s`.

        Raises RefusedError, KernelFaultError, or WorkerLostError, after which the process is gone.
        """
        at: str | None = None
        while True:
            try:
                if not self._link.poll(limit_s):
                    self.kill()
                    rule = f"no answer within {limit_s:.1f} s"
                    raise WorkerLostError(rule, outcome=Outcome.TIMEOUT, at=at)
                kind, value = self._link.recv()
            except (EOFError, OSError):
                raise self._ended(at) from None
            if kind == "ok":
                return value
            if kind == "at":
                at = str(value)
            else:
                self._fail(kind, value, at)

    def kill(self) -> None:
        """End the process, and wait until the driver has taken its memory back."""
        self._process.kill()
        self._link.close()
        self._process.wait()

    def _fail(self, kind: str, value: Any, at: str | None) -> None:
        if kind == "refused":
            rule, received, hint = value
            raise RefusedError(rule, received=received, hint=hint)
        if kind == "fault":
            key, outcome, text = value
            raise KernelFaultError(text, key=key, outcome=Outcome(outcome))
        self.kill()
        if kind == "lost":
            raise WorkerLostError(str(value), outcome=Outcome.LAUNCH_ERROR, at=at)
        raise RuntimeError(f"a worker process failed:\n{value}")

    def _ended(self, at: str | None) -> WorkerLostError:
        """It ended by itself or was killed: how."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.poll()
        self.kill()
        if status is not None and status < 0:
            how = f"ended by {signal.Signals(-status).name}"
        else:
            how = f"ended with status {status}" if status is not None else "closed its pipe"
        return WorkerLostError(f"the worker process {how}", outcome=Outcome.WORKER_DIED, at=at)


class Post:
    """The place of one worker at a time on device `index`: a lost one is followed by the next of the same factory.

    A post outlives the benches of its worker, which keeps what it imported and its context from one to the next.
    """

    def __init__(self, factory: str, index: int) -> None:
        self.index = index
        self._factory = factory
        self._worker: Worker | None = None

    def worker(self) -> Worker:
        """The worker, started if there is none."""
        if self._worker is None or self._worker.is_gone:
            self._worker = Worker(self._factory, self.index)
        return self._worker

    def ask(self, verb: str, *args: Any, limit_s: float) -> Any:
        """A call that needs no bench. Raises as `Worker.hear`."""
        worker = self.worker()
        worker.tell(verb, *args)
        return worker.hear(limit_s)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None and not self._worker.is_gone:
            self._worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
