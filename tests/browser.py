"""A headless Chromium for tests of pages: what became of a document, and what it said on the console."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"none of {', '.join(NAMES)} is installed (apt-get install chromium)"
)
# What a test asks for stands in the page as JSON when its script has run.
PROBE = (
    "<script>(async () => {{ {script} }})().then((found) => "
    "{{ document.documentElement.dataset.probe = JSON.stringify(found); }});</script></body>"
)


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What a browser made of a page: its document and the lines of its console."""

    dom: str
    console: tuple[str, ...]
    probe: Any


class Root(HTMLParser):
    """The attributes of the html element."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str | None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "html":
            self.found = dict(attrs)


def command(url: str, *options: str, folder: Path, width: int = 1280) -> list[str]:
    """No other host than this machine is found: a request to one is a message on the console."""
    return [
        BROWSER or "", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
        f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", f"--window-size={width},1000",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", *options, url,
    ]  # fmt: skip


def console_of(log: str) -> tuple[str, ...]:
    return tuple(line for line in log.splitlines() if "CONSOLE" in line)


def visited(url: str, *, folder: Path, width: int = 1280, budget_ms: int = 2000) -> Visit:
    """Load a page whose probe has run when `budget_ms` of virtual time are over."""
    line = command(url, f"--virtual-time-budget={budget_ms}", "--dump-dom", folder=folder, width=width)
    home = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env=home)
    assert done.returncode == 0, done.stderr
    root = Root()
    root.feed(done.stdout)
    probe = json.loads(root.found.get("data-probe") or "null")
    return Visit(dom=done.stdout, console=console_of(done.stderr), probe=probe)


def answered(url: str, answers: queue.Queue[Any], *, folder: Path, width: int = 1280, timeout_s: float = 60) -> Visit:
    """Open a page that sends what it found to its server, which puts it into `answers`; then close the browser."""
    log = folder / "browser.log"
    home = {**os.environ, "HOME": str(folder)}
    line = command(url, "--remote-debugging-port=0", folder=folder, width=width)
    with log.open("w") as stderr, subprocess.Popen(line, stdout=stderr, stderr=stderr, env=home) as running:
        try:
            probe = answers.get(timeout=timeout_s)
        finally:
            running.terminate()
    return Visit(dom="", console=console_of(log.read_text()), probe=probe)
