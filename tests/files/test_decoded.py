"""JSON and xz from outside: what is wrong with it is a ValueError."""

from __future__ import annotations

import lzma

import pytest

from normgen.files import decoded
from normgen.files.decoded import parse_json, unpacked


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "",
        "[" * 100_000,
        "1" + "0" * 5000,
        "1" + "0" * 400,  # float() of it overflows
        '{"a": ' + "[" * 700 + "]" * 700 + "}",  # json reads it, and whatever walks it recurs too deeply
        r'{"a": "\ud800"}',  # no text that can be written again
        b"\x00\xff\xfe",
        b"\xff\xfe\x00",
    ],
)
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_what_json_says_is_there_whole() -> None:
    assert parse_json(r'{"a": "\ud83d\ude00\u00e9", "b": [NaN, 12345678901234567890]}')["a"] == "\U0001f600\u00e9"
    assert parse_json(("[" + "[1]," * 500 + "[2]]").encode())[-1] == [2], "many lists are no deep ones"


def test_a_plain_file_and_an_xz_file_hold_the_same_bytes() -> None:
    assert unpacked(b"lines\n") == unpacked(lzma.compress(b"lines\n")) == b"lines\n"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda data: data[:-20], "cut off"),
        (lambda data: data[:8], "cut off"),
        (lambda data: data[:30] + b"\xff" * 8 + data[38:], "damaged xz"),
    ],
)
def test_a_damaged_xz_file_says_what_is_wrong(damage: object, complaint: str) -> None:
    assert callable(damage)
    with pytest.raises(ValueError, match=complaint):
        unpacked(damage(lzma.compress(bytes(range(256)) * 100)))


def test_what_grows_beyond_the_memory_is_refused_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded, "LARGEST_UNPACKED", 1 << 20)
    assert len(unpacked(lzma.compress(bytes(1 << 20)))) == 1 << 20
    with pytest.raises(ValueError, match="more than 1 MiB when unpacked"):
        unpacked(lzma.compress(bytes((1 << 20) + 1)))
