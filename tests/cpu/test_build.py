"""Finding a compiler, building in batches, the cache, and errors that say what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from normgen.cpu import NoCompilerError, Program, build, build_many, find_compiler
from normgen.errors import CompileError, UsageError
from tests.cpu.cases import LAST_BLOCK, ROW_SUM


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    default = find_compiler()
    assert default is not None
    monkeypatch.setenv("CXX", default.command[0])
    assert find_compiler() == default
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_compiler() is None


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NoCompilerError, match="hint: install g\\+\\+"):
        build(ROW_SUM)


@pytest.mark.usefixtures("own_cache")
def test_a_text_the_compiler_refuses_is_named_with_its_line() -> None:
    wrong = replace(ROW_SUM, text=ROW_SUM.text.replace("float sum = 0.0f;", "flaot sum = 0.0f;"))
    line = ROW_SUM.text.split("\n").index("  float sum = 0.0f;") + 1
    with pytest.raises(CompileError, match="refused the text of row_sum") as caught:
        build_many([ROW_SUM, wrong])
    assert f".cu:{line}:" in caught.value.log
    assert build(ROW_SUM).unit.exists()


def test_more_threads_than_the_launch_bounds_of_a_kernel_are_refused() -> None:
    (only,) = ROW_SUM.kernels
    assert f"__launch_bounds__({only.launch.threads})" in ROW_SUM.text
    wide = replace(ROW_SUM, kernels=(replace(only, launch=replace(only.launch, threads=only.launch.threads + 32)),))
    with pytest.raises(CompileError) as caught:
        build(wide)
    assert "more than its __launch_bounds__ allow" in caught.value.log


def test_a_second_build_comes_from_the_cache_and_a_changed_text_does_not(own_cache: Path) -> None:
    first = build(ROW_SUM)
    built = first.unit.stat().st_mtime_ns
    assert build(ROW_SUM) == first
    assert first.unit.stat().st_mtime_ns == built
    changed = build(replace(ROW_SUM, text=ROW_SUM.text + "// changed\n"))
    assert changed.unit != first.unit
    assert build(replace(ROW_SUM, instructions="// not compiled here")).unit == first.unit
    assert not list((own_cache / "cpu").glob(".*")), "temporary files are left over"


SHARING = """
import sys
from normgen.cpu import build_many
from tests.cpu.cases import LAST_BLOCK, ROW_SUM
import numpy as np
for module in (ROW_SUM, LAST_BLOCK):
    build_many([module])
x, total = np.ones((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32)
(program,) = build_many([ROW_SUM])
assert program.run({"x": x, "total": total}, rows=2, cols=3).faults == () and total.tolist() == [3.0, 3.0]
"""


@pytest.mark.usefixtures("own_cache")
def test_processes_that_share_a_folder_build_and_run_at_the_same_time() -> None:
    command = [sys.executable, "-c", SHARING]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(5)]
    ended = [(process.communicate()[1], process.returncode) for process in running]
    assert ended == [("", 0)] * 5
    unit = build(ROW_SUM).unit
    built = unit.stat().st_mtime_ns
    assert (build(ROW_SUM).unit, unit.stat().st_mtime_ns) == (unit, built)


@pytest.mark.parametrize("failure", ["read-only", "full"])
def test_a_cache_that_takes_no_objects_costs_one_line(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path if failure == "full" else Path("/proc/normgen-objects")
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(folder))
    fsync = os.fsync

    def full(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").resolve().is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    for module in (ROW_SUM, LAST_BLOCK, ROW_SUM):
        assert build(module).unit.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "takes its place" in line


@pytest.mark.usefixtures("own_cache")
def test_a_small_kernel_builds_in_half_a_second() -> None:
    build(ROW_SUM)  # and the runtime
    started = time.process_time()
    build(replace(ROW_SUM, text=ROW_SUM.text + "// changed\n"))
    assert time.process_time() - started < 0.5


def test_missing_arguments_are_named(programs: dict[str, Program]) -> None:
    with pytest.raises(UsageError, match="'x' needs tensor 'x'"):
        programs["row_sum"].run({"total": np.zeros(1, dtype=np.float32)}, rows=1, cols=1)
    x = np.zeros((1, 1), dtype=np.float32)
    tensors = {"x": x, "y": x.copy(), "mean": None, "weight": x[0].copy()}
    with pytest.raises(UsageError, match="'eps' needs scalar 'eps'"):
        programs["layernorm_static"].run(tensors, rows=1, cols=1)


def test_launches_beyond_the_hardware_are_refused(programs: dict[str, Program]) -> None:
    kernel = LAST_BLOCK.kernels[1]
    for wrong in (
        {"threads": 2048},
        {"threads": 0},
        {"cluster": 32},
        {"shared_bytes": 1 << 20},
        {"blocks": 3, "cluster": 2},
    ):
        launch = replace(kernel.launch, **wrong)
        program = replace(
            programs["last_block"], module=replace(LAST_BLOCK, kernels=(replace(kernel, launch=launch), kernel))
        )
        with pytest.raises(UsageError, match="a launch has"):
            program.run({"total": np.zeros(4, dtype=np.float32)}, rows=1, cols=4)
