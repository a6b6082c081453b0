"""Turns at a GPU among the processes of one run of tests."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.gpu_turns import files_of, turn

pytest_plugins = ["pytester"]


def test_one_that_wants_the_gpu_alone_waits_for_those_that_hold_it_and_goes_before_later_ones(tmp_path: Path) -> None:
    order: list[str] = []

    def work(name: str, *, alone: bool) -> None:
        with turn(tmp_path / "run", alone=alone):
            order.append(name)

    with turn(tmp_path / "run", alone=False), turn(tmp_path / "run", alone=False):  # these share it
        timing = threading.Thread(target=work, args=("alone",), kwargs={"alone": True})
        timing.start()
        timing.join(0.1)
        assert timing.is_alive()
        later = threading.Thread(target=work, args=("later",), kwargs={"alone": False})
        later.start()
        later.join(0.1)
        assert later.is_alive()
        assert order == []
    timing.join(10)
    later.join(10)
    assert order == ["alone", "later"]


def test_processes_on_other_gpus_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    files = set()
    for visible in ("0", "1", "GPU-28488dcc", "0,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        files.add(files_of("run"))
        assert files_of("run") == files_of("run") != files_of("other")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert len(files | {files_of("run")}) == 5


def test_a_run_of_several_processes_gives_a_marked_test_the_gpu_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest(
        """
        import pytest
        from tests.gpu_turns import GpuTurns

        def pytest_configure(config):
            config.addinivalue_line("markers", "gpu: as in the project")
            config.pluginmanager.register(GpuTurns())
        """
    )
    pytester.makepyfile(
        """
        import os, time, pathlib, pytest

        here = pathlib.Path(__file__).parent

        @pytest.mark.gpu(alone=True)
        def test_alone():
            for _ in range(60):
                assert not list(here.glob("*.running"))
                time.sleep(0.01)

        @pytest.mark.gpu
        @pytest.mark.parametrize("n", range(6))
        def test_shares(n):
            mine = here / f"{n}.running"
            mine.touch()
            time.sleep(0.1)
            mine.unlink()
        """
    )
    result = pytester.runpytest_subprocess("-n", "3", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=7)
    collected = pytester.runpytest_subprocess("--collect-only", "-q", "-p", "no:cacheprovider").outlines
    names = [line.partition("::")[2] for line in collected if "::" in line]
    assert names == [*(f"test_shares[{n}]" for n in range(6)), "test_alone"]
