"""What lies in the cache folder: how much of which kind, which problems have results, and how to remove it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgen.files.private import cache_root
from normgen.records.results import environment_of
from normgen.records.winners import kept

KINDS = {
    "cubin": "compiled kernels",
    "cpu": "kernels and runtimes of the CPU executor",
    "results": "times and verdicts of candidates",
}


@dataclass(frozen=True, kw_only=True)
class CacheFolder:
    """One folder of the cache; `damaged` files were set aside and are read by nobody."""

    name: str
    what: str
    files: int
    bytes: int
    damaged: int


@dataclass(frozen=True, kw_only=True)
class Inspection:
    path: Path
    kinds: tuple[CacheFolder, ...]

    def as_dict(self) -> dict[str, Any]:
        kinds = {k.name: {"files": k.files, "bytes": k.bytes, "damaged": k.damaged} for k in self.kinds}
        return {"path": str(self.path), "kinds": kinds}


@dataclass(frozen=True, kw_only=True)
class ResultsEntry:
    """One problem on one GPU model: `environments` differ in versions, policy, place or spec text."""

    file: str
    gpu: str
    problem: str
    results: int
    environments: int


def inspect(root: Path | None = None) -> Inspection:
    """Files and bytes of each kind; a missing folder is empty."""
    folder = root or cache_root()
    kinds = []
    for name, what in KINDS.items():
        files = list(_files(folder / name))
        damaged = sum(path.name.endswith(".damaged") for path, _ in files)
        kinds.append(
            CacheFolder(name=name, what=what, files=len(files), bytes=sum(n for _, n in files), damaged=damaged)
        )
    return Inspection(path=folder, kinds=tuple(kinds))


def list_results(root: Path | None = None) -> list[ResultsEntry]:
    """The problems that have results of candidates."""
    folder = (root or cache_root()) / "results"
    found = []
    for path in sorted(folder.glob("*/*.jsonl")):
        records = kept(path)
        if not records:
            continue
        key = records[0].problem
        others = sorted({dtype for _, dtype in key.dtypes})
        found.append(
            ResultsEntry(
                file=str(path),
                gpu=path.parent.name,
                problem=f"{key.op} {key.direction} {key.rows}x{key.cols} {'/'.join(others)}",
                results=len(records),
                environments=len({environment_of(r) for r in records}),
            )
        )
    return found


def clear(kinds: Sequence[str], root: Path | None = None) -> tuple[int, int]:
    """Remove these kinds: files and bytes that are gone. What a running process writes meanwhile stays valid."""
    folder = root or cache_root()
    files = size = 0
    for name in kinds:
        found = list(_files(folder / name))
        files, size = files + len(found), size + sum(n for _, n in found)
        shutil.rmtree(folder / name, ignore_errors=True)
    return files, size


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            try:
                yield path, path.lstat().st_size
            except FileNotFoundError:  # another process was faster
                continue
