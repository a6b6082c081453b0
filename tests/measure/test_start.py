"""What a measured command starts before it loads the tuner: the device's worker, and how little that waits for."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from normgen.cuda import driver
from normgen.device import TARGETS, Device
from normgen.errors import NoDeviceError, UsageError
from normgen.measure.isolation import process
from normgen.measure.isolation.start import Start
from tests.measure.test_isolation import FACTORY

HEAVY = ("numpy", "sympy", "optuna", "jinja2", "normgen.problem.problem", "normgen.tuning.tuner")
AT_THE_CONTEXT = f"""
import sys
from normgen.measure.isolation import __main__ as worker

def loaded_then(name):
    opened.wait(10)
    print(found, flush=True)
    raise SystemExit

import threading
found, opened = [], threading.Event()

def open_device(index):
    found.extend(name for name in {HEAVY!r} if name in sys.modules)
    opened.set()

worker.open_device, worker.load_module, worker.end_with = open_device, loaded_then, lambda parent: None
worker.main(["0", "0", "no:factory", "0"])
"""


def printed(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_a_worker_opens_the_context_before_it_loads_anything_heavy() -> None:
    assert printed(AT_THE_CONTEXT) == "[]"


@pytest.mark.parametrize("module", ["normgen.cli.tune.command", "normgen.measure.isolation.__main__"])
def test_what_starts_the_processes_of_a_tune_loads_nothing_heavy(module: str) -> None:
    script = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert printed(script) == "[]"


def test_a_worker_starts_while_the_command_goes_on_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    may_look = threading.Event()

    def facts(_: int) -> Device:
        may_look.wait(10)
        return TARGETS["h200"]

    monkeypatch.setattr(process, "BENCH", FACTORY)
    monkeypatch.setattr(driver, "device_facts", facts)
    with Start(None) as start:  # does not wait for the device
        may_look.set()
        found = start.found()
        assert found is not None
        assert found.device == TARGETS["h200"]
        worker = found.processes.post.worker()
        assert not worker.is_gone
    assert worker.is_gone


def test_without_a_gpu_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: int) -> Device:
        raise NoDeviceError("the CUDA driver must find a device")

    def refused(*_: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(driver, "device_facts", none)
    monkeypatch.setattr(process, "Worker", refused)
    for device in (None, "cpu"):
        with Start(device) as start:
            assert start.found() is None
    with Start(1) as start, pytest.raises(NoDeviceError):  # one that was asked for must be there
        start.found()
    with Start("gpu") as start, pytest.raises(UsageError, match="the number of a GPU"):
        start.found()
