"""Packages only; everything else stands in pyproject.toml, which cannot map one extra folder into a found package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["normgen", "normgen.*"]), "normgen.specs"],
    package_dir={"normgen.specs": "specs"},
    package_data={
        "normgen": [
            "py.typed",
            "*/templates/*",
            "cpu/shim/*",
            "cpu/shim/**/*",
            "schedule/devices/*.json",
            "tuning/*.schema.json",
        ],
        "normgen.specs": ["*.toml", "suites/*.toml"],
    },
)
