"""Packages only; everything else stands in pyproject.toml, which cannot map extra folders into a found package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["normgen", "normgen.*"]), "normgen.specs", "normgen.generated"],
    package_dir={"normgen.specs": "specs", "normgen.generated": "generated"},
    package_data={
        "normgen": [
            "py.typed",
            "*/templates/*.*",
            "codegen/library/*.cuh",
            "cpu/shim/*",
            "cpu/shim/**/*",
            "cost/devices/*.json",
            "records/schema.json",
        ],
        "normgen.specs": ["*.toml", "suites/*.toml", "ladders/*.toml", "ladders/steps/*.toml"],
        # Without generated/evidence: 0.7 MB that nothing reads unless it is named.
        "normgen.generated": ["*.cu", "records/*.jsonl"],
    },
)
