"""`python -m tests.peers NAME FOLDER [pytest's arguments]`: see the package's docstring."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("apex", "flashinfer", "liger", "quack", "quack_products", "torch_products")
USAGE = f"usage: python -m tests.peers {{{','.join(LIBRARIES)}}} FOLDER [arguments of pytest]"


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in LIBRARIES:
        print(USAGE, file=sys.stderr)
        return 2
    name, *rest = arguments
    if not rest or not Path(rest[0]).is_dir():
        print(f"{USAGE}\n{name}'s tests are read from a checkout of its repository", file=sys.stderr)
        return 2
    folder, rest = Path(rest[0]).resolve(), rest[1:]
    here = Path(__file__).resolve().parents[2]
    peer = importlib.import_module(f"tests.peers.{name}").PEER
    # Ours first: a checkout may have a folder `tests` too. Then the checkout, whose `test` is before Python's own.
    paths = [str(here), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "NORMGEN_PEER": name, "PYTHONPATH": os.pathsep.join(paths)}
    options = ["-p", "tests.peers.plugin", "--import-mode=importlib", "-q", "-o", "addopts=", "-W", "ignore"]
    options += [] if peer.has_conftest else ["--noconftest"]
    command = [sys.executable, "-P", "-m", "pytest", *options, *peer.files, *rest]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
