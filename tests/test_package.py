"""The built package: what the source archive and the wheel hold, and what an install without a clone can do."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import normgen

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("normgen", "specs", "generated", "setup.py", "pyproject.toml", "README.md", "LICENSE")
EVIDENCE = ROOT / "generated" / "evidence"
SHIPPED_EVIDENCE = "ladder_*.json"  # what `normgen ladder` shows without a GPU
LAUNCHER = "normgen/python/_launcher.abi3.so"
INCLUDE = Path(sysconfig.get_paths()["include"])
CAN_BUILD = (shutil.which("gcc") or shutil.which("cc")) is not None and (INCLUDE / "Python.h").is_file()
REQUIRED = 77  # of setuptools: the version pyproject.toml asks for
DATA = sorted(
    file.relative_to(ROOT)
    for folder in ("normgen", "specs", "generated")
    for file in (ROOT / folder).rglob("*")
    if file.is_file()
    and file.suffix not in (".pyc", ".so")
    and (EVIDENCE not in file.parents or file.match(SHIPPED_EVIDENCE))
    and not file.name.endswith(".lock")
)


def setuptools_version() -> int:
    """Its first number; 0 where it is not installed."""
    try:
        return int(importlib.metadata.version("setuptools").partition(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


pytestmark = pytest.mark.skipif(
    setuptools_version() < REQUIRED,
    reason=f"a build without a network needs setuptools >= {REQUIRED} here: pip install 'normgen[test]'",
)


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """What a command prints, without this process's import path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=kept | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(what: str, source: Path, folder: Path) -> Path:
    """The archive that build_meta's `build_<what>` makes of a source folder."""
    program = f"from setuptools import build_meta as b; print(b.build_{what}({str(folder)!r}))"
    return folder / run(sys.executable, "-c", program, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist, wheel), the wheel from the unpacked sdist, as `python -m build` makes them."""
    root = tmp_path_factory.mktemp("build")
    source, unpacked = root / "clone", root / "unpacked"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    sdist = built("sdist", source, root)
    with tarfile.open(sdist) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 on
        archive.extractall(unpacked, **safely)  # type: ignore[arg-type]
    return sdist, built("wheel", next(unpacked.iterdir()), root)


@pytest.fixture(scope="module")
def python(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel in it; a .pth file lends it this one's dependencies."""
    root = tmp_path_factory.mktemp("fresh")
    venv.create(root, with_pip=False, symlinks=True)
    python = root / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "-q",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        archives[1],
        cwd=root,
    )
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=root).strip())
    (own / "lent.pth").write_text("".join(f"{entry}\n" for entry in sys.path if entry.endswith("-packages")))
    return python


def test_the_source_archive_holds_every_file_of_the_package(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {str(file) for file in DATA} - held == set()
    folder = "generated/evidence"
    assert {name for name in held if name.startswith(f"{folder}/")} == {f"{folder}/ladder_h200.json"}


def test_the_wheel_holds_every_file_of_the_package_and_no_evidence_but_the_ladders(archives: tuple[Path, Path]) -> None:
    expected = {str(file if file.parts[0] == "normgen" else Path("normgen") / file) for file in DATA}
    for part in (
        "py.typed",
        "cpu/shim/",
        "codegen/library/vec.cuh",
        "measure/chains/around.cu",
        "studies/probes.cu",
        "generated/records/h200.jsonl",
        "specs/suites/",
    ):
        assert any(f"normgen/{part}" in name for name in expected), part
    held = {name for name in zipfile.ZipFile(archives[1]).namelist() if name.startswith("normgen/")}
    assert held - {LAUNCHER} == expected
    assert (LAUNCHER in held) == CAN_BUILD
    assert archives[1].name.endswith("-cp311-abi3-linux_x86_64.whl") or not CAN_BUILD


def test_an_install_without_a_compiler_goes_on_without_the_launcher(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "normgen" / "python").mkdir(parents=True)
    shutil.copy(ROOT / "normgen" / "python" / "launcher.c", tmp_path / "normgen" / "python")
    run(sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "made", cwd=tmp_path, CC="/bin/false")
    assert list(tmp_path.rglob("*.so")) == []


ASKS = """
import json
from pathlib import Path
import normgen
from normgen.device import target
from normgen.program.source import problem_for
from normgen.files.shipped import shipped
from normgen.spec.reader import list_presets, list_specs, load
from normgen.records.winners import lookup

found = lookup(problem_for(load("rmsnorm"), shape="8192x4096", dtype="bf16"), target("h200"))
print(json.dumps({
    "package": normgen.__file__,
    "reason": found.reason,
    "measured": found.record is not None and found.record.measured,
    "headers": sorted(file.name for file in shipped("generated").glob("*.cu")),
    "specs": [load(name).name for name in list_specs()],
    "presets": [load(name).name for name in list_presets()],
}))
"""


def test_an_install_finds_the_tuned_records_the_headers_and_the_specs(python: Path, tmp_path: Path) -> None:
    state = {"NORMGEN_STATE_DIR": str(tmp_path / "state"), "NORMGEN_CACHE_DIR": str(tmp_path / "cache")}
    told = json.loads(run(python, "-c", ASKS, cwd=tmp_path, **state))
    assert python.parent.parent in Path(told["package"]).parents
    assert told["reason"].startswith("tuned for 8192x4096")
    assert told["measured"]
    assert told["headers"] == sorted(file.name for file in (ROOT / "generated").glob("*.cu"))
    assert told["specs"] == sorted(file.stem for file in (ROOT / "specs").glob("*.toml"))
    assert told["presets"] == sorted(file.stem for file in (ROOT / "specs" / "presets").glob("*.toml"))


def test_the_installed_command_works_in_an_empty_folder(python: Path, tmp_path: Path) -> None:
    state = {"NORMGEN_STATE_DIR": str(tmp_path / "state"), "NORMGEN_CACHE_DIR": str(tmp_path / "cache")}
    empty, command = tmp_path / "empty", python.parent / "normgen"
    empty.mkdir()
    assert run(command, "--version", cwd=empty, **state) == f"normgen, version {normgen.__version__}\n"
    assert "__global__" in run(command, "show", "--cuda", "--shape", "8x96", cwd=empty, **state)


def test_the_version_is_said_alike_and_the_changelog_begins_with_it() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert normgen.__version__ == version
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    titles = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert titles[0] in (f"## {version}", "## Unreleased")
    assert f"## {version}" in titles
