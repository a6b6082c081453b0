"""Mutants of the package's own code: each is put into a copy of the tree, where the tests that should see it run."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutation.kernel_run import Progress, WrongBaseline, scratch_folder
from tests.mutation.package_changes import Change

ROOT = Path(__file__).parents[2]
COPIED = ("normgen", "tests", "specs", "generated", "docs", "pyproject.toml", "setup.py", "README.md")
LIMIT_S = 600.0
PASSED = 0


class StaleChange(Exception):
    """The text that a mutant changes does not stand in its file, or stands there more than once."""


@dataclass(frozen=True, kw_only=True)
class PackageResult:
    """`outcome`: killed, killed_by_hang or survived; `detail`: the last line that the tests printed."""

    change: Change
    outcome: str
    detail: str = ""

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        change = self.change
        told = {"outcome": self.outcome, "detail": self.detail}
        return {"file": change.file, "old": change.old, "new": change.new, "tests": list(change.tests), **told}


@dataclass(frozen=True)
class Tree:
    """A copy of the repository in which one mutant at a time is tested; nothing starts after `end`."""

    folder: Path
    cache: Path
    processes: set[subprocess.Popen[str]] = field(default_factory=set, compare=False)
    ended: threading.Event = field(default_factory=threading.Event, compare=False)
    starting: threading.Lock = field(default_factory=threading.Lock, compare=False)

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        path = self.folder / "normgen" / change.file
        kept = path.with_name(path.name + ".kept")
        shutil.copy2(path, kept)
        try:
            path.write_text(changed_text(change, path), encoding="utf-8")
            yield
        finally:
            os.replace(kept, path)  # with its old time, so that its compiled file is the right one again

    def run(self, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """The exit code of pytest, None if it did not end, and its last line."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        with self.starting:
            if self.ended.is_set():
                return None, "interrupted"
            process = subprocess.Popen(
                [*command, "--hypothesis-seed=0", *tests],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(self.folder), "NORMGEN_CACHE_DIR": str(self.cache)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self.processes.add(process)
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None, f"no end after {limit_s:g} s"
        finally:
            self.processes.discard(process)
        return process.returncode, (printed.strip().splitlines() or [""])[-1]

    def end(self) -> None:
        """Kill whatever runs here, and let nothing start."""
        with self.starting:
            self.ended.set()
        self.kill()

    def kill(self) -> None:
        """Kill whatever runs here, with its children."""
        for process in list(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def changed_text(change: Change, path: Path) -> str:
    """The file with the change in it. Raises StaleChange."""
    text = path.read_text(encoding="utf-8")
    if text.count(change.old) != 1:
        raise StaleChange(f"{change.name}: the old text stands {text.count(change.old)} times in the file, not once")
    return text.replace(change.old, change.new)


def copied_tree(folder: Path, cache: Path) -> Tree:
    folder.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        elif source.exists():
            shutil.copy2(source, folder / name)
    return Tree(folder, cache)


def tried(
    changes: Sequence[Change], *, jobs: int = 1, limit_s: float = LIMIT_S, progress: Progress = lambda *_: None
) -> list[PackageResult]:
    """The result of every change, in their order. Raises StaleChange, WrongBaseline."""
    for change in changes:
        changed_text(change, ROOT / "normgen" / change.file)
    with scratch_folder() as scratch:
        trees = [copied_tree(scratch / f"tree_{number}", scratch / "cache") for number in range(jobs)]
        free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for tree in trees:
            free.put(tree)
        done: list[str] = []

        def in_a_tree(work: Callable[[Tree], Any], name: str, total: int) -> Any:
            tree = free.get()
            try:
                found = work(tree)
            finally:
                free.put(tree)
            done.append(name)
            progress(len(done), total, f"{name}: {getattr(found, 'outcome', 'unchanged, passes')}")
            return found

        suites = list(dict.fromkeys(change.tests for change in changes))
        total = len(suites) + len(changes)
        pool = ThreadPoolExecutor(max_workers=jobs)
        try:
            unchanged = [
                pool.submit(in_a_tree, lambda t, s=s: _passes(t, s, limit_s), " ".join(s), total) for s in suites
            ]
            mutants = [pool.submit(in_a_tree, lambda t, c=c: _tried(t, c, limit_s), c.name, total) for c in changes]
            for future in unchanged:  # mutants need not wait for them, nor mean anything if one fails
                future.result()
            return [future.result() for future in mutants]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for tree in trees:
                tree.end()
            pool.shutdown(wait=True)


def _passes(tree: Tree, tests: tuple[str, ...], limit_s: float) -> None:
    code, last = tree.run(tests, limit_s)
    if code != PASSED:
        raise WrongBaseline(f"{' '.join(tests)}, with nothing changed: {last}")


def _tried(tree: Tree, change: Change, limit_s: float) -> PackageResult:
    with tree.changed(change):
        code, last = tree.run(change.tests, limit_s)
    outcome = "killed_by_hang" if code is None else "survived" if code == PASSED else "killed"
    return PackageResult(change=change, outcome=outcome, detail=last)


def package_report(results: Sequence[PackageResult]) -> str:
    """Counts by file, every survivor with its change, and the sums."""
    files = sorted({r.change.file for r in results})
    width = max(map(len, files), default=0)
    lines = [f"{'file':{width}}  {'made':>6}  {'killed':>6}  {'hang':>6}  {'survived':>8}"]
    for file in files:
        own = [r.outcome for r in results if r.change.file == file]
        counts = (len(own), own.count("killed"), own.count("killed_by_hang"), own.count("survived"))
        lines.append(
            f"{file:{width}}  " + "  ".join(f"{n or '.':>{w}}" for n, w in zip(counts, (6, 6, 6, 8), strict=True))
        )
    survived = [r for r in results if r.outcome == "survived"]
    lines += ["", *(f"survived: {r.change.file}\n- {r.change.old.strip()}\n+ {r.change.new.strip()}" for r in survived)]
    lines += ["", f"{len(results)} mutants of the package; killed: {len(results) - len(survived)}"]
    return "\n".join(lines)
