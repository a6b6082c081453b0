"""docs/api.md has every public name, as it is when it is imported."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

import normgen
from normgen.report.api import PACKAGES, _file, api_part, public_names
from normgen.report.readme import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
THERE = [package for package in PACKAGES if _file(package).is_file()]


@pytest.mark.parametrize("package", THERE)
def test_every_public_name_is_on_the_page(package: str) -> None:
    section = PAGE.partition(f"## {package}\n")[2].partition("\n## ")[0]
    for name in public_names(package):
        is_error = name.endswith("Error")
        assert (f"| `{name}` |" if is_error else f"### {package}.{name}\n") in section or name == "TABLE", name


def test_names_signatures_and_docstrings_are_those_of_the_imported_package() -> None:
    assert public_names("normgen") == sorted(normgen.__all__) == list(normgen.__all__)
    page = api_part(ROOT)
    for name in normgen.__all__:
        found: Any = getattr(normgen, name)
        words = inspect.getdoc(found) or ""
        if inspect.isclass(found) and issubclass(found, normgen.NormgenError):
            assert f"| `{name}` | {words.partition(chr(10) * 2)[0].replace(chr(10), ' ')} | {found.exit_code} |" in page
        else:
            assert words in page, name
        if inspect.isfunction(found):
            shown = page.partition(f"### normgen.{name}\n\n```python\n")[2].partition("```")[0]
            for parameter in inspect.signature(found).parameters:
                assert re.search(rf"^    (\*\*)?{parameter}\b", shown, re.MULTILINE), (name, parameter)


def test_torchs_names_are_those_of_the_imported_package() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    package = importlib.import_module("normgen.torch")
    assert {*public_names("normgen.torch"), *package.TABLE} == set(package.__all__)
