"""The part of a run that pytest is given (`-p tests.peers.plugin`)."""

from __future__ import annotations

import importlib
import os

import pytest
import torch

from tests.peers.place import Peer, calls, without_gpu

_peer: Peer = importlib.import_module(f"tests.peers.{os.environ['NORMGEN_PEER']}").PEER
# Before any conftest.py of the library is read.
if not torch.cuda.is_available():
    without_gpu()
_peer.put_in_place()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _peer.why_left_out(item.name):
            item.add_marker(pytest.mark.skip(reason=f"not offered: {reason}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    said = ", ".join(f"{name} {count}" for name, count in sorted(calls.items()))
    terminalreporter.write_line(f"calls of ours: {said or 'none: this run shows nothing'}")
