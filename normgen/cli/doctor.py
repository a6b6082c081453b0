"""What works on this machine, and what to do about what does not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

import click

from normgen.cli.options import json_option, show
from normgen.cuda import nvrtc
from normgen.cuda.driver import devices, driver_version
from normgen.cuda.nvrtc import header_folders, header_version
from normgen.errors import NormgenError
from normgen.files.private import cache_root, why_unusable
from normgen.python.repeat import IS_BUILT

REQUIRED = (
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
    "sympy",
    "optuna",
    "jinja2",
    "numpy",
    "ml_dtypes",
    "rich",
    "click",
    "platformdirs",
    "sqlalchemy",
)
_PROBE = b'extern "C" __global__ void probe(float* y) { y[threadIdx.x] = 1.0f; }'


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"  # works without it, with less
    FAIL = "fail"  # normgen cannot do its work


@dataclass(frozen=True, kw_only=True)
class DoctorCheck:
    """One thing looked at: what was found, and what to do if it is not as it should be."""

    name: str
    status: Status
    found: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """All checks, and what can be done here as a consequence."""

    checks: tuple[DoctorCheck, ...]

    ALSO = ("status", "works")

    @property
    def status(self) -> Status:
        """The worst of all checks."""
        found = {check.status for check in self.checks}
        return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.OK)

    @property
    def works(self) -> dict[str, bool]:
        """compile, measure on a GPU, check on the CPU executor."""
        ok = {check.name: check.status is not Status.FAIL for check in self.checks}
        has_gpu = all(c.status is Status.OK for c in self.checks if c.name in ("driver", "gpu"))
        has_compiler = all(c.status is Status.OK for c in self.checks if c.name == "c++ compiler")
        compiles = ok["nvrtc"] and ok["packages"]
        return {"compile": compiles, "measure": compiles and has_gpu, "check on cpu": ok["packages"] and has_compiler}

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = []
        for check in self.checks:
            lines.append(f"{check.status.value:<4}  {check.name:<{width}}  {check.found}")
            if check.advice:
                lines.append(f"{'':<{width + 8}}-> {check.advice}")
        answers = ", ".join(f"{what}: {'yes' if does else 'no'}" for what, does in self.works.items())
        return "\n".join([*lines, "", answers])


def diagnose() -> DoctorReport:
    """Look at everything normgen needs; never raises."""
    looks: tuple[tuple[str, Callable[[], DoctorCheck]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("driver", _driver),
        ("gpu", _gpu),
        ("nvrtc", _nvrtc),
        ("cuda headers", _headers),
        ("c++ compiler", _cxx),
        ("launcher", _launcher),
        ("cache folder", _cache),
    )
    return DoctorReport(checks=tuple(_safely(name, look) for name, look in looks))


def _safely(name: str, look: Callable[[], DoctorCheck]) -> DoctorCheck:
    """A check that breaks is a finding, not the end of the report."""
    try:
        return look()
    except Exception as error:
        return DoctorCheck(name=name, status=Status.FAIL, found=f"{type(error).__name__}: {error}".splitlines()[0])


def _python() -> DoctorCheck:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    return DoctorCheck(name="python", status=Status.OK, found=found)


def _packages() -> DoctorCheck:
    present, missing = [], []
    for requirement in REQUIRED:
        try:
            present.append(f"{requirement} {metadata.version(requirement)}")
        except metadata.PackageNotFoundError:
            missing.append(requirement)
    if missing:
        found = f"missing: {', '.join(missing)}"
        return DoctorCheck(name="packages", status=Status.FAIL, found=found, advice=f"pip install {' '.join(missing)}")
    return DoctorCheck(name="packages", status=Status.OK, found=", ".join(present))


def _driver() -> DoctorCheck:
    try:
        major, minor = driver_version()
    except NormgenError as error:
        return DoctorCheck(
            name="driver",
            status=Status.WARN,
            found=error.received or error.rule,
            advice="to measure, install the NVIDIA driver; without it normgen compiles, checks on the CPU and predicts",
        )
    return DoctorCheck(name="driver", status=Status.OK, found=f"supports CUDA {major}.{minor}")


def _gpu() -> DoctorCheck:
    try:
        found = devices()
    except NormgenError:
        found = []
    if not found:
        advice = "`normgen tune --target h200` predicts for a named GPU"
        return DoctorCheck(name="gpu", status=Status.WARN, found="no CUDA device", advice=advice)
    listed = ", ".join(f"{i}: {d.name} ({d.sm}, {d.sm_count} SMs)" for i, d in enumerate(found))
    old = [d for d in found if d.arch < 75]
    if old:
        advice = "kernels are made for sm_75 and later"
        return DoctorCheck(name="gpu", status=Status.WARN, found=listed, advice=advice)
    return DoctorCheck(name="gpu", status=Status.OK, found=listed)


def _nvrtc() -> DoctorCheck:
    try:
        version = nvrtc.version()
        archs, path = nvrtc.supported_archs(), nvrtc.library_path()
    except NormgenError as error:
        advice = "pip install nvidia-cuda-nvrtc"
        return DoctorCheck(name="nvrtc", status=Status.FAIL, found=error.received or error.rule, advice=advice)
    found = f"{version[0]}.{version[1]}, sm_{archs[0]} to sm_{archs[-1]}, {path}"
    probe = nvrtc.compile_text(_PROBE, name="probe.cu", options=(f"--gpu-architecture=sm_{archs[-1]}",))
    if probe.error:
        advice = "reinstall nvidia-cuda-nvrtc"
        return DoctorCheck(name="nvrtc", status=Status.FAIL, found=f"{path}: {probe.error}: {probe.log}", advice=advice)
    try:
        supported, gpus = driver_version(), devices()
    except NormgenError:
        return DoctorCheck(name="nvrtc", status=Status.OK, found=found)
    unknown = sorted({gpu.sm for gpu in gpus if gpu.arch not in archs})
    if unknown:
        advice = f"it cannot compile for {', '.join(unknown)}: install a newer nvidia-cuda-nvrtc"
        return DoctorCheck(name="nvrtc", status=Status.FAIL, found=found, advice=advice)
    if version > supported:
        advice = (
            f"newer than the driver (CUDA {supported[0]}.{supported[1]}), which may refuse its cubins: update the "
            f"driver, or install nvidia-cuda-nvrtc=={supported[0]}.{supported[1]}.*"
        )
        return DoctorCheck(name="nvrtc", status=Status.WARN, found=found, advice=advice)
    return DoctorCheck(name="nvrtc", status=Status.OK, found=found)


def _headers() -> DoctorCheck:
    try:
        folder = header_folders()[0]
    except NormgenError:
        return DoctorCheck(
            name="cuda headers",
            status=Status.WARN,
            found="none",
            advice="pip install nvidia-cuda-runtime nvidia-cuda-cccl, for texts that include them: no kernel does",
        )
    return DoctorCheck(name="cuda headers", status=Status.OK, found=f"{header_version(folder)}, {folder}")


def _cxx() -> DoctorCheck:
    named = os.environ.get("CXX", "")
    path = next((p for p in map(shutil.which, (named, "g++", "clang++", "c++")) if p), None)
    if path is None:
        return DoctorCheck(
            name="c++ compiler",
            status=Status.WARN,
            found="none of $CXX, g++, clang++, c++",
            advice="install g++ or clang++ to check kernels on the CPU",
        )
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    version = answer.stdout.splitlines()[0] if answer.returncode == 0 and answer.stdout else "does not tell its version"
    return DoctorCheck(name="c++ compiler", status=Status.OK, found=f"{path}: {version}")


def _launcher() -> DoctorCheck:
    if IS_BUILT:
        return DoctorCheck(name="launcher", status=Status.OK, found="handles launch known calls natively")
    advice = "install a C compiler and Python's headers, then normgen again"
    return DoctorCheck(
        name="launcher", status=Status.WARN, found="not built: handles check every call in Python", advice=advice
    )


def _cache() -> DoctorCheck:
    root = cache_root()
    if why := why_unusable(root / "cpu"):
        return DoctorCheck(
            name="cache folder",
            status=Status.WARN,
            found=f"{root}: {why}",
            advice="set NORMGEN_CACHE_DIR to a folder that you alone can write; without it nothing is kept",
        )
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"normgen")
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    except OSError as error:
        return DoctorCheck(
            name="cache folder",
            status=Status.WARN,
            found=f"{root}: {error.strerror or error}",
            advice="set NORMGEN_CACHE_DIR to a folder that can be written; without it every kernel is compiled anew",
        )
    return DoctorCheck(name="cache folder", status=Status.OK, found=f"{root}, {size / 2**20:.1f} MiB")


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """What works here: driver, GPU, NVRTC, C++ compiler, cache; and what to do about what does not."""
    report = diagnose()
    show(report if as_json else str(report))
