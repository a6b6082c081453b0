"""The driver's bindings, without a device."""

from __future__ import annotations

from typing import ClassVar

import pytest

from normgen.cuda import driver
from normgen.device import TARGETS
from normgen.errors import UsageError


class _Bindings:
    """What `device_facts` asks of the driver, of one H200: texts come back in the buffer they were given."""

    CUdevice_attribute = type("Names", (), {"__getattr__": lambda _, name: name})()
    attributes: ClassVar = {
        "COMPUTE_CAPABILITY_MAJOR": 9,
        "COMPUTE_CAPABILITY_MINOR": 0,
        "MULTIPROCESSOR_COUNT": 132,
        "L2_CACHE_SIZE": 60 << 20,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
        "MEMORY_CLOCK_RATE": 3201000,
        "GLOBAL_MEMORY_BUS_WIDTH": 6144,
        "CLOCK_RATE": 1980000,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
        "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    }

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        return 0, index

    def cuDeviceGetName(self, size: int, _: int) -> tuple[int, bytes]:
        return 0, b"NVIDIA H200".ljust(size, b"\0")

    def cuDeviceGetPCIBusId(self, size: int, _: int) -> tuple[int, bytes]:
        return 0, b"0000:18:00.0\0".ljust(size)

    def cuDeviceGetAttribute(self, name: str, _: int) -> tuple[int, int]:
        return 0, self.attributes[name.removeprefix("CU_DEVICE_ATTRIBUTE_")]


def test_the_driver_tells_the_facts_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = _Bindings()
    for remembered in (driver._handle, driver.sm_count):
        monkeypatch.setattr(driver, remembered.__name__, remembered.__wrapped__)
    monkeypatch.setattr(driver, "driver", lambda: bindings)
    assert driver.device_facts(0) == TARGETS["h200"]
    assert driver.pci_bus_id(0) == "0000:18:00.0"
    with pytest.raises(UsageError, match="received: 1"):
        driver.device_facts(1)
