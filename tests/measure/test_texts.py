"""Kernels written by hand are files, whose macros are replaced as the preprocessor would."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from normgen.measure.chains.kernels import text_of

CHAINS = "normgen.measure.chains"


def test_macros_are_whole_words_and_their_values_are_not_read_again() -> None:
    text = text_of(CHAINS, "add_partials.cu", ELEMENT="PARTS", PARTS=7, COLUMNS="c")
    assert "add_partials(PARTS* __restrict__ sums" in text
    assert "constexpr int kParts = 7, kColumns = c;" in text


@pytest.mark.parametrize("package", [CHAINS, "normgen.studies"])
def test_a_file_has_no_python_format_in_it(package: str) -> None:
    files = [file for file in resources.files(package).iterdir() if file.name.endswith(".cu")]
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert text_of(package, file.name) == text
        assert not re.search(r"\{\{|\}\}|\{\w+\}", text), file.name
