"""Every test of a handle that is not about one device runs on both: on the CPU where there is a compiler."""

from __future__ import annotations

import pytest

from tests.caches import with_runtime
from tests.python.devices import NEEDS_COMPILER, OnCpu, OnGpu, Place


@pytest.fixture(
    scope="session",
    params=[pytest.param(OnCpu, id="cpu", marks=NEEDS_COMPILER), pytest.param(OnGpu, id="gpu", marks=pytest.mark.gpu)],
)
def place(request: pytest.FixtureRequest) -> Place:
    made: Place = request.param()
    return made


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all tests of this folder, so that each kernel is compiled once."""
    folder = with_runtime(tmp_path_factory.getbasetemp() / "kernel-cache")
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(folder))
