"""Whether the device ran at full speed while it was timed: SM clock and throttle reasons from NVML.

A reading is taken at the end of every round of a race. A round counts as disturbed when, at its beginning or its
end, the device was slowed down for its health (heat, power brake), or its clock was clearly below the best seen. A
clock that stays low (a power cap) becomes the new normal, so that a capped device can still be timed; its reasons
are noted either way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CLOCK_SHARE = 0.97  # of the best clock seen: a round below it is disturbed
STAYS_LOW = 10  # readings in a row after which a lower clock is the normal one
# NVML's clock event reasons that make a round worthless; caps of power and application clocks do not.
HARMFUL = ("HW_SLOWDOWN", "HW_THERMAL_SLOWDOWN", "SW_THERMAL_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN")
HARMLESS = ("NONE", "GPU_IDLE")


@dataclass(frozen=True, kw_only=True)
class ClockReading:
    """The SM clock in MHz at one moment, and why it is not higher (names as in NVML, shortened)."""

    sm_mhz: int
    reasons: tuple[str, ...] = ()


class ClockWatch:
    """Collects readings and judges them; `read` None: nothing is known, nothing is disturbed."""

    def __init__(self, read: Callable[[], ClockReading] | None, *, absent: str = "") -> None:
        self._read = read
        self._absent = absent
        self._best_mhz = 0
        self._low: list[int] = []
        self._before = ""  # the last reading's judgement: the round after it began like that
        self._clear()

    @classmethod
    def of_device(cls, pci_bus_id: str) -> ClockWatch:
        """A watch on a GPU; without NVML it says so in its summary."""
        try:
            return cls(nvml_reader(pci_bus_id))
        except Exception as error:  # NVML is optional: whatever is wrong with it must not stop a run
            return cls(None, absent=f"NVML: {error}".splitlines()[0])

    def disturbance(self) -> str:
        """Take a reading; why the time since the last one is not to be trusted (this one's or that one's reason)."""
        if self._read is None:
            return ""
        try:
            reading = self._read()
        except Exception as error:  # as above
            self._read, self._absent = None, f"NVML: {error}".splitlines()[0]
            return ""
        self._clocks.append(reading.sm_mhz)
        self._reasons.update(reason for reason in reading.reasons if reason not in HARMLESS)
        before, self._before = self._before, self._judge(reading)
        why = self._before or before
        self._disturbed += bool(why)
        return why

    def summary(self) -> dict[str, Any]:
        """sm_mhz (lowest, highest), reasons (readings with each), disturbed (rounds) since the last call."""
        summary: dict[str, Any] = {"absent": self._absent} if self._absent else {}
        if self._clocks:
            clocks = {"sm_mhz": [min(self._clocks), max(self._clocks)], "readings": len(self._clocks)}
            summary |= {**clocks, "reasons": dict(sorted(self._reasons.items())), "disturbed": self._disturbed}
        self._clear()
        return summary

    def _judge(self, reading: ClockReading) -> str:
        harmful = [reason for reason in reading.reasons if reason in HARMFUL]
        if harmful:
            return ", ".join(harmful)
        if reading.sm_mhz >= CLOCK_SHARE * self._best_mhz:
            self._best_mhz, self._low = max(self._best_mhz, reading.sm_mhz), []
            return ""
        self._low.append(reading.sm_mhz)
        if len(self._low) >= STAYS_LOW:
            self._best_mhz, self._low = max(self._low), []
        if reading.sm_mhz >= CLOCK_SHARE * self._best_mhz:
            return ""
        return f"SM clock {reading.sm_mhz} MHz, {self._best_mhz} before"

    def _clear(self) -> None:
        self._clocks: list[int] = []
        self._reasons: Counter[str] = Counter()
        self._disturbed = 0


def nvml_reader(pci_bus_id: str) -> Callable[[], ClockReading]:
    """Readings of the GPU at a PCI address. Raises whatever NVML or its absence raises."""
    from cuda.bindings import nvml

    nvml.init_v2()
    handle = nvml.device_get_handle_by_pci_bus_id_v2(pci_bus_id)
    sm = nvml.ClockType.CLOCK_SM
    names = {int(reason): _short(reason.name) for reason in nvml.ClocksEventReasons}

    def read() -> ClockReading:
        mask = int(nvml.device_get_current_clocks_event_reasons(handle))
        reasons = tuple(name for bit, name in names.items() if bit and mask & bit == bit)
        return ClockReading(sm_mhz=int(nvml.device_get_clock_info(handle, sm)), reasons=reasons)

    read()
    return read


def _short(name: str) -> str:
    """EVENT_REASON_SW_POWER_CAP or THROTTLE_REASON_HW_SLOWDOWN without its prefix."""
    return name.split("REASON_", 1)[-1]
