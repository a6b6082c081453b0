"""H6, M4, M5: the cache runs nothing that another user may have written, and is rebuilt where it is damaged."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from normgen.cpu import build, find_compiler
from normgen.cpu.compiler import require_compiler
from tests.caches import KEPT_COMPILER
from tests.cpu.cases import ROW_SUM
from tests.cpu.test_build import SHARING

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
ROOT = Path(__file__).parents[2]
SECOND_USER = 65534
VERIFY = ("-m", "normgen", "verify", "--shape", "8x96", "--device", "cpu")


def _overwrite(path: Path, content: bytes) -> None:
    """As another process would: the file this process has loaded keeps its bytes."""
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["pointer", "unit", "cut off", "noise", "one bit", "runtime"])
def test_m4_a_damaged_object_of_the_cache_is_built_again(damage: str, own_cache: Path) -> None:
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
        pointers = list((own_cache / "cpu").glob("*.json"))
        assert pointers
        for pointer in pointers:
            pointer.write_text("{")
    x, total = np.ones((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32)
    again = build(ROW_SUM)
    assert again.run({"x": x, "total": total}, rows=2, cols=3).faults == ()
    assert total.tolist() == [3.0, 3.0]
    for path in (again.unit, again.runtime):
        assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(path.name.split(".")[1])


MARKED = '#include <cstdio>\n[[gnu::constructor]] static void mark() { std::fclose(std::fopen("%s", "w")); }\n'


@pytest.mark.parametrize("disguise", ["of the same size", "named by the pointer, in a file that others may write"])
def test_h6_an_object_that_somebody_else_put_there_never_runs(disguise: str, own_cache: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SHARING], check=True)  # this process has loaded none of these objects
    source, mark, planted = tmp_path / "mark.cpp", tmp_path / "it ran", tmp_path / "mark.so"
    source.write_text(MARKED % mark)
    compiler = require_compiler()
    subprocess.run([*compiler.command, "-shared", "-fPIC", "-s", str(source), "-o", str(planted)], check=True)
    units = list((own_cache / "cpu").glob("unit*.so"))
    assert units
    for unit in units:
        content = planted.read_bytes().ljust(unit.stat().st_size, b"\0")
        _overwrite(unit, content)
        if disguise.startswith("named"):
            unit.chmod(0o666)
            pointers = [p for p in unit.parent.glob("*.json") if unit.name in p.read_text()]
            assert pointers
            for pointer in pointers:
                facts = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
                pointer.write_text(json.dumps(json.loads(pointer.read_text()) | facts))
    x, total = np.ones((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32)
    assert build(ROW_SUM).run({"x": x, "total": total}, rows=2, cols=3).faults == ()
    assert not mark.exists()
    ctypes.CDLL(str(planted))
    assert mark.exists(), "the planted object would have left its mark"


@pytest.mark.parametrize("umask", [0, 0o077])
def test_h6_the_folder_is_private_whatever_the_umask_and_its_objects_can_be_linked(
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


def run(cache: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NORMGEN_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def as_second_user(*command: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Who may read this installation, wherever it lies, and write only what is theirs."""
    user = ("--reuid", str(SECOND_USER), "--regid", str(SECOND_USER), "--clear-groups")
    reads_all = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    return run(cache, "setpriv", *user, *reads_all, *command)


def readable_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="normgen-shared-"))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def compiler() -> Iterator[Path]:
    """The tests' compiler for two users: a second one may not run a script that lies in a folder of the first."""
    folder = readable_folder()
    shutil.copy(KEPT_COMPILER, folder)
    (folder / "kept").mkdir()
    try:
        yield folder / KEPT_COMPILER.name
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def shared(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a second user sees."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, may run a command as a second user")
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("NORMGEN_TEST_KEPT", str(compiler.with_name("kept")))
    folder = readable_folder()
    try:
        if as_second_user(sys.executable, "-c", "import normgen", cache=folder).returncode:
            pytest.skip("no second user may be given the right to read")
        yield folder
    finally:
        shutil.rmtree(folder)


def first_user(cache: Path) -> subprocess.CompletedProcess[str]:
    return run(cache, sys.executable, *VERIFY)


def said(err: str, cache: Path) -> list[str]:
    return [line for line in err.splitlines() if str(cache) in line]


def test_h6_what_a_second_user_puts_into_an_open_cache_never_runs_as_the_first(shared: Path, own_cache: Path) -> None:
    cache, mark, source, planted = (shared / name for name in ("cache", "it ran", "mark.cpp", "mark.so"))
    shutil.copytree(own_cache, cache)
    assert first_user(cache).returncode == 0
    source.write_text(MARKED % mark)
    subprocess.run([*require_compiler().command, "-shared", "-fPIC", str(source), "-o", str(planted)], check=True)
    for place in (shared, cache, *cache.rglob("*")):  # as a umask of 000 leaves it
        place.chmod(0o777)
    units = [str(unit) for unit in (cache / "cpu").glob("*.so")]
    assert len(units) > 1
    for unit in units:
        replace = f"cp {planted} {unit}.new && mv -f {unit}.new {unit}"
        assert as_second_user("sh", "-c", replace, cache=cache).returncode == 0
        assert Path(unit).stat().st_uid == SECOND_USER
    for ended in (first_user(cache), as_second_user(sys.executable, *VERIFY, cache=cache)):
        assert ended.returncode == 0, ended.stderr
        (line,) = said(ended.stderr, cache)
        assert "takes its place" in line
    assert not mark.exists()


def test_m5_a_second_user_of_a_cache_takes_a_temporary_one_and_is_told(shared: Path, own_cache: Path) -> None:
    cache = shared / "cache"
    shutil.copytree(own_cache, cache)
    assert first_user(cache).returncode == 0
    second = as_second_user(sys.executable, *VERIFY, cache=cache)
    assert second.returncode == 0, second.stderr
    (line,) = said(second.stderr, cache)
    assert "takes its place" in line
    assert first_user(cache).stderr == ""
