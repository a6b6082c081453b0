"""The compile pool with real worker processes: failures stay with the module that caused them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normgen.cuda.cache import CubinCache
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import Cubin
from normgen.cuda.pool import CompilePool
from normgen.errors import CompileError

from . import modules
from .compiled import compile_many


def test_a_failing_module_fails_alone_and_results_keep_their_order() -> None:
    wanted = [modules.scale(cols=32), modules.broken(), modules.scale(cols=64)]
    first, failed, last = compile_many(wanted, 90, workers=2)
    assert isinstance(first, Cubin)
    assert isinstance(last, Cubin)
    assert first.resources["scale"].static_shared_bytes == 128
    assert last.resources["scale"].static_shared_bytes == 256
    assert isinstance(failed, CompileError)
    assert "undeclared_value" in failed.log


def test_a_worker_compiles_the_same_bytes_as_this_process() -> None:
    with CompilePool(1) as pool:
        there = pool.submit(modules.scale(), 90).result()
    assert there.data == compile_module(modules.scale(), 90).data


def test_a_killed_worker_fails_its_module_only_and_the_pool_goes_on() -> None:
    with CompilePool(1) as pool:
        pool.submit(modules.scale(cols=32), 90).result()
        (worker,) = pool._idle
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
        with pytest.raises(CompileError, match="signal 9"):
            pool.submit(modules.scale(cols=64), 90).result()
        assert pool.submit(modules.scale(cols=64), 90).result().arch == 90


def test_a_compile_that_takes_too_long_is_given_up() -> None:
    with CompilePool(1, timeout_s=0.001) as pool, pytest.raises(CompileError, match=r"no answer after 0\.001 s"):
        pool.submit(modules.scale(), 90).result()


def test_closing_the_pool_ends_every_worker_at_once() -> None:
    with CompilePool(2) as pool:
        futures = [pool.submit(modules.spill(blocks=n % 8 + 1), 90 if n % 2 else 80) for n in range(40)]
        futures[0].result()
        workers = [*pool._idle, *pool._busy]
        started = time.perf_counter()
    assert time.perf_counter() - started < 2
    assert workers
    assert all(worker.process.poll() is not None for worker in workers)
    assert all(future.done() for future in futures)
    assert any(future.cancelled() for future in futures)


def test_the_pool_stores_in_the_cache_and_takes_from_it(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path)
    with CompilePool(1, cache=cache) as pool:
        first = pool.submit(modules.scale(), 90).result()
        second = pool.submit(modules.scale(), 90).result()
    assert (first.cached, second.cached) == (False, True)
    assert first.data == second.data


SCRIPT = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the background jobs of a shell ignore it
from normgen.cuda.pool import CompilePool
from tests.cuda import modules
pool = CompilePool(2)
with pool:
    pool.submit(modules.scale(), 90).result()
    print(*[w.process.pid for w in (*pool._idle, *pool._busy)], flush=True)
    for future in [pool.submit(modules.spill(blocks=n % 8 + 1), 90) for n in range(2000)]:
        future.result()
"""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_process_that_started_them(sent: signal.Signals) -> None:
    """A script without a main guard, interrupted in the middle of its compiles."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert pids
        process.send_signal(sent)
        process.wait(timeout=10)
    deadline = time.monotonic() + 5
    while any(map(_is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_is_alive, pids))


def test_a_worker_imports_nothing_heavy() -> None:
    program = "import sys, normgen.cuda.worker; print([m for m in ('numpy', 'sympy', 'optuna') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    answer = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert answer.stdout.decode().strip() == "[]"


def test_a_warm_pool_starts_its_workers_once_and_before_the_first_job() -> None:
    with CompilePool(2) as pool:
        pool.warm()
        deadline = time.monotonic() + 20
        while len(pool._idle) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        pids = {worker.process.pid for worker in pool._idle}
        assert len(pids) == 2
        futures = [pool.submit(modules.scale(cols=32 * i), 90) for i in range(1, 5)]
        assert all(future.result().data for future in futures)
        assert {worker.process.pid for worker in pool._idle} == pids
