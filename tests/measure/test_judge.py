"""Load -> check -> race on the fake device of a worker: an entrant has samples or a reason, the others have samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from normgen.codegen.module import Module
from normgen.measure import timing
from normgen.measure.judge import Eliminated, Judge, Passed
from normgen.measure.protocol import DeviceLostError, KernelFaultError
from normgen.records import statistics
from normgen.records.record import Outcome
from tests.measure.simulated import SimulatedTimer
from tests.measure.test_isolation import Bench, kernel


@dataclass(frozen=True)
class Entry:
    key: str
    module: Module
    cubin: Any


def entry(key: str, *words: str, us: float = 10.0) -> Entry:
    return Entry(key, *kernel(*words, us=us))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as opened:
        yield opened


def test_every_entrant_has_samples_or_the_reason_why_not(bench: Bench) -> None:
    entries = [
        entry("a", us=10.0),
        entry("wrong", "wrong"),
        entry("refused", "refused"),
        entry("falls", "segv@check"),
        entry("faults", "lost@sample"),
        entry("slow", "slow@warm_up"),
        entry("b", us=12.0),
    ]
    judge = Judge(bench)
    found = {e.key: judge.admit(e) for e in entries}
    series, faults = judge.race(
        [key for key, verdict in found.items() if isinstance(verdict, Passed)], samples=8, seed=0
    )
    out = {key: verdict for key, verdict in (found | faults).items() if isinstance(verdict, Eliminated)}
    assert {key: fault.outcome for key, fault in out.items()} == {
        "wrong": Outcome.WRONG_RESULT,
        "refused": Outcome.LAUNCH_ERROR,
        "falls": Outcome.WORKER_DIED,
        "faults": Outcome.LAUNCH_ERROR,
        "slow": Outcome.TIMEOUT,
    }
    assert {key: len(samples) for key, samples in series.items()} == {"a": 8, "b": 8, "copy": 8}
    assert statistics.median(series["b"]) == pytest.approx(12.0, rel=0.01)
    assert judge.loaded == {"a", "b"}
    assert out["wrong"].reason == "y[0, 0]: got 1, want 2"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in out["faults"].reason


def test_what_cannot_be_warmed_up_is_out_before_the_race(bench: Bench) -> None:
    slow, judge = entry("slow", "slow@warm_up"), Judge(bench)
    found = judge.admit(slow, warm=True)
    assert isinstance(found, Eliminated)
    assert (found.outcome, judge.loaded) == (Outcome.TIMEOUT, set())


def test_a_loaded_entrant_is_only_checked_again(bench: Bench) -> None:
    a, judge = entry("a"), Judge(bench)
    assert isinstance(judge.admit(a), Passed)
    assert isinstance(judge.admit(a, full=True), Passed)
    judge.forget(["a", "b"])
    assert bench.lines() == ["open", "load a", "check a", "check a full", "unload a"]


class Faulty(SimulatedTimer):
    """Its roof cannot be timed."""

    roofs = ("copy",)

    def sample(self, key: str) -> float:
        raise KernelFaultError("no answer", key=key, outcome=Outcome.TIMEOUT)


def test_a_roof_that_cannot_be_timed_is_a_lost_device_unless_the_run_can_do_without_it() -> None:
    judge = Judge(Faulty({"copy": 9.0}))  # type: ignore[arg-type]
    with pytest.raises(DeviceLostError, match="a roof, or a reference"):
        judge.race([], samples=3, seed=0)
    keys = iter([["copy"], []])
    told: list[str] = []
    found, faults = judge.rerun(
        [],
        lambda _: timing.race(judge.bench, next(keys), samples=3, seed=0),
        dropped=lambda key, _: not told.append(key),
    )
    assert (found, faults, told) == ({}, {}, ["copy"])
