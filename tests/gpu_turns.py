"""A test that compares times has the GPU to itself: the other processes of the run wait for it, and it for them.

`@pytest.mark.gpu(alone=True)` asks for that. Such tests come last: one that started between others would wait for those
that run, and all later ones for it. Two locks are needed: with one, tests that share the GPU would follow each
other for ever, and the one that wants it alone would come last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def _held(path: Path, how: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file.fileno(), how)
        yield


@contextlib.contextmanager
def turn(stem: Path, *, alone: bool) -> Iterator[None]:
    """Hold the GPU of the run whose files are `stem`*: with others, or alone once those that hold it are done."""
    with contextlib.ExitStack() as held:
        with _held(stem.with_suffix(".queue"), fcntl.LOCK_EX):
            held.enter_context(_held(stem.with_suffix(".gpu"), fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


def files_of(run: str) -> Path:
    """Of a run whose processes are spread over several GPUs, those of this process's GPU."""
    gpu = "".join(c if c.isalnum() else "-" for c in os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return Path(tempfile.gettempdir()) / f"normgen-tests-{os.getuid()}-{run}-{gpu}"


def _is_alone(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("gpu")
    return mark is not None and bool(mark.kwargs.get("alone"))


class GpuTurns:
    """Under pytest-xdist every test that is marked `gpu` takes a turn; a run of one process needs none."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=_is_alone)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = item.get_closest_marker("gpu")
        run = getattr(item.config, "workerinput", {}).get("testrunuid")
        if mark is None or run is None:
            return (yield)
        with turn(files_of(run), alone=_is_alone(item)):
            return (yield)
