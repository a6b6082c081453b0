"""The cubin cache: hit, miss, damage, and a folder that cannot be written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from normgen.cuda.cache import CubinCache, cache_root
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import Cubin

from . import modules


def _filled(folder: Path, messages: list[str]) -> tuple[CubinCache, Cubin]:
    cache = CubinCache(folder, report=messages.append)
    return cache, compile_module(modules.scale(), 90, cache=cache)


def test_the_second_compile_is_a_hit_with_the_same_facts(tmp_path: Path) -> None:
    messages: list[str] = []
    cache, first = _filled(tmp_path, messages)
    second = compile_module(modules.scale(), 90, cache=cache)
    assert (first.cached, second.cached) == (False, True)
    assert second.data == first.data
    assert second.resources == first.resources
    assert (second.log, second.seconds, second.nvrtc_version) == (first.log, first.seconds, first.nvrtc_version)
    assert messages == []


def test_another_arch_is_a_miss(tmp_path: Path) -> None:
    cache, _ = _filled(tmp_path, [])
    assert not compile_module(modules.scale(), 80, cache=cache).cached


DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "one bit": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "emptied": lambda _content: b"",
    "another format": lambda content: content.replace(b"normgen-cubin-1", b"normgen-cubin-0", 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_set_aside_and_compiled_again(tmp_path: Path, damage: str) -> None:
    messages: list[str] = []
    cache, first = _filled(tmp_path, messages)
    path = cache.path(first.key)
    damaged = DAMAGES[damage](path.read_bytes())
    path.write_bytes(damaged)
    again = compile_module(modules.scale(), 90, cache=cache)
    assert not again.cached
    assert again.resources == first.resources
    assert path.with_name(path.name + ".damaged").read_bytes() == damaged
    assert len(messages) == 1
    assert "damaged" in messages[0]
    assert compile_module(modules.scale(), 90, cache=cache).cached


def test_a_file_under_another_key_is_not_trusted(tmp_path: Path) -> None:
    messages: list[str] = []
    cache, first = _filled(tmp_path, messages)
    other = "ab" * 32
    cache.path(other).parent.mkdir(parents=True)
    cache.path(other).write_bytes(cache.path(first.key).read_bytes())
    assert cache.get(other) is None
    assert "another key" in messages[0]


def test_a_folder_that_cannot_be_written_is_reported_once_and_compiling_goes_on(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the cache wants a folder")
    messages: list[str] = []
    cache = CubinCache(blocked, report=messages.append)
    assert not compile_module(modules.scale(), 90, cache=cache).cached
    assert not compile_module(modules.scale(cols=32), 90, cache=cache).cached
    assert len(messages) == 1
    assert "cannot be written" in messages[0]


def test_a_full_disk_costs_one_line_and_cubins_are_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def full(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").resolve().is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    messages: list[str] = []
    cache, _ = _filled(tmp_path, messages)
    assert compile_module(modules.scale(), 90, cache=cache).cached
    compile_module(modules.scale(cols=32), 90, cache=cache)
    (line,) = messages
    assert "No space left on device" in line
    assert "takes its place" in line


def test_cubins_are_kept_where_this_user_alone_can_write(tmp_path: Path) -> None:
    messages: list[str] = []
    cache, first = _filled(tmp_path / "cache", messages)
    assert stat.S_IMODE(cache.path(first.key).parent.stat().st_mode) == 0o700
    cache.folder.chmod(0o777)
    later = CubinCache(tmp_path / "cache", report=messages.append)
    assert later.get(first.key) is None
    assert not later.path(first.key).is_relative_to(tmp_path)
    assert [m.count("other users may write") for m in messages] == [1]


@pytest.mark.parametrize("loosened", ["file", "folder"])
def test_a_cubin_that_another_user_may_have_written_is_not_loaded(loosened: str, tmp_path: Path) -> None:
    cache, first = _filled(tmp_path, [])
    path = cache.path(first.key)
    (path if loosened == "file" else path.parent).chmod(0o777)
    assert cache.get(first.key) is None
    assert not compile_module(modules.scale(), 90, cache=cache).cached


def test_no_temporary_file_is_left_behind(tmp_path: Path) -> None:
    _filled(tmp_path, [])
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert len(names) == 1
    assert names[0].endswith(".cubin")


def test_the_environment_names_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("NORMGEN_CACHE_DIR")
    assert cache_root().name == "normgen"
