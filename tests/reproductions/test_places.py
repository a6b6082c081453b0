"""M9. Full, read-only and damaged: every folder of normgen, real file systems. No traceback, no result lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.caches import with_runtime
from tests.reproductions.places import FOLDERS, MOUNTED, commands, root_of

UNSHARE = ("unshare", "--map-root-user", "--mount")
# (kind, folder) -> the exit code of each command where it is not 0: without the place, it says so before the work
CODES = {
    **{(kind, "state"): {"tune": 2} for kind in MOUNTED},
    **{(kind, "out"): {"tune": 2, "report": 2, "export": 2} for kind in MOUNTED},
    ("noise", "out"): {"tune": 2, "export": 2},  # the header's name is taken by a file that normgen did not write
}


def can_mount() -> bool:
    script = "mount -t tmpfs tmpfs /mnt"
    return (
        shutil.which("unshare") is not None
        and not subprocess.run([*UNSHARE, "sh", "-c", script], capture_output=True, check=False).returncode
    )


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders as a search left them."""
    root = tmp_path_factory.mktemp("used")
    for folder in FOLDERS:
        (root / folder).mkdir(mode=0o700)
    with_runtime(root / "cache")
    own = {"NORMGEN_STATE_DIR": str(root / "state"), "NORMGEN_CACHE_DIR": str(root / "cache")}
    command = [sys.executable, "-m", "normgen", *commands(root)["tune"]]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **own})
    shutil.copy(root / "state" / "records" / "h200.jsonl", root / "record.jsonl")
    return root


@pytest.fixture(scope="module")
def told(used: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """What the commands said in each place that fails, by KIND,FOLDER: those that this user may make."""
    may = can_mount()
    cases = [f"{kind},{folder}" for kind in (*(MOUNTED if may else ()), "noise") for folder in FOLDERS]
    command = [*(UNSHARE if may else ()), sys.executable, "-m", "tests.reproductions.places", str(used), *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, dict[str, dict[str, Any]]] = {case: {} for case in cases}
    for line in map(json.loads, done.stdout.splitlines()):
        found[line["case"]][line["command"]] = line
    return found


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("kind", [*MOUNTED, "noise"])
def test_m9_a_place_that_fails_costs_a_line_and_no_result(
    kind: str, folder: str, told: dict[str, dict[str, dict[str, Any]]], used: Path
) -> None:
    case = f"{kind},{folder}"
    if case not in told:
        pytest.skip("this user may mount nothing here")
    found, place = told[case], root_of(used, case) / folder
    assert list(found) == list(commands(used))
    expected = CODES.get((kind, folder), {})
    for name, line in found.items():
        assert line["code"] == expected.get(name, 0), line["err"]
        assert "Traceback" not in line["err"]
        if line["code"]:
            assert str(place) in line["err"] or "--output" in line["err"]
    if not found["tune"]["code"]:
        result = json.loads(found["tune"]["out"])
        assert "verified on the CPU executor" in found["tune"]["err"]
        assert result["best"]["outcome"] == "predicted"
        assert result["paths"]["header"]
