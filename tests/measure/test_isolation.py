"""A bench in a real worker process: what a fault costs, who is blamed for it, and what goes on.

Only the device is a double (`fake_device`): process, pipe, time limits, restarts and retries are the real ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from normgen.codegen.module import KernelEntry, Launch, Module
from normgen.cuda.cubin import Cubin, Resources
from normgen.measure import timing
from normgen.measure.isolation.bench import Patience, WorkerBench
from normgen.measure.isolation.process import Post, RefusedError
from normgen.measure.protocol import DeviceLostError, KernelFaultError
from normgen.records import statistics
from normgen.records.record import Outcome
from tests.measure.simulated import problem

FACTORY = "tests.measure.fake_device:FakeBench"
PATIENCE = Patience(floor_s=0.5, first_s=1.0, open_s=20.0)


def kernel(*words: str, us: float = 10.0) -> tuple[Module, Cubin]:
    """A kernel that does what the words say (see `fake_device`)."""
    text = " ".join((*words, f"us={us}"))
    launch = KernelEntry(name="k", params=(), launch=Launch(threads=32))
    cubin = Cubin(
        data=text.encode(),
        arch=90,
        resources={"k": Resources(registers=32)},
        log="",
        seconds=0.0,
        nvrtc_version=(13, 0),
        key=text,
    )
    return Module(instructions="", text=text, kernels=(launch,)), cubin


class Bench(WorkerBench):
    """A WorkerBench on the fake device that keeps its notes and its log."""

    def __init__(self, folder: Path, *, patience: Patience = PATIENCE, start: str = "") -> None:
        self.log = folder / "log"
        self.notes: list[str] = []
        opening = {"problem": problem(), "seed": 1, "log": str(self.log), "start": start}
        self.post = Post(FACTORY, 0)
        super().__init__(self.post, opening=opening, note=self.notes.append, patience=patience)

    def __exit__(self, *_: object) -> None:
        self.post.close()

    def lines(self) -> list[str]:
        """What the workers did, without their process ids."""
        return [line.split(maxsplit=1)[1] for line in self.log.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as opened:
        yield opened


def race(bench: WorkerBench, *keys: str) -> timing.Series:
    return timing.race(bench, keys, samples=8, seed=0)


def test_a_kernel_is_loaded_checked_and_timed_in_the_worker(bench: Bench) -> None:
    bench.load("a", *kernel(us=10.0))
    bench.load("b", *kernel(us=12.0))
    check = bench.check("a", full=True)
    assert (check.ok, check.error) == (True, {"y": 0.25})
    series = race(bench, "a", "b", *bench.roofs)
    assert {k: statistics.median(s) for k, s in series.items()} == pytest.approx(
        {"a": 10.0, "b": 12.0, "copy": 9.0}, rel=0.01
    )
    assert bench.sample("b") == pytest.approx(12.0, rel=0.02)
    bench.expect(10.0)
    assert bench.conditions() == {"pid": bench.pid, "expected_us": 10.0}
    assert bench.pid != os.getpid()
    bench.unload("a")
    assert bench.lines() == ["open", "load a", "load b", "check a full", "unload a"]


def test_a_wrong_or_refused_kernel_costs_no_worker(bench: Bench) -> None:
    bench.load("wrong", *kernel("wrong"))
    assert bench.check("wrong", full=False).summary == "y[0, 0]: got 1, want 2"
    with pytest.raises(RefusedError, match="CUDA_ERROR_INVALID_VALUE"):
        bench.load("big", *kernel("refused"))
    assert bench.lines().count("open") == 1
    assert bench.notes == []


@pytest.mark.parametrize(
    ("fault", "call", "outcome", "cause"),
    [
        ("segv", "check", Outcome.WORKER_DIED, "SIGSEGV"),
        ("segv", "warm_up", Outcome.WORKER_DIED, "SIGSEGV"),
        ("kill", "sample", Outcome.WORKER_DIED, "SIGKILL"),
        ("lost", "check", Outcome.LAUNCH_ERROR, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("lost", "sample", Outcome.LAUNCH_ERROR, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("hang", "check", Outcome.TIMEOUT, "no answer within"),
        ("hang", "sample", Outcome.TIMEOUT, "no answer within"),
    ],
)
def test_a_kernel_that_takes_the_worker_down_twice_is_out_and_the_others_go_on(
    tmp_path: Path, fault: str, call: str, outcome: Outcome, cause: str
) -> None:
    with Bench(tmp_path, patience=Patience(floor_s=0.3, first_s=0.3, open_s=20.0)) as bench:
        bench.load("good", *kernel(us=11.0))
        bench.load("bad", *kernel(f"{fault}@{call}"))
        with pytest.raises(KernelFaultError) as caught:  # noqa: PT012 - a check may fail, or the race after it
            bench.check("bad", full=False)
            race(bench, "good", "bad")
        assert (caught.value.key, caught.value.outcome) == ("bad", outcome)
        assert cause in str(caught.value)
        assert statistics.median(race(bench, "good")["good"]) == pytest.approx(11.0, rel=0.01)
        assert bench.lines().count("open") == 3  # at the start, for the retry, and after it


@pytest.mark.parametrize("call", ["load", "check", "sample"])
def test_a_kernel_whose_worker_was_killed_from_outside_passes_alone_and_nothing_is_lost(
    bench: Bench, tmp_path: Path, call: str
) -> None:
    bench.load("other", *kernel(us=12.0))
    bench.load("victim", *kernel(f"once:{tmp_path / 'killed'}:kill@{call}", us=10.0))
    assert bench.check("victim", full=False).ok
    series = race(bench, "victim", "other")
    assert {k: len(s) for k, s in series.items()} == {"victim": 8, "other": 8}
    assert statistics.median(series["victim"]) == pytest.approx(10.0, rel=0.01)
    assert len(bench.notes) == 1
    assert "SIGKILL" in bench.notes[0]
    assert bench.lines().count("open") == 2
    lost = bench.conditions()["lost_workers"]
    assert [(item["key"], item["cause"]) for item in lost] == [
        ("victim", "the worker process ended by SIGKILL"),
    ]


def test_a_suspect_in_a_race_is_tried_alone_before_the_race_is_run_again(bench: Bench, tmp_path: Path) -> None:
    bench.load("other", *kernel())
    bench.load("suspect", *kernel(f"once:{tmp_path / 'fell'}:segv@sample"))
    race(bench, "other", "suspect")
    second = bench.lines()[bench.lines().index("open", 1) :]
    assert second == ["open", "load suspect", "check suspect", "load other"]


def test_a_twin_is_captured_again_in_a_new_worker(bench: Bench) -> None:
    bench.load("a", *kernel(us=10.0))
    twin = bench.twin("a")
    assert bench.pid is not None
    os.kill(bench.pid, signal.SIGKILL)
    series = race(bench, "a", twin)
    assert statistics.paired_ratio(series["a"], series[twin]).median == pytest.approx(1.0, abs=0.01)


def test_a_hopelessly_slow_kernel_is_a_timeout_without_a_lost_worker(bench: Bench) -> None:
    bench.load("slow", *kernel("slow@warm_up"))
    bench.load("good", *kernel())
    with pytest.raises(KernelFaultError, match="20 times the best") as caught:
        race(bench, "good", "slow")
    assert (caught.value.key, caught.value.outcome) == ("slow", Outcome.TIMEOUT)
    bench.unload("slow")
    assert len(race(bench, "good")["good"]) == 8
    assert bench.lines().count("open") == 1


def test_the_time_an_answer_may_take_follows_the_quickest_one(tmp_path: Path) -> None:
    patience = Patience(floor_s=0.2, first_s=30.0, multiple=50.0)
    with Bench(tmp_path, patience=patience) as bench:
        for name in ("a", "b"):
            bench.load(name, *kernel())
        bench.check("a", full=False)
        bench.load("hangs", *kernel("hang@check"))
        start = time.monotonic()
        with pytest.raises(KernelFaultError, match="no answer within 0"):
            bench.check("hangs", full=False)
        assert time.monotonic() - start < 10.0


def test_what_ran_out_of_its_time_once_is_not_done_again_where_that_is_asked_for(tmp_path: Path) -> None:
    patience = Patience(floor_s=0.3, first_s=0.3, open_s=20.0, once=frozenset({"check"}))
    with Bench(tmp_path, patience=patience) as bench:
        bench.load("hangs", *kernel("hang@check"))
        with pytest.raises(KernelFaultError, match=r"^no answer within 0\.3 s \(check\)$"):
            bench.check("hangs", full=False)
        bench.load("dies", *kernel("segv@check"))
        with pytest.raises(KernelFaultError, match="SIGSEGV; tried again alone: the same end"):
            bench.check("dies", full=False)
        assert bench.lines().count("open") == 3  # at the start, after the first, for the retry of the second


def test_a_worker_that_never_starts_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(DeviceLostError, match="SIGSEGV"), Bench(tmp_path, start="segv@open"):
        pass


def test_a_bug_in_the_bench_is_not_taken_for_a_bad_kernel(bench: Bench) -> None:
    bench.load("a", *kernel("bug@check"))
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug of the bench"):
        bench.check("a", full=False)


def test_a_worker_ends_with_its_parent_even_while_it_hangs(tmp_path: Path) -> None:
    script = """
import os, sys, threading, time
from pathlib import Path
from tests.measure.test_isolation import Bench, Patience, kernel
bench = Bench(Path(sys.argv[1]), patience=Patience(first_s=60.0))
bench.load("hangs", *kernel("hang@check"))
print(bench.pid, flush=True)
threading.Timer(0.5, lambda: os._exit(3)).start()
bench.check("hangs", full=False)
"""
    import subprocess
    import sys

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, env=environment, timeout=60
    )
    assert child.returncode == 3, child.stderr
    worker = int(child.stdout)
    for _ in range(100):
        if not _is_running(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    raise AssertionError("the worker outlived its parent")


def test_a_worker_whose_parent_is_gone_before_it_answers_ends_without_a_word() -> None:
    from multiprocessing import Pipe

    from normgen.measure.isolation.server import Server

    class Ready:
        def tell(self) -> str:
            return "an answer"

    parent, child = Pipe()
    parent.send(("tell", (), {}))
    parent.close()
    with child:
        Server(child, Ready).serve()  # type: ignore[arg-type]


def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    """Five workers get a SIGKILL some time after they are open, while twelve kernels are loaded, checked and raced."""
    keys = [f"k{i}" for i in range(12)]
    with Bench(tmp_path) as bench:
        killer = Killer(bench.log, count=5)
        killer.start()
        for i, key in enumerate(keys):
            bench.load(key, *kernel(us=10.0 + i))
            assert bench.check(key, full=False).ok
            time.sleep(0.15)
        killer.join()
        series = timing.race(bench, keys, samples=20, seed=0)
    assert [statistics.median(series[key]) for key in keys] == pytest.approx([10.0 + i for i in range(12)], rel=0.01)
    assert len(bench.notes) == killer.killed
    assert killer.killed >= 3
    assert all("SIGKILL" in note for note in bench.notes)


FIRST_OPEN_S = 60.0  # a busy machine may take seconds to start a worker process


class Killer(threading.Thread):
    """Kills up to `count` workers from outside, each 10 to 100 ms after its line `open` is in the log.

    It gives up `give_up_s` after the last one; the first may take as long as a process needs to start.
    """

    def __init__(self, log: Path, *, count: int, give_up_s: float = 4.0) -> None:
        super().__init__()
        self.killed = 0
        self._log, self._count, self._give_up_s = log, count, give_up_s
        self._random = random.Random(7)

    def run(self) -> None:
        done: set[int] = set()
        last = time.monotonic()
        while self.killed < self._count and time.monotonic() - last < (self._give_up_s if done else FIRST_OPEN_S):
            time.sleep(0.005)
            lines = self._log.read_text().splitlines() if self._log.exists() else []
            for pid in {int(line.split()[0]) for line in lines if line.endswith("open")} - done:
                time.sleep(self._random.uniform(0.01, 0.1))
                done.add(pid)
                last = time.monotonic()
                with contextlib.suppress(ProcessLookupError):  # the search is over
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
