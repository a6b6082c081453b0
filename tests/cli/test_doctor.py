"""The doctor on whatever machine the tests run on: what it says must agree with what can be done."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from normgen.cli import doctor
from normgen.cli.doctor import DoctorCheck, DoctorReport, Status, diagnose
from normgen.cuda import nvrtc
from normgen.errors import NoDeviceError
from normgen.files.plain import plain

NAMES = ["python", "packages", "driver", "gpu", "nvrtc", "cuda headers", "c++ compiler", "launcher", "cache folder"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))


def _check(report: DoctorReport, name: str) -> DoctorCheck:
    return next(check for check in report.checks if check.name == name)


def _has_gpu() -> bool:
    from normgen.cuda.driver import devices

    try:
        return bool(devices())
    except NoDeviceError:
        return False


def test_every_check_is_made_and_the_object_is_json() -> None:
    report = diagnose()
    assert [check.name for check in report.checks] == NAMES
    again = json.loads(json.dumps(plain(report)))
    assert again["status"] == report.status.value
    assert [check["name"] for check in again["checks"]] == NAMES
    assert set(again["checks"][0]) == {"name", "status", "found", "advice"}


def test_what_the_doctor_says_of_the_gpu_agrees_with_the_driver() -> None:
    report = diagnose()
    assert report.works["measure"] is _has_gpu()
    if not _has_gpu():
        assert _check(report, "driver").status is Status.WARN
        assert _check(report, "gpu").found == "no CUDA device"
        assert "--target" in _check(report, "gpu").advice
        assert report.works["compile"]


def test_nvrtc_and_the_headers_are_reported_with_their_release() -> None:
    report = diagnose()
    major, minor = nvrtc.version()
    assert _check(report, "nvrtc").found.startswith(f"{major}.{minor}, sm_75 to sm_")
    assert _check(report, "cuda headers").found.startswith(nvrtc.header_version(nvrtc.header_folders()[0]))
    assert _check(report, "cuda headers").found.startswith(f"{major}.")


def test_no_compiler_on_the_path_is_a_warning_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    report = diagnose()
    assert _check(report, "c++ compiler").status is Status.WARN
    assert "install g++" in _check(report, "c++ compiler").advice
    assert not report.works["check on cpu"]
    assert report.works["compile"]


def test_a_cache_folder_that_cannot_be_made_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(blocked / "below"))
    cache = _check(diagnose(), "cache folder")
    assert cache.status is Status.WARN
    assert "NORMGEN_CACHE_DIR" in cache.advice


def test_a_check_that_breaks_is_reported_not_raised() -> None:
    def broken() -> DoctorCheck:
        raise ZeroDivisionError("in a check")

    check = doctor._safely("odd", broken)
    assert (check.status, check.found) == (Status.FAIL, "ZeroDivisionError: in a check")


def test_the_text_has_a_line_per_check_and_its_advice_below() -> None:
    report = DoctorReport(
        checks=(
            *(DoctorCheck(name=name, status=Status.OK, found="fine") for name in NAMES[:-1]),
            DoctorCheck(name="cache folder", status=Status.WARN, found="full", advice="empty it"),
        )
    )
    lines = str(report).splitlines()
    assert lines[0] == "ok    python        fine"
    assert lines[8] == "warn  cache folder  full"
    assert lines[9].strip() == "-> empty it"
    assert lines[-1] == "compile: yes, measure: yes, check on cpu: yes"
    assert report.status is Status.WARN


def test_the_packages_looked_for_are_those_the_project_declares() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert set(doctor.REQUIRED) == declared
