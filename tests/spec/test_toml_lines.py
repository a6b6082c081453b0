import tomllib

from normgen.spec.toml_lines import key_lines

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
