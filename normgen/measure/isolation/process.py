"""A worker process seen from its parent: start it, tell it what to do, notice when it ends or does not answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from typing import Any

from normgen.errors import NormgenError
from normgen.measure.protocol import KernelFaultError
from normgen.records.record import Outcome


class WorkerLostError(NormgenError):
    """A worker is no more: `outcome` for the kernel that ran (`at`, where known), `rule` says how it ended."""

    exit_code = 6

    def __init__(self, rule: str, *, outcome: Outcome, at: str | None) -> None:
        self.outcome = outcome
        self.at = at
        super().__init__(rule)


class RefusedError(NormgenError):
    """The device refused a call and goes on; the text is the worker's."""


class Worker:
    """One `normgen.measure.isolation.server` process; it ends with `kill`, on its own, or with this process."""

    def __init__(self, factory: str, index: int) -> None:
        self._link, theirs = multiprocessing.Pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        arguments = [str(theirs.fileno()), str(os.getpid()), factory, str(index)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "normgen.measure.isolation.server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the parent only, which then decides
            )

    @property
    def pid(self) -> int:
        return self._process.pid

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
            raise RefusedError(str(value))
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
