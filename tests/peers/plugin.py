"""The part of a run that pytest is given (`-p tests.peers.plugin`)."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Generator
from typing import Any

import pytest
import torch

from tests.peers.place import Peer, calls, not_offered, without_gpu

KEPT_BYTES = 2 << 30

_peer: Peer = importlib.import_module(f"tests.peers.{os.environ['NORMGEN_PEER']}").PEER
_has_gpu = torch.cuda.is_available()
# Before any conftest.py of the library is read.
if not _has_gpu:
    without_gpu()
_peer.put_in_place()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not re.search(_peer.only, item.name)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if re.search(_peer.only, item.name)]
    for item in items:
        if reason := _peer.why_left_out(item.name):
            item.add_marker(pytest.mark.skip(reason=f"not offered: {reason}"))
        elif not _has_gpu and _compiles(item):
            item.add_marker(pytest.mark.skip(reason="no CUDA device to compile for"))


def _compiles(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    return "compile" in item.name or (given is not None and given.params.get("use_compile", False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    before = calls.total()
    found = yield
    if _peer.calls_each and calls.total() == before:
        not_offered("nothing of ours is called")
    return found


def pytest_runtest_teardown() -> None:
    """Give back what torch keeps for later: several processes share one GPU's memory."""
    if _has_gpu and torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # of a process of pytest-xdist
    if output is not None:
        output["calls"] = dict(calls)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    calls.update(getattr(node, "workeroutput", {}).get("calls", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    said = ", ".join(f"{name} {count}" for name, count in sorted(calls.items()))
    terminalreporter.write_line(f"calls of ours: {said or 'none: this run shows nothing'}")
