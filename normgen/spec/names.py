"""Which names a spec may give to tensors, scalars and formulas: what a formula and a call of a kernel can name.

Names of C++, CUDA and the emitted kernels are free: codegen/spelling.py keeps them apart in the text.
"""

from __future__ import annotations

import keyword
import re

from normgen.spec.functions import CONSTANTS, FUNCTIONS


def _words(text: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(text.split(), reason)


# `sum`, `mean` and `total` are missing: specs name their statistics so, and a call is told from a name by its brackets.
RESERVED: dict[str, str] = {
    **dict.fromkeys(keyword.kwlist, "it is a keyword of Python, whose syntax formulas have"),
    **{name: f"it is {words.split(';')[0]}" for name, words in CONSTANTS.items()},
    **dict.fromkeys(FUNCTIONS.keys() - {"sum", "mean", "total"}, "it is a function of the formula language"),
    **_words("stream", "a call of a kernel takes its stream under this name"),
}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
LONGEST_NAME = 40


def refusal(name: str) -> str | None:
    """The rule that `name` breaks, or None when a spec may use it."""
    if not _NAME.fullmatch(name):
        return "a name is letters, digits and single inner underscores, and starts with a letter"
    if len(name) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} characters"
    if name in RESERVED:
        return f"the name '{name}' is reserved: {RESERVED[name]}"
    return None
