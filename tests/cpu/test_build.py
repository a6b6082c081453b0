"""Finding a compiler, building in batches, the cache, and errors that say what to do."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from normgen.cpu import NoCompilerError, Program, build, build_many, find_compiler
from normgen.cpu.compiler import require_compiler
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


def test_a_text_the_compiler_refuses_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
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


def test_a_second_build_comes_from_the_cache_and_a_changed_text_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
    first = build(ROW_SUM)
    built = first.unit.stat().st_mtime_ns
    assert build(ROW_SUM) == first
    assert first.unit.stat().st_mtime_ns == built
    changed = build(replace(ROW_SUM, text=ROW_SUM.text + "// changed\n"))
    assert changed.unit != first.unit
    assert build(replace(ROW_SUM, instructions="// not compiled here")).unit == first.unit
    assert not list((tmp_path / "cpu").glob(".*")), "temporary files are left over"


def _overwrite(path: Path, content: bytes) -> None:
    """As another process would: the file this process has loaded keeps its bytes."""
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["pointer", "unit", "cut off", "noise", "one bit", "runtime"])
def test_a_damaged_cache_entry_is_built_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
    program = build(ROW_SUM)
    if damage == "unit":
        program.unit.unlink()
    elif damage == "cut off":
        _overwrite(program.unit, program.unit.read_bytes()[:100])
    elif damage == "noise":
        _overwrite(program.unit, np.random.default_rng(0).bytes(program.unit.stat().st_size))
    elif damage == "one bit":
        built = program.unit.read_bytes()
        _overwrite(program.unit, built[:2000] + bytes([built[2000] ^ 1]) + built[2001:])
    elif damage == "runtime":
        _overwrite(program.runtime, b"no library")
    else:
        for pointer in (tmp_path / "cpu").glob("*.json"):
            pointer.write_text("{")
    x, total = np.ones((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32)
    again = build(ROW_SUM)
    assert again.run({"x": x, "total": total}, rows=2, cols=3).is_clean
    assert total.tolist() == [3.0, 3.0]
    for path in (again.unit, again.runtime):
        assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(path.name.split(".")[1])


MARKED = '#include <cstdio>\n[[gnu::constructor]] static void mark() { std::fclose(std::fopen("%s", "w")); }\n'


SHARING = """
import sys
from normgen.cpu import build_many
from tests.cpu.cases import LAST_BLOCK, ROW_SUM
import numpy as np
for module in (ROW_SUM, LAST_BLOCK):
    build_many([module])
x, total = np.ones((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32)
(program,) = build_many([ROW_SUM])
assert program.run({"x": x, "total": total}, rows=2, cols=3).is_clean and total.tolist() == [3.0, 3.0]
"""


@pytest.mark.parametrize("disguise", ["of the same size", "named by the pointer, in a file that others may write"])
def test_an_object_that_somebody_else_put_there_never_runs(
    disguise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-c", SHARING], check=True)  # this process has loaded none of these objects
    source, mark, planted = tmp_path / "mark.cpp", tmp_path / "it ran", tmp_path / "mark.so"
    source.write_text(MARKED % mark)
    compiler = require_compiler()
    subprocess.run([*compiler.command, "-shared", "-fPIC", "-s", str(source), "-o", str(planted)], check=True)
    for unit in (tmp_path / "cache" / "cpu").glob("unit*.so"):
        content = planted.read_bytes().ljust(unit.stat().st_size, b"\0")
        _overwrite(unit, content)
        if disguise.startswith("named"):
            unit.chmod(0o666)
            for pointer in (p for p in unit.parent.glob("*.json") if unit.name in p.read_text()):
                facts = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
                pointer.write_text(json.dumps(json.loads(pointer.read_text()) | facts))
    x, total = np.ones((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32)
    assert build(ROW_SUM).run({"x": x, "total": total}, rows=2, cols=3).is_clean
    assert not mark.exists()
    ctypes.CDLL(str(planted))
    assert mark.exists(), "the planted object would have left its mark"


def test_processes_that_share_a_folder_build_and_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-c", SHARING]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(5)]
    ended = [(process.communicate()[1], process.returncode) for process in running]
    assert ended == [("", 0)] * 5
    unit = build(ROW_SUM).unit
    built = unit.stat().st_mtime_ns
    assert (build(ROW_SUM).unit, unit.stat().st_mtime_ns) == (unit, built)


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_folder_is_private_and_its_objects_can_be_linked(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    before = os.umask(umask)
    try:
        program = build(ROW_SUM)
    finally:
        os.umask(before)
    assert stat.S_IMODE(program.unit.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in program.unit.parent.iterdir()} == {0o644}


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


def test_a_small_kernel_builds_in_half_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
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
