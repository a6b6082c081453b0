"""What three people want in their first quarter of an hour, by the lines of the docs alone, from an empty folder.

`python -m tests.docs.people header` makes a fresh environment by the docs' own line and runs what the task takes from
the pages: nothing is typed that no page gives. All tasks without names. Without nvcc the C++ program is not compiled.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.docs.pages import ROOT, Block, Folder, blocks

MINUTES = 15
INSTALL = ("docs/tutorial.md", "python3 -m venv .venv")
TORCH = ("docs/tutorial.md", "pip install -q torch")
OWN_SPEC = ("docs/tutorial.md", 'name = "capped_rmsnorm"')
TASKS: dict[str, Sequence[tuple[str, str]]] = {  # of each step: the page, and how its block begins or what it holds
    "header": [
        ("docs/tutorial.md", "normgen doctor"),
        OWN_SPEC,
        ("docs/tutorial.md", "normgen tune --op capped.toml --shape 4096x768 --target h200"),
        ("docs/tutorial.md", '#include "headers/capped_rmsnorm_fwd_f32_sm90.cu"'),
        ("docs/tutorial.md", "nvcc -std=c++17"),
    ],
    "norm": [
        OWN_SPEC,
        ("docs/tutorial.md", "normgen spec check capped.toml"),
        ("docs/tutorial.md", 'normgen.torch.operator("capped.toml")'),
    ],
    "ladder": [
        ("docs/ladder.md", "normgen ladder layernorm --rung v1"),
        ("docs/tutorial.md", "normgen explain --shape 8x1024x768 --schedule plain,threads_per_row=32"),
    ],
}


def block_of(page: str, part: str) -> Block:
    """The one block of a page that holds a text. Raises LookupError with how many do."""
    found = [block for block in blocks(ROOT / page) if part in block.text]
    if len(found) != 1:
        raise LookupError(f"{page}: {len(found)} blocks hold {part!r}")
    return found[0]


def run_task(name: str, folder: Folder, *, have: Collection[str]) -> None:
    """Run a task's blocks in a folder, but those that need what is not there. Raises AssertionError with output."""
    for step in TASKS[name]:
        block = block_of(*step)
        if block.needs and block.needs not in have:
            print(f"        left out: {block} needs {block.needs}", file=sys.stderr)
            continue
        started = time.monotonic()
        folder.run(block)
        print(f"{time.monotonic() - started:6.1f} s  {block}  {step[1]}", file=sys.stderr)


def installed(folder: Path, name: str) -> Path:
    """A clone in a folder, installed by the docs' own lines: its environment's commands."""
    clone = folder / "normgen"
    clone.mkdir()
    tracked = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    files = subprocess.run(tracked, cwd=ROOT, capture_output=True, check=True).stdout
    for path in filter(None, files.decode().split("\0")):
        if (ROOT / path).is_file():
            (clone / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, clone / path)
    lines = [block_of(*INSTALL).text, *([block_of(*TORCH).text] if name == "norm" else [])]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    subprocess.run(command, cwd=clone, env=environment, check=True)
    return clone / ".venv" / "bin"


def first_hour(name: str) -> float:
    """The seconds that a task takes from nothing, with its install, in an environment of its own."""
    with tempfile.TemporaryDirectory() as work:
        started = time.monotonic()
        scripts = installed(Path(work), name)
        empty = Path(work) / "empty"
        empty.mkdir()
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        places = {f"NORMGEN_{kind}_DIR": str(Path(work) / kind.lower()) for kind in ("CACHE", "STATE")}
        folder = Folder(empty, str(scripts / "python"), {**kept, **places, "PATH": f"{scripts}:{kept['PATH']}"})
        have = {"torch"} | ({"nvcc"} if shutil.which("nvcc") else set())
        run_task(name, folder, have=have)
        return time.monotonic() - started


def main() -> None:
    """Run tasks, each in a fresh environment; exit code 1 where one takes longer than a person has."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("tasks", nargs="*", choices=[[], *TASKS], help=f"of {', '.join(TASKS)}")
    took = {name: first_hour(name) for name in parser.parse_args().tasks or TASKS}
    for name, seconds in took.items():
        print(f"{name}: {seconds / 60:.1f} min of {MINUTES}")
    sys.exit(int(any(seconds > 60 * MINUTES for seconds in took.values())))


if __name__ == "__main__":
    main()
