"""Compile in several processes: threads of one NVRTC hardly scale (0.033 s a kernel from 4, 0.037 s from 16).

The workers are started as plain child processes and import only NVRTC, not the caller's main module, so
scripts need no `if __name__ == "__main__"` and a worker is ready in about 0.2 s.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from normgen.codegen.module import Module
from normgen.cuda import nvrtc
from normgen.cuda.cache import CubinCache
from normgen.cuda.compiler import CompileJob, finish, job_of
from normgen.cuda.cubin import Cubin
from normgen.errors import LostCompilerError, NoDeviceError

_TIMEOUT_S = 120.0


class _Worker:
    """One child process and the two pipes to it."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "normgen.cuda.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the pool only, which then ends its workers
        )

    def compile(self, job: CompileJob, timeout_s: float) -> nvrtc.Compiled | str:
        """The worker's answer. Raises EOFError or OSError if it ended, TimeoutError if it takes too long."""
        jobs, answers = self.process.stdin, self.process.stdout
        assert jobs is not None
        assert answers is not None
        pickle.dump((job.text, job.name, job.options, job.instances), jobs)
        jobs.flush()
        if not select.select([answers], [], [], timeout_s)[0]:
            raise TimeoutError
        answer: nvrtc.Compiled | str = pickle.load(answers)
        return answer

    def end(self) -> int:
        """Kill the process if it still runs; its exit status (negative: the signal)."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what is left in the buffer has no reader any more
                    pipe.close()
        return self.process.wait()


class CompilePool:
    """Compiling workers that stay alive between jobs; use as a context manager.

    `submit` gives a future: its result is a Cubin, its exception a CompileError. Processes start with
    the first jobs that need them. Leaving the context kills what still runs and cancels what waits.
    """

    def __init__(
        self, workers: int | None = None, *, cache: CubinCache | None = None, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self.workers = max(1, workers or len(os.sched_getaffinity(0)))
        self._cache = cache
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(
            self.workers, thread_name_prefix="normgen-compile", initializer=nvrtc.leave_interrupts
        )
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._is_closed = False

    def warm(self) -> None:
        """Start every worker now, in the background: they load NVRTC while the caller does something else."""
        self._threads.submit(self._start_all)

    def submit(self, module: Module, arch: int) -> Future[Cubin]:
        """Compile a module for `sm_{arch}` in some worker, or take it from the cache."""
        return self._threads.submit(self._compile, module, arch)

    def close(self) -> None:
        """Kill every worker and cancel what has not begun."""
        with self._lock:
            self._is_closed = True
            alive = [*self._idle, *self._busy]
            self._idle.clear()
        for worker in alive:
            worker.process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in alive:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _compile(self, module: Module, arch: int) -> Cubin:
        job = job_of(module, arch)
        found = self._cache.get(job.key) if self._cache else None
        if found is not None:
            return found
        cubin = finish(job, self._in_worker(job))
        if self._cache:
            self._cache.put(cubin)
        return cubin

    def _in_worker(self, job: CompileJob) -> nvrtc.Compiled:
        worker = self._take()
        try:
            answer = worker.compile(job, self._timeout_s)
        except (EOFError, OSError, pickle.UnpicklingError) as error:  # TimeoutError is an OSError
            with self._lock:
                self._busy.discard(worker)
            status = worker.end()
            if self._is_closed:
                raise CancelledError from error
            raise _lost(job, error, status, self._timeout_s) from error
        with self._lock:
            self._busy.discard(worker)
            self._idle.append(worker)
        if isinstance(answer, str):
            raise NoDeviceError("a compiling process must reach NVRTC", received=answer)
        return answer

    def _start_all(self) -> None:
        for _ in range(self.workers):
            with self._lock:
                if self._is_closed or len(self._idle) + len(self._busy) >= self.workers:
                    return
                self._idle.append(_Worker())

    def _take(self) -> _Worker:
        with self._lock:
            if self._is_closed:
                raise CancelledError
            worker = self._idle.pop() if self._idle else _Worker()
            self._busy.add(worker)
            return worker


def _lost(job: CompileJob, error: Exception, status: int, timeout_s: float) -> LostCompilerError:
    if isinstance(error, TimeoutError):
        received = f"no answer after {timeout_s:g} s"
    else:
        received = f"the process ended with status {status}" + (f" (signal {-status})" if status < 0 else "")
    return LostCompilerError(
        f"compiling {job.name} for sm_{job.arch} must not end its process",
        log="",
        received=received,
        hint="the other modules are not affected",
    )
