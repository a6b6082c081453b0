"""Texts of others thrown at every text field: none becomes code, a path outside the folder, or a raw command line.

A normal run takes a few examples of each of the seven properties, `pytest --full` 100,000 in all.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.errors import NormgenError, SpecError, UsageError
from normgen.export import Header, export_record, headers_of
from normgen.files.names import LONGEST, NamePart, escaped, is_plain, name_part, plain_path
from normgen.records.questions import tune_command
from normgen.records.record import parse_line
from normgen.spec.reader import load, parse
from normgen.suites.suite import load_suite, parse_suite
from tests.export.cases import record
from tests.records.test_verified import VERIFIED
from tests.samples import sized

WHOLE = 14_286  # times seven
PLANTED = "planted"  # no spec, record or generator says it
FRAGMENTS = [
    *("\n", "\r", "\r\n", "\f", "\v", "\x00", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u2029", "\t"),
    *("#", "//", "/*", "*/", "\\", "\\\n", "??/", "??/\n", '"', "'", '"""', "`", "$(touch planted)", ";", "{{ 1 }}"),
    *("../", "/", "..", "~", "C:\\", "\ud800", "\udc80", "\u202e", "\u2066", "\u200b", "\ufeff", "é", "𝒙"),
    *("#include <planted>", "static int planted = 1;", "int planted;", "%s%n", "x" * 5000),
]
ANY = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=6)), min_size=1, max_size=8).map("".join)
# What might end a comment or a string, then code, then anything.
PLANT = st.tuples(st.sampled_from(FRAGMENTS[:25]), st.just("static int planted = 1;"), ANY).map("".join)
TEXT = st.one_of(ANY, PLANT)
SPEC = """
name = {name}
summary = {summary}
paper = {paper}
[tensors]
x = {{ role = "input", doc = {doc} }}
w = {{ role = "parameter", optional = true, absent = {absent}, doc = "w" }}
m = {{ role = "statistic", optional = true }}
y = {{ role = "output", follows = {follows} }}
[formulas]
m = "mean(x)"
y = {formula}
"""
CLEAN = {
    **{"name": "clean", "summary": "A norm.", "paper": "Somebody 2020", "doc": "a row", "absent": "1"},
    **{"follows": "x", "formula": "(x - m) * w"},
}
SHOWN = ("summary", "paper", "doc")  # what a header may show and the compiler never sees
SUITE = "name = {name}\nsummary = {summary}\n[[entry]]\nop = {op}\nshape = {shape}\ndtype = {dtype}\n"


def examples(normal: int) -> settings:
    return settings(max_examples=sized(normal, WHOLE), deadline=None)


def toml(text: str) -> str:
    """A TOML string: a half of a character stands raw, as TOML has no escape for it."""
    escapes = json.dumps(text, ensure_ascii=True)
    return re.sub(r"\\u(d[89a-f]..)", lambda half: chr(int(half[1], 16)), escapes)


def spec_text(**changed: str) -> str:
    return SPEC.format(**{slot: toml(text) for slot, text in {**CLEAN, **changed}.items()})


def code_of(text: str) -> str:
    """What a compiler reads: trigraphs replaced, lines joined, comments and empty lines gone."""
    joined = re.sub(r"\\[ \t\f\v]*(\r\n|\n|\r)", "", text.replace("??/", "\\"))
    marks = r'"(?:\\.|[^"\\\n])*"' + r"|//[^\n\r\f\v\x85\u2028\u2029]*|/\*.*?\*/"
    code = re.sub(marks, lambda m: m[0] if m[0][0] == '"' else " ", joined, flags=re.DOTALL)
    return "\n".join(line.strip() for line in code.split("\n") if line.strip())


def header_code(text: str) -> str:
    spec = parse(text)
    (header,) = headers_of([record(spec, shape="8x96")], spec=spec)
    return code_of(header.text)


@cache
def clean_code() -> str:
    return header_code(spec_text())


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of the texts in a record, and of its keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))
    elif isinstance(value, str):
        yield path


RECORD = replace(record(shape="8x96", measured=True), verified=VERIFIED)
PLAIN = json.loads(RECORD.line())
FREE = [("device", "name"), ("versions", "nvrtc"), ("versions", "normgen"), ("command",), ("created",), ("reason",)]


def test_the_oracle_sees_what_a_compiler_would_read() -> None:
    for text in ("// a\nplanted", "// a\\\n b\nplanted", "/* a */ planted", '"//" planted', "// a\rplanted"):
        assert PLANTED in code_of(text)
    for text in ("// planted", "// a\\\nplanted", "// a??/\nplanted", "/* \n planted */", "// a\\ \nplanted"):
        assert PLANTED not in code_of(text)


@examples(25)
@given(st.sampled_from(SHOWN), TEXT)
def test_no_text_that_a_spec_shows_becomes_code(slot: str, text: str) -> None:
    try:
        code = header_code(spec_text(**{slot: text}))
    except SpecError:
        return
    assert code == clean_code()


@examples(60)
@given(st.sampled_from(["absent", "formula"]), TEXT)
def test_a_formula_is_understood_or_refused(slot: str, text: str) -> None:
    try:
        code = header_code(spec_text(**{slot: CLEAN[slot] + text}))
    except SpecError:
        return
    assert PLANTED not in code


@examples(100)
@given(st.sampled_from(["name", "follows"]), TEXT)
def test_a_name_of_a_spec_is_plain_or_refused(slot: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(spec_text(**{slot: "Q" + text}))
    assert is_plain(escaped(str(caught.value)), besides="\n")


@examples(60)
@given(st.one_of(st.sampled_from(FREE), st.sampled_from(sorted(leaves(PLAIN), key=str))), TEXT)
def test_no_text_of_a_record_becomes_code_or_leaves_the_folder(path: tuple[Any, ...], text: str) -> None:
    changed = json.loads(json.dumps(PLAIN))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = text
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "deep" / "er" / "output"
        folder.mkdir(parents=True)
        try:
            with patch.object(Header, "check"):  # 0.8 s of NVRTC; what a compiler reads is told by code_of
                header = export_record(parse_line(json.dumps(changed)), folder)
        except (NormgenError, ValueError):
            header = None
        files = [file for file in Path(name).rglob("*") if file.is_file()]
        assert files == ([header] if header else [])
        if header:
            assert header.parent == folder
            assert PLANTED not in code_of(header.read_text(encoding="utf-8"))


@examples(200)
@given(st.sampled_from([NamePart.OP, NamePart.GPU, NamePart.SUITE]), TEXT)
def test_a_name_that_becomes_a_path_is_made_of_safe_characters(part: NamePart, text: str) -> None:
    try:
        name = name_part(part, text)
    except UsageError:
        return
    assert re.fullmatch(r"[a-z0-9_][a-z0-9_-]*", name)
    assert len(name) <= LONGEST


@examples(100)
@given(st.sampled_from(["name", "summary", "op", "shape", "dtype"]), TEXT)
def test_a_suite_holds_plain_texts_or_is_refused(slot: str, text: str) -> None:
    plain = {"name": "few", "summary": "A few.", "op": "layernorm", "shape": "8x96", "dtype": "f32"}
    try:
        suite = parse_suite(SUITE.format(**{key: toml(value) for key, value in {**plain, slot: text}.items()}))
    except NormgenError:
        return
    assert is_plain(suite.name + suite.summary, besides="\n\t")
    assert all(is_plain(entry.label) for entry in suite.entries)


@examples(100)
@given(TEXT)
def test_no_command_line_carries_a_path_that_is_not_plain(text: str) -> None:
    if is_plain(text):
        plain_path(text)
        command = tune_command(text, parsed_problem())
        assert is_plain(command)
        assert text in shlex.split(command)
        return
    for read in (load, load_suite):
        with pytest.raises(UsageError, match="a path has no control characters") as caught:
            read(Path(f"{text}.toml"))
        assert is_plain(str(caught.value), besides="\n")


@cache
def parsed_problem() -> Any:
    from normgen.program.source import problem_for

    return problem_for(parse(spec_text()), shape="8x96")
