"""Packages and the launcher; all else stands in pyproject.toml, which cannot map extra folders into a found package.

The launcher is optional: without a C compiler or Python's headers the install goes on, and handles check every call.
It keeps to the stable ABI, so that one wheel serves Python 3.11 and later.
"""

import os
import sysconfig

from setuptools import Extension, find_packages, setup

HAS_STABLE_ABI = os.name == "posix" and not sysconfig.get_config_var("Py_GIL_DISABLED")
LAUNCHER = Extension(
    "normgen.python._launcher",
    [f"normgen/python/{name}.c" for name in ("launcher", "launch", "xla")],
    depends=["normgen/python/launch.h"],
    libraries=["dl"],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[LAUNCHER] if HAS_STABLE_ABI else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI else {},
    packages=[*find_packages(include=["normgen", "normgen.*"]), "normgen.specs", "normgen.generated"],
    package_dir={"normgen.specs": "specs", "normgen.generated": "generated"},
    package_data={
        "normgen": [
            "py.typed",
            "python/_launcher.pyi",
            "python/*.c",
            "python/launch.h",
            "*/templates/*.*",
            "codegen/library/*.cuh",
            "measure/chains/*.cu",
            "studies/*.cu",
            "cpu/shim/*",
            "cpu/shim/**/*",
            "cost/devices/*.json",
            "choice/ranker.json",
            "records/schema.json",
        ],
        "normgen.specs": ["*.toml", "presets/*.toml", "suites/*.toml", "ladders/*.toml", "ladders/steps/*.toml"],
        # Of generated/evidence what `normgen ladder` shows without a GPU: nothing reads the rest unless it is named.
        "normgen.generated": [
            "*.cu",
            "records/*.jsonl",
            "sweeps/*.jsonl.xz",
            "frozen/*",
            "trials/*.jsonl.xz",
            "evidence/ladder_*.json",
        ],
    },
)
