"""The pages for users, run: their files, commands and programs in order, in one folder.

A block says in a comment in front of it what it needs: `<!-- needs: torch -->` (a library), `<!-- needs: nvcc -->`,
`<!-- needs: gpu -->`; `<!-- run: by NAME -->` says who else runs it, and `<!-- file: NAME -->` that it is a file.

`python -m tests.docs.pages README.md docs/tutorial.md` runs what needs nothing, with the `normgen` on the path: what a
release does with an installed package.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:^<!-- (\w+): ([^>]*?) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"sh", "python", "toml", "cpp", "cuda", "text", "diff"}
NEEDS = {"gpu", "nvcc", "torch", "transformers", "jax"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block; `line` is that of its first line in the page."""

    page: str
    line: int
    language: str
    text: str
    needs: str = ""
    file: str = ""
    run_by: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page. Raises ValueError for a comment or a language that is not known."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        key, value, language, content = match.groups()
        line = text.count("\n", 0, match.start(4)) + 1
        if language not in LANGUAGES:
            raise ValueError(f"{page.name}:{line}: unknown language {language!r}")
        if key == "needs" and value not in NEEDS:
            raise ValueError(f"{page.name}:{line}: unknown need {value!r}")
        marks = {"needs": "needs", "file": "file", "run": "run_by"}
        given = {marks[key]: value} if key in marks else {}
        yield Block(page=page.name, line=line, language=language, text=content, **given)


def commands(block: Block) -> list[str]:
    """The command lines of a shell block, without comments."""
    lines = (line.partition("  #")[0].strip() for line in block.text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class Folder:
    """A folder in which pages are run, with caches of its own where none are given."""

    def __init__(self, path: Path, python: str, environment: Mapping[str, str]) -> None:
        self.path, self.python = path, python
        scripts = path / "bin"
        scripts.mkdir(exist_ok=True)
        command = scripts / "normgen"
        command.write_text(f'#!/bin/sh\nexec {python} -m normgen "$@"\n')
        command.chmod(0o755)
        self.environment = {**environment, "PATH": f"{scripts}:{environment['PATH']}"}
        self._programs: list[str] = []

    def run(self, block: Block) -> None:
        """Write a file, run commands, or a program after those of the same page. Raises AssertionError with output."""
        if block.file:
            (self.path / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            for line in commands(block):
                self._run(block, ["bash", "-euo", "pipefail", "-c", line])
        elif block.language == "python":
            self._programs.append(block.text)
            program = self.path / f"{Path(block.page).stem}_{block.line}.py"
            program.write_text("\n".join(self._programs), encoding="utf-8")
            self._run(block, [self.python, program.name])

    def _run(self, block: Block, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.path, env=self.environment, capture_output=True, text=True, check=False)
        told = f"{block}: {command[-1]}\nexit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert done.returncode == 0, told


def run_page(page: Path, folder: Folder, *, have: Collection[str] = (), leave: Collection[str] = ()) -> int:
    """Run the blocks of a page that need nothing, or what we have; how many ran. `leave` has parts of commands."""
    ran = 0
    for block in blocks(page):
        if block.run_by or (block.needs and block.needs not in have) or any(part in block.text for part in leave):
            continue
        started = time.monotonic()
        folder.run(block)
        ran += 1
        print(f"{time.monotonic() - started:6.1f} s  {block}  {block.text.splitlines()[0]}", file=sys.stderr)
    return ran


def main() -> None:
    """Run pages with the Python that runs this, in a temporary folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the Python that has normgen")
    parser.add_argument("--have", nargs="*", default=(), help=f"of {', '.join(sorted(NEEDS))}")
    asked = parser.parse_args()
    for page in asked.pages:
        with tempfile.TemporaryDirectory() as folder:
            run_page(page, Folder(Path(folder), asked.python, dict(os.environ)), have=asked.have)


if __name__ == "__main__":
    main()
