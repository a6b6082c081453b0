"""One table of knobs: what derives from it agrees, and few modules act on a knob's values."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from dataclasses import fields
from enum import StrEnum
from pathlib import Path

import pytest

import normgen
from normgen import knobs
from normgen.errors import UsageError
from normgen.knobs import KNOBS, TABLE, ColumnWay
from normgen.records.winners import read, shipped_folder
from normgen.schedule.schedule import Schedule

PACKAGE = Path(normgen.__file__).parent
ENUMS = {c.__name__: c for c in vars(knobs).values() if isinstance(c, type) and issubclass(c, StrEnum)}
MOST_MODULES = 2  # outside schedule/, that compare the values of one knob


def test_the_table_lists_the_fields_of_a_schedule_with_their_plain_values() -> None:
    assert [(f.name, f.default) for f in fields(Schedule)] == [(k.name, k.plain) for k in TABLE]
    for knob in TABLE:
        assert {knob.plain, *knob.forward, *knob.backward} <= set(knob.values), knob.name
        assert {*knob.words, *knob.least_arch} - {""} <= set(map(str, knob.values)), knob.name


@pytest.mark.parametrize("knob", TABLE, ids=lambda k: k.name)
def test_a_schedule_with_an_unknown_value_cannot_be_built(knob: knobs.Knob) -> None:
    with pytest.raises(UsageError, match=f"knob '{knob.name}' takes one of"):
        Schedule(**{knob.name: "typo"})


def test_texts_become_values_and_a_new_knob_would_rename_nothing() -> None:
    schedule = Schedule(**{"hold": "registers", "copy": "bulk"})  # type: ignore[arg-type]
    assert schedule.hold is knobs.Hold.REGISTERS
    assert json.loads(json.dumps(schedule.chosen)) == {"hold": "registers", "copy": "bulk"}
    assert schedule.key == Schedule(**schedule.chosen).key != Schedule().key


def compared(file: Path) -> set[str]:
    """The enums of knobs whose members stand in a comparison, a match or a table's key of the module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        elif isinstance(node, ast.Dict):
            operands = [key for key in node.keys if key is not None]
        for part in (p for operand in operands for p in ast.walk(operand)):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in ENUMS:
                found.add(part.value.id)
    return found


def test_the_values_of_a_knob_are_compared_in_at_most_two_modules_outside_of_schedule() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.relative_to(PACKAGE).parts[0] not in ("schedule", "knobs.py"):
            for name in compared(file):
                places[name].append(str(file.relative_to(PACKAGE)))
    assert {name: where for name, where in places.items() if len(where) > MOST_MODULES} == {}


def test_no_knob_is_compared_with_a_text() -> None:
    """A text would slip past the test above, and past the type checker."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr in KNOBS:
                texts = [c for c in node.comparators if isinstance(c, ast.Constant) and isinstance(c.value, str)]
                assert not texts, f"{file.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"


def test_the_schema_of_records_lists_the_knobs() -> None:
    schema = json.loads((PACKAGE / "records" / "schema.json").read_text(encoding="utf-8"))
    listed = schema["properties"]["schedule"]["properties"]
    assert listed == {k.name: {"enum": list(k.values)} for k in TABLE}


def test_what_is_taught_is_searched_for_nobody_and_won_by_nobody() -> None:
    """A value that wins a record is a reason to search it."""
    records = [r for file in sorted(shipped_folder().glob("*.jsonl")) for r in read(file).records]
    assert len(records) > 200
    for knob in TABLE:
        assert knob.taught <= set(knob.values) - {knob.plain, *knob.forward, *knob.backward}, knob.name
        assert not knob.taught & {getattr(record.schedule, knob.name) for record in records}, knob.name
    assert ColumnWay.SHARED_ATOMIC in KNOBS["columns"].taught


def test_a_value_of_an_earlier_version_is_refused_with_what_to_take_instead() -> None:
    for knob in TABLE:
        for value in knob.gone:
            assert value not in knob.values
            with pytest.raises(UsageError, match=f"'{knob.name}' takes one of") as refused:
                Schedule(**{knob.name: value})
            assert f"{knob.name}={value} was taken out: use {knob.gone[value]}" in str(refused.value)
    assert KNOBS["columns"].gone
