import time
import tomllib

import pytest

from normgen.errors import SpecError
from normgen.spec.toml_lines import key_lines, parse_toml

TEXT = '''\
title = "a = b"  # c = d

[tensors]
x = { role = "input, fake = 1", "odd key" = 2 }
inner.deep.key = 1
"quoted.dot" = 1

long = """
hidden = 1
[not_a_table]
"""
after = [
  "e = 1",
]
[tensors.more]
z = 1
'''


def test_every_key_and_table_has_its_line() -> None:
    tomllib.loads(TEXT)
    lines = key_lines(TEXT)
    assert lines == {
        ("title",): 1,
        ("tensors",): 3,
        ("tensors", "x"): 4,
        ("tensors", "x", "role"): 4,
        ("tensors", "x", "odd key"): 4,
        ("tensors", "inner"): 5,
        ("tensors", "inner", "deep"): 5,
        ("tensors", "inner", "deep", "key"): 5,
        ("tensors", "quoted.dot"): 6,
        ("tensors", "long"): 8,
        ("tensors", "after"): 12,
        ("tensors", "more"): 15,
        ("tensors", "more", "z"): 16,
    }


@pytest.mark.parametrize(
    "text",
    [
        'a = "[[[[[[[[[[[[[[[[[[" # [[[[[[[[[[[[[[[[[[[[[',
        'a = """\n[[[[[[[[[[[[[[[[[[\\"""[[[[[[[[[[[[[[[[["""\nb = [1.5, 2.5]',
        f"a = '''{'[' * 20}'''\nb = '{'.' * 20}'\n\"{'.' * 20}\" = 1",
        f"a = [{', '.join(['[1.0]'] * 50)}]",
        "\n".join(f"[a{n}]\nb.c = 1" for n in range(50)),
    ],
)
def test_brackets_and_dots_in_strings_and_comments_do_not_nest(text: str) -> None:
    assert parse_toml(text, file="a.toml") == tomllib.loads(text)


@pytest.mark.parametrize("text", ['"""' + '\\"' * 400_000, "'''" + "'" * 5 + '"' * 100_000, '""' * 200_000])
def test_strings_that_never_end_are_refused_at_once(text: str) -> None:
    start = time.monotonic()
    with pytest.raises(SpecError, match="not valid TOML"):
        parse_toml(f"a = {text}", file="a.toml")
    assert time.monotonic() - start < 5
