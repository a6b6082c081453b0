"""Dataclasses as plain values and back: what is written, what is refused and where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normgen.errors import UsageError
from normgen.files.plain import BESIDE, made, names_of, plain, rounded, spelled


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Point:
    x: float
    y: float = 0.0


def half(text: str) -> int:
    if not text.isdecimal():
        raise UsageError("a half is a number", received=text)
    return 2 * int(text)


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: str
    point: Point = field(metadata=BESIDE)
    colour: Colour = Colour.RED
    corners: tuple[Point, ...] = ()
    pair: tuple[int, str] = (0, "")
    names: Mapping[str, int | None] = field(default_factory=dict)
    counts: Mapping[int, float] = field(default_factory=dict)
    best: Point | None = None
    file: Path = Path()
    anything: Any = None
    is_round: bool = False
    twice: int = field(default=0, metadata=spelled(lambda value: str(value // 2), half))

    ALSO = ("area",)

    @property
    def area(self) -> float:
        return self.point.x * self.point.y


SHAPE = Shape(
    name="a",
    point=Point(x=1.5, y=2.0),
    colour=Colour.BLUE,
    corners=(Point(x=0.0), Point(x=1.0)),
    pair=(3, "b"),
    names={"a": 1, "b": None},
    counts={4: 0.25},
    best=Point(x=7.0),
    file=Path("a/b"),
    anything=[1, {"k": None}],
    is_round=True,
    twice=6,
)
PLAIN = {
    **{"name": "a", "x": 1.5, "y": 2.0, "colour": "blue", "corners": [{"x": 0.0, "y": 0.0}, {"x": 1.0, "y": 0.0}]},
    **{"pair": [3, "b"], "names": {"a": 1, "b": None}, "counts": {"4": 0.25}, "best": {"x": 7.0, "y": 0.0}},
    **{"file": "a/b", "anything": [1, {"k": None}], "is_round": True, "twice": "3", "area": 3.0},
}


def test_every_field_is_written_and_read_back() -> None:
    assert plain(SHAPE) == PLAIN
    assert list(plain(SHAPE)) == list(PLAIN)
    assert made(Shape, json.loads(json.dumps(PLAIN))) == SHAPE


def test_what_has_a_default_may_be_left_out_and_integers_stand_for_numbers() -> None:
    assert made(Shape, {"name": "a", "x": 1}) == Shape(name="a", point=Point(x=1.0))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"name": 1}, "name: is a text, not '1'"),
        ({"x": "1"}, "x: is a number, not '1'"),
        ({"x": True}, "x: is a number"),
        ({"x": 10**400}, "x: int too large to convert to float"),
        ({"colour": "green"}, "colour: 'green' is not a valid Colour"),
        ({"corners": {}}, "corners: is a list"),
        ({"corners": [{"x": 0.0}, {"y": 0.0}]}, r"corners\[1\]: needs 'x'"),
        ({"corners": [{"x": 0.0, "z": 0.0}]}, r"corners\[0\]: knows no 'z'"),
        ({"corners": [1]}, r"corners\[0\]: is a table"),
        ({"pair": [1]}, "pair: is a list of 2"),
        ({"names": {"a": "b"}}, "names.a: is a whole number"),
        ({"names": []}, "names: is a table"),
        ({"counts": {"k": 1.0}}, "counts: invalid literal"),
        ({"best": 3}, "best: is a table"),
        ({"is_round": 1}, "is_round: is true or false"),
        ({"twice": "x"}, "twice: a half is a number: x"),
        ({"other": 1}, "knows no 'other'"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(damage: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(Shape, {**PLAIN, **damage})


@given(st.floats())
def test_rounding_keeps_five_digits_and_no_nan(value: float) -> None:
    (found,) = rounded({"a": [value]})["a"]
    assert found is None if not math.isfinite(value) else found == float(f"{value:.5g}")


def test_the_names_of_a_class_are_those_it_is_written_under() -> None:
    assert names_of(Shape) == {name for name in PLAIN if name != "area"}
