"""Readings of the SM clock decide which rounds of a race count; only the reading itself is scripted here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from normgen.measure import timing
from normgen.measure.clocks import STAYS_LOW, ClockReading, ClockWatch
from normgen.records import statistics
from tests.measure.simulated import SimulatedTimer


def scripted(*readings: ClockReading) -> Callable[[], ClockReading]:
    """These readings in turn; the last one for ever."""
    left: Iterator[ClockReading] = iter(readings)
    return lambda: next(left, readings[-1])


def at(mhz: int, *reasons: str) -> ClockReading:
    return ClockReading(sm_mhz=mhz, reasons=reasons)


@pytest.mark.parametrize(
    ("reading", "why"),
    [
        (at(1980), ""),
        (at(1965), ""),  # one step of 15 MHz
        (at(1980, "SW_POWER_CAP"), ""),
        (at(1700, "SW_POWER_CAP"), "SM clock 1700 MHz, 1980 before"),
        (at(1980, "SW_THERMAL_SLOWDOWN"), "SW_THERMAL_SLOWDOWN"),
        (at(900, "HW_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN"), "HW_SLOWDOWN, HW_POWER_BRAKE_SLOWDOWN"),
    ],
)
def test_a_slowed_down_device_disturbs(reading: ClockReading, why: str) -> None:
    watch = ClockWatch(scripted(at(1980), reading, at(1980)))
    assert watch.disturbance() == ""
    assert watch.disturbance() == why
    assert watch.disturbance() == why  # the reading before still counts against this one


def test_a_clock_that_stays_low_becomes_the_normal_one() -> None:
    watch = ClockWatch(scripted(at(1980), at(1500, "SW_POWER_CAP")))
    found = [bool(watch.disturbance()) for _ in range(2 * STAYS_LOW)]
    assert found == [False] + [True] * STAYS_LOW + [False] * (STAYS_LOW - 1)
    assert watch.summary() == {
        "sm_mhz": [1500, 1980],
        "readings": 2 * STAYS_LOW,
        "reasons": {"SW_POWER_CAP": 2 * STAYS_LOW - 1},
        "disturbed": STAYS_LOW,
    }
    assert watch.summary() == {}


def test_without_nvml_nothing_is_disturbed_and_the_summary_says_so() -> None:
    def broken() -> ClockReading:
        raise OSError("libnvidia-ml.so.1 is gone\nand more")

    watch = ClockWatch(broken)
    assert watch.disturbance() == watch.disturbance() == ""
    assert watch.summary() == {"absent": "NVML: libnvidia-ml.so.1 is gone"}


class ThrottledTimer(SimulatedTimer):
    """Runs 30 % slower in some windows of 40 replays, and its clock says so."""

    def __init__(self, truth: dict[str, float]) -> None:
        super().__init__(truth, noise=0.002, spikes=0.0, drift=0.0)
        self._watch = ClockWatch(lambda: ClockReading(sm_mhz=1400 if self.is_slow else 1980))

    @property
    def is_slow(self) -> bool:
        return self.replays % 160 >= 120

    def sample(self, key: str) -> float:
        return super().sample(key) * (1.3 if self.is_slow else 1.0)

    def disturbance(self) -> str:
        return self._watch.disturbance()


def test_rounds_in_a_throttled_window_are_done_again() -> None:
    truth = {f"k{i}": 10.0 + i for i in range(8)}
    watched = ThrottledTimer(truth)
    series = timing.race(watched, list(truth), samples=40, seed=1)
    assert {key: len(samples) for key, samples in series.items()} == dict.fromkeys(truth, 40)
    assert watched.replays > 8 * 40
    for key, us in truth.items():
        assert statistics.quantile(series[key], 0.95) == pytest.approx(us, rel=0.02)


def test_a_device_that_is_always_disturbed_is_timed_as_it_is() -> None:
    class Hot(SimulatedTimer):
        def disturbance(self) -> str:
            return "SW_THERMAL_SLOWDOWN"

    timer = Hot({"a": 10.0}, spikes=0.0)
    assert len(timing.race(timer, ["a"], samples=10, seed=0)["a"]) == 10
    assert timer.replays == 20


@pytest.mark.gpu
def test_nvml_tells_the_clock_of_the_first_gpu() -> None:
    from normgen.cuda.driver import pci_bus_id

    watch = ClockWatch.of_device(pci_bus_id(0))
    assert watch.disturbance() == ""
    summary = watch.summary()
    if "absent" in summary:
        assert summary["absent"].startswith("NVML: ")
        return
    low, high = summary["sm_mhz"]
    assert 100 < low <= high < 5000
