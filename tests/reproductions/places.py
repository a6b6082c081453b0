"""M9: commands in places that fail: `python -m tests.reproductions.places PLACE KIND,FOLDER ...`.

Full and read-only are real file systems, mounted in a mount namespace of this process: run it by `unshare -rm`. Each
KIND,FOLDER is tried in a copy of PLACE, which has the FOLDERS and a file `record.jsonl`: PLACE-KIND-FOLDER. Prints one
JSON object a command: {case, command, code, out, err}.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.reproductions.commands import normgen, tune_few

FOLDERS = ("state", "cache", "out")
MOUNTED = ("full", "read-only")
SIZE = "8m"


def commands(root: Path) -> dict[str, tuple[str, ...]]:
    out = str(root / "out")
    return {
        "tune": tune_few(root / "spec", "--json", "--output", out),
        "report": ("report", "--out", f"{out}/page.html"),
        "export": ("export", str(root / "record.jsonl"), "--output", out),
    }


def mount(folder: Path, kind: str) -> None:
    """A file system of its own in the folder's place, with what was in it."""
    kept = folder.with_name(f"{folder.name}-kept")
    shutil.copytree(folder, kept)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    os.chmod(folder, 0o700)
    if kind == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        return
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def damage(folder: Path) -> None:
    """Noise in the place of every file."""
    rng = random.Random(1)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.write_bytes(rng.randbytes(path.stat().st_size))


def root_of(place: Path, case: str) -> Path:
    return place.with_name(f"{place.name}-{case.replace(',', '-')}")


def tried(place: Path, case: str) -> None:
    kind, _, name = case.partition(",")
    root = root_of(place, case)
    shutil.copytree(place, root)
    os.environ |= {"NORMGEN_STATE_DIR": str(root / "state"), "NORMGEN_CACHE_DIR": str(root / "cache")}
    if kind in MOUNTED:
        mount(root / name, kind)
    else:
        damage(root / name)
    for command, arguments in commands(root).items():
        print(json.dumps({"case": case, "command": command, **asdict(normgen(*arguments))}), flush=True)


def main(place: str, *cases: str) -> None:
    """Each case in a process of its own, which starts with the commands imported."""
    for command in commands(Path(place)):
        importlib.import_module(f"normgen.cli.{command}")
    for case in cases:
        process = multiprocessing.get_context("fork").Process(target=tried, args=(Path(place), case))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{case}: exit code {process.exitcode}")


if __name__ == "__main__":
    main(*sys.argv[1:])
