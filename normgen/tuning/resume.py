"""Folders of runs: what a run says of itself, which one an interrupted search goes on in.

<run>/run.json           what was asked, by which versions; `finished` is the last thing a run writes
<run>/run.lock           held while a process works in the folder
<run>/candidates.jsonl   every candidate, as it happened
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgen.files.decoded import parse_json
from normgen.files.private import write_atomically
from normgen.records.lines import set_damaged_aside
from normgen.records.record import Record, parse_line
from normgen.records.winners import read


@dataclass(frozen=True, kw_only=True)
class Found:
    """The folder to go on in, locked by this process, or why there is none."""

    folder: Path | None
    lock: int = -1
    reason: str = ""


def write_manifest(folder: Path, asked: Mapping[str, Any], *, finished: bool = False) -> None:
    text = json.dumps({**asked, "finished": finished}, indent=1, sort_keys=True)
    write_atomically(folder / "run.json", text + "\n")


def take(folder: Path) -> int:
    """Lock a run's folder for this process: the lock's descriptor, or -1 when another process works there."""
    fd = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    return fd


def find_unfinished(runs: Path, asked: Mapping[str, Any]) -> Found:
    """The newest unfinished run that asked the same, or why there is none to go on with."""
    reason = "no run was left unfinished"
    for manifest in sorted(runs.glob("*/run.json"), reverse=True):
        folder = manifest.parent
        try:
            facts = parse_json(manifest.read_bytes())
        except (OSError, ValueError):
            continue
        if not isinstance(facts, dict) or facts.get("problem") != asked["problem"]:
            continue
        differing = [name for name in asked if facts.get(name) != asked[name]]
        if differing:
            reason = f"{folder.name} is of another {', '.join(differing)}"
        elif facts.get("finished"):
            reason = f"{folder.name}, the last of its kind, is finished, as one that Ctrl-C ends is"
            return Found(folder=None, reason=reason)
        elif (lock := take(folder)) < 0:
            reason = f"another process works in {folder.name}"
        else:
            return Found(folder=folder, lock=lock)
    return Found(folder=None, reason=reason)


def recover(path: Path) -> tuple[tuple[Record, ...], int]:
    """The records of an interrupted run, and how many damaged lines were moved to `<name>.damaged`.

    Only under the folder's lock: the file is replaced by one without the damaged lines.
    """
    damaged = set_damaged_aside(path, parse_line) if path.exists() else ()
    return read(path).records, len(damaged)
