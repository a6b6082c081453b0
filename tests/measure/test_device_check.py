"""The device's side of a check, in host memory: the same calls as on the CPU executor, with guard bytes around all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from normgen.codegen.module import Module
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.errors import DriverError
from normgen.measure import calls as of_calls
from normgen.measure import check as device_check
from normgen.measure.calls import TRIPS, CheckedCalls, KernelCall
from normgen.records.verified import GPU, VerifiedOn
from normgen.verify import Expectation
from tests.codegen.kernels import KERNELS
from tests.measure.host_device import FAULTS, SM_COUNT, HostBound, HostBuffer, HostModule, HostStream, host_memset

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
FACTS = replace(target("h200"), sm_count=SM_COUNT)
CHECKED = ("warp_per_row", "in_place", "backward_clusters", "backward_last_tile")


@pytest.fixture(autouse=True)
def _in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins = {"DeviceBuffer": HostBuffer, "LoadedModule": HostModule, "memset": host_memset}
    for name, stand_in in (stand_ins | {"driver_version": lambda: (13, 0)}).items():
        monkeypatch.setattr(device_check, name, stand_in)
    FAULTS.clear()


def checked(name: str, module: Module) -> CheckedCalls:
    return checked_by(checks_of(name), module)


def checks_of(name: str) -> device_check.DeviceCheck:
    return device_check.DeviceCheck(KERNELS[name].problem, FACTS, index=0, seed=0, elements=1 << 15)


def checked_by(checks: device_check.DeviceCheck, module: Module) -> CheckedCalls:
    loaded = HostModule(module, checks.problem)
    workspace = HostBuffer(module.workspace_bytes(rows=checks.problem.rows, sm_count=SM_COUNT))
    workspace.fill(0)
    HostStream().wait_for(0)
    bound = loaded.bind().set(workspace=workspace.pointer)
    assert checks.run(bound, HostStream(), full=False).ok  # type: ignore[arg-type]
    return checks.run_all(loaded, bound, HostStream())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CHECKED)
def test_right_kernels_pass_in_every_call_the_device_can_make(name: str) -> None:
    found = checked(name, KERNELS[name].module())
    assert found.ok, found.summary
    assert not FAULTS
    assert found.verified is not None
    assert found.verified.site == VerifiedOn(executor=GPU, device=FACTS.name, version="13.0")
    assert found.verified.orders == 1
    said = found.summary
    assert "ok at 1 row" in said
    assert "ok with pitches of their own" in said
    assert "another order" not in said
    assert "2^31" not in said
    assert (f"ok with {TRIPS} trips of the row loop" in said) is name.startswith("backward")
    assert ("ok with more blocks than tiles" in said) is name.startswith("backward")
    assert ("ok with null mean and rstd" in said) is (name == "warp_per_row")


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("warp_per_row", "valid_row * y_pitch", "valid_row * x_pitch", "WRONG with pitches of their own"),
        ("backward_clusters", "+ row * dx_pitch", "+ row * kCols", "WRONG with pitches of their own"),
        ("backward_clusters", "+= kInFlight * kLanes", "+= 2 * kInFlight * kLanes", "partial rows to add up"),
    ],
)
def test_what_one_plain_call_does_not_show_is_refused(name: str, old: str, new: str, says: str) -> None:
    module = KERNELS[name].module()
    text = module.text.replace(old, new)
    assert text != module.text
    found = checked(name, replace(module, text=text))
    assert not found.ok
    assert found.summary.startswith("WRONG with")
    assert says in found.summary


def test_finalists_share_the_references_of_equal_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    expected = KernelCall.expected

    def counted(call: KernelCall, *given: Any, **more: Any) -> Expectation:
        made.append(call.title)
        return expected(call, *given, **more)

    monkeypatch.setattr(KernelCall, "expected", counted)
    checks, module = checks_of("warp_per_row"), KERNELS["warp_per_row"].module()
    first = checked_by(checks, module)
    before = len(made)
    assert before > 8
    assert checked_by(checks, module) == first
    assert made[before:] == []
    stored = "active = kRowsPerBlock == 1 || row < rows;"
    assert stored in module.text
    idle = replace(module, text=module.text.replace(stored, "active = row < rows && rows > 1;"))
    assert checked_by(checks, idle).summary.startswith("WRONG at 1 row")  # outputs are poisoned again


def test_the_last_of_many_rows_lie_far_behind_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_calls, "FAR_ROW", 1 << 13)
    module = KERNELS["thread_per_row"].module()
    found = checked("thread_per_row", module)
    assert found.ok, found.summary
    assert "more than 2^16" in found.summary
    wrong = module.text.replace("total[row] =", "total[row % 8192] =")
    assert wrong != module.text
    assert "more than 2^16" in checked("thread_per_row", replace(module, text=wrong)).summary.splitlines()[0]


def test_a_fault_of_the_driver_names_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = HostBound.launch

    def fatal(bound: HostBound, stream: HostStream) -> None:
        if None in bound.values["pointers"].values():
            raise DriverError("a launch must succeed", code="CUDA_ERROR_ILLEGAL_ADDRESS")
        launch(bound, stream)

    monkeypatch.setattr(HostBound, "launch", fatal)
    with pytest.raises(DriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS \(with null mean\)"):
        checked("warp_per_row", KERNELS["warp_per_row"].module())
